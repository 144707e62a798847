"""A network's outputs with other tensors in place of its own."""

from torch import Tensor, nn
from torch.func import functional_call

from fedem_lightning.aggregation import Models


def call_with(network: nn.Module, tensors: Models, x: Tensor) -> Tensor:
    """The outputs for x; afterwards the network has its own tensors again.

    `torch.func.functional_call` alone exchanges the tensors of a layer that the network holds under two names twice,
    and afterwards puts the given ones back as the network's own.

    Args:
        network: whose tensors are replaced while it runs.
        tensors: parameters and buffers by name. A tensor that has several names is given under its first one. The
            network keeps its own where none is given; names that it does not have are left out.
        x: samples [B, ...].

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
    return functional_call(network, given, (x,), tie_weights=False)
