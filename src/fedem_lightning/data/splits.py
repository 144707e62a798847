"""Splits of each client's samples into train, validation and test, and of clients into seen and unseen.

Below them are the positions of a split's samples, client by client.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fedem_lightning.data.arrays import check_length, listed
from fedem_lightning.data.randomness import Purpose, fold, generator
from fedem_lightning.settings.errors import UserError, require
from fedem_lightning.settings.measures import SPLITS as SPLITS
from fedem_lightning.settings.ranges import BelowOne, Fractions, Names, Seed


@dataclass(frozen=True)
class HoldOut:
    """Which clients take no part in training.

    Args:
        unseen_fraction: their share.
        unseen: their names, in place of a share.
        seed: of everything drawn.

    """

    unseen_fraction: BelowOne = 0.0
    unseen: Names = ()
    seed: Seed = 0

    def seen(self, names: Sequence[str]) -> np.ndarray:
        """Whether each of T clients is seen in training, bool [T]: not those in `unseen`, nor a random share."""
        n, share, wanted = len(names), self.unseen_fraction, {str(name) for name in self.unseen}
        if not wanted:
            n_unseen, seen = round(share * n), np.ones(n, dtype=bool)
            require(n_unseen < n, f"unseen_fraction: {share} of {n} leaves nobody to train")
            seen[generator(self.seed, Purpose.UNSEEN).permutation(n)[:n_unseen]] = False
            return seen
        require(share == 0, f"unseen: it names clients, and unseen_fraction={share} draws some; give one of them")
        missing = sorted(wanted.difference(names))
        require(not missing, f"unseen: no client is named {listed(missing, 3)}; there are {listed(names, 3)}")
        require(len(wanted) < n, f"unseen: it names all {n} clients, which leaves nobody to train")
        return np.array([name not in wanted for name in names])


@dataclass(frozen=True)
class Splitting(HoldOut):
    """How each client's samples are split, and which clients take no part in training.

    Args:
        unseen_fraction, unseen, seed: see `HoldOut`.
        fractions: of each client's samples for train, val, test, where the data have no split.

    """

    fractions: Fractions = (0.6, 0.2, 0.2)

    def split(self, client: np.ndarray) -> np.ndarray:
        """Splits each client's samples (int [n]; -1: no client's) at random: int8 [n], 0 train, 1 val, 2 test.

        A client's draw does not depend on which clients are seen.
        """
        return self.by_rank(client, generator(self.seed, Purpose.SPLIT).random(len(client)))

    def by_rank(self, client: np.ndarray, draw: np.ndarray) -> np.ndarray:
        """The same split by numbers [n]: a client's lowest are for test, those above for validation.

        n_val and n_test are floor(fraction * n_t).
        """
        order = np.lexsort((draw, client))  # by client, each client's samples in order; samples of no client first
        counts = np.bincount(client + 1)
        rank = np.empty(len(client), dtype=np.int64)  # index of a sample in its client's ordered list
        rank[order] = np.arange(len(client)) - np.repeat(counts.cumsum() - counts, counts)
        shares = self.fractions[1:]
        n_val, n_test = (np.floor(counts * share + 1e-9).astype(np.int64)[client + 1] for share in shares)
        return np.where(rank < n_test, 2, np.where(rank < n_test + n_val, 1, 0)).astype(np.int8)


@dataclass(frozen=True)
class OwnSplitting(Splitting):
    """How each client's samples are split, and which clients take no part in training.

    Args:
        unseen_fraction, unseen, seed, fractions: see `Splitting`.
        split_by: None: at random. "time:COLUMN": each client's last rows are for testing, those before for validation.
            "group:COLUMN": rows with the same value stay together; `fractions` are of a client's groups, and a client
            with two of them has one for testing, with three one for validation, too. Groups that lie at several clients
            are split as if all rows were one client's. COLUMN is one of a table, or an array of an .npz file.

    """

    split_by: str | None = None

    def __post_init__(self) -> None:
        kind, column = self.parts
        fits = self.split_by is None or (kind in ("time", "group") and column is not None)
        require(fits, f"split_by: expected time:COLUMN or group:COLUMN, got {self.split_by!r:.80}")

    @property
    def parts(self) -> tuple[str | None, str | None]:
        """What `split_by` says: time, group or None; and a column's name."""
        kind, _, column = (self.split_by or "").partition(":")
        return kind or None, column or None

    def split_own(self, client: np.ndarray, values: Any, given: np.ndarray | None = None) -> np.ndarray:
        """Splits each client's samples (int [n]; -1: no client's): int8 [n], 0 train, 1 val, 2 test.

        `values` are the times or groups [n], where the option needs some, `given` the split that the data have already.
        """
        kind = self.parts[0]
        if kind is None:
            return self.split(client) if given is None else given
        require(given is None, "split_by: the data have their split already; leave one of them out")
        require(values is not None, "split_by: arrays in Python have no columns; give their split")
        check_length("split_by", array := np.asarray(values), len(client))
        column = pd.Series(array)
        require(not column.isna().any(), f"split_by: {column.isna().sum()} samples have no {kind}")
        if kind == "time":
            return self.by_rank(client, -_times(column).argsort(kind="stable").argsort())
        groups = pd.factorize(column)[0]
        apart = pd.Series(client[client >= 0]).groupby(groups[client >= 0]).nunique().max() == 1
        return self._by_group(client if apart else np.minimum(client, 0), groups)

    def _by_group(self, client: np.ndarray, groups: np.ndarray) -> np.ndarray:
        """The split by groups, int [n], client by client."""
        from sklearn.model_selection import GroupShuffleSplit  # slow, and rarely needed

        codes = np.zeros(len(client), dtype=np.int8)
        for rows in pd.Series(client).groupby(client).indices.values():
            n = len(np.unique(groups[rows]))
            rng = generator(self.seed, Purpose.SPLIT, int(client[rows[0]]) + 1)
            for code in (2, 1):
                size = int(np.floor(n * self.fractions[code] + 1e-9))
                size = max(size, int(n > 3 - code)) if self.fractions[code] > 0 else size
                left = rows[codes[rows] == 0]
                if size:
                    drawn = GroupShuffleSplit(1, test_size=size, random_state=int(rng.integers(2**32)))
                    codes[left[next(drawn.split(left, groups=groups[left]))[1]]] = code
        return codes


