"""The layer that computes a network's outputs, found in a forward pass: in which order layers are made says nothing."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from fedem_lightning.data.federation import Federation
from fedem_lightning.data.samples import Inputs
from fedem_lightning.errors import UserError, one_line, require
from fedem_lightning.models.tensors import call_with, trained_parameters
from fedem_lightning.randomness import keyed_streams

_HINTS = {"head": "name the head by a pattern for its tensors' names", "shared": "list the modules that are shared"}


def one_sample(federation: Federation, network: nn.Module) -> Inputs:
    """x of a training sample, [1, ...], where the network is; zeros where the samples lie elsewhere."""
    index, like = federation.splits["train"].index[:1], next(network.parameters())
    x = federation.samples.features(index, like.dtype)
    return tree_map(lambda t: (t if len(index) else t.new_zeros(1, *t.shape[1:])).to(like.device, copy=True), x)


def owner(name: str) -> str:
    """The module that holds a tensor: "layers.2" of "layers.2.weight", "fc" of "fc.parametrizations.weight.0"."""
    return name.rpartition(".")[0].partition(".parametrizations.")[0]


def computed_last(network: nn.Module, x: Inputs, key: str = "head") -> str:
    """The name of the layer with parameters that train whose outputs become the network's without another such layer.

    The network runs once on x [B, ...], in eval mode; its buffers and all random generators are as before. UserError,
    which begins with `key`: the outputs come from no layer or from several, or from a parameter that no layer holds.

    Example:
        >>> computed_last(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2), nn.Softmax(1)), torch.ones(1, 4))
        '2'

    """
    trained = trained_parameters(network)
    owners = dict.fromkeys(map(owner, trained))
    layers = [one for one in owners if not any(o != one and o.startswith(f"{one}." if one else "") for o in owners)]
    source: dict[int, str] = {id(parameter): name for name, parameter in trained.items()}
    leaves: list[Tensor] = []  # kept, so that no other tensor gets an id of theirs

    def cut(name: str, returned: Any) -> Any:
        """What a layer returns, as if it were given: the graph of the outputs ends there."""

        def leaf(part: Any) -> Any:
            if not isinstance(part, Tensor) or not part.is_floating_point():
                return part
            leaves.append(part.detach().requires_grad_())
            source[id(leaves[-1])] = name
            return leaves[-1].clone()  # a following layer may change it in place

        return tree_map(leaf, returned)

    was_training, device = network.training, next(network.parameters()).device
    hooks = [network.get_submodule(n).register_forward_hook(lambda *call, name=n: cut(name, call[2])) for n in layers]
    try:
        with torch.inference_mode(False), torch.enable_grad(), keyed_streams(device, 0, 0):
            buffers = {name: buffer.clone() for name, buffer in network.named_buffers()}
            outputs = call_with(network.eval(), buffers, tree_map(torch.clone, x))
    except Exception as error:  # whatever a network raises
        reason = f"{key}: no forward pass tells the last layer ({one_line(error):.150})"
        raise UserError(f"{reason}; {_HINTS.get(key, _HINTS['head'])}") from error
    finally:
        network.train(was_training)
        for hook in hooks:
            hook.remove()
    found = sorted({source[one] for one in _ends(outputs) if one in source})
    inside = getattr(network, "own_part", "")  # of several heads the one that is a client's own
    found = [name for name in found if name.startswith(inside)]
    told = f"the network's outputs come from {', '.join(found) or 'no layer that trains'}, not from one layer"
    require(len(found) == 1 and found[0] in layers, f"{key}: {told}; {_HINTS.get(key, _HINTS['head'])}")
    return found[0]


def _ends(outputs: Any) -> set[int]:
    """The ids of the tensors at which the outputs' graph ends."""
    seen: set[Any] = set()
    waiting: set[Any] = {getattr(outputs, "grad_fn", None)} - {None}
    while waiting:
        seen |= waiting
        waiting = {following for node in waiting for following, _ in node.next_functions} - seen - {None}
    return {id(node.variable) for node in seen if hasattr(node, "variable")}
