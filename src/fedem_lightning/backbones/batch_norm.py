"""BatchNorm for clients: it accepts a batch with one value a channel, and keeps its statistics where it is frozen.

A client's last, short batch may have one value a channel, which has no variance: the running statistics are used for
it, and do not change. A layer whose parameters are all frozen always uses its running statistics, as in evaluation.
"""

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def is_frozen_norm(layer: nn.Module) -> bool:
    """Whether the layer is BatchNorm with parameters that are all frozen."""
    own = list(layer.parameters(recurse=False))
    return isinstance(layer, _BatchNorm) and bool(own) and not any(p.requires_grad for p in own)


class _ForClients(_BatchNorm):
    still: bool  # frozen; in a step engines replace the layer's parameters, which do not show it

    def forward(self, input: Tensor) -> Tensor:
        """As in `nn.BatchNorm1d` and the others, except for frozen layers and for one value a channel."""
        if not self.training or (input.numel() > input.shape[1] and not self.still):
            return super().forward(input)
        self.training = False  # the running statistics are used, and do not change
        try:
            return super().forward(input)
        finally:
            self.training = True


class BatchNorm1d(_ForClients, nn.BatchNorm1d):
    """`nn.BatchNorm1d` for clients."""


class BatchNorm2d(_ForClients, nn.BatchNorm2d):
    """`nn.BatchNorm2d` for clients."""


class BatchNorm3d(_ForClients, nn.BatchNorm3d):
    """`nn.BatchNorm3d` for clients."""


GUARDED: dict[type[nn.Module], type[nn.Module]] = {
    nn.BatchNorm1d: BatchNorm1d,
    nn.BatchNorm2d: BatchNorm2d,
    nn.BatchNorm3d: BatchNorm3d,
}


def for_clients(layer: nn.Module) -> None:
    """Turns a BatchNorm layer of torch into one of these classes."""
    still = is_frozen_norm(layer)
    layer.__class__ = GUARDED[type(layer)]
    vars(layer)["still"] = still
