"""Making the M components out of one backbone: alike in kind, different at the start."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedem_lightning.aggregation import Models
from fedem_lightning.backbones.batch_norm import GUARDED
from fedem_lightning.backbones.dropout import Dropout
from fedem_lightning.backbones.lstm import LSTM
from fedem_lightning.errors import UserError, require_whole
from fedem_lightning.randomness import Purpose, generator

Backbone = nn.Module | Callable[[], nn.Module]
"""A network, or a function that makes one."""


def make_components(backbone: Backbone, n_components: int, seed: int) -> nn.ModuleList:
    """M components that start different from one another; with equal ones EM would keep them equal for ever.

    Component 0 is the backbone as given. The others are made by the function, or are copies whose layers draw their
    initial values anew (`reset_parameters`), under a seed of (seed, component). `nn.Dropout` layers are exchanged for
    ours, whose masks depend on neither engine nor block; `nn.LSTM` for one that can be stacked; BatchNorm is guarded
    against batches of one value.

    Raises:
        UserError: n_components < 1, or parameters that cannot be drawn anew.

    """
    require_whole("algorithm.n_components", n_components, at_least=1)
    components = []
    for m in range(n_components):
        with torch.random.fork_rng(devices=[]):
            if m > 0:
                torch.manual_seed(int(generator(seed, Purpose.COMPONENT, m).integers(2**62)))
            if isinstance(backbone, nn.Module):
                component = copy.deepcopy(backbone) if m == 0 else _draw_anew(copy.deepcopy(backbone))
            else:
                component = backbone()
        _exchange_layers(component)
        components.append(component)
    return nn.ModuleList(components)


def _draw_anew(module: nn.Module) -> nn.Module:
    for layer in module.modules():
        own = list(layer.parameters(recurse=False))
        reset = getattr(layer, "reset_parameters", None)
        if callable(reset):
            reset()
        elif own:
            raise UserError(
                f"backbone: {type(layer).__name__} has parameters but no reset_parameters(), so components would start "
                "equal; give a function that makes the backbone instead of the backbone"
            )
    return module


def _exchange_layers(module: nn.Module) -> None:
    """Dropout, BatchNorm and LSTM layers become ours; parameters, buffers and their names stay."""
    salts = iter(range(1000, 2000))
    for layer in module.modules():
        if type(layer) in GUARDED:
            layer.__class__ = GUARDED[type(layer)]
        elif LSTM.can_replace(layer):
            layer.__class__ = LSTM
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Dropout:
                setattr(parent, name, Dropout(child.p, salt=next(salts)))


def channels_last(weight: Tensor) -> Tensor:
    """A copy of a convolution's weight [..., out, in, height, width] whose memory has the input channels last.

    A CPU convolves and pools faster in this order. Strides say so even for a single channel, where
    `torch.channels_last` would leave them alone and the layers that follow would use the slow order.
    """
    return weight.movedim(-3, -1).clone(memory_format=torch.contiguous_format).movedim(-1, -3)


def dropout_keys(module: nn.Module) -> list[str]:
    """Names of the buffers that hold dropout keys."""
    names = [name for name, layer in module.named_modules() if isinstance(layer, Dropout)]
    return [f"{name}.key" if name else "key" for name in names]


def model_state(component: nn.Module) -> Models:
    """Parameters and buffers of a component that make up its model (dropout keys do not); no gradients attached."""
    keys = dropout_keys(component)
    tensors = [*component.named_parameters(), *component.named_buffers()]
    return {name: tensor.detach() for name, tensor in tensors if name not in keys}
