"""What a backbone's output means: the loss of a sample, and the predictive distribution.

FedEM's Assumption 3 asks the loss to be a negative log-likelihood, l(h(x), y) = -log p(y | x) + c; both tasks here are,
with c = 0. Personal predictors mix PROBABILITIES (Eq. 5), so a task also gives log p(. | x).
"""

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from fedem_lightning.errors import require


class Task(Protocol):
    """Loss and predictive distribution for one kind of label."""

    @property
    def n_classes(self) -> int:
        """Y."""

    @property
    def n_outputs(self) -> int:
        """Numbers a backbone gives for a sample."""

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """-log p(y | x) in nats: outputs [n, n_outputs], y int64 [n] -> [n]."""

    def log_probs(self, outputs: Tensor) -> Tensor:
        """Log p(. | x): outputs [n, n_outputs] -> [n, n_classes]."""


@dataclass(frozen=True)
class Classification:
    """One label of `n_classes`; the backbone gives a logit for each. Cross-entropy."""

    n_classes: int

    def __post_init__(self) -> None:
        require(self.n_classes >= 2, f"n_classes: expected at least 2, got {self.n_classes}")

    @property
    def n_outputs(self) -> int:
        """A logit for each class."""
        return self.n_classes

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy."""
        return F.cross_entropy(outputs, y, reduction="none")

    def log_probs(self, outputs: Tensor) -> Tensor:
        """Log-softmax."""
        return F.log_softmax(outputs, dim=-1)


@dataclass(frozen=True)
class BinaryClassification:
    """A label in {0, 1}; the backbone gives one logit, of class 1. Logistic loss."""

    n_classes: int = 2

    @property
    def n_outputs(self) -> int:
        """The logit of class 1."""
        return 1

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Logistic loss."""
        logit = outputs.squeeze(-1)  # [n]
        return F.binary_cross_entropy_with_logits(logit, y.to(logit.dtype), reduction="none")

    def log_probs(self, outputs: Tensor) -> Tensor:
        """Both classes."""
        return torch.cat([F.logsigmoid(-outputs), F.logsigmoid(outputs)], dim=-1)  # [n, 2]
