"""Callbacks of the command line; each works with any Trainer."""

from fedem_lightning.run.callbacks.between_rounds import (
    BestRound,
    FinishRoundOnInterrupt,
    MappedCheckpoints,
    RoundCheckpoint,
)
from fedem_lightning.run.callbacks.progress import RoundProgress

__all__ = ["BestRound", "FinishRoundOnInterrupt", "MappedCheckpoints", "RoundCheckpoint", "RoundProgress"]
