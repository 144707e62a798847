"""Networks that can draw their initial values again."""

import copy
from typing import Any, Self

import torch
from torch import nn

from fedem_lightning.records.recipes import Recorded


class Redrawable(Recorded, nn.Module):
    """A network that knows how its constructor drew its values: from which arguments and which random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn_from = torch.get_rng_state()

    def redrawn(self) -> Self:
        """A copy with new random values; with the same values if they are no longer those of the constructor."""
        drawn, copied = self._made(), copy.deepcopy(self)
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self.drawn_from)
            first, own = self._made(), self.state_dict()
        if first.keys() == own.keys() and all(own[name].equal(t.to(own[name])) for name, t in first.items()):
            copied.load_state_dict(drawn)
        return copied

    def _made(self) -> dict[str, Any]:
        return type(self)(**self.made_with).state_dict()
