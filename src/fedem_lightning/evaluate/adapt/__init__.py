"""Adaptation: a client tunes its personal models before they are scored. It follows any algorithm."""

from fedem_lightning.evaluate.adapt.base import Adaptation, Finetune
from fedem_lightning.evaluate.adapt.interpolate import Dapper, Interpolate
from fedem_lightning.evaluate.adapt.knn import KNN

__all__ = ["KNN", "Adaptation", "Dapper", "Finetune", "Interpolate"]
