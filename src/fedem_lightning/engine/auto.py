"""Which engine for which backbone and device."""

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from fedem_lightning.engine.base import Engine
from fedem_lightning.engine.loop import LoopEngine
from fedem_lightning.engine.vmap import VmapEngine, mixes_samples

STACKED_LIMIT_CPU = 200_000
"""Parameters up to which stacking pays on a CPU: above, arithmetic dominates the cost of launching it."""


class AutoEngine:
    """Picks by a rule.

    - BatchNorm or recurrent layers: `loop` (padded samples would enter the statistics; vmap has no fused LSTM).
    - CPU: `loop` for convolutions and for more than 200,000 parameters, else `vmap`.
    - Otherwise: `vmap`.

    Args:
        block_size, memory_gb: of the engine picked, see `Engine`.

    """

    name = "auto"

    def __init__(self, block_size: int | None = None, memory_gb: float = 2.0) -> None:
        self.block_size, self.memory_gb = block_size, memory_gb
        LoopEngine(block_size, memory_gb)  # checks both

    def resolve(self, backbone: nn.Module, device: torch.device) -> Engine:
        """The engine for this backbone on this device."""
        unstackable = mixes_samples(backbone) or any(isinstance(layer, nn.RNNBase) for layer in backbone.modules())
        convolutional = any(isinstance(layer, _ConvNd) for layer in backbone.modules())
        large = sum(p.numel() for p in backbone.parameters()) > STACKED_LIMIT_CPU
        one_by_one = unstackable or (device.type == "cpu" and (convolutional or large))
        return (LoopEngine if one_by_one else VmapEngine)(self.block_size, self.memory_gb)
