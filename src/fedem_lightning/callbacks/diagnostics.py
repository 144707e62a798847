"""Diagnostics of a run: generalisation bounds, and the mixture weights over the rounds, in mixture_weights.npz."""

import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytorch_lightning as pl
import torch
from torch import Tensor

from fedem_lightning.algorithms import FederatedAlgorithm
from fedem_lightning.algorithms.facts import known_pi
from fedem_lightning.data.federation import Federation
from fedem_lightning.evaluation.bounds import (
    cluster_term,
    discrepancies,
    global_term,
    interpolation_term,
    local_term,
    skewness,
    suggest,
)
from fedem_lightning.evaluation.scores import scored_clients
from fedem_lightning.models.personal_models import client_means
from fedem_lightning.models.tensors import trained_parameters
from fedem_lightning.processes import Processes
from fedem_lightning.records.files import regular, write_arrays
from fedem_lightning.settings.check import Checked
from fedem_lightning.settings.ranges import Positive

_MOST_CLIENTS = 200
"""Of more seen clients than this, as many are in the file, at even distances."""

_MOST_ROUNDS = 200
"""With more rounds than this in the file, every second one is dropped, and so again."""


class BoundsDiagnostics(Checked, pl.Callback):
    """Computes how far clients are from the pool, and which way of learning the bounds suggest for each client.

    At every evaluation the algorithm's M components score all training samples of the scored clients that train. After
    the test `pl_module.clients` has the columns `discrepancy` (the loss of a target, over all models scored) and
    `suggestion`, and `pl_module.diagnostics` the entry `bounds`, see docs/results.md. The training does not change.

    Models that are no components (those of `local` and `clustered`) are not scored.

    Args:
        dimension: the models' pseudo-dimension, above 0; None: the number of a model's parameters, which is crude.

    Raises:
        UserError: `dimension` is no number above 0.

    """

    def __init__(self, dimension: Positive | None = None) -> None:
        super().__init__()
        self.dimension = dimension
        self._losses: list[Tensor] = []  # clients' mean losses under the models of each evaluation, [M, C]

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Discards the losses of an earlier training."""
        if stage == "fit":
            self._losses = []

    def on_validation_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Federation, *args: Any
    ) -> None:
        """Scores the newest models."""
        if not trainer.sanity_checking:
            self._see(pl_module, batch)

    def on_test_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Federation, *args: Any
    ) -> None:
        """Scores the last models, and adds the diagnostics to the algorithm."""
        self._see(pl_module, batch)
        self._report(pl_module, batch)

    def state_dict(self) -> dict[str, Any]:
        """The losses so far, for the checkpoint."""
        return {"losses": torch.cat(self._losses)} if self._losses else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the losses of a checkpoint."""
        self._losses = [state_dict["losses"]]

    @torch.no_grad()
    def _see(self, algorithm: Any, federation: Federation) -> None:
        """Adds the losses of the newest models: each process computes its share of the clients, and all get the sum."""
        processes, clients = Processes.of(algorithm.trainer), scored_clients(algorithm, federation)
        block = federation.block(clients[processes.rank :: processes.size], "train")
        losses = torch.zeros(len(clients), len(algorithm.components), dtype=torch.float64, device=clients.device)
        if len(block.clients):
            losses[processes.rank :: processes.size] = client_means(
                algorithm.losses(block).to(algorithm.parameter_dtype), block
            ).double()
        processes.sum([losses])
        self._losses.append(losses.T.cpu() / federation.task.n_targets)

    def _report(self, algorithm: Any, federation: Federation) -> None:
        trained, clients = federation.clients(), scored_clients(algorithm, federation)
        counts, groups = federation.splits["train"].counts, algorithm.states.groups_of(trained)
        sizes, all_sizes = counts(clients).cpu().numpy(), counts(trained).cpu().numpy()
        n, n_clusters = int(all_sizes.sum()), len(groups.unique())
        models = torch.cat(self._losses).numpy()  # [H, C]
        models = models[np.isfinite(models).all(axis=1)]  # without models that diverged
        d = self.dimension or _n_parameters(algorithm)
        discrepancy = discrepancies(models, sizes)
        interpolation, share = interpolation_term(sizes, n, d, discrepancy)
        terms = {"local": local_term(sizes, d), "global": global_term(n, d, discrepancy), "interpolate": interpolation}
        if n_clusters > 1:
            apart = discrepancies(models, sizes, algorithm.states.groups_of(clients).cpu().numpy())
            terms["cluster"] = cluster_term(n, len(trained), n_clusters, d, apart)
        suggestion = suggest(terms, share)
        _add_columns(algorithm, discrepancy, suggestion)
        weights = algorithm.states.columns().get("lambda")
        algorithm.diagnostics["bounds"] = {
            "skewness": skewness(all_sizes, None if weights is None else weights[trained.cpu().numpy()]),
            "dimension": d,
            "models": len(models),
            "discrepancy": _quantiles(discrepancy),
            "terms": {name: float(np.median(term)) for name, term in terms.items()},
            "suggestions": {name: int((suggestion == name).sum()) for name in terms},
        }


def _n_parameters(algorithm: FederatedAlgorithm) -> int:
    return sum(parameter.numel() for parameter in trained_parameters(algorithm.components[0]).values())


def _quantiles(values: np.ndarray) -> dict[str, float]:
    names = {"smallest": 0.0, "median": 0.5, "top_decile": 0.9, "largest": 1.0}
    return {name: float(np.quantile(values, q)) for name, q in names.items()}


def _add_columns(algorithm: FederatedAlgorithm, discrepancy: np.ndarray, suggestion: np.ndarray) -> None:
    """Adds columns to the clients' table, whose rows are in ascending order; its seen clients are the scored ones."""
    seen = (algorithm.clients.population == "seen").to_numpy()
    columns = {"discrepancy": np.full(len(seen), np.nan), "suggestion": np.full(len(seen), None, dtype=object)}
    columns["discrepancy"][seen], columns["suggestion"][seen] = discrepancy, suggestion
    algorithm.clients = algorithm.clients.assign(**columns)


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
