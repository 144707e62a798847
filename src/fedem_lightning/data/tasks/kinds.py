"""Kinds of labels: classes of a sample, of each label of a list or each position of a sequence; and real targets."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedem_lightning.data.tasks.base import Probabilities, known, known_means
from fedem_lightning.settings.check import Checked
from fedem_lightning.settings.errors import require
from fedem_lightning.settings.ranges import BelowOne, Positive, PositiveInt, TwoOrMore


@dataclass(frozen=True)
class Classification(Probabilities, Checked):
    """A label of `n_classes`, or a sequence of labels, with cross-entropy; the backbone has a logit for each class.

    Args:
        n_classes: Y.
        n_targets: number of labels of a sample; a sequence's loss is the sum over them, its negative log-likelihood.
        label_smoothing: epsilon in [0, 1); the loss is that of the label's one-hot vector mixed with the uniform one,
            (1 - epsilon) e_y + epsilon / Y. The scores do not change.

    """

    n_classes: TwoOrMore
    n_targets: PositiveInt = 1
    label_smoothing: BelowOne = 0.0

    @property
    def n_outputs(self) -> int:
        return self.n_classes

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy: outputs [n, Y], y [n]; for sequences [n, L, Y] and [n, L], summed over the known labels."""
        losses = F.cross_entropy(outputs.movedim(-1, 1), y, label_smoothing=self.label_smoothing, reduction="none")
        return losses if y.ndim == 1 else losses.flatten(1).sum(dim=1)

    def predict(self, outputs: Tensor) -> Tensor:
        return F.log_softmax(outputs, dim=-1)

    def outputs(self, prediction: Tensor) -> Tensor:
        return prediction  # log-probabilities are logits, too


class Density(Classification):
    """Labels without features: models learn how often each occurs, and no label can be told from a sample.

    The score is the loss. The accuracy would be the share of the most frequent label, and says nothing of a model.
    """

    measures = ("loss",)

    def scores(self, prediction: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"loss": super().scores(prediction, y)["loss"]}


@dataclass(frozen=True)
class BinaryClassification(Probabilities, Checked):
    """A label in {0, 1} with logistic loss; the backbone has one logit, that of class 1."""

    n_classes: Literal[2] = 2
    n_targets: Literal[1] = 1

    n_outputs: ClassVar[int] = 1

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        logit = outputs.squeeze(-1)  # [n]
        return F.binary_cross_entropy_with_logits(logit, y.to(logit.dtype), reduction="none")

    def predict(self, outputs: Tensor) -> Tensor:
        return torch.cat([F.logsigmoid(-outputs), F.logsigmoid(outputs)], dim=-1)  # [n, 2]

    def outputs(self, prediction: Tensor) -> Tensor:
        return prediction[..., 1:] - prediction[..., :1]


@dataclass(frozen=True)
class MultiLabel(Probabilities, Checked):
    """Each of K labels holds or not, with logistic loss; the backbone has a logit for each label.

    The likelihood is that of independent labels given x: p(y | x) = prod_k p(y_k | x). A label is 1, 0, or missing.
    Predictions are log-probabilities that each label is 0, and 1: [n, K, 2].
    """

    n_labels: TwoOrMore  # K

    @property
    def n_outputs(self) -> int:
        return self.n_labels

    @property
    def n_targets(self) -> int:
        """K: the local solver takes the mean over the labels, as `torch.nn.BCEWithLogitsLoss` does."""
        return self.n_labels

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Logistic losses, summed over the known labels: outputs [n, K], y [n, K] in {0, 1}, `MISSING` -> [n]."""
        target = torch.where(known(y), y, 0).to(outputs.dtype)
        losses = F.binary_cross_entropy_with_logits(outputs, target, reduction="none")
        return torch.where(known(y), losses, 0.0).sum(dim=1)

    def predict(self, outputs: Tensor) -> Tensor:
        return torch.stack([F.logsigmoid(-outputs), F.logsigmoid(outputs)], dim=-1)

    def outputs(self, prediction: Tensor) -> Tensor:
        return prediction[..., 1] - prediction[..., 0]

    def answer(self, prediction: Tensor) -> Tensor:
        """The probability p(y_k = 1 | x) of each label: [n, K, 2] -> [n, K]."""
        return prediction[..., 1].exp()


@dataclass(frozen=True)
class LanguageModel(Classification):
    """The next token at each position of a sequence, with cross-entropy; positions with the label -100 are ignored.

    The backbone's outputs are logits [n, L, Y]. Labels are aligned by the user: y[i, l] is what the model predicts at
    position l. A client's scores are means over all its known positions, not means of its sequences' means. Arguments
    are those of `Classification`: `n_classes` is the size of the vocabulary, `n_targets` L.
    """

    n_targets: TwoOrMore = 2

    measures = ("perplexity", "accuracy", "loss")  # perplexity: exp of a client's loss

    def scores(self, prediction: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Scores of predictions log p(. | x) [n, L, Y], and "n_known" [n], by which a client's means weigh samples."""
        result = super().scores(prediction, y)
        return {"perplexity": result["loss"].exp(), **result, "n_known": known(y).sum(dim=1)}


