"""Tasks, which define the meaning of a backbone's outputs: see `base`."""

from collections.abc import Sequence

from fedem_lightning.data.tasks.base import MISSING as MISSING
from fedem_lightning.data.tasks.base import Loss as Loss
from fedem_lightning.data.tasks.base import OfTask as OfTask
from fedem_lightning.data.tasks.base import Task as Task
from fedem_lightning.data.tasks.base import TaskName as TaskName
from fedem_lightning.data.tasks.base import known as known
from fedem_lightning.data.tasks.kinds import BinaryClassification as BinaryClassification
from fedem_lightning.data.tasks.kinds import Classification as Classification
from fedem_lightning.data.tasks.kinds import Density as Density
from fedem_lightning.data.tasks.kinds import LanguageModel as LanguageModel
from fedem_lightning.data.tasks.kinds import MultiLabel as MultiLabel
from fedem_lightning.data.tasks.kinds import Regression as Regression
from fedem_lightning.settings.errors import require


def make_task(
    name: TaskName,
    n_classes: int,
    n_targets: int = 1,
    units: tuple[Sequence[float] | None, Sequence[float] | None] = (None, None),
) -> Task:
    """Makes a task from its name; `units` are shift and scale of real targets.

    UserError: a binary task has more than two classes, or one of several labels has one.
    """
    if name == "classification":
        return Classification(n_classes)
    if name == "binary":
        require(n_classes == 2, f"task: binary needs the labels 0 and 1, the data has {n_classes} classes")
        return BinaryClassification()
    if name == "regression":
        return Regression(n_targets, 1, *units)
    what = {"multilabel": "label", "language": "position"}[name]
    require(n_targets > 1, f"task: {name} needs two {what}s or more for each sample, the data has {n_targets}")
    return MultiLabel(n_targets) if name == "multilabel" else LanguageModel(n_classes, n_targets)
