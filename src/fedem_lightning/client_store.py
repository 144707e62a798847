"""Models that stay with their clients."""

import torch
from torch import Tensor, nn

from fedem_lightning.aggregation import Models


class ClientStore(nn.Module):
    """One row per client of every tensor of a model, in buffers, so that it moves, saves and loads with its owner.

    Args:
        n_clients: T.
        like: a client's row of each tensor, [...]; all rows start as copies of it.

    """

    def __init__(self, n_clients: int, like: Models) -> None:
        super().__init__()
        self._names = list(like)
        for i, tensor in enumerate(like.values()):
            self.register_buffer(f"rows_{i}", tensor.detach().expand(n_clients, *tensor.shape).clone())

    def tensors(self) -> list[Tensor]:
        """Every tensor's rows, [T, ...]."""
        return list(self._rows().values())

    def _rows(self) -> dict[str, Tensor]:
        return {name: self.get_buffer(f"rows_{i}") for i, name in enumerate(self._names)}

    def read(self, clients: Tensor) -> Models:
        """The clients' rows, each [C, ...] (a copy)."""
        return {name: rows[clients] for name, rows in self._rows().items()}

    def write(self, clients: Tensor, models: Models) -> None:
        """Replaces the clients' rows by `models`, each [C, ...]."""
        with torch.no_grad():
            for name, rows in self._rows().items():
                rows[clients] = models[name]
