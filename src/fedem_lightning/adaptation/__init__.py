"""Adaptation: a client tunes its personal models before they are scored. It follows any algorithm."""

from fedem_lightning.adaptation.base import Adaptation
from fedem_lightning.adaptation.dapper import Dapper
from fedem_lightning.adaptation.finetune import Finetune
from fedem_lightning.adaptation.interpolate import Interpolate

__all__ = ["Adaptation", "Dapper", "Finetune", "Interpolate"]
