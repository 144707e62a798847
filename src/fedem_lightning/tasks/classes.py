"""One label of several classes for a sample, or a sequence of such labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedem_lightning.errors import require
from fedem_lightning.settings.check import Checked
from fedem_lightning.settings.ranges import BelowOne, Positive, PositiveInt, TwoOrMore
from fedem_lightning.tasks.base import Probabilities


@dataclass(frozen=True)
class Classification(Probabilities, Checked):
    """A label of `n_classes`, or a sequence of labels, with cross-entropy; the backbone has a logit for each class.

    Args:
        n_classes: Y.
        n_targets: number of labels of a sample; a sequence's loss is the sum over them, its negative log-likelihood.
        class_weights: weights of the classes in the loss, [Y]; the scores are unweighted.
        weigh_training_only: whether these weights are in the loss of local training alone (`training_loss`), so that
            `losses` are a likelihood. False: they are in every loss, the E-step's too, as in FedEM's public code.
        label_smoothing: epsilon in [0, 1); the loss is that of the label's one-hot vector mixed with the uniform one,
            (1 - epsilon) e_y + epsilon / Y, with class weights on every class's term. The scores do not change.

    """

    n_classes: TwoOrMore
    n_targets: PositiveInt = 1
    class_weights: Sequence[Positive] | None = None
    label_smoothing: BelowOne = 0.0
    weigh_training_only: bool = False

    def __post_init__(self) -> None:
        _check_weights(self.class_weights, self.n_classes)

    @property
    def n_outputs(self) -> int:
        """The number of classes: one logit for each."""
        return self.n_classes

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy: outputs [n, Y], y [n]; for sequences [n, L, Y] and [n, L], summed over the known labels."""
        plain = self.class_weights is None or self.weigh_training_only
        weights = None if plain else outputs.new_tensor(self.class_weights)
        options: dict[str, Any] = {"weight": weights, "label_smoothing": self.label_smoothing, "reduction": "none"}
        losses = F.cross_entropy(outputs.movedim(-1, 1), y, **options)
        return losses if y.ndim == 1 else losses.flatten(1).sum(dim=1)

    def predict(self, outputs: Tensor) -> Tensor:
        """Log-probabilities, by log-softmax."""
        return F.log_softmax(outputs, dim=-1)

    def outputs(self, prediction: Tensor) -> Tensor:
        """Log-probabilities are logits, too."""
        return prediction


class Density(Classification):
    """Labels without features: models learn how often each occurs, and no label can be told from a sample.

    The score is the loss. The accuracy would be the share of the most frequent label, and says nothing of a model.
    """

    @property
    def measures(self) -> tuple[str, ...]:
        """The loss -log p."""
        return ("loss",)

    def scores(self, prediction: Tensor, y: Tensor) -> dict[str, Tensor]:
        """The losses of predictions log p [n, Y]."""
        return {"loss": super().scores(prediction, y)["loss"]}


@dataclass(frozen=True)
class BinaryClassification(Probabilities, Checked):
    """A label in {0, 1} with logistic loss; the backbone has one logit, that of class 1.

    Args:
        class_weights, weigh_training_only: see `Classification`.

    """

    n_classes: Literal[2] = 2
    n_targets: Literal[1] = 1
    class_weights: Sequence[Positive] | None = None
    weigh_training_only: bool = False

    def __post_init__(self) -> None:
        _check_weights(self.class_weights, 2)

    @property
    def n_outputs(self) -> int:
        """One output, the logit of class 1."""
        return 1

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Logistic loss."""
        logit = outputs.squeeze(-1)  # [n]
        losses = F.binary_cross_entropy_with_logits(logit, y.to(logit.dtype), reduction="none")
        plain = self.class_weights is None or self.weigh_training_only
        return losses if plain else losses * logit.new_tensor(self.class_weights)[y]

    def predict(self, outputs: Tensor) -> Tensor:
        """Log-probabilities of both classes."""
        return torch.cat([F.logsigmoid(-outputs), F.logsigmoid(outputs)], dim=-1)  # [n, 2]

    def outputs(self, prediction: Tensor) -> Tensor:
        """The logit of class 1, [n, 1]."""
        return prediction[..., 1:] - prediction[..., :1]


def _check_weights(weights: Sequence[float] | None, n_classes: int) -> None:
    fits = weights is None or len(weights) == n_classes
    require(fits, f"class_weights: expected {n_classes} numbers, one for each class, got {weights}")
