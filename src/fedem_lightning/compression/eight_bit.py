"""8-bit quantisation: each entry of an update is rounded to one of 255 levels, without bias.

Alistarh, Grubic, Li, Tomioka, Vojnovic: "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding",
NeurIPS 2017, arXiv 1610.02132, Section 3.1, with the largest entry in place of the norm.
"""

import torch
from torch import Tensor

from fedem_lightning.aggregation import Models
from fedem_lightning.compression.base import Compression
from fedem_lightning.randomness import fold

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
            draws = uniform(keys, i, flat.shape[1:].numel()).view_as(flat).to(flat)
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


def uniform(keys: Tensor, tensor: int, size: int) -> Tensor:
    """Uniform numbers in [0, 1) as a function of client, tensor and position, float64 [C, size]."""
    entries = torch.arange(size, device=keys.device)
    return fold(keys.unsqueeze(1), tensor, entries).double() / 2**32
