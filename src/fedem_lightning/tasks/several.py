"""Several labels for a sample: yes or no for each label of a list, or one for each position of a sequence."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedem_lightning.settings.check import Checked
from fedem_lightning.settings.ranges import TwoOrMore
from fedem_lightning.tasks.base import Probabilities, known
from fedem_lightning.tasks.classes import Classification


@dataclass(frozen=True)
class MultiLabel(Probabilities, Checked):
    """Each of K labels holds or not, with logistic loss; the backbone has a logit for each label.

    The likelihood is that of independent labels given x: p(y | x) = prod_k p(y_k | x). A label is 1, 0, or missing.
    Predictions are log-probabilities that each label is 0, and 1: [n, K, 2].

    Args:
        n_labels: K.

    """

    n_labels: TwoOrMore

    @property
    def n_outputs(self) -> int:
        """K, the number of labels: one logit for each."""
        return self.n_labels

    @property
    def n_targets(self) -> int:
        """K: the local solver takes the mean over the labels, as `torch.nn.BCEWithLogitsLoss` does."""
        return self.n_labels

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Logistic losses, summed over the known labels: outputs [n, K], y [n, K] in {0, 1}, `MISSING` -> [n]."""
        is_known = known(y)
        target = torch.where(is_known, y, 0).to(outputs.dtype)
        losses = F.binary_cross_entropy_with_logits(outputs, target, reduction="none")
        return torch.where(is_known, losses, 0.0).sum(dim=1)

    def predict(self, outputs: Tensor) -> Tensor:
        """Log-probabilities that each label is 0, and 1: [n, K] -> [n, K, 2]."""
        return torch.stack([F.logsigmoid(-outputs), F.logsigmoid(outputs)], dim=-1)

    def outputs(self, prediction: Tensor) -> Tensor:
        """The logits: [n, K, 2] -> [n, K]."""
        return prediction[..., 1] - prediction[..., 0]

    def answer(self, prediction: Tensor) -> Tensor:
        """The probability p(y_k = 1 | x) of each label: [n, K, 2] -> [n, K]."""
        return prediction[..., 1].exp()


@dataclass(frozen=True)
class LanguageModel(Classification):
    """The next token at each position of a sequence, with cross-entropy; positions with the label -100 are ignored.

    The backbone's outputs are logits [n, L, Y]. Labels are aligned by the user: y[i, l] is what the model predicts at
    position l. A client's scores are means over all its known positions, not means of its sequences' means.

    Args:
        n_classes: Y, size of the vocabulary.
        n_targets: L, by which the local solver divides the sum of a sequence's losses.
        class_weights, label_smoothing, weigh_training_only: see `Classification`.

    """

    n_targets: TwoOrMore = 2

    @property
    def measures(self) -> tuple[str, ...]:
        """Perplexity, exp of a client's loss; accuracy; the loss -log p of a known position."""
        return ("perplexity", "accuracy", "loss")

    def scores(self, prediction: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Scores of predictions log p(. | x) [n, L, Y], and "n_known" [n], by which a client's means weigh samples."""
        found = super().scores(prediction, y)
        return {"perplexity": found["loss"].exp(), **found, "n_known": known(y).sum(dim=1)}
