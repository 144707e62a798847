"""Callbacks of the command line; each works with any Trainer."""

from fedem_lightning.callbacks.between_rounds import MappedCheckpoints, RoundCheckpoint
from fedem_lightning.callbacks.progress import RoundProgress
from fedem_lightning.callbacks.stopping import FinishRoundOnInterrupt

__all__ = ["FinishRoundOnInterrupt", "MappedCheckpoints", "RoundCheckpoint", "RoundProgress"]
