"""What a compression must define: a client's message in place of its update, and what the server reads from it."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from fedem_lightning.aggregation import Models
from fedem_lightning.records.recipes import Recorded


class Compression(Recorded, ABC):
    """How clients compress their updates d = theta_t - theta, where theta is the model that the client received.

    Raises:
        UserError: a value is out of its range.

    """

    keeps_error = False
    """Whether a client keeps what its messages have left out, and adds it to its next update."""

    @abstractmethod
    def encode(self, updates: Models, keys: Tensor) -> Models:
        """The messages of C clients: tensors by name, each [C, ...].

        Args:
            updates: d, each [C, M, ...]; floating point.
            keys: of the clients' random numbers in this round, int64 [C] in [0, 2^32).

        """

    @abstractmethod
    def decode(self, messages: Models, like: Models) -> Models:
        """The updates that the server reads from messages, each [C, M, ...].

        Args:
            messages: from `encode`.
            like: tensors with the names, shapes and dtypes of the updates.

        """

    def message_bytes(self, like: Models) -> int:
        """Bytes of one client's message for updates of these shapes, [C, M, ...]."""
        zeros = {name: rows.new_zeros(1, *rows.shape[1:]) for name, rows in like.items()}
        device = next(iter(zeros.values())).device
        message = self.encode(zeros, torch.zeros(1, dtype=torch.int64, device=device))
        return sum(tensor.numel() * tensor.element_size() for tensor in message.values())
