"""Faults of clients, which the simulator injects into a run."""

from fedem_lightning.faults.base import Faults
from fedem_lightning.faults.kinds import LabelFlip, NoAnswer, Scaling, SendNaN, SignFlip

__all__ = ["Faults", "LabelFlip", "NoAnswer", "Scaling", "SendNaN", "SignFlip"]
