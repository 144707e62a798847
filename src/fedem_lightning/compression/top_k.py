"""Top-k: a client sends the largest entries of its update, and keeps the rest for the next one.

Stich, Cordonnier, Jaggi: "Sparsified SGD with Memory", NeurIPS 2018, arXiv 1809.07599, Algorithm 1.
"""

import math

import torch
from torch import Tensor

from fedem_lightning.aggregation import Models
from fedem_lightning.compression.base import Compression
from fedem_lightning.settings.ranges import PositiveShare


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
