"""Parts of a network: body and head, which are found in a forward pass, and normalisation layers."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._pytree import tree_map

from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.data.randomness import keyed_streams
from fedem_lightning.data.samples import Inputs
from fedem_lightning.models.components import Backbone, copied, model_state
from fedem_lightning.models.tensors import Models, call_with, trained_parameters
from fedem_lightning.settings.errors import UserError, one_line, require
from fedem_lightning.settings.recipes import Recorded, remember_call

_HINT = "name the head by a pattern for its tensors' names, or list what is shared"


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
    which begins with `key`: the pattern is no regular expression, or one of the two parts has no parameter that trains.

    Example:
        >>> split_body_head(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
        BodyHead(body=('0.weight', '0.bias'), head=('2.weight', '2.bias'))

    """
    trained, names, what = trained_parameters(network), list(model_state(network)), repr(pattern)
    if pattern is None:
        owners, what = {owner(name) for name in trained}, "the last layer"
        made = [name for name, _ in network.named_modules() if name in owners]
        last = made[-1] if x is None else computed_last(network, x, key)
        head = [name for name in names if owner(name) == last]
    else:
        try:
            head = [name for name in names if re.search(pattern, name)]
        except re.error as error:
            raise UserError(f"{key}: {pattern!r} is no regular expression ({error})") from error
    body, listed = [name for name in names if name not in head], ", ".join(trained)
    require(any(n in trained for n in head), f"{key}: {what} is in no parameter's name; they are {listed}")
    require(any(n in trained for n in body), f"{key}: {what} is all that trains ({listed}): no body is left")
    return BodyHead(tuple(body), tuple(head))


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
    sources: list[tuple[str, Tensor]] = [*trained_parameters(network).items()]  # where the graph of the outputs may end
    owners = {owner(name) for name, _ in sources}
    layers = [one for one in owners if not any(o != one and o.startswith(f"{one}." if one else "") for o in owners)]

    def cut(name: str, returned: Any) -> Any:
        """What a layer returns, as if it were given: the graph of the outputs ends there."""

        def leaf(part: Any) -> Any:
            if not isinstance(part, Tensor) or not part.is_floating_point():
                return part
            sources.append((name, part.detach().requires_grad_()))
            return sources[-1][1].clone()  # a following layer may change it in place

        return tree_map(leaf, returned)

    was_training, device = network.training, next(network.parameters()).device
    hooks = [network.get_submodule(n).register_forward_hook(lambda *call, name=n: cut(name, call[2])) for n in layers]
    try:
        with torch.inference_mode(False), torch.enable_grad(), keyed_streams(device, 0, 0):
            buffers = {name: buffer.clone() for name, buffer in network.named_buffers()}
            outputs = call_with(network.eval(), buffers, tree_map(torch.clone, x))
            gradients = torch.autograd.grad(outputs.sum(), [t for _, t in sources], allow_unused=True)
    except Exception as error:  # whatever a network raises
        raise UserError(f"{key}: no forward pass tells the last layer ({one_line(error):.150}); {_HINT}") from error
    finally:
        network.train(was_training)
        for hook in hooks:
            hook.remove()
    result = sorted({name for (name, _), g in zip(sources, gradients, strict=True) if g is not None})
    inside = getattr(network, "own_part", "")  # of several heads the one that is a client's own
    result = [name for name in result if name.startswith(inside)]
    reason = f"the network's outputs come from {', '.join(result) or 'no layer that trains'}, not from one layer"
    require(len(result) == 1 and result[0] in layers, f"{key}: {reason}; {_HINT}")
    return result[0]


def normalization_tensors(network: nn.Module) -> set[str]:
    """Names of the trained parameters and of the buffers of all normalisation layers, by the layers' types."""
    kinds = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)  # _NormBase: BatchNorm and InstanceNorm
    layers = [name for name, layer in network.named_modules() if isinstance(layer, kinds)]
    return {name for name in model_state(network) if name.rpartition(".")[0] in layers}


@torch.no_grad()
def with_own_statistics(network: nn.Module, models: Models, block: Block, batch_size: int) -> Models:
    """The models [C, 1, ...] with the running statistics of each client's own inputs: the means over its batches.

    Batches are in the samples' order; a client without samples keeps the statistics.
    """
    models, own = {name: rows.clone() for name, rows in models.items()}, copied(network).train()
    for layer in own.modules():
        if isinstance(layer, _NormBase):
            layer.momentum = None  # the mean over all batches since the counter was 0
    x, owner = block.x(next(network.parameters()).dtype), block.owner
    for c in owner.unique().tolist():
        state = {name: rows[c, 0] for name, rows in models.items()}  # views, which the forward changes
        for name, counter in state.items():
            if name.endswith("num_batches_tracked"):
                counter.zero_()
        for rows in torch.nonzero(owner == c).flatten().split(batch_size):
            call_with(own, state, tree_map(lambda t, rows=rows: t[rows], x))
    return models


class Around(Recorded, nn.Module):
    """A network of this package around the user's `network`."""

    takes_samples = True
    network: nn.Module


def wrapped(backbone: Backbone, wrap: Callable[[nn.Module], nn.Module]) -> Callable[[], nn.Module]:
    """A function that makes a network from a copy of the user's backbone."""
    return lambda: wrap(copied(backbone) if isinstance(backbone, nn.Module) else remember_call(backbone(), backbone))


def users_network(component: nn.Module) -> nn.Module:
    """The network that the user gave: `component`, or the one inside."""
    return component.network if isinstance(component, Around) else component


def model_bytes(component: nn.Module) -> int:
    """Bytes of one model, the user's network without its frozen parameters: the unit of `transmission`."""
    return sum(t.nbytes for t in model_state(users_network(component)).values())
