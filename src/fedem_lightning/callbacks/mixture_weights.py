"""The mixture weights over the rounds of a run, in mixture_weights.npz."""

import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytorch_lightning as pl
import torch

from fedem_lightning.algorithms import FederatedAlgorithm
from fedem_lightning.algorithms.facts import known_pi
from fedem_lightning.data.federation import Federation
from fedem_lightning.records.files import regular, write_arrays

_MOST_CLIENTS = 200
"""Of more seen clients than this, as many are in the file, at even distances."""

_MOST_ROUNDS = 200
"""With more rounds than this in the file, every second one is dropped, and so again."""


class _Row(NamedTuple):
    round: int  # from 1
    pi: np.ndarray  # float32 [C, M], of the clients in the file
    mean: np.ndarray  # float32 [M], over all seen clients
    entropy: np.ndarray  # float32, mean over all seen clients, in nats


class SaveMixtureWeights(pl.Callback):
    """Writes pi at every evaluation, for an algorithm that has `pi` [T, M]; a resumed run goes on with the file.

    Args:
        path: the .npz file, see docs/results.md.

    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self._rows: list[_Row] = []

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Reads the rounds before the checkpoint from which the run goes on; later ones are computed again."""
        done = trainer.current_epoch
        self._rows = [row for row in _read(self.path) if row.round <= done] if done else []

    def on_validation_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Federation, *args: Any
    ) -> None:
        """Adds the newest mixture weights to the file."""
        pi = known_pi(pl_module) if isinstance(pl_module, FederatedAlgorithm) else None
        if pi is None or trainer.sanity_checking or trainer.state.fn != "fit" or not trainer.is_global_zero:
            return
        seen = batch.clients()
        places = torch.linspace(0, len(seen) - 1, min(len(seen), _MOST_CLIENTS), dtype=torch.float64).round().long()
        shown = seen[places.to(seen.device)]
        weights = pi[seen].double()  # [T, M]
        entropy = torch.special.entr(weights).sum(dim=1).mean()
        found = (tensor.float().cpu().numpy() for tensor in (pi[shown], weights.mean(dim=0), entropy))
        add_thinned(self._rows, _Row(trainer.current_epoch + 1, *found))
        columns = {name: np.stack([getattr(row, name) for row in self._rows]) for name in _Row._fields}
        names = np.array([batch.names[t] for t in shown.tolist()])
        write_arrays(self.path, {**columns, "id": names})


def add_thinned(rows: list[Any], new: Any) -> None:
    """Adds a row at the end of `rows`, each with a `round`, and keeps their distances even and their number limited.

    The newest row is always there. It goes once the next one comes, if it is nearer to the row before it than the
    first two are to each other: the rows between have been thinned out.
    """
    if len(rows) > 2 and rows[-1].round - rows[-2].round < rows[1].round - rows[0].round:
        rows.pop()
    rows.append(new)
    if len(rows) > _MOST_ROUNDS:
        del rows[1::2]


def _read(path: Path) -> list[_Row]:
    try:
        with regular(path).open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            columns = [file[name] for name in _Row._fields]
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile):
        return []  # the run went on in another folder, or the file is damaged
    return [_Row(int(row[0]), *row[1:]) for row in zip(*columns, strict=True)]
