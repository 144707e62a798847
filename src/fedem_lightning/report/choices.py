"""Choices by validation samples, where tests never count: `--choose` for each client, `--recommend` for all together.

Clients choose the best of several runs as in Mansour et al. 2020, Sec. 4.2.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from fedem_lightning.errors import require
from fedem_lightning.evaluation.summaries import summarize_table
from fedem_lightning.records.measures import SPLITS
from fedem_lightning.report.collect import OPTIONAL
from fedem_lightning.report.finished_run import Run
from fedem_lightning.report.groups import Setting, as_typed, comparable, relevant, sortable
from fedem_lightning.report.recommending import recommended
from fedem_lightning.report.scores_table import final_scores

_CHOSEN = "best by hold-out"
"""The value of the key in the configuration of a chosen run, which its label shows."""

_SCORE_COLUMNS = r"^(id|population|n_(train|val|test)|(train|val|test)_\w+)$"


@dataclass(frozen=True)
class Chosen(Run):
    """A run combined from runs of one seed: every client comes from one of them.

    Args:
        folder, results, config: see `Run`; scores are those of the chosen rows, communication and seconds are the sums
            over all runs.
        table: the chosen rows of clients.parquet, scores only.
        note: how many clients chose each run.

    """

    table: pd.DataFrame
    note: str

    @property
    def metrics(self) -> None:
        """None: clients choose after the last round, so there are no curves."""

    @property
    def clients(self) -> pd.DataFrame:
        """The chosen rows."""
        return self.table

    @property
    def samples(self) -> None:
        """None: the samples' scores are not chosen with the rows."""


def choose(runs: Iterable[Run], key: str) -> list[Chosen]:
    """Combines runs that differ in `key` alone to one run: every client chooses the run with its lowest loss.

    The loss is that of the client's validation samples; a client without any uses the loss of all clients.

    Args:
        runs: any runs; those without a table of clients are left out.
        key: key of the configuration, e.g. algorithm.n_components.

    Returns:
        The combined runs; the value of their `key` is "best by hold-out".

    Raises:
        UserError: no runs with the same data and seed differ in `key` alone; or there are no validation samples.

    """
    families: dict[str, dict[str, Run]] = defaultdict(dict)
    for run in sorted(runs, key=lambda r: r.date):  # of two runs with the same value the newer one counts
        if key in run.config and run.clients is not None:
            names = ("seed", "dataset", "backbone", "federation_digest")
            same = [run.algorithm, *(run.results.get(name) for name in names)]
            shared = comparable({k: v for k, v in relevant(run.config).items() if k != key})
            families[f"{same} {shared} {hash(tuple(run.clients.id))}"][as_typed(run.config[key])] = run
    found = [list(family.values()) for family in families.values() if len(family) > 1]
    alone = "no runs with the same data and seed differ in it alone"
    require(bool(found), f"--choose {key}: nothing to choose from, {alone}")
    return [_chosen(sorted(family, key=lambda run: sortable(run.config[key])), key) for family in found]


def _chosen(runs: list[Run], key: str) -> Chosen:
    tables = [clients for run in runs if (clients := run.clients) is not None]
    held_out = all("val_loss" in table and table.n_val.any() for table in tables)
    require(held_out, f"--choose {key}: no validation samples to choose by in {runs[0].folder}")
    winner = np.stack([_losses(table) for table in tables]).argmin(axis=0)  # [T]
    scores = [table.filter(regex=_SCORE_COLUMNS)[winner == i] for i, table in enumerate(tables)]
    best = pd.concat(scores).sort_index()
    is_seen = (best.population == "seen").to_numpy()
    taken = np.bincount(winner[is_seen], minlength=len(runs))
    shares = ", ".join(f"{as_typed(run.config[key])} by {n}" for run, n in zip(runs, taken, strict=True))
    note = f"{_CHOSEN} over {key}: {runs[0].algorithm}, seed {runs[0].seed}, clients took {shares}"
    results = _results(runs, best[is_seen], best[~is_seen])
    return Chosen(runs[-1].folder, results, {**runs[0].config, key: _CHOSEN}, best, note)


def _losses(clients: pd.DataFrame) -> np.ndarray:
    """The loss by which each client chooses, [T]; infinite where it is not finite."""
    loss, n = clients.val_loss.to_numpy(dtype=float), clients.n_val.to_numpy()
    overall = np.average(loss[n > 0], weights=n[n > 0])
    return np.nan_to_num(np.where(n > 0, loss, overall), nan=np.inf, posinf=np.inf)


def _results(runs: list[Run], seen: pd.DataFrame, unseen: pd.DataFrame) -> dict[str, Any]:
    """Results in the form of results.json; bytes and time are the sums over all runs among which clients choose."""
    seconds = [run.results["seconds"].get("per_round") for run in runs]
    sent = [run.results["communication"] for run in runs]
    kept = ("algorithm", "adaptation", "dataset", "backbone", "seed", "n_clients", "reference", "environment")
    return {
        **{key: {} for key in OPTIONAL},
        **{name: value for name, value in runs[0].results.items() if name in kept},
        "rounds": max(run.results["rounds"] for run in runs),
        **{split: summarize_table(seen, split) for split in SPLITS},
        "unseen": {split: summarize_table(unseen, split) for split in SPLITS} if len(unseen) else {},
        "seconds": {"per_round": None if None in seconds else sum(seconds)},
        "communication": {name: sum(s[name] for s in sent) for name in ("up_bytes", "down_bytes")},
    }


def recommendation(setting: Setting) -> list[str]:
    """Lines about one setting: the number of components of each method that has several, then the method."""
    seeds = {group.label: {run.seed: final_scores(run).get("val") for run in group.runs} for group in setting.groups}
    val = pd.DataFrame(seeds, dtype=float)  # validation scores by seed and label
    known = [group for group in setting.groups if val[group.label].count() == len(group.runs)]
    if not known:
        split = setting.groups[0].config.get("dataset.split")
        way = f"the column of dataset.split={split} has no val; without dataset.split they are drawn"
        if split is None:
            way = "dataset.fractions sets their share, where the data have no split of their own"
        return [f"no validation scores, so nothing can be recommended: the runs had no validation samples; {way}"]
    lines = recommended(known, val).lines
    missing = [group.label for group in setting.groups if group not in known]
    return lines + ([f"without validation scores, so not considered: {', '.join(missing)}"] if missing else [])
