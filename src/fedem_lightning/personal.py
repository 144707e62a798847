"""Clients that each have models of their own: predictions and losses, client by client."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedem_lightning.aggregation import Models
from fedem_lightning.data.federation import Block


class Personal(NamedTuple):
    """The models of C clients, M each, and their weights in a client's prediction."""

    models: Models  # [C, M, ...]
    mixture: Tensor  # [C, M]; rows sum to 1
    columns: dict[str, Tensor] = {}  # what else is worth a column in the clients' table, each [C]

    @torch.no_grad()
    def predict(self, backbone: nn.Module, block: Block) -> Tensor:
        """Eq. 5 with each client's own models: sum_m pi[t, m] h_{t,m}(x), [n, ...]; the block has these clients."""
        task, parts = block.federation.task, []
        for c, outputs, _ in self._outputs(backbone, block):
            predictions = [task.predict(output) for output in outputs]  # M x [n_c, ...]
            if len(predictions) == 1:
                parts.append(predictions[0])
            else:
                pi = self.mixture[c].expand(len(predictions[0]), -1)  # [n_c, M]
                parts.append(task.mix(torch.stack(predictions), pi))
        return torch.cat(parts)

    @torch.no_grad()
    def losses(self, backbone: nn.Module, block: Block) -> Tensor:
        """l(h_{t,m}(x_i), y_i) in nats, [n, M]."""
        task = block.federation.task
        found = [torch.stack([task.losses(o, y) for o in outputs]) for _, outputs, y in self._outputs(backbone, block)]
        return torch.cat(found, dim=1).T if found else self.mixture.new_zeros(0, self.mixture.shape[1])

    def _outputs(self, backbone: nn.Module, block: Block) -> Iterator[tuple[int, list[Tensor], Tensor]]:
        """Each client that has samples: its position, its models' outputs M x [n_c, ...] and labels, in eval mode."""
        backbone.eval()
        dtype = next(backbone.parameters()).dtype
        present, counts = (found.tolist() for found in block.owner.unique_consecutive(return_counts=True))
        for c, x, y in zip(present, block.x(dtype).split(counts), block.y().split(counts), strict=True):
            models = ({name: t[c, m] for name, t in self.models.items()} for m in range(self.mixture.shape[1]))
            yield c, [functional_call(backbone, model, (x,)) for model in models], y
