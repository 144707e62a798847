"""Features, the input of a network's head, for methods that need them beside the network's outputs."""

from collections.abc import Callable, Iterable
from itertools import takewhile

import torch
from torch import Tensor, nn

from fedem_lightning.data.federation import Block
from fedem_lightning.errors import require
from fedem_lightning.models.components import Backbone, copied, model_state
from fedem_lightning.models.parts import split_body_head
from fedem_lightning.records.recipes import Recorded


class WithFeatures(Recorded, nn.Module):
    """A user's network whose features are known. A subclass defines `forward`.

    A buffer that is None is no part of the model. Its values come beside a model's tensors, under its name, and have
    leading axes where an engine stacks learners: `by_learner`.

    Args:
        backbone: the user's network.
        head: a regular expression found in the names of the head's tensors; None: the last layer.

    Raises:
        UserError: see `find_head`.

    """

    def __init__(self, backbone: nn.Module, head: str | None = None) -> None:
        super().__init__()
        self.network = backbone
        self.head, _ = find_head(backbone, head)  # the name of the head's first module

    def outputs_and_features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The network's outputs [n, ..., n_outputs], and the head's input z, of any shape [n, ...]."""
        outputs, seen = with_inputs_of(self.network, [self.network.get_submodule(self.head)], x)
        require(bool(seen), f"algorithm.head: the network does not call its module {self.head}")
        return outputs, seen[-1]


def with_inputs_of(network: nn.Module, layers: Iterable[nn.Module], x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The network's outputs [n, ...], and the inputs of these layers, call by call; the hooks are gone afterwards."""
    seen: list[Tensor] = []
    hooks = [layer.register_forward_pre_hook(lambda _, given: seen.append(given[0])) for layer in layers]
    try:
        return network(x), seen
    finally:
        for hook in hooks:
            hook.remove()


def with_features(backbone: Backbone, wrap: Callable[[nn.Module], WithFeatures]) -> Callable[[], nn.Module]:
    """A function that makes a network from a copy of the user's backbone."""
    return lambda: wrap(copied(backbone) if isinstance(backbone, nn.Module) else backbone())


def users_network(component: nn.Module) -> nn.Module:
    """The network that the user gave: `component`, or the one inside."""
    return component.network if isinstance(component, WithFeatures) else component


def model_bytes(component: nn.Module) -> int:
    """Bytes of one model, the user's network without its frozen parameters: the unit of `transmission`."""
    return sum(t.numel() * t.element_size() for t in model_state(users_network(component)).values())


def find_head(network: nn.Module, pattern: str | None = None) -> tuple[str, nn.Module]:
    """The head of `split_body_head` as modules: the name of the first one, and all of it as one module.

    Raises:
        UserError: there is no body or no head, or the head is neither one module nor the end of an `nn.Sequential`.

    Example:
        >>> find_head(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
        ('2', Linear(in_features=3, out_features=2, bias=True))

    """
    body, head = split_body_head(network, pattern)
    owners = [name.split(".")[:-1] for name in head]
    name = ".".join(path[0] for path in takewhile(lambda path: len(set(path)) == 1, zip(*owners, strict=False)))
    module = network.get_submodule(name)
    parts = [name]
    if type(module) is nn.Sequential:
        children = [f"{name}.{child}".lstrip(".") for child in module._modules]
        start = next(i for i, child in enumerate(children) if any(_within(n, child) for n in head))
        parts, module = children[start:], module[start:]
    whole = not any(_within(n, part) for n in body for part in parts)
    listed = ", ".join(head)
    require(whole, f"head: {listed} are neither one module nor the last ones of a Sequential, as needed here")
    return parts[0], module


def _within(name: str, module: str) -> bool:
    """Whether a tensor belongs to a module; "" is the whole network."""
    return not module or name.startswith(f"{module}.")


def by_learner(tensor: Tensor, n_axes: int) -> Tensor:
    """A learner's tensor [...] of `n_axes` axes, or those of a stack [A, M, ...], as [A M, ...]; A M = 1 for one."""
    return tensor.reshape(-1, *tensor.shape[tensor.ndim - n_axes :])


def class_counts(block: Block, n_classes: int) -> Tensor:
    """Training labels of each class, of each of the C clients: int64 [C, Y]; a sequence counts once a position."""
    place = owner_and_class(block.owner, block.y(), n_classes)
    return torch.bincount(place, minlength=len(block.clients) * n_classes).view(-1, n_classes)


def owner_and_class(owner: Tensor, y: Tensor, n_classes: int) -> Tensor:
    """owner Y + y of every label: owner int64 [n], y [n] or [n, L] -> int64 [n] or [n L]."""
    return (owner.view(-1, *[1] * (y.ndim - 1)) * n_classes + y.long()).flatten()
