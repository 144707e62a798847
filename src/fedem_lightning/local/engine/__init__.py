"""Engines: `loop`, `vmap`, and `auto`, which selects one of the two."""

import os

import torch
from torch import nn

from fedem_lightning.local.engine.base import Engine, LoopEngine
from fedem_lightning.local.engine.vmap import VmapEngine
from fedem_lightning.models.backbones.networks import LSTM
from fedem_lightning.models.stacked import against_stacking
from fedem_lightning.settings.errors import require
from fedem_lightning.settings.ranges import Positive, PositiveInt
from fedem_lightning.settings.recipes import Recorded, anew

__all__ = ["AutoEngine", "Engine", "LoopEngine", "VmapEngine", "cores", "make_engine"]


def cores() -> int:
    """Number of cores that this run may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class AutoEngine(Recorded):
    """Selects `loop` where something speaks against stacking (`against_stacking`), else `vmap`.

    `block_size` and `memory_gb` are those of the selected engine, see `Engine`.
    """

    name = "auto"

    def __init__(self, block_size: PositiveInt | None = None, memory_gb: Positive | None = None) -> None:
        self.block_size, self.memory_gb = block_size, memory_gb

    def resolve(self, backbone: nn.Module, device: torch.device) -> Engine:
        """The engine for this backbone on this device."""
        against = against_stacking(backbone, device)
        engine = (LoopEngine if against else VmapEngine)(self.block_size, self.memory_gb)
        small = "an LSTM" if any(isinstance(layer, LSTM) for layer in backbone.modules()) else "a small network"
        engine.reason = against or (small if device.type == "cpu" else f"on {device.type}")
        return engine.resolve(backbone, device)


def make_engine(engine: Engine | AutoEngine | str) -> Engine | AutoEngine:
    """Makes an engine from its name: loop, vmap or auto. An engine is made anew: it prepares itself for one network."""
    if not isinstance(engine, str):
        return anew(engine)
    engines = {kind.name: kind for kind in (LoopEngine, VmapEngine, AutoEngine)}
    require(engine in engines, f"engine: expected one of {', '.join(engines)}, got {engine}")
    return engines[engine]()
