"""Real targets."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedem_lightning.data.tasks.base import known, known_means
from fedem_lightning.settings.check import Checked
from fedem_lightning.settings.errors import require
from fedem_lightning.settings.ranges import Positive, PositiveInt


@dataclass(frozen=True)
class Regression(Checked):
    """Real targets with Gaussian noise: l = |y - h(x)|^2 / (2 sigma^2).

    Networks may learn standardised targets: then h(x) = shift + scale * outputs, and everything but the outputs is in
    the units of y. Of several targets some may be missing (NaN): then |.|^2 is the sum over the known ones.

    Args:
        n_outputs: number of values of a target.
        noise_scale: sigma, in units of y; None: each target's `scale`. In the E-step it sets how large an error
            distinguishes components. One model's minimum does not depend on it; with `scale`, local training leaves it
            out (`training_loss`), so that learning rates do not depend on it either.
        shift, scale: of each target, [n_outputs]; None: networks learn y as it is.

    """

    n_outputs: PositiveInt = 1
    noise_scale: Positive | None = None
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
        errors, sigma = self._errors(outputs, self.outputs(y.view_as(outputs))), self.noise_scale or 1.0
        if self.scale is not None and self.noise_scale is not None:
            errors = errors * errors.new_tensor(self.scale).square()
        return errors.flatten(1).sum(dim=1) / (2 * sigma**2)

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
