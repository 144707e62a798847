"""Callbacks of the command line; each works with any Trainer."""

from fedem_lightning.run.callbacks.between_rounds import BestRound as BestRound
from fedem_lightning.run.callbacks.between_rounds import FinishRoundOnInterrupt as FinishRoundOnInterrupt
from fedem_lightning.run.callbacks.between_rounds import MappedCheckpoints as MappedCheckpoints
from fedem_lightning.run.callbacks.between_rounds import RoundCheckpoint as RoundCheckpoint
from fedem_lightning.run.callbacks.progress import RoundProgress as RoundProgress
