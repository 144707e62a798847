"""Outputs of models that clients have of their own, of many clients at once where that is faster; in eval mode.

Networks whose trained layers are linear run as batched matrix products (`StackedBackbone`), others through
`torch.func.vmap`; those that `against_stacking` names, and those that mix samples, client by client.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.utils._pytree import tree_leaves, tree_map

from fedem_lightning.data.federation import Block
from fedem_lightning.data.samples import Inputs
from fedem_lightning.models.components import arranged
from fedem_lightning.models.stacked import PADDING, StackedBackbone, against_stacking, group_rows
from fedem_lightning.models.tensors import Models, call_with

MOST_NUMBERS = 2**21
"""Of the models that run at once on a CPU: 8 MB stay in its cache. On a GPU 128 times as many."""


class Part(NamedTuple):
    """Outputs for some of a block's samples."""

    where: Tensor  # int64 [k], the samples' positions in the block
    outputs: list[Any]  # of the M models, each [k, ...], or several tensors [k, ...]


class _Way:
    """How a network runs with the tensors of many clients."""

    def __init__(self, network: nn.Module, key: tuple[Any, ...], device: torch.device) -> None:
        self.key = key
        self.alone = against_stacking(network, device) is not None  # client by client
        stacked = None if self.alone else StackedBackbone.of(network)
        self.stacked = None if stacked is None else stacked.eval()
        self.trusted: set[int] = set()  # numbers of models with which its outputs were found right


_WAYS: WeakKeyDictionary[nn.Module, _Way] = WeakKeyDictionary()


def client_outputs(network: nn.Module, models: Models, block: Block) -> Iterator[Part]:
    """Outputs of the models [C, M, ...] of the block's clients for their own samples."""
    network.eval()
    like = next(network.parameters())
    counts = block.counts().cpu()  # groups are made on the CPU, which waits for a GPU once
    key = (like.device, *models, *map(id, network.parameters()))  # of what a stacked network has copies
    way = _WAYS.get(network)
    if way is None or way.key != key:
        way = _WAYS[network] = _Way(network, key, like.device)
    if len(counts) > 1 and all(rows.stride(0) == 0 for rows in models.values()):  # all clients have the same models
        for where in torch.arange(len(block.index), device=like.device).split(block.most):
            x = block.federation.samples.features(block.index[where], like.dtype)
            yield Part(where, _of_one(network, models, 0, x))
        return
    left = counts.clone()
    try:
        if not way.alone and int((counts > 0).sum()) > 1:
            for clients, part in _of_groups(network, models, block, counts, way):
                left[clients] = 0
                yield part
    except RuntimeError:  # torch.func has no rule for an operation, or the outputs are not those of the network alone
        way.alone = True
    yield from _one_by_one(network, models, block, counts, left)


