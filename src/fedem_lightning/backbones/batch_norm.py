"""BatchNorm that survives a batch with one value a channel, as a client's last, short batch may be."""

from torch import Tensor, nn


class _Guarded:
    """One value has no variance: the running statistics are used, and not changed."""

    def forward(self, input: Tensor) -> Tensor:
        """As the layer it guards."""
        assert isinstance(self, nn.modules.batchnorm._BatchNorm)
        if not self.training or input.numel() > input.shape[1]:
            return super().forward(input)  # type: ignore[misc]
        self.training = False
        try:
            return super().forward(input)  # type: ignore[misc]
        finally:
            self.training = True


class BatchNorm1d(_Guarded, nn.BatchNorm1d):
    """`nn.BatchNorm1d`, guarded."""


class BatchNorm2d(_Guarded, nn.BatchNorm2d):
    """`nn.BatchNorm2d`, guarded."""


class BatchNorm3d(_Guarded, nn.BatchNorm3d):
    """`nn.BatchNorm3d`, guarded."""


GUARDED = {nn.BatchNorm1d: BatchNorm1d, nn.BatchNorm2d: BatchNorm2d, nn.BatchNorm3d: BatchNorm3d}
