"""Compressions of uploads: the largest entries, or eight bits for each entry."""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from fedem_lightning.aggregate import Models
from fedem_lightning.data.randomness import fold
from fedem_lightning.settings.ranges import PositiveShare
from fedem_lightning.settings.recipes import Recorded


class Compression(Recorded, ABC):
    """How clients compress their updates d = theta_t - theta, where theta is the model that the client received."""

    keeps_error = False
    """Whether a client keeps what its messages have left out, and adds it to its next update."""

    @abstractmethod
    def encode(self, updates: Models, keys: Tensor) -> Models:
        """The messages of C clients, tensors [C, ...] by name, from d, floats [C, M, ...].

        `keys` are those of the clients' random numbers in this round, int64 [C] in [0, 2^32).
        """

    @abstractmethod
    def decode(self, messages: Models, like: Models) -> Models:
        """The updates that the server reads from messages; `like` has their names, dtypes and shapes, [C, M, ...]."""

    def message_bytes(self, like: Models) -> int:
        """Bytes of one client's message for updates of these shapes, [C, M, ...]."""
        zeros = {name: rows.new_zeros(1, *rows.shape[1:]) for name, rows in like.items()}
        keys = torch.zeros(1, dtype=torch.int64, device=next(iter(zeros.values())).device)
        return sum(tensor.nbytes for tensor in self.encode(zeros, keys).values())


class TopK(Compression):
    """The k entries of an update that are largest by magnitude, over all parameters of a component: k = ceil(share D).

    A message has 4 bytes for the position of each entry, beside its value. With `error_feedback` the client sends the
    top k of u = d + e and keeps e <- u - top_k(u). A client outside the cohort keeps its e.

    Args:
        share: k / D, above 0 and at most 1.
        error_feedback: whether clients keep what they have not sent. It takes memory: a model of each client.

    """

    def __init__(self, share: PositiveShare = 0.05, error_feedback: bool = True) -> None:
        self.share, self.keeps_error = share, error_feedback

    def encode(self, updates: Models, keys: Tensor) -> Models:
        """Values and positions of the k entries, [C, M, k]."""
        flat = torch.cat([rows.reshape(*rows.shape[:2], -1) for rows in updates.values()], dim=2)  # [C, M, D]
        k = math.ceil(self.share * flat.shape[2])
        positions = flat.abs().topk(k, dim=2, sorted=False).indices
        return {"values": flat.gather(2, positions), "positions": positions.to(torch.int32)}

    def decode(self, messages: Models, like: Models) -> Models:
        """The updates, 0 where nothing was sent."""
        sizes = [rows[0, 0].numel() for rows in like.values()]
        values, positions = messages["values"], messages["positions"].long()
        flat = values.new_zeros(*values.shape[:2], sum(sizes)).scatter(2, positions, values)  # [C, M, D]
        parts = flat.split(sizes, dim=2)
        return {name: part.view_as(rows) for (name, rows), part in zip(like.items(), parts, strict=True)}


LEVELS = 127


class EightBit(Compression):
    """Each tensor of a component has one scale s = max |d|; an entry becomes s l / 127, where l is in -127..127.

    l is 127 d / s rounded up or down at random, so that its mean is 127 d / s. A message has 1 byte for each entry, and
    the scale of each tensor.
    """

    def encode(self, updates: Models, keys: Tensor) -> Models:
        """Levels, int8 [C, M, ...], and scales [C, M] of each tensor."""
        messages: Models = {}
        for i, (name, rows) in enumerate(updates.items()):
            flat = rows.reshape(*rows.shape[:2], -1)  # [C, M, D]
            scale = flat.abs().amax(dim=2, keepdim=True)  # [C, M, 1]
            exact = (LEVELS * flat / scale).nan_to_num(0.0)  # a tensor of zeros has scale 0
            entries = torch.arange(flat.shape[1:].numel(), device=keys.device)
            draws = (fold(keys.unsqueeze(1), i, entries).double() / 2**32).view_as(flat).to(flat)  # in [0, 1)
            levels = (exact + draws).floor().clamp(-LEVELS, LEVELS)
            messages |= {f"{name}.levels": levels.to(torch.int8), f"{name}.scale": scale.squeeze(2)}
        return messages

    def decode(self, messages: Models, like: Models) -> Models:
        """The updates on their grids."""
        updates = {}
        for name, rows in like.items():
            levels, scale = messages[f"{name}.levels"], messages[f"{name}.scale"]
            updates[name] = (levels.to(scale) * (scale / LEVELS).unsqueeze(2)).view_as(rows)
        return updates
