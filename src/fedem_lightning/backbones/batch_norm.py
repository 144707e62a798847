"""BatchNorm that survives a batch with one value a channel, as a client's last, short batch may be.

One value has no variance: the running statistics are used for it, and stay as they are.
"""

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def _guarded(layer: _BatchNorm, input: Tensor) -> Tensor:
    if not layer.training or input.numel() > input.shape[1]:
        return _BatchNorm.forward(layer, input)
    layer.training = False
    try:
        return _BatchNorm.forward(layer, input)
    finally:
        layer.training = True


class BatchNorm1d(nn.BatchNorm1d):
    """`nn.BatchNorm1d`, guarded."""

    def forward(self, input: Tensor) -> Tensor:
        """As `nn.BatchNorm1d`."""
        return _guarded(self, input)


class BatchNorm2d(nn.BatchNorm2d):
    """`nn.BatchNorm2d`, guarded."""

    def forward(self, input: Tensor) -> Tensor:
        """As `nn.BatchNorm2d`."""
        return _guarded(self, input)


class BatchNorm3d(nn.BatchNorm3d):
    """`nn.BatchNorm3d`, guarded."""

    def forward(self, input: Tensor) -> Tensor:
        """As `nn.BatchNorm3d`."""
        return _guarded(self, input)


GUARDED: dict[type[nn.Module], type[nn.Module]] = {
    nn.BatchNorm1d: BatchNorm1d,
    nn.BatchNorm2d: BatchNorm2d,
    nn.BatchNorm3d: BatchNorm3d,
}
