"""Tasks, which define the meaning of a backbone's outputs: see `base`."""

from fedem_lightning.tasks.base import MISSING, Loss, Task, TaskName, known
from fedem_lightning.tasks.classes import BinaryClassification, Classification, Density
from fedem_lightning.tasks.making import make_task, training_loss
from fedem_lightning.tasks.regression import Regression
from fedem_lightning.tasks.several import LanguageModel, MultiLabel, Segmentation

__all__ = [
    "MISSING",
    "BinaryClassification",
    "Classification",
    "Density",
    "LanguageModel",
    "Loss",
    "MultiLabel",
    "Regression",
    "Segmentation",
    "Task",
    "TaskName",
    "known",
    "make_task",
    "training_loss",
]
