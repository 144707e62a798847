"""Federations: sources of their samples, partition into clients, and splits."""

from fedem_lightning.startup import exports as _exports

__all__, __getattr__, __dir__ = _exports(__name__, __file__)  # what __init__.pyi lists
