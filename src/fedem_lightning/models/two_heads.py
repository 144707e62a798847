"""A network with a generic and a personal head, and their losses (FedRoD)."""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedem_lightning.errors import require
from fedem_lightning.models.features import WithFeatures, by_learner, find_head
from fedem_lightning.tasks import Loss


class TwoHeads(WithFeatures):
    """A network with its own head, h_G, and a personal head h_t of the same form, whose last layer starts at zero.

    Outputs: h_G(z) + h_t(z). With `log_counts` [n_outputs] they are those of both losses, one after the other:
    h_G(z) + log n_t, and h_G(z) + h_t(z) with h_G and z detached; [n, ..., 2 n_outputs].
    """

    log_counts: Tensor | None

    def __init__(self, backbone: nn.Module, head: str | None = None) -> None:
        super().__init__(backbone, head)
        self.personal = copy.deepcopy(find_head(backbone, head)[1])
        last = [layer for layer in self.personal.modules() if list(layer.parameters(recurse=False))][-1]
        for parameter in last.parameters(recurse=False):
            nn.init.zeros_(parameter)
        self.register_buffer("log_counts", None)

    def forward(self, x: Tensor) -> Tensor:
        """The served outputs, or those of both losses; see the class."""
        generic, z = self.outputs_and_features(x)
        if self.log_counts is None:
            return self._sum(generic, self.personal(z))
        rows = by_learner(self.log_counts, 1)  # [A M, n_outputs]
        shift = rows.view(len(rows), *[1] * (generic.ndim - 1), -1)
        shifted = (generic.unflatten(0, (len(rows), -1)) + shift).flatten(0, 1)
        return torch.cat([shifted, self._sum(generic.detach(), self.personal(z.detach()))], dim=-1)

    def _sum(self, generic: Tensor, personal: Tensor) -> Tensor:
        fits = personal.shape[1:] == generic.shape[1:]
        require(fits, f"algorithm.head: {self.head} gives {tuple(personal.shape[1:])}, the network another shape")
        return generic + personal


@dataclass(frozen=True)
class BothLosses:
    """The balanced softmax loss of h_G and the empirical loss of h_G + h_t."""

    task: Loss

    @property
    def n_targets(self) -> int:
        """The task's."""
        return self.task.n_targets

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The sum of both: outputs [n, ..., 2 n_outputs] -> [n]."""
        generic, both = outputs.chunk(2, dim=-1)
        return self.task.losses(generic, y) + self.task.losses(both, y)
