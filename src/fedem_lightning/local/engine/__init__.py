"""Engines: `loop`, `vmap`, and `auto`, which selects one of the two."""

import os

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from fedem_lightning.local.engine.base import Engine, LoopEngine
from fedem_lightning.local.engine.vmap import VmapEngine
from fedem_lightning.models.backbones.networks import LSTM
from fedem_lightning.models.backbones.pretrained import Pretrained
from fedem_lightning.models.mixture_network import MixtureNetwork
from fedem_lightning.settings.errors import require
from fedem_lightning.settings.ranges import Positive, PositiveInt
from fedem_lightning.settings.recipes import Recorded

__all__ = ["AutoEngine", "Engine", "LoopEngine", "VmapEngine", "cores", "make_engine"]


STACKED_LIMIT_CPU = 200_000
"""Number of parameters up to which stacking is faster on a CPU; above, the arithmetic itself dominates."""


def cores() -> int:
    """Number of cores that this run may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class AutoEngine(Recorded):
    """Selects an engine by a rule.

    - Recurrent layers other than LSTM: `loop` (their fused kernels cannot be stacked).
    - CPU: `loop` for convolutions, and for more than 200,000 parameters of a model unless they are an LSTM's; else
      `vmap`.
    - Otherwise: `vmap`.

    Of a network with a frozen body the head alone counts: it runs on features that are computed once. `block_size` and
    `memory_gb` are those of the selected engine, see `Engine`.
    """

    name = "auto"

    def __init__(self, block_size: PositiveInt | None = None, memory_gb: Positive | None = None) -> None:
        self.block_size, self.memory_gb = block_size, memory_gb

    def resolve(self, backbone: nn.Module, device: torch.device) -> Engine:
        """The engine for this backbone on this device."""
        network = backbone.network if isinstance(backbone, MixtureNetwork) else backbone  # one component of several
        if isinstance(network, Pretrained) and network.frozen_body:
            network = network.head
        unstackable = any(isinstance(layer, nn.RNNBase) and not isinstance(layer, LSTM) for layer in network.modules())
        convolutional = any(isinstance(layer, _ConvNd) for layer in network.modules())
        large = sum(p.numel() for p in network.parameters()) > STACKED_LIMIT_CPU
        on_cpu = device.type == "cpu"
        recurrent = any(isinstance(layer, LSTM) for layer in network.modules())  # many small products at any size
        small = "an LSTM" if recurrent else "a small network"
        reasons = {
            "its recurrent layers cannot be stacked": unstackable,
            "convolutions on a CPU": on_cpu and convolutional,
            f"more than {STACKED_LIMIT_CPU:,} parameters on a CPU": on_cpu and large and not recurrent,
        }
        against = next((reason for reason, holds in reasons.items() if holds), None)
        engine = (LoopEngine if against else VmapEngine)(self.block_size, self.memory_gb)
        engine.reason = against or (small if on_cpu else f"on {device.type}")
        return engine.resolve(backbone, device)


def make_engine(engine: Engine | AutoEngine | str) -> Engine | AutoEngine:
    """Makes an engine from its name: loop, vmap or auto. An engine is made anew: it prepares itself for one network."""
    if not isinstance(engine, str):
        return engine.anew()
    engines = {kind.name: kind for kind in (LoopEngine, VmapEngine, AutoEngine)}
    require(engine in engines, f"engine: expected one of {', '.join(engines)}, got {engine}")
    return engines[engine]()