def _one_by_one(network: nn.Module, models: Models, block: Block, counts: Tensor, left: Tensor) -> Iterator[Part]:
    """Outputs of the clients with samples `left` [C], one after the other, in parts of about `block.most`."""
    present = left.nonzero().squeeze(1)
    sizes = counts[present]
    _, lengths = ((sizes.cumsum(0) - sizes) // block.most).unique_consecutive(return_counts=True)
    rest = torch.repeat_interleave(left > 0, counts).nonzero().squeeze(1).to(block.index.device)
    for clients, each in zip(present.split(lengths.tolist()), sizes.split(lengths.tolist()), strict=True):
        where, rest = rest.split([int(each.sum()), len(rest) - int(each.sum())])
        x = block.federation.samples.features(block.index[where], next(network.parameters()).dtype)
        starts, outputs = (each.cumsum(0) - each).tolist(), []
        for c, start, n in zip(clients.tolist(), starts, each.tolist(), strict=True):
            outputs.append(_of_one(network, models, c, tree_map(lambda t, run=slice(start, start + n): t[run], x)))
        yield Part(where, tree_map(lambda *parts: torch.cat(parts), *outputs))


def _of_one(network: nn.Module, models: Models, c: int, x: Inputs) -> list[Any]:
    """The outputs of the M models of client c."""
    n_models = next(iter(models.values())).shape[1]
    states = ({n: arranged(t[c, m], t.device) for n, t in models.items()} for m in range(n_models))
    return [call_with(network, state, x) for state in states]


def _of_groups(
    network: nn.Module, models: Models, block: Block, counts: Tensor, way: _Way
) -> Iterator[tuple[Tensor, Part]]:
    """Clients [A] with about equal numbers of samples, and their outputs at once; the shorter ones are padded."""
    sizes, by_size = counts.sort(descending=True, stable=True)
    starts, n_present = (counts.cumsum(0) - counts)[by_size], int((counts > 0).sum())
    own = sum(rows[0].numel() for rows in models.values() if rows.stride(0))
    most = MOST_NUMBERS * (1 if block.index.device.type == "cpu" else 128) // max(1, own)
    dtype, n_models = next(network.parameters()).dtype, next(iter(models.values())).shape[1]
    for group in group_rows(sizes[:n_present].tolist(), PADDING, block.most, most):
        clients, n = by_size[group], sizes[group].unsqueeze(1)  # [A], [A, 1]
        column = torch.arange(int(n[0]))
        positions = starts[group].unsqueeze(1) + column  # [A, B]
        real = (column < n).flatten().nonzero().squeeze(1).to(block.index.device)
        positions = positions.clamp(max=len(block.index) - 1).to(block.index.device)
        x = block.federation.samples.features(block.index[positions], dtype)
        outputs = _at_once(network, _rows(models, clients), x, n_models, way)  # M x [A, B, ...]
        if n_models not in way.trusted and len(clients) > 1:  # a single client's samples may be mixed
            _check(outputs, _of_one(network, models, int(clients[-1]), tree_map(lambda t, n=n: t[-1, : n[-1]], x)))
            way.trusted.add(n_models)
        yield clients, Part(positions.flatten()[real], tree_map(lambda t, real=real: t.flatten(0, 1)[real], outputs))


def _rows(models: Models, clients: Tensor) -> Models:
    """The rows of clients [A], views where they lie one after the other; [1, M, ...] of what all clients share."""
    first, run = int(clients[0]), bool((clients.diff() == 1).all())
    where = clients.to(next(iter(models.values())).device)
    return {
        n: t[:1] if t.stride(0) == 0 else t[first : first + len(clients)] if run else t.index_select(0, where)
        for n, t in models.items()
    }


def _at_once(network: nn.Module, models: Models, x: Inputs, n_models: int, way: _Way) -> list[Any]:
    """The outputs of M models of each of A clients: x [A, B, ...] -> M x [A, B, ...]."""
    if way.stacked is not None:
        keys = torch.zeros(len(tree_leaves(x)[0]), n_models, dtype=torch.int64, device=tree_leaves(x)[0].device)
        return list(way.stacked.outputs(models, x, keys).unbind(1))
    each = [{n: t[0, m] if len(t) == 1 else t[:, m] for n, t in models.items()} for m in range(n_models)]
    dims = {n: None if len(t) == 1 else 0 for n, t in models.items()}
    return [vmap(lambda s, x: call_with(network, s, x), in_dims=(dims, 0))(state, x) for state in each]


def _check(outputs: list[Any], expected: list[Any]) -> None:
    """Raises RuntimeError if the last client's outputs M x [A, B, ...] are not those `expected`, M x [n, ...]."""
    for many, one in zip(tree_leaves(outputs), tree_leaves(expected), strict=True):
        scale = 0.02 * float(one.nan_to_num(0.0, 0.0, 0.0).abs().max())  # above the rounding error of bfloat16
        if not torch.allclose(many[-1, : len(one)].to(one), one, rtol=0.0, atol=scale, equal_nan=True):
            raise RuntimeError("the network mixes samples")
