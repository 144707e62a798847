"""Federations: sources of their samples, partition into clients, and splits."""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)  # what __init__.pyi lists
