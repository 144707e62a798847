"""Construction of the M components from one backbone, with different initial values."""

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from fedem_lightning.aggregation import Models
from fedem_lightning.backbones.batch_norm import GUARDED, for_clients
from fedem_lightning.backbones.dropout import Dropout
from fedem_lightning.backbones.lstm import LSTM
from fedem_lightning.errors import UserError, require, require_whole
from fedem_lightning.models.frozen import frozen_buffers, share_frozen, trained_parameters
from fedem_lightning.randomness import Purpose, generator

Backbone = nn.Module | Callable[[], nn.Module]
"""A network, or a function that makes one."""


def make_components(backbone: Backbone, n_components: int, seed: int, pretrained: Sequence[str] = ()) -> nn.ModuleList:
    """M components with different initial values; EM would keep equal components equal for ever.

    Component 0 is the backbone as given. The others are made by the function, or are copies whose layers draw new
    initial values (`reset_parameters`), with a seed of (seed, component). Frozen parameters are the same tensors in all
    components. `nn.Dropout` layers are replaced by ours, whose masks depend on neither engine nor block; `nn.LSTM` by
    one that can be stacked; BatchNorm by layers that accept batches of one value.

    Args:
        backbone: the network, or a function that makes it.
        n_components: M.
        seed: of components 1..M-1.
        pretrained: names of the parts of the network that start in all components as in component 0.

    Raises:
        UserError: n_components < 1; no parameter trains; no parameter belongs to a name in `pretrained`; parameters
            cannot be drawn again, or there are none to draw.

    """
    require_whole("algorithm.n_components", n_components, at_least=1)
    components: list[nn.Module] = []
    for m in range(n_components):
        with torch.random.fork_rng(devices=[]):
            if m > 0:
                torch.manual_seed(int(generator(seed, Purpose.COMPONENT, m).integers(2**62)))
            component = copy.deepcopy(backbone) if isinstance(backbone, nn.Module) else backbone()
            if m > 0 and isinstance(backbone, nn.Module):
                _draw_anew(component, pretrained)
        _exchange_layers(component.train())
        if m == 0:
            _check_trained(component, n_components, pretrained)
        else:
            share_frozen(component, components[0])
            kept = {name: t for name, t in components[0].state_dict().items() if _within(name, pretrained)}
            component.load_state_dict(kept, strict=False)
        components.append(component)
    made = nn.ModuleList(components)
    arrange(made, torch.device("cpu"))
    return made


def _within(name: str, parts: Sequence[str]) -> bool:
    """Whether a tensor belongs to one of the parts, as `features.0.weight` belongs to `features`."""
    return any(name == part or name.startswith(f"{part}.") for part in parts)


def _check_trained(component: nn.Module, n_components: int, pretrained: Sequence[str]) -> None:
    trained, names = trained_parameters(component), [name for name, _ in component.named_parameters()]
    require(bool(trained), "backbone: no parameter has requires_grad=True, so there is nothing to train")
    parts = ", ".join(dict.fromkeys(name.split(".")[0] for name in names))
    for part in pretrained:
        known = any(_within(name, [part]) for name in names)
        require(known, f"algorithm.pretrained: the backbone has no part called {part}; it has {parts}")
    drawn = any(not _within(name, pretrained) for name in trained)
    require(
        drawn or n_components == 1 or not pretrained,
        "algorithm.pretrained: every parameter that trains would start equal in all components, and stay so; leave the "
        "last layer out (or use algorithm.initialization=shared, where the method has it)",
    )


def _draw_anew(network: nn.Module, pretrained: Sequence[str]) -> None:
    """Draws new initial values for all layers except those that are wholly frozen or pretrained."""
    for name, layer in network.named_modules():
        own = list(layer.named_parameters(recurse=False))
        kept = own and all(not p.requires_grad or _within(f"{name}.{n}".lstrip("."), pretrained) for n, p in own)
        reset = getattr(layer, "reset_parameters", None)
        if callable(reset) and not kept:
            reset()
        elif own and not kept:
            raise UserError(
                f"backbone: {type(layer).__name__} has parameters but no reset_parameters(), so components would start "
                "equal; give a function that makes the backbone instead of the backbone"
            )


def _exchange_layers(module: nn.Module) -> None:
    """Replaces Dropout, BatchNorm and LSTM layers by ours; parameters, buffers and their names do not change."""
    salts = iter(range(1000, 2000))
    for layer in module.modules():
        if type(layer) in GUARDED:
            for_clients(layer)
        elif LSTM.can_replace(layer):
            layer.__class__ = LSTM
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Dropout:
                setattr(parent, name, Dropout(child.p, salt=next(salts)))


def channels_last(weight: Tensor) -> Tensor:
    """A copy of a convolution's weight [..., out, in, height, width] with the input channels last in memory.

    A CPU convolves and pools faster in this order. The strides show the order even for a single channel;
    `torch.channels_last` would not change them, and the following layers would use the slow order.
    """
    return weight.movedim(-3, -1).clone(memory_format=torch.contiguous_format).movedim(-1, -3)


def arrange(network: nn.Module, device: torch.device) -> None:
    """Brings all convolution weights into the memory order for `device`; see `arranged`."""
    for parameter in network.parameters():
        parameter.data = arranged(parameter.data, device)


def arranged(tensor: Tensor, device: torch.device) -> Tensor:
    """A convolution's weight [out, in, height, width] in the memory order for `device`; other tensors as they are.

    The last bits of a convolution depend on this order, so training and every scoring must use the same one.
    """
    if tensor.ndim != 4:
        return tensor
    _, n, h, w = tensor.shape
    strides = (n * h * w, 1, n * w, n) if device.type == "cpu" else (n * h * w, h * w, w, 1)
    return tensor if tensor.stride() == strides else tensor.new_empty_strided(tensor.shape, strides).copy_(tensor)


def dropout_keys(module: nn.Module) -> list[str]:
    """Names of the buffers that hold dropout keys."""
    names = [name for name, layer in module.named_modules() if isinstance(layer, Dropout)]
    return [f"{name}.key" if name else "key" for name in names]


def model_state(component: nn.Module) -> Models:
    """The parameters and buffers of a component's model, without gradients and without frozen tensors."""
    others = {*dropout_keys(component), *frozen_buffers(component)}
    tensors = [*trained_parameters(component).items(), *component.named_buffers()]
    return {name: tensor.detach() for name, tensor in tensors if name not in others}
