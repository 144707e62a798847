"""Simulated time of rounds: devices compute, links carry models, and a deadline leaves slow clients out of a round.

docs/communication.md lists what each method sends.
"""

from fedem_lightning.network.networks import DeviceNetwork, ShiftedExponentialNetwork
from fedem_lightning.network.traffic import Clocks, Network, Traffic, Transmission, check_networks

__all__ = [
    "Clocks",
    "DeviceNetwork",
    "Network",
    "ShiftedExponentialNetwork",
    "Traffic",
    "Transmission",
    "check_networks",
]
