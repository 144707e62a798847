"""The split of a network into a body, which computes features, and a head, which predicts from them."""

import re
from collections.abc import Collection
from typing import NamedTuple

from torch import nn

from fedem_lightning.errors import UserError, require
from fedem_lightning.models.components import model_state
from fedem_lightning.models.frozen import trained_parameters


class BodyHead(NamedTuple):
    """Names of the tensors of a model (`model_state`: trained parameters and buffers) in each part."""

    body: tuple[str, ...]
    head: tuple[str, ...]


def split_body_head(network: nn.Module, pattern: str | None = None, key: str = "head") -> BodyHead:
    """Splits a network's parameters that train, and its buffers.

    Args:
        network: any module.
        pattern: a regular expression that is found in the names of the head's tensors; None: the head is the last
            module with parameters of its own that train.
        key: the setting that has the pattern, for messages.

    Raises:
        UserError: the pattern is no regular expression, or one of the two parts has no parameter that trains.

    Example:
        >>> split_body_head(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
        BodyHead(body=('0.weight', '0.bias'), head=('2.weight', '2.bias'))

    """
    trained, names = trained_parameters(network), list(model_state(network))
    head = _head(network, names, pattern, key)
    body = [name for name in names if name not in head]
    what = "the last layer" if pattern is None else repr(pattern)
    listed = ", ".join(trained)
    require(any(n in trained for n in head), f"{key}: {what} is in no parameter's name; they are {listed}")
    require(any(n in trained for n in body), f"{key}: {what} is all that trains ({listed}): no body is left")
    return BodyHead(tuple(body), tuple(head))


def head_layer(network: nn.Module, pattern: str | None = None, key: str = "head") -> str:
    """The name of the head's first layer, whose inputs are the features; the head may be the whole network.

    Args:
        network, pattern, key: see `split_body_head`.

    Raises:
        UserError: the pattern is no regular expression, or is in no name.

    Example:
        >>> head_layer(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
        '2'

    """
    names = list(model_state(network))
    owners = {_owner(name) for name in _head(network, names, pattern, key)}
    require(bool(owners), f"{key}: {pattern!r} is in no parameter's name; they are {', '.join(names)}")
    return next(name for name, _ in network.named_modules() if name in owners)


def _head(network: nn.Module, names: list[str], pattern: str | None, key: str) -> list[str]:
    """Those of the tensors' names that are the head's."""
    if pattern is None:
        trained = trained_parameters(network)
        last = [name for name, _ in network.named_modules() if any(_owner(p) == name for p in trained)][-1]
        return [name for name in names if _owner(name) == last]
    try:
        return [name for name in names if re.search(pattern, name)]
    except re.error as error:
        raise UserError(f"{key}: {pattern!r} is no regular expression ({error})") from error


def share_of_bytes(network: nn.Module, names: Collection[str]) -> float:
    """The named tensors' share of a model's bytes."""
    sizes = {name: tensor.numel() * tensor.element_size() for name, tensor in model_state(network).items()}
    return sum(size for name, size in sizes.items() if name in names) / sum(sizes.values())


def _owner(name: str) -> str:
    """The module that holds a tensor: "layers.2" of "layers.2.weight"."""
    return name.rpartition(".")[0]
