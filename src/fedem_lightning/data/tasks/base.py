"""Tasks, which define the meaning of a backbone's outputs: losses, predictions and scores.

FedEM's Assumption 3 needs a loss that is a negative log-likelihood, l(h(x), y) = -log p(y | x) + c. Personal models mix
PROBABILITIES (Eq. 5), or for real targets the means, so a task also defines how predictions are mixed.

A sample may have several labels: a sequence's positions, several targets. Those that are missing (`MISSING`, or NaN)
are no part of its losses and scores, as if the sample did not have them: its likelihood is the marginal one.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor

TaskName = Literal["classification", "binary", "regression", "multilabel", "language"]

MISSING = -100
"""The code of a label that is missing, as in torch (`ignore_index`). In real targets NaN is."""


class Loss(Protocol):
    """What the local solver minimises."""

    @property
    def n_targets(self) -> int:
        """Number of labels of a sample: 1, or the length of a sequence. The local solver divides the loss by it."""

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Losses -log p(y | x) + c in nats, summed over a sample's targets: outputs [n, ...], y [n, ...] -> [n]."""


@dataclass(frozen=True)
class OfTask:
    """What losses share that are made of a task's."""

    task: Loss

    @property
    def n_targets(self) -> int:
        return self.task.n_targets


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


def known(y: Tensor) -> Tensor:
    """Which labels are known, bool: codes (whole numbers) that are not `MISSING`, or real targets that are not NaN."""
    return ~y.isnan() if y.is_floating_point() else y != MISSING


def known_means(values: Tensor, is_known: Tensor) -> Tensor:
    """Means over the known labels of each sample: values [n, ...] and bool [n, ...] -> [n]; NaN without any."""
    if values.ndim == 1:
        return values
    counts = is_known.flatten(1).sum(dim=1)
    return torch.where(is_known, values, 0.0).flatten(1).sum(dim=1) / counts


class Probabilities:
    """What tasks share whose predictions are log-probabilities [n, ..., Y]."""

    measures: ClassVar[tuple[str, ...]] = ("accuracy", "loss")  # the loss is -log p

    def mix(self, predictions: Tensor, pi: Tensor) -> Tensor:
        """The mixture log sum_m pi_m p_m(. | x) of each label: [M, n, ..., Y], pi [n, M] -> [n, ..., Y]."""
        log_pi = pi.T.log()  # [M, n]
        return torch.logsumexp(predictions + log_pi.view(*log_pi.shape, *[1] * (predictions.ndim - 2)), dim=0)

    def answer(self, prediction: Tensor) -> Tensor:
        return prediction.exp()

    def scores(self, prediction: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Accuracy (float64) and loss in nats of each sample, means over its known labels: y int64 [n, ...] -> [n]."""
        is_known = known(y)
        loss = -prediction.gather(-1, y.clamp(min=0).unsqueeze(-1)).squeeze(-1)  # [n, ...]
        right = ((prediction.argmax(dim=-1) == y) & ~loss.isnan()).double()  # a prediction that is NaN is wrong
        return {"accuracy": known_means(right, is_known), "loss": known_means(loss, is_known)}