def _times(values: pd.Series) -> np.ndarray:
    """Times as numbers [n], from numbers or dates."""
    if pd.api.types.is_numeric_dtype(values.dtype):
        return values.to_numpy()
    try:
        return pd.to_datetime(values, format="ISO8601", utc=True).astype(np.int64).to_numpy()
    except (ValueError, TypeError) as error:
        some = str(values.iloc[0])
        raise UserError(f"split_by: expected numbers or dates written as 2024-01-31, got such as {some:.40}") from error


def ranks(owner: Tensor, counts: Tensor) -> Tensor:
    """Each sample's index among its owner's samples: owner int64 [n], ascending; counts [C] -> int64 [n]."""
    return torch.arange(len(owner), device=owner.device) - (counts.cumsum(0) - counts)[owner]


@dataclass(frozen=True)
class Split:
    """Positions of the samples of one split, sorted by client."""

    index: Tensor  # int64 [n], positions in the federation's arrays
    offsets: Tensor  # int64 [T + 1]: client t owns index[offsets[t]:offsets[t + 1]]

    def __len__(self) -> int:
        return len(self.index)

    def counts(self, clients: Tensor | None = None) -> Tensor:
        """Samples of each of `clients` (default: of all T), int64."""
        if clients is None:
            return self.offsets.diff()
        return self.offsets[clients + 1] - self.offsets[clients]

    def positions(self, clients: Tensor) -> tuple[Tensor, Tensor]:
        """Positions of the samples of `clients` (int64 [C]), and each owner's index in `clients`: int64 [n] each."""
        counts = self.counts(clients)  # [C]
        owner = torch.repeat_interleave(torch.arange(len(clients), device=clients.device), counts)  # [n]
        return self.index[self.offsets[clients][owner] + ranks(owner, counts)], owner

    def thinned(self, clients: Tensor, fraction: float, seed: int) -> "Split":
        """The split with a random subset of the samples of `clients`: round(fraction n_t) of each."""
        counts = self.offsets.diff()  # [T]
        owner = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)  # [n]
        order = torch.argsort((owner << 32) | fold(seed, Purpose.THINNED, self.index), stable=True)
        sizes = counts.clone()
        sizes[clients] = (fraction * counts[clients]).round().long()
        kept = order[torch.arange(len(owner), device=owner.device) - self.offsets[owner] < sizes[owner]]
        return Split(self.index[kept.sort().values], torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]))

    def to(self, device: torch.device | str) -> "Split":
        """The same split on another device."""
        return Split(self.index.to(device), self.offsets.to(device))

    def fingerprint(self) -> list[Tensor]:
        """The tensors that a digest must include."""
        return [self.index, self.offsets]


def splits_by_client(
    client: np.ndarray, split: np.ndarray, n_clients: int, position: np.ndarray | None = None
) -> dict[str, Split]:
    """The three splits by name, each sorted by client: see `Federation.from_samples`."""
    splits = {}
    for code, name in enumerate(SPLITS):
        index = np.flatnonzero((split == code) & (client >= 0))
        index = index[np.argsort(client[index], kind="stable")]
        counts = np.bincount(client[index], minlength=n_clients)
        where = torch.from_numpy(index if position is None else position[index])
        splits[name] = Split(where, torch.from_numpy(np.concatenate([[0], counts.cumsum()])))
    return splits
