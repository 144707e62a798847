"""Compression of what clients upload: fewer bytes for each model, at the price of its exactness."""

from fedem_lightning.compression.base import Compression
from fedem_lightning.compression.eight_bit import EightBit
from fedem_lightning.compression.top_k import TopK

__all__ = ["Compression", "EightBit", "TopK"]
