"""Callbacks of the command line; each works with any Trainer."""

from fedem_lightning.callbacks.bounds import BoundsDiagnostics
from fedem_lightning.callbacks.checkpoint import MappedCheckpoints, RoundCheckpoint
from fedem_lightning.callbacks.interrupt import FinishRoundOnInterrupt
from fedem_lightning.callbacks.live import LiveFigures
from fedem_lightning.callbacks.progress import RoundProgress

__all__ = [
    "BoundsDiagnostics",
    "FinishRoundOnInterrupt",
    "LiveFigures",
    "MappedCheckpoints",
    "RoundCheckpoint",
    "RoundProgress",
]
