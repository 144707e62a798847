"""Features of a frozen body in place of the samples: a step of the data, before an algorithm exists."""

import copy
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from pytorch_lightning.utilities import rank_zero_only
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from fedem_lightning.data.datamodule import FederatedDataModule
from fedem_lightning.data.samples import Arrays, Fields, Samples
from fedem_lightning.models.backbones.pretrained import Pretrained
from fedem_lightning.models.parts import users_network
from fedem_lightning.models.tensors import arguments
from fedem_lightning.settings.errors import require

ROWS = 64
"""Samples that the body takes at a time, sorted by length: a sequence is padded to the longest of its batch."""


class Embedded(Fields):
    """Samples whose x are the features of a frozen body, as `Pretrained.forward` takes them: `features` [n, d].

    Their digest is that of `raw`, what the body has read: the clients and their samples are the same. The body belongs
    to the model: a checkpoint holds it, and `check_fit` refuses features of another one.
    """

    def __init__(self, raw: Arrays | Fields, features: Tensor, y: Tensor) -> None:
        super().__init__({"features": features}, y)
        self.raw = raw

    def _with(self, change: Callable[[Tensor], Tensor]) -> "Embedded":
        return Embedded(self.raw, change(self.x["features"]), change(self.y))

    def fingerprint(self) -> list[Tensor]:
        """The labels and what the body has read."""
        return [self.y, *self.raw.fingerprint()[1:]]


@torch.no_grad()
def embedded(data: FederatedDataModule, body: Pretrained) -> FederatedDataModule:
    """The data with features in place of the samples: a frozen body reads each sample once, equal ones once.

    Give the algorithm the same network, `FedEM(body, data.n_clients)`. Clients train heads; a client's model still
    takes samples. The body (of trains="head") runs on its own device, in its own dtype. Data may be arrays, images or
    texts.
    """
    start, federation = time.perf_counter(), data.federation
    raw: Any = federation.samples
    frozen = isinstance(body, Pretrained) and body.frozen_body
    require(frozen, "body: expected a Pretrained network with trains=head, whose features do not change")
    require(type(raw) in (Arrays, Fields), "data: expected samples that lie in memory, and are no features yet")
    parts = [split.fingerprint()[0] for split in federation.splits.values()]  # positions of the samples
    used = torch.cat(parts).unique()  # ascending
    positions, place_of = _distinct(raw, used)
    order = torch.arange(len(positions), device=used.device)
    if isinstance(raw, Fields) and raw.length is not None:
        order = raw.length[positions].argsort(stable=True)
    body.eval()
    distinct = torch.cat([_read(body, raw, positions[rows]) for rows in order.split(ROWS)])[order.argsort()]
    features = distinct.new_zeros(len(raw.y), distinct.shape[1])  # samples of no split have none
    features[used] = distinct[place_of]
    seconds, size = time.perf_counter() - start, distinct.nbytes / 1e6
    reason = f"{len(distinct)} samples once, {distinct.shape[1]} numbers each ({size:.1f} MB, {seconds:.1f} s)"
    rank_zero_only(print)(f"the frozen body has computed the features of {reason}; clients train heads on them")
    made = copy.copy(data)
    made.federation = made._on_device = federation._with(samples=Embedded(raw, features, raw.y))
    return made


@torch.no_grad()
def check_body(network: nn.Module, samples: Samples, index: Tensor) -> None:
    """Raises UserError if samples are features, and those at `index` are not from the network's own body."""
    if not isinstance(samples, Embedded):
        return
    own = users_network(network)
    given = "backbone: the data have the features of a frozen body, and this network has another one; "
    given += "give the algorithm the network of embedded(data, network)"
    require(isinstance(own, Pretrained) and own.frozen_body, given)
    there = samples.x["features"][index]
    with torch.autocast(next(own.parameters()).device.type, enabled=False):
        z = _read(own, samples.raw, index).to(there)
    require(z.shape == there.shape and bool((z - there).norm() <= 0.05 * z.norm()), given)  # in any precision


def _read(body: Any, raw: Any, index: Tensor) -> Tensor:
    """The body's features of samples, [n, d], where `index` is."""
    like = next(body.parameters())
    x = tree_map(lambda t: t.to(like.device), raw.features(index.to(raw.device), like.dtype))
    args, named = arguments(body, x)
    return body.features(*args, **named).to(index.device)


def _distinct(raw: Arrays | Fields, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Positions of samples that differ [k], and for each given position its sample's place among them."""
    if not isinstance(raw, Fields) or any(part.is_floating_point() for part in raw.x.values()):
        return positions, torch.arange(len(positions), device=positions.device)
    rows = torch.cat([part[positions].flatten(1) for part in raw.x.values()], dim=1)
    _, first, which = np.unique(rows.cpu().numpy(), axis=0, return_index=True, return_inverse=True)
    return positions[first], torch.from_numpy(which.ravel()).to(positions)
