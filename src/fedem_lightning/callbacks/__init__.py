"""Callbacks of the command line; each works with any Trainer."""

from fedem_lightning.callbacks.between_rounds import FinishRoundOnInterrupt, MappedCheckpoints, RoundCheckpoint
from fedem_lightning.callbacks.diagnostics import BoundsDiagnostics
from fedem_lightning.callbacks.progress import LiveFigures, RoundProgress

__all__ = [
    "BoundsDiagnostics",
    "FinishRoundOnInterrupt",
    "LiveFigures",
    "MappedCheckpoints",
    "RoundCheckpoint",
    "RoundProgress",
]