@dataclass(frozen=True)
class Regression(Checked):
    """Real targets with Gaussian noise: l = |y - h(x)|^2 / (2 sigma^2), sigma is each target's `scale`, or 1.

    Networks may learn standardised targets: then h(x) = shift + scale * outputs, and everything but the outputs is in
    the units of y. Of several targets some may be missing (NaN): then |.|^2 is the sum over the known ones.

    Args:
        n_outputs: number of values of a target.
        shift, scale: of each target, [n_outputs]; None: networks learn y as it is.

    """

    n_outputs: PositiveInt = 1
    n_targets: PositiveInt = 1
    shift: Sequence[float] | None = None
    scale: Sequence[Positive] | None = None

    def __post_init__(self) -> None:
        for name, values in (("shift", self.shift), ("scale", self.scale)):
            fits = (self.shift is None) == (self.scale is None) and (values is None or len(values) == self.n_outputs)
            require(fits, f"{name}: expected {self.n_outputs} numbers, one for each target, or neither shift nor scale")
            object.__setattr__(self, name, None if values is None else tuple(values))  # a file has lists

    measures: ClassVar[tuple[str, ...]] = ("mse", "loss")  # mse in squared units of y

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss l: outputs [n, n_outputs], y [n] or [n, n_outputs] -> [n]."""
        return self._errors(outputs, self.outputs(y.view_as(outputs))).flatten(1).sum(dim=1) / 2

    def _errors(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Squared errors of the known targets, 0 for the others: [n, n_outputs] each."""
        if self.n_outputs > 1:  # a sample's only target is never missing
            y = torch.where(known(y), y, outputs.detach())  # before the difference: a gradient would be NaN
        return (outputs - y).square()

    def _units(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Shift and scale, [n_outputs]: at least float32, as half precision cannot tell 500 from 501."""
        how: dict[str, Any] = {"dtype": torch.promote_types(like.dtype, torch.float32), "device": like.device}
        return torch.tensor(self.shift, **how), torch.tensor(self.scale, **how)

    def predict(self, outputs: Tensor) -> Tensor:
        if self.scale is None:
            return outputs
        shift, scale = self._units(outputs)
        return shift + scale * outputs

    def outputs(self, prediction: Tensor) -> Tensor:
        if self.scale is None:
            return prediction
        shift, scale = self._units(prediction)
        return (prediction - shift) / scale

    def mix(self, predictions: Tensor, pi: Tensor) -> Tensor:
        return torch.einsum("mno,nm->no", predictions, pi.to(predictions.dtype))

    def answer(self, prediction: Tensor) -> Tensor:
        return prediction

    def scores(self, prediction: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Scores of predicted means [n, n_outputs]."""
        y = y.view_as(prediction)
        mse = known_means(self._errors(prediction, y), known(y) | (self.n_outputs == 1))
        return {"mse": mse, "loss": self.losses(self.outputs(prediction), y)}
