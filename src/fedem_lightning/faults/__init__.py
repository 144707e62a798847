"""Faults of clients, which the simulator injects into a run."""

from fedem_lightning.faults.kinds import Faults, LabelFlip, NoAnswer, Scaling, SendNaN, SignFlip

__all__ = ["Faults", "LabelFlip", "NoAnswer", "Scaling", "SendNaN", "SignFlip"]
