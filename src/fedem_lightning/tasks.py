"""Tasks, which define the meaning of a backbone's outputs: losses, predictions and scores.

FedEM's Assumption 3 needs a loss that is a negative log-likelihood, l(h(x), y) = -log p(y | x) + c. Personal models mix
PROBABILITIES (Eq. 5), or for real targets the means, so a task also defines how predictions are mixed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from fedem_lightning.errors import UserError, require
from fedem_lightning.settings.check import Checked
from fedem_lightning.settings.ranges import BelowOne, Positive, PositiveInt, TwoOrMore

TaskName = Literal["classification", "binary", "regression"]


class Loss(Protocol):
    """What the local solver minimises."""

    @property
    def n_targets(self) -> int:
        """Number of labels of a sample: 1, or the length of a sequence. The local solver divides the loss by it."""

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Losses -log p(y | x) + c in nats, summed over a sample's targets: outputs [n, ...], y [n, ...] -> [n]."""


class Task(Loss, Protocol):
    """Loss, prediction and scores for one kind of label."""

    @property
    def n_outputs(self) -> int:
        """Number of a backbone's outputs for a sample (for a sequence: for each of its positions)."""

    @property
    def measures(self) -> tuple[str, ...]:
        """Names of the scores, the most important one first."""

    def predict(self, outputs: Tensor) -> Tensor:
        """A model's prediction from its outputs: log p(. | x), or the mean of y."""

    def outputs(self, prediction: Tensor) -> Tensor:
        """Outputs from which `predict` makes this prediction: [n, ...] -> [n, ...]."""

    def mix(self, predictions: Tensor, pi: Tensor) -> Tensor:
        """The mixture sum_m pi_m h_m(x), Eq. 5: predictions [M, n, ...], pi [n, M] -> [n, ...]."""

    def answer(self, prediction: Tensor) -> Tensor:
        """What a user gets: probabilities of the classes, or the mean of y."""

    def scores(self, prediction: Tensor, y: Tensor) -> dict[str, Tensor]:
        """The scores of each sample, means over its targets: name -> [n]."""


@dataclass(frozen=True)
class Classification(Checked):
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

    @property
    def measures(self) -> tuple[str, ...]:
        """Accuracy, and the loss -log p."""
        return ("accuracy", "loss")

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy: outputs [n, Y], y [n]; for sequences [n, L, Y] and [n, L]."""
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

    def mix(self, predictions: Tensor, pi: Tensor) -> Tensor:
        """The mixture log sum_m pi_m p_m(. | x), at every position of a sequence."""
        return _mix_log_probs(predictions, pi)

    def answer(self, prediction: Tensor) -> Tensor:
        """Probabilities p(. | x)."""
        return prediction.exp()

    def scores(self, prediction: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Scores of predictions log p(. | x) [n, Y] or [n, L, Y]."""
        return _classification_scores(prediction, y)


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
class BinaryClassification(Checked):
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

    @property
    def measures(self) -> tuple[str, ...]:
        """Accuracy, and the loss -log p."""
        return ("accuracy", "loss")

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

    def mix(self, predictions: Tensor, pi: Tensor) -> Tensor:
        """The mixture log sum_m pi_m p_m(. | x)."""
        return _mix_log_probs(predictions, pi)

    def answer(self, prediction: Tensor) -> Tensor:
        """Probabilities p(. | x)."""
        return prediction.exp()

    def scores(self, prediction: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Scores of predictions log p(. | x) [n, 2]."""
        return _classification_scores(prediction, y)


@dataclass(frozen=True)
class Regression(Checked):
    """Real targets with Gaussian noise: l = |y - h(x)|^2 / (2 sigma^2).

    For one model sigma does not matter; in the E-step it sets how large an error distinguishes components.

    Args:
        n_outputs: number of values of a target.
        noise_scale: sigma, in units of y.

    """

    n_outputs: PositiveInt = 1
    noise_scale: Positive = 1.0
    n_targets: PositiveInt = 1

    @property
    def measures(self) -> tuple[str, ...]:
        """Squared error, and the loss l of the personal prediction."""
        return ("mse", "loss")

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss l: outputs [n, n_outputs], y [n] or [n, n_outputs] -> [n]."""
        return (outputs - y.view_as(outputs)).square().flatten(1).sum(dim=1) / (2 * self.noise_scale**2)

    def predict(self, outputs: Tensor) -> Tensor:
        """The prediction, a mean of y, is the output."""
        return outputs

    def outputs(self, prediction: Tensor) -> Tensor:
        """The output, a mean of y, is the prediction."""
        return prediction

    def mix(self, predictions: Tensor, pi: Tensor) -> Tensor:
        """The mixture of means sum_m pi_m h_m(x)."""
        return torch.einsum("mno,nm->no", predictions, pi.to(predictions.dtype))

    def answer(self, prediction: Tensor) -> Tensor:
        """The mean of y."""
        return prediction

    def scores(self, prediction: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Scores of predicted means [n, n_outputs]."""
        mse = (prediction - y.view_as(prediction)).square().flatten(1).mean(dim=1)
        return {"mse": mse, "loss": self.losses(prediction, y)}


def _check_weights(weights: Sequence[float] | None, n_classes: int) -> None:
    fits = weights is None or len(weights) == n_classes
    require(fits, f"class_weights: expected {n_classes} numbers, one for each class, got {weights}")


def _mix_log_probs(predictions: Tensor, pi: Tensor) -> Tensor:
    log_pi = pi.T.log()  # [M, n]
    return torch.logsumexp(predictions + log_pi.view(*log_pi.shape, *[1] * (predictions.ndim - 2)), dim=0)


def _classification_scores(log_probs: Tensor, y: Tensor) -> dict[str, Tensor]:
    loss = -log_probs.gather(-1, y.unsqueeze(-1)).squeeze(-1)  # [n] or [n, L]
    right = ((log_probs.argmax(dim=-1) == y) & ~loss.isnan()).double()  # a prediction that is NaN is wrong
    return {name: v if v.ndim == 1 else v.mean(dim=1) for name, v in (("accuracy", right), ("loss", loss))}


def training_loss(task: Task) -> Loss:
    """What local training minimises: the task's loss, with class weights that its likelihood does not have."""
    only_training = getattr(task, "weigh_training_only", False)
    return replace(task, weigh_training_only=False) if only_training else task  # type: ignore[type-var]


def make_task(
    name: str,
    n_classes: int,
    n_targets: int = 1,
    noise_scale: float = 1.0,
    label_smoothing: float = 0.0,
    class_weights: Sequence[float] | None = None,
) -> Task:
    """Makes a task from its name in a configuration: classification, binary or regression.

    `class_weights` are those of training alone.

    Raises:
        UserError: the name is unknown, a binary task has more than two classes, or a task without class labels has
            label smoothing.

    """
    if name == "classification":
        return Classification(n_classes, 1, class_weights, label_smoothing, class_weights is not None)
    require(label_smoothing == 0, f"label_smoothing: only a classification has it, got {label_smoothing}")
    if name == "binary":
        require(n_classes == 2, f"task: binary needs the labels 0 and 1, the data has {n_classes} classes")
        return BinaryClassification(2, 1, class_weights, class_weights is not None)
    if name == "regression":
        return Regression(n_targets, noise_scale)
    raise UserError(f"task: expected classification, binary or regression, got {name}")
