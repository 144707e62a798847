"""Parts of a network: body and head, the features between them, and normalisation layers."""

import re
from collections.abc import Callable, Collection, Iterable
from itertools import takewhile
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._pytree import tree_map

from fedem_lightning.aggregation import Models
from fedem_lightning.data.block import Block
from fedem_lightning.data.samples import Inputs
from fedem_lightning.errors import UserError, require
from fedem_lightning.models.components import Backbone, copied, model_state, within
from fedem_lightning.models.last_layer import computed_last, owner
from fedem_lightning.models.routed_adapters import RoutedAdapters
from fedem_lightning.models.tensors import call_with, called, trained_parameters
from fedem_lightning.records.recipes import Recorded, remember_call
from fedem_lightning.tasks import known


class BodyHead(NamedTuple):
    """Names of the tensors of a model (`model_state`: trained parameters and buffers) in each part."""

    body: tuple[str, ...]
    head: tuple[str, ...]


def split_body_head(
    network: nn.Module, pattern: str | None = None, key: str = "head", x: Inputs | None = None
) -> BodyHead:
    """Splits a network's parameters that train, and its buffers.

    `pattern` is a regular expression that is found in the names of the head's tensors; None: the head is the layer that
    computes the outputs for x [B, ...], see `computed_last`, or without x the layer that was made last. UserError,
    which begins with `key`: the pattern is no regular expression, one of the two parts has no parameter that trains, or
    what `computed_last` refuses.

    Example:
        >>> split_body_head(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
        BodyHead(body=('0.weight', '0.bias'), head=('2.weight', '2.bias'))

    """
    trained, names = trained_parameters(network), list(model_state(network))
    head = _head(network, names, pattern, key, x)
    body = [name for name in names if name not in head]
    what = "the last layer" if pattern is None else repr(pattern)
    listed = ", ".join(trained)
    require(any(n in trained for n in head), f"{key}: {what} is in no parameter's name; they are {listed}")
    require(any(n in trained for n in body), f"{key}: {what} is all that trains ({listed}): no body is left")
    return BodyHead(tuple(body), tuple(head))


def head_layer(network: nn.Module, pattern: str | None = None, key: str = "head", x: Inputs | None = None) -> str:
    """The name of the head's first layer, whose inputs are the features; the head may be the whole network.

    The arguments are those of `split_body_head`. UserError: the pattern is no regular expression, or is in no name; or
    what `computed_last` refuses.
    """
    names = list(model_state(network))
    owners = {owner(name) for name in _head(network, names, pattern, key, x)}
    require(bool(owners), f"{key}: {pattern!r} is in no parameter's name; they are {', '.join(names)}")
    return next(name for name, _ in network.named_modules() if name in owners)


def _head(network: nn.Module, names: list[str], pattern: str | None, key: str, x: Inputs | None) -> list[str]:
    """Those of the tensors' names that are the head's."""
    if pattern is None:
        owners = {owner(name) for name in trained_parameters(network)}
        made = [name for name, _ in network.named_modules() if name in owners]
        last = made[-1] if x is None else computed_last(network, x, key)
        return [name for name in names if owner(name) == last]
    try:
        return [name for name in names if re.search(pattern, name)]
    except re.error as error:
        raise UserError(f"{key}: {pattern!r} is no regular expression ({error})") from error


def share_of_bytes(network: nn.Module, names: Collection[str]) -> float:
    """The named tensors' bytes, as a share of those of one model (`model_bytes`)."""
    sizes = {name: tensor.numel() * tensor.element_size() for name, tensor in model_state(network).items()}
    return sum(size for name, size in sizes.items() if name in names) / model_bytes(network)


LAYERS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)  # _NormBase: BatchNorm and InstanceNorm


def normalization_tensors(network: nn.Module) -> set[str]:
    """Names of the trained parameters and of the buffers of all normalisation layers, by the layers' types."""
    layers = [name for name, layer in network.named_modules() if isinstance(layer, LAYERS)]
    return {name for name in model_state(network) if name.rpartition(".")[0] in layers}


@torch.no_grad()
def with_own_statistics(network: nn.Module, models: Models, block: Block, batch_size: int) -> Models:
    """The models [C, 1, ...] with the running statistics of each client's own inputs: the means over its batches.

    Batches are in the samples' order; a client without samples keeps the statistics.
    """
    layers = [layer for layer in network.modules() if isinstance(layer, _NormBase) and layer.track_running_stats]
    models = {name: rows.clone() for name, rows in models.items()}
    momenta = [layer.momentum for layer in layers]
    x, owner = block.x(next(network.parameters()).dtype), block.owner
    was_training = network.training
    network.train()
    try:
        for layer in layers:
            layer.momentum = None  # the mean over all batches since the counter was 0
        for c in owner.unique().tolist():
            state = {name: rows[c, 0] for name, rows in models.items()}  # views, which the forward changes
            for name, counter in state.items():
                if name.endswith("num_batches_tracked"):
                    counter.zero_()
            for rows in torch.nonzero(owner == c).flatten().split(batch_size):
                call_with(network, state, tree_map(lambda t, rows=rows: t[rows], x))
    finally:
        network.train(was_training)
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
    return models


