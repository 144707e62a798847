"""Layers of the package's own, and the base of its networks, which can draw their initial values again.

A client's last, short batch may have one value a channel, which has no variance: BatchNorm uses the running statistics
for it, and does not change them. A BatchNorm whose parameters are all frozen always uses its running statistics, as in
evaluation.
"""

import copy
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedem_lightning.data.randomness import fold, passes
from fedem_lightning.settings.check import Checked
from fedem_lightning.settings.ranges import BelowOne
from fedem_lightning.settings.recipes import Recorded


class Redrawable(Recorded, nn.Module):
    """A network that knows how its constructor drew its values: from which arguments and which random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn_from = torch.get_rng_state()

    def redrawn(self) -> Self:
        """A copy with new random values; with the same values if they are no longer those of the constructor."""
        drawn, copied = type(self)(**self.made_with).state_dict(), copy.deepcopy(self)
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self.drawn_from)
            first, own = type(self)(**self.made_with).state_dict(), self.state_dict()
        if first.keys() == own.keys() and all(own[name].equal(t.to(own[name])) for name, t in first.items()):
            copied.load_state_dict(drawn)
        return copied


def as_floats(x: Tensor, network: nn.Module) -> Tensor:
    """Whole numbers as floats of a network's dtype; floats as they are."""
    return x if x.is_floating_point() else x.to(next(network.parameters()).dtype)


class Dropout(Checked, nn.Module):
    """Zeroes elements with probability p and scales the others by 1 / (1 - p); in eval mode it does nothing.

    The mask comes from the buffer `key` and the element's position alone. The local solver sets a new key for every
    (seed, round, client, step). Two dropout layers of a network need different `salt`s; with the same salt they would
    draw the same mask.
    """

    key: Tensor

    def __init__(self, p: BelowOne = 0.5, salt: int = 0) -> None:
        super().__init__()
        self.p, self.salt = p, salt
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Zeroes elements of x, which may have any shape."""
        if not self.training or self.p == 0:
            return x
        position = torch.arange(x.numel(), dtype=torch.int32, device=x.device).view(x.shape)
        kept = passes(fold(self.key, self.salt), position, self.p)
        return x * kept.to(x.dtype) / (1 - self.p)


def is_frozen_norm(layer: nn.Module) -> bool:
    """Whether the layer is BatchNorm with parameters that are all frozen."""
    own = list(layer.parameters(recurse=False))
    return isinstance(layer, _BatchNorm) and bool(own) and not any(p.requires_grad for p in own)


class _ForClients(_BatchNorm):
    still: bool  # frozen; in a step engines replace the layer's parameters, which do not show it
    padded: bool = False  # whether only the first `size` samples of a batch count
    size: Tensor  # []; a buffer, so that each learner of a stack has its own

    def forward(self, input: Tensor) -> Tensor:
        """As in `nn.BatchNorm1d` and the others, except for frozen layers, padding, and one value a channel."""
        if self.training and self.padded and not self.still:
            return self._of_real(input)
        if not self.training or (input.numel() > input.shape[1] and not self.still):
            return super().forward(input)
        self.training = False  # the running statistics are used, and do not change
        try:
            return super().forward(input)
        finally:
            self.training = True

    def _of_real(self, input: Tensor) -> Tensor:
        """The same for x [B, channels, ...] of which the first `size` samples are real; others do not count."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.momentum is not None
        x = input.to(self.running_mean)  # autocast may have made it shorter
        axes = (0, *range(2, x.ndim))
        shape = (-1, *[1] * (x.ndim - 2))
        real = (torch.arange(len(x), device=x.device) < self.size).view(-1, 1, *shape[1:])  # [B, 1, ...]
        n = self.size * x[0, 0].numel()
        mean = x.where(real, 0).sum(axes) / n  # [channels]
        away = (x - mean.view(shape)).where(real, 0)
        variance = away.square().sum(axes) / n
        one = n <= 1  # it has no variance
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_((~one).to(self.num_batches_tracked))
        for kept, new in ((self.running_mean, mean), (self.running_var, variance * n / (n - 1).clamp(min=1))):
            kept.copy_(torch.where(one, kept, kept + self.momentum * (new.detach() - kept)))
        mean, variance = torch.where(one, self.running_mean, mean), torch.where(one, self.running_var, variance)
        scaled = (x - mean.view(shape)) * (variance + self.eps).rsqrt().view(shape)
        if self.affine:
            scaled = scaled * self.weight.view(shape) + self.bias.view(shape)
        return scaled.to(input.dtype)


_KINDS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
GUARDED: dict[type[nn.Module], type[nn.Module]] = {k: type(k.__name__, (_ForClients, k), {}) for k in _KINDS}
BatchNorm1d, BatchNorm2d, BatchNorm3d = GUARDED.values()


def for_clients(layer: nn.Module) -> None:
    """Turns a BatchNorm layer of torch into one of these classes."""
    still = is_frozen_norm(layer)
    layer.__class__ = GUARDED[type(layer)]
    vars(layer)["still"] = still
    if not still:
        layer.register_buffer("size", torch.zeros(()), persistent=False)


@contextmanager
def padding(layers: Collection["_ForClients"]) -> Iterator[None]:
    """Within it only the first `size` samples of a batch count for these layers."""
    for layer in layers:
        layer.padded = True
    try:
        yield
    finally:
        for layer in layers:
            layer.padded = False


def padded_norms(network: nn.Module) -> dict[str, "_ForClients"]:
    """The BatchNorm layers that know padding, by name: those that learn, and keep running statistics by a momentum."""
    layers = {name: layer for name, layer in network.named_modules() if isinstance(layer, _ForClients)}
    return {n: k for n, k in layers.items() if k.track_running_stats and k.momentum is not None and not k.still}
