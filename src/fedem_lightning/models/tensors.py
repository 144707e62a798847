"""Tensors of a network: calls with other ones, frozen ones, those sized by data."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from fedem_lightning.data.samples import Inputs
from fedem_lightning.models.backbones.layers import is_frozen_norm
from fedem_lightning.models.backbones.pretrained import Pretrained

Models = dict[str, Tensor]
"""Stacked models: parameter or buffer name -> tensor with leading axes, [C, M, ...] for a block of learners."""


def called(network: nn.Module, x: Inputs) -> Any:
    """A network's outputs [n, ...] for samples: `logits` of what it returns, or its first tensor.

    The tensors of a dictionary are arguments of the network's `forward` by name; those called "0", "1", ... are
    arguments by position. A network of this package around a user's one (`takes_samples`) gets a dictionary as it is,
    and gives what it gives.
    """
    args, named = arguments(network, x)
    return _outputs(network, network(*args, **named))


def each_called(networks: Sequence[nn.Module] | nn.ModuleList, x: Inputs) -> list[Any]:
    """The outputs of several networks for the same samples; a frozen body, which they share, runs once."""
    first = networks[0]
    if isinstance(first, Pretrained) and first.frozen_body and not (isinstance(x, dict) and "features" in x):
        args, named = arguments(first, x)
        x = {"features": first.features(*args, **named)}
    return [called(network, x) for network in networks]


def arguments(network: nn.Module, x: Inputs) -> tuple[tuple[Any, ...], dict[str, Tensor]]:
    """The arguments of a network's `forward` for samples, by position and by name; see `called`."""
    if isinstance(x, Tensor) or getattr(network, "takes_samples", False):
        return (x,), {}
    by_position = sorted((name for name in x if name.isdigit()), key=int)
    return tuple(x[name] for name in by_position), {name: x[name] for name in x if name not in by_position}


def _outputs(network: nn.Module, returned: Any) -> Any:
    """The outputs in what a network returns: a tensor, a dictionary such as Hugging Face's `ModelOutput`, a tuple."""
    if getattr(network, "takes_samples", False):
        return returned
    if isinstance(returned, Mapping):
        return returned["logits"] if "logits" in returned else next(iter(returned.values()))
    return returned[0] if isinstance(returned, tuple | list) and returned else returned


def call_with(network: nn.Module, tensors: Models, x: Inputs) -> Any:
    """The outputs for x [B, ...], see `called`, with other parameters and buffers, by name, than the network's own.

    A tensor that has several names is given under its first one; names that the network does not have are left out.
    `torch.func.functional_call` alone exchanges the tensors of a layer that the network holds under two names twice,
    and afterwards puts the given ones back as the network's own.
    """
    given, tied = {}, dict[int, Tensor]()  # tied: what stands for each tensor that is replaced
    for prefix, layer in network.named_modules():  # each layer once, by its first name
        for own_name, own in [*layer._parameters.items(), *layer._buffers.items()]:
            name = f"{prefix}.{own_name}" if prefix else own_name
            tensor = tensors.get(name, tied.get(id(own)))
            if tensor is None:
                continue
            given[name] = tensor
            if own is not None:
                tied.setdefault(id(own), tensor)
    args, named = arguments(network, x)
    return _outputs(network, functional_call(network, given, args, named, tie_weights=False))


def trained_parameters(network: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are not frozen, by name; tied parameters have their first name."""
    return {name: p for name, p in network.named_parameters() if p.requires_grad}


def frozen_buffers(network: nn.Module) -> set[str]:
    """Names of the statistics of frozen BatchNorm layers."""
    result = [(prefix, layer) for prefix, layer in network.named_modules() if is_frozen_norm(layer)]
    return {name for prefix, layer in result for name, _ in layer.named_buffers(prefix)}


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
    return sum(t.nbytes for t in {id(tensor): tensor for _, tensor in frozen_tensors(network)}.values())


class SizedByState(nn.Module):
    """A module whose tensors `sized` take their shapes from the state that it loads."""

    sized: tuple[str, ...] = ()

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
        for name in self.sized:
            tensor = getattr(self, name)
            if prefix + name in state_dict:
                tensor.data = tensor.new_zeros(state_dict[prefix + name].shape)
        super()._load_from_state_dict(state_dict, prefix, *args)


def along(scale: Tensor, tensor: Tensor) -> Tensor:
    """One number for each learner, [...], with trailing axes of length 1, so that it scales tensors [..., *]."""
    return scale.reshape((*scale.shape, *[1] * (tensor.ndim - scale.ndim)))
