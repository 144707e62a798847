"""Compression of what clients upload: fewer bytes for each model, at the price of its exactness."""

from fedem_lightning.compression.compressions import Compression, EightBit, TopK

__all__ = ["Compression", "EightBit", "TopK"]
