"""Federations: where their samples come from, and how they are cut into clients and splits."""

from fedem_lightning.startup.lazy import exports as _exports

__all__, __getattr__, __dir__ = _exports(__name__, __file__)  # what __init__.pyi lists
