"""Simulated time of rounds: devices compute, links carry models, and a deadline leaves slow clients out of a round.

docs/communication.md lists what each method sends.
"""

from fedem_lightning.network.base import Network
from fedem_lightning.network.clocks import Clocks, check_networks
from fedem_lightning.network.devices import DeviceNetwork
from fedem_lightning.network.shifted_exponential import ShiftedExponentialNetwork
from fedem_lightning.network.traffic import Traffic, Transmission

__all__ = [
    "Clocks",
    "DeviceNetwork",
    "Network",
    "ShiftedExponentialNetwork",
    "Traffic",
    "Transmission",
    "check_networks",
]
