"""Several labels for a sample: yes or no for each label of a list, one for each pixel, one for each position."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedem_lightning.settings.check import Checked
from fedem_lightning.settings.ranges import TwoOrMore
from fedem_lightning.tasks.base import MISSING, class_scores, known, known_means, mix_log_probs
from fedem_lightning.tasks.classes import Classification


@dataclass(frozen=True)
class MultiLabel(Checked):
    """Each of K labels holds or not, with logistic loss; the backbone has a logit for each label.

    The likelihood is that of independent labels given x: p(y | x) = prod_k p(y_k | x). A label is 1, 0, or missing.

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

    @property
    def measures(self) -> tuple[str, ...]:
        """Accuracy, the share of the known labels that are right, and the loss -log p, their mean."""
        return ("accuracy", "loss")

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

    def mix(self, predictions: Tensor, pi: Tensor) -> Tensor:
        """The mixture log sum_m pi_m p_m(y_k | x) of each label: [M, n, K, 2], pi [n, M] -> [n, K, 2]."""
        return mix_log_probs(predictions, pi)

    def answer(self, prediction: Tensor) -> Tensor:
        """The probability p(y_k = 1 | x) of each label: [n, K, 2] -> [n, K]."""
        return prediction[..., 1].exp()

    def scores(self, prediction: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Scores of predictions [n, K, 2] against labels [n, K], means over a sample's known labels, [n]."""
        return class_scores(prediction, torch.where(known(y), y, MISSING).long())


@dataclass(frozen=True)
class Segmentation(Checked):
    """A class for each pixel, with cross-entropy; the backbone's outputs are logits [n, Y, height, width].

    Args:
        n_classes: Y.
        n_targets: number of pixels of a sample, by which the local solver divides the sum of their losses.

    """

    n_classes: TwoOrMore
    n_targets: TwoOrMore

    class_axis: ClassVar[int] = 1
    """The axis of the classes in the outputs; in predictions it is the last one."""

    @property
    def n_outputs(self) -> int:
        """Y, the number of logits of a pixel."""
        return self.n_classes

    @property
    def measures(self) -> tuple[str, ...]:
        """Mean IoU of an image, accuracy and the loss -log p of its pixels."""
        return ("mean_iou", "accuracy", "loss")

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy, summed over the known pixels: outputs [n, Y, H, W], y int64 [n, H, W] -> [n]."""
        return F.cross_entropy(outputs, y, ignore_index=MISSING, reduction="none").flatten(1).sum(dim=1)

    def predict(self, outputs: Tensor) -> Tensor:
        """Log-probabilities: [n, Y, H, W] -> [n, H, W, Y]."""
        return F.log_softmax(outputs, dim=1).movedim(1, -1)

    def outputs(self, prediction: Tensor) -> Tensor:
        """Log-probabilities are logits, too: [n, H, W, Y] -> [n, Y, H, W]."""
        return prediction.movedim(-1, 1)

    def mix(self, predictions: Tensor, pi: Tensor) -> Tensor:
        """The mixture log sum_m pi_m p_m(. | x) of every pixel: [M, n, H, W, Y], pi [n, M] -> [n, H, W, Y]."""
        return mix_log_probs(predictions, pi)

    def answer(self, prediction: Tensor) -> Tensor:
        """Probabilities p(. | x) of every pixel, [n, H, W, Y]."""
        return prediction.exp()

    def scores(self, prediction: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Scores of predictions [n, H, W, Y] against labels int64 [n, H, W] on an image's known pixels, [n]."""
        return {"mean_iou": mean_iou(prediction, y), **class_scores(prediction, y)}


def mean_iou(log_probs: Tensor, y: Tensor) -> Tensor:
    """The mean of |P_c and T_c| / |P_c or T_c| over the classes c that occur in an image's labels or prediction.

    P_c are the pixels predicted as c, T_c those labelled c, of the known pixels. A pixel whose prediction is NaN is
    predicted as no class.

    Args:
        log_probs: log p(. | x), [n, ..., Y].
        y: int64 [n, ...].

    Returns:
        float64 [n]; NaN without a known pixel.

    """
    n, n_classes = len(y), log_probs.shape[-1]
    is_known, found = known(y).flatten(1), log_probs.argmax(dim=-1).flatten(1)  # [n, pixels]
    finite = ~log_probs.isnan().any(dim=-1).flatten(1)
    y, row = y.flatten(1), torch.arange(n, device=y.device).unsqueeze(1) * n_classes
    places = (row + y)[is_known], (row + found)[is_known & finite], (row + y)[is_known & finite & (found == y)]
    true, predicted, both = (torch.bincount(p, minlength=n * n_classes).view(n, n_classes) for p in places)
    union = true + predicted - both
    return known_means(both.double() / union.clamp(min=1), union > 0)


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
