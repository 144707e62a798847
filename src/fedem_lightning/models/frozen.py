"""Frozen parameters: those of the user's network with `requires_grad=False`.

They are no part of a model: all components share them, they are not trained, averaged or stored for clients, and a
client receives them once, with its first model. The statistics of a BatchNorm layer with only frozen parameters are
frozen too.
"""

from collections.abc import Iterator

from torch import Tensor, nn

from fedem_lightning.backbones.layers import is_frozen_norm


def trained_parameters(network: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are not frozen, by name; tied parameters have their first name."""
    return {name: p for name, p in network.named_parameters() if p.requires_grad}


def frozen_buffers(network: nn.Module) -> set[str]:
    """Names of the statistics of frozen BatchNorm layers."""
    found = [(prefix, layer) for prefix, layer in network.named_modules() if is_frozen_norm(layer)]
    return {f"{prefix}.{name}" if prefix else name for prefix, layer in found for name, _ in layer.named_buffers()}


def frozen_tensors(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Frozen parameters under all of their names, and the statistics of frozen BatchNorm layers."""
    for name, parameter in network.named_parameters(remove_duplicate=False):
        if not parameter.requires_grad:
            yield name, parameter
    for name in sorted(frozen_buffers(network)):
        yield name, network.get_buffer(name)


def share_frozen(network: nn.Module, owner: nn.Module) -> None:
    """Replaces the frozen tensors of `network` by those of `owner`, a network with the same layers."""
    for name, tensor in frozen_tensors(owner):
        path, _, own_name = name.rpartition(".")
        setattr(network.get_submodule(path), own_name, tensor)


def frozen_bytes(network: nn.Module) -> int:
    """Bytes of all frozen tensors; tied parameters count once."""
    tensors = {id(tensor): tensor for _, tensor in frozen_tensors(network)}
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
