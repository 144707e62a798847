"""Real targets."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedem_lightning.settings.check import Checked
from fedem_lightning.settings.ranges import Positive, PositiveInt
from fedem_lightning.tasks.base import known, known_means


@dataclass(frozen=True)
class Regression(Checked):
    """Real targets with Gaussian noise: l = |y - h(x)|^2 / (2 sigma^2).

    For one model sigma does not matter; in the E-step it sets how large an error distinguishes components. Of several
    targets some may be missing (NaN): then |.|^2 is the sum over the known ones.

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
        return self._errors(outputs, y).flatten(1).sum(dim=1) / (2 * self.noise_scale**2)

    def _errors(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Squared errors of the known targets, 0 for the others: [n, n_outputs]."""
        y = y.view_as(outputs)
        if self.n_outputs > 1:  # a sample's only target is never missing
            y = torch.where(known(y), y, outputs.detach())  # before the difference: a gradient would be NaN
        return (outputs - y).square()

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
        is_known = known(y.view_as(prediction))
        mse = known_means(self._errors(prediction, y), is_known | (self.n_outputs == 1))
        return {"mse": mse, "loss": self.losses(prediction, y)}
