"""Construction of the M components from one backbone."""

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedem_lightning.data.randomness import Purpose, generator
from fedem_lightning.models.backbones.layers import GUARDED, Dropout, Redrawable, for_clients
from fedem_lightning.models.backbones.networks import LSTM
from fedem_lightning.models.backbones.pretrained import Pretrained
from fedem_lightning.models.tensors import Models, frozen_buffers, share_frozen, trained_parameters
from fedem_lightning.settings.errors import UserError, given, one_line, require
from fedem_lightning.settings.recipes import remember_call

Backbone = nn.Module | Callable[[], nn.Module]
"""A network, or a function that makes one; of a class, or a partial of one, a file can say how it is made again."""


def make_components(backbone: Backbone, n_components: int, seed: int) -> nn.ModuleList:
    """M components. They start different where the user's function, or a network of this package, draws new values.

    Component 0 is the backbone as given. The others are made by the function, with a seed of (seed, component), or are
    copies of a network: those of a `Redrawable` whose values are as its constructor drew them draw new ones; all others
    keep the user's values, and only the method can make them different. Frozen parameters are the same tensors in all
    components. Layers are exchanged for ours: Dropout, whose masks depend on neither engine nor block; LSTM, which can
    be stacked; BatchNorm, which accepts batches of one value. UserError: the network is of no use here.
    """
    components: list[nn.Module] = []
    made: list[nn.Module] = []  # by the function
    for m in range(n_components):
        with torch.random.fork_rng(devices=[]):
            if m > 0:
                torch.manual_seed(int(generator(seed, Purpose.COMPONENT, m).integers(2**62)))
            if isinstance(backbone, nn.Module):
                _check_network(backbone)
                draws = m > 0 and isinstance(backbone, Redrawable | Pretrained)
                component = backbone.redrawn() if draws else copied(backbone)  # type: ignore[operator]
            else:
                made.append(_made(backbone, made))
                component = copied(made[-1])  # a caller may use it elsewhere
        _exchange_layers(component.train())
        if m > 0:
            share_frozen(component, components[0])
        components.append(component)
    some = bool(trained_parameters(components[0]))
    require(some, "backbone: no parameter has requires_grad=True, so there is nothing to train")
    first = type(components[0])
    if issubclass(first, pl.LightningModule) and first.training_step is not pl.LightningModule.training_step:
        message = "of which forward alone is used; the loss is the task's, the steps client_optimizer's"
        warnings.warn(f"backbone: {first.__name__} is a LightningModule, {message}", stacklevel=2)
    result = nn.ModuleList(components)
    arrange(result, torch.device("cpu"))
    return result


def _made(function: Callable[[], nn.Module], earlier: list[nn.Module]) -> nn.Module:
    """The next network of a function, which shares no trained parameters with the earlier ones."""
    try:
        new = function()
    except TypeError as error:
        what = "expected a network or a function without arguments that makes one"
        raise UserError(f"backbone: {what}, got {given(function)} ({error})") from error
    require(isinstance(new, nn.Module), f"backbone: the function returned {new!r:.50}, expected a network")
    _check_network(new)
    before = {id(p) for network in earlier for p in trained_parameters(network).values()}
    apart = not any(id(p) in before for p in trained_parameters(new).values())
    message = "backbone: the function returned networks that share parameters, expected a new network in every call"
    require(apart, f"{message} (or give the network itself, of which every component is a copy)")
    return remember_call(new, function)


def _check_network(network: nn.Module) -> None:
    """Raises UserError for networks that do not take other parameters in place of their own."""
    wrappers: Any = torch.jit.ScriptModule | nn.DataParallel | nn.parallel.DistributedDataParallel
    for layer in network.modules():
        plain = not isinstance(layer, wrappers) and not any(map(is_lazy, layer.parameters(recurse=False)))
        message = f"expected a network in Python whose shapes are known, got a {type(layer).__name__}"
        require(plain, f"backbone: {message}")


def copied(network: nn.Module) -> nn.Module:
    """A copy of a network; UserError if it has none."""
    try:
        return copy.deepcopy(network)
    except Exception as error:  # whatever a network holds: tensors of a graph, locks, files
        raise UserError(f"backbone: {type(network).__name__} cannot be copied ({one_line(error):.150})") from error


def start_equal(components: nn.ModuleList) -> bool:
    """Whether there are several components, and all of their parameters are equal."""
    first, *others = (trained_parameters(component) for component in components)
    return bool(others) and all(torch.equal(p, first[name]) for other in others for name, p in other.items())


def within(name: str, parts: Sequence[str]) -> bool:
    """Whether a tensor belongs to one of the parts, as `features.0.weight` belongs to `features`."""
    return any(name == part or name.startswith(f"{part}.") for part in parts)


def _exchange_layers(module: nn.Module) -> None:
    """Replaces Dropout, BatchNorm and LSTM layers by ours; parameters, buffers and their names do not change."""
    salts = iter(range(1000, 2000))
    for layer in module.modules():
        if type(layer) in GUARDED:
            for_clients(layer)
        elif type(layer) is nn.LSTM and not (layer.bidirectional or layer.proj_size or layer.dropout):
            layer.__class__ = LSTM
    for parent in list(module.modules()):
        for name, child in list(parent._modules.items()):  # `named_children` gives a layer under one name alone
            if type(child) is nn.Dropout:
                setattr(parent, name, Dropout(child.p, salt=next(salts)).train(child.training))


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
    """The parameters and buffers of a component's model, without gradients and without frozen tensors.

    Buffers that a `state_dict` leaves out are constants of the network.
    """
    layers = component.named_modules()
    constants = [f"{p}.{name}" if p else name for p, layer in layers for name in layer._non_persistent_buffers_set]
    others = {*frozen_buffers(component), *constants}
    tensors = [*trained_parameters(component).items(), *component.named_buffers()]
    return {name: tensor.detach() for name, tensor in tensors if name not in others}


def stacked_state(components: nn.ModuleList) -> Models:
    """The models of M components as one, [M, ...]; see `model_state`."""
    states = [model_state(component) for component in components]
    return {name: torch.stack([state[name] for state in states]) for name in states[0]}
