"""Adaptation: a client tunes its personal models before they are scored. It follows any algorithm."""

from fedem_lightning.evaluate.adapt.base import Adaptation as Adaptation
from fedem_lightning.evaluate.adapt.base import Finetune as Finetune
from fedem_lightning.evaluate.adapt.interpolate import Dapper as Dapper
from fedem_lightning.evaluate.adapt.interpolate import Interpolate as Interpolate
from fedem_lightning.evaluate.adapt.knn import KNN as KNN
