"""BatchNorm for clients: it survives a batch with one value a channel, and is still where it is frozen.

One value, as a client's last, short batch may have, has no variance: the running statistics are used for it, and stay
as they are. A layer whose parameters are all frozen always uses its running statistics, as in evaluation.
"""

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def is_frozen_norm(layer: nn.Module) -> bool:
    """Whether it is a BatchNorm layer that has parameters, all frozen."""
    own = list(layer.parameters(recurse=False))
    return isinstance(layer, _BatchNorm) and bool(own) and not any(p.requires_grad for p in own)


class _ForClients(_BatchNorm):
    still: bool  # frozen; inside an engine's step the layer's parameters are others, which do not tell

    def forward(self, input: Tensor) -> Tensor:
        """As `nn.BatchNorm1d` and the others, but for frozen layers and for one value a channel."""
        if not self.training or (input.numel() > input.shape[1] and not self.still):
            return super().forward(input)
        self.training = False  # the running statistics are used, and stay
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
    """Makes a layer of torch's one of these."""
    still = is_frozen_norm(layer)
    layer.__class__ = GUARDED[type(layer)]
    vars(layer)["still"] = still