class WithFeatures(Recorded, nn.Module):
    """A user's network whose features are known. A subclass defines `forward`.

    A buffer that is None is no part of the model. Its values come beside a model's tensors, under its name, and have
    leading axes where an engine stacks learners: `by_learner`.

    `forward` takes samples as they are, of several tensors as a dictionary. `head` is a regular expression found in the
    names of the head's tensors; None: the last layer. UserError: see `find_head`.
    """

    takes_samples = True

    def __init__(self, backbone: nn.Module, head: str | None = None) -> None:
        super().__init__()
        self.network = backbone
        self.head, _ = find_head(backbone, head)  # the name of the head's first module

    def outputs_and_features(self, x: Inputs) -> tuple[Tensor, Tensor]:
        """The network's outputs [n, ..., n_outputs], and the head's input z, of any shape [n, ...]."""
        outputs, seen = with_inputs_of(self.network, [self.network.get_submodule(self.head)], x)
        require(bool(seen), f"algorithm.head: the network does not call its module {self.head}")
        return outputs, seen[-1]


def with_inputs_of(network: nn.Module, layers: Iterable[nn.Module], x: Inputs) -> tuple[Tensor, list[Tensor]]:
    """The network's outputs [n, ...], and the inputs of these layers, call by call; the hooks are gone afterwards."""
    seen: list[Tensor] = []
    hooks = [layer.register_forward_pre_hook(lambda _, given: seen.append(given[0])) for layer in layers]
    try:
        return called(network, x), seen
    finally:
        for hook in hooks:
            hook.remove()


def wrapped(backbone: Backbone, wrap: Callable[[nn.Module], nn.Module]) -> Callable[[], nn.Module]:
    """A function that makes a network from a copy of the user's backbone."""
    return lambda: wrap(copied(backbone) if isinstance(backbone, nn.Module) else remember_call(backbone(), backbone))


def users_network(component: nn.Module) -> nn.Module:
    """The network that the user gave: `component`, or the one inside."""
    return component.network if isinstance(component, WithFeatures | RoutedAdapters) else component


def model_bytes(component: nn.Module) -> int:
    """Bytes of one model, the user's network without its frozen parameters: the unit of `transmission`."""
    return sum(t.numel() * t.element_size() for t in model_state(users_network(component)).values())


def find_head(network: nn.Module, pattern: str | None = None) -> tuple[str, nn.Module]:
    """The head of `split_body_head` as modules: the name of the first one, and all of it as one module.

    UserError: there is no body or no head, or the head is neither one module nor the end of an `nn.Sequential`.
    """
    body, head = split_body_head(network, pattern)
    owners = [name.split(".")[:-1] for name in head]
    name = ".".join(path[0] for path in takewhile(lambda path: len(set(path)) == 1, zip(*owners, strict=False)))
    module = network.get_submodule(name)
    parts = [name]
    if type(module) is nn.Sequential:
        children = [f"{name}.{child}".lstrip(".") for child in module._modules]
        start = next(i for i, child in enumerate(children) if any(within(n, [child]) for n in head))
        parts, module = children[start:], module[start:]
    whole = bool(parts[0]) and not any(within(n, parts) for n in body)
    listed = ", ".join(head)
    require(whole, f"head: {listed} are neither one module nor the last ones of a Sequential, as needed here")
    return parts[0], module


def by_learner(tensor: Tensor, n_axes: int) -> Tensor:
    """A learner's tensor [...] of `n_axes` axes, or those of a stack [A, M, ...], as [A M, ...]; A M = 1 for one."""
    return tensor.reshape(-1, *tensor.shape[tensor.ndim - n_axes :])


def class_counts(block: Block, n_classes: int) -> Tensor:
    """Training labels of each class, of each of the C clients: int64 [C, Y]; a sequence counts once a known label."""
    y = block.y()
    place = owner_and_class(block.owner, y, n_classes)[known(y).flatten()]
    return torch.bincount(place, minlength=len(block.clients) * n_classes).view(-1, n_classes)


def owner_and_class(owner: Tensor, y: Tensor, n_classes: int) -> Tensor:
    """owner Y + y of every label: owner int64 [n], y [n] or [n, L] -> int64 [n] or [n L]."""
    return (owner.view(-1, *[1] * (y.ndim - 1)) * n_classes + y.long()).flatten()
