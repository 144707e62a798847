"""Features of a frozen body, computed once a sample and kept in place of the samples."""

import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedem_lightning.backbones.pretrained import Pretrained
from fedem_lightning.data.arrays import as_rows, check_features
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.samples import Arrays, Fields, Inputs, InShape, Samples, as_tensor, n_rows
from fedem_lightning.data.schema import Schema
from fedem_lightning.errors import require
from fedem_lightning.models.tensors import arguments

IN_MEMORY = 2**30
"""Bytes of features that are kept in memory; more lie in a file without a name, of which the system keeps what fits."""

ROWS = 64
"""Samples that the body takes at a time, sorted by length: a sequence is padded to the longest of its batch."""


class CachedFeatures(Samples):
    """Samples whose x are the features of a frozen body, as `Pretrained.forward` takes them.

    Args:
        raw: the samples.
        rows: features [k, d].
        place: of each sample by its position in `raw`, its row, int64 [n]; -1 for samples of no split.

    """

    def __init__(self, raw: Arrays | Fields, rows: Tensor, place: Tensor) -> None:
        self.raw, self.rows, self.place = raw, rows, place
        self.in_shape: InShape = {"features": (rows.shape[1],)}

    @property
    def y(self) -> Tensor:
        """The labels as they are stored."""
        return self.raw.y

    @property
    def device(self) -> torch.device:
        """The device of the samples."""
        return self.raw.device

    def features(self, index: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
        """The features, `features` [*S, d]."""
        rows = self.rows.index_select(0, self.place[index.flatten()].to(self.rows.device))
        return {"features": rows.to(self.device, dtype).unflatten(0, index.shape)}

    def labels(self, index: Tensor) -> Tensor:
        """Labels [*S], or [*S, k]."""
        return self.raw.labels(index)

    def to(self, device: torch.device | str) -> "CachedFeatures":
        """The same samples on another device; features in a file stay there."""
        rows = self.rows if self.rows.nbytes > IN_MEMORY else self.rows.to(device)
        return CachedFeatures(self.raw.to(device), rows, self.place.to(device))

    def fingerprint(self) -> list[Tensor]:
        """What a digest must include: that of the samples, so that a run is the same with and without features."""
        return self.raw.fingerprint()


def can_cache(network: Any, federation: Federation) -> bool:
    """Whether a body's features are the same in every round: it is frozen, and nothing changes its samples."""
    same = isinstance(network, Pretrained) and network.frozen_body and network.cache
    return same and federation.augmentation is None and isinstance(federation.samples, Arrays | Fields)


def samples_in_form(schema: Schema, network: nn.Module, x: Any, y: Any = None) -> Samples:
    """A user's samples as `network` takes them: in the form of training, or as the features of a frozen body.

    Args:
        schema: of the training.
        network: a component.
        x: see `Schema.samples_of`; or {"features": [n, d]}, which `ClientModel.features` gives.
        y: labels [n]; None: zeros.

    Raises:
        UserError: the samples have another form.

    """
    labels = None if y is None else schema.labels(y)
    rows = features_given(network, x)
    x = schema.x_of(x) if rows is None else {"features": rows}
    n = n_rows(x)
    count = n if labels is None else len(labels)
    require(count == n, f"y: expected {n} labels, one for each sample, got {count}")
    if rows is None:
        return schema.samples_of(x, labels)
    told = torch.zeros(n, dtype=torch.int64) if labels is None else as_tensor(labels)
    return CachedFeatures(Fields({"features": rows}, told), rows, torch.arange(n))


def features_given(network: nn.Module, x: Any) -> Tensor | None:
    """Features [n, d] of a frozen body that a user gives in place of samples; None: x are samples."""
    only = isinstance(x, Mapping) and set(x) == {"features"}
    if not (only and isinstance(network, Pretrained) and network.frozen_body):
        return None
    name, width = "x: features", network.head.in_features
    rows = as_tensor(check_features(as_rows(name, x["features"]), name=name))
    fits = rows.ndim == 2 and rows.shape[1] == width
    require(fits, f"x: features: expected shape [n, {width}], got {list(rows.shape)}")
    return rows


@torch.no_grad()
def with_features(federation: Federation, network: Pretrained) -> Federation:
    """The federation with the features of its samples in their place; the body runs in batches of samples by length."""
    raw: Any = federation.samples
    parts = [split.fingerprint()[0] for split in federation.splits.values()]  # positions of the samples
    used = torch.cat(parts).unique()  # ascending
    positions, place_of = _distinct(raw, used)  # the body sees equal samples once
    like = next(network.parameters())
    if isinstance(raw, Fields) and raw.length is not None:
        order = raw.length[positions].argsort(stable=True)
    else:
        order = torch.arange(len(positions), device=positions.device)
    rows: Tensor | None = None
    network.eval()
    for part in order.split(ROWS):
        z = features_of(network, raw.features(positions[part], like.dtype))
        rows = _room(len(positions), z) if rows is None else rows
        rows[part.to(rows.device)] = z.to(rows.device)
    assert rows is not None  # clients that train have samples
    place = torch.full((len(raw.y),), -1, dtype=torch.int64, device=positions.device)
    place[used] = place_of
    return federation.with_samples(CachedFeatures(raw, rows, place))


def features_of(network: Pretrained, x: Inputs) -> Tensor:
    """The features of samples, [n, d]."""
    args, named = arguments(network, x)
    return network.features(*args, **named)


def seen_once(networks: Sequence[nn.Module] | nn.ModuleList, x: Inputs) -> Inputs:
    """Samples as several networks take them: the features, if they have one frozen body, which then runs once."""
    first = networks[0]
    has = isinstance(x, dict) and "features" in x
    if len(networks) == 1 or has or not (isinstance(first, Pretrained) and first.frozen_body):
        return x
    return {"features": features_of(first, x)}


def _distinct(raw: Arrays | Fields, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Positions of samples that differ [k], and for each given position its sample's place among them."""
    if not isinstance(raw, Fields) or any(part.is_floating_point() for part in raw.x.values()):
        return positions, torch.arange(len(positions), device=positions.device)
    rows = torch.cat([part[positions].flatten(1) for part in raw.x.values()], dim=1)
    _, which = rows.unique(dim=0, return_inverse=True)
    first = torch.full((int(which.max()) + 1,), len(which), dtype=torch.int64, device=which.device)
    first.scatter_reduce_(0, which, torch.arange(len(which), device=which.device), "amin")
    return positions[first], which


def _room(n: int, like: Tensor) -> Tensor:
    """Room for n rows like those of [b, d]: in memory, or in a file that is gone with this process."""
    n_bytes = n * like.shape[1] * like.element_size()
    if n_bytes <= IN_MEMORY:
        return like.new_empty(n, like.shape[1])
    with tempfile.NamedTemporaryFile(prefix="fedem-lightning-features-") as file:
        size = n * like.shape[1]
        return torch.from_file(file.name, shared=True, size=size, dtype=like.dtype).view(n, -1)
