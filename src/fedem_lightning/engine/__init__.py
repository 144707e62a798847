"""Engines: `loop`, `vmap`, and `auto`, which selects one of the two."""

from fedem_lightning.engine.auto import AutoEngine, cores
from fedem_lightning.engine.base import Engine
from fedem_lightning.engine.loop import LoopEngine
from fedem_lightning.engine.vmap import VmapEngine
from fedem_lightning.errors import UserError

__all__ = ["AutoEngine", "Engine", "LoopEngine", "VmapEngine", "cores", "make_engine"]


def make_engine(engine: Engine | AutoEngine | str) -> Engine | AutoEngine:
    """Makes an engine from its name: loop, vmap or auto. An engine is returned unchanged."""
    if not isinstance(engine, str):
        return engine
    engines = {kind.name: kind for kind in (LoopEngine, VmapEngine, AutoEngine)}
    if engine not in engines:
        raise UserError(f"engine: expected one of {', '.join(engines)}, got {engine}")
    return engines[engine]()
