"""The table of components and groups: entropy of mixture weights, recovery of the ground truth, dead components."""

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import special

from fedem_lightning.evaluation.components import DEAD, dead_components
from fedem_lightning.report.cells import Cell, Column, Table, cell
from fedem_lightning.report.finished_run import Run
from fedem_lightning.report.groups import Setting
from fedem_lightning.report.markup import shorten
from fedem_lightning.report.papers import COMPONENTS_TABLE, Papers

_COLUMNS = {
    "seeds": Column("seeds", ".0f"),
    "components": Column("components", ".0f"),
    "pi_cosine_distance": Column("weights' distance", ".2g", ".1g"),
    "theta_cosine_distance": Column("components' distance", ".2g", ".1g"),
    "group_accuracy": Column("clients in their group, %", ".1f", ".2f"),
    "adjusted_rand_index": Column("adjusted Rand index", ".2f", ".2f"),
    "groups_found": Column("groups found", ".3g", ".2g"),
    "entropy": Column("entropy", ".2f", ".2f"),
    "paper_entropy": Column("paper entropy", ".2f"),
    "unseen_entropy": Column("unseen entropy", ".2f", ".2f"),
    "paper_unseen_entropy": Column("paper unseen entropy", ".2f"),
    "smallest": Column("smallest mean weight", ".2g", ".1g"),
    "dead": Column("dead components", ".2g"),
}

_RECOVERY = ("pi_cosine_distance", "theta_cosine_distance", "group_accuracy", "adjusted_rand_index", "groups_found")


@dataclass(frozen=True)
class MixtureWeights:
    """Mixture weights of a run.

    Args:
        seen: those of the clients that trained, [T, M].
        unseen: those of the unseen clients, [U, M].

    """

    seen: np.ndarray
    unseen: np.ndarray

    def dead(self) -> list[int]:
        """Indices of the components that hardly any client uses."""
        return dead_components(self.seen) if len(self.seen) else []


def mixture_weights(run: Run) -> MixtureWeights | None:
    """The columns pi_0, pi_1, ... of clients.parquet; None if there are fewer than two."""
    clients = run.clients if run.clients is not None else pd.DataFrame()
    names = sorted((str(c) for c in clients if re.fullmatch(r"pi_\d+", str(c))), key=lambda name: int(name[3:]))
    if len(names) < 2:
        return None
    seen = (clients["population"] == "seen").to_numpy()
    pi = clients[names].to_numpy(dtype=float)
    return MixtureWeights(pi[seen], pi[~seen])


def entropy(pi: np.ndarray) -> float:
    """Mean entropy of clients, -sum_m pi_m ln pi_m in nats (at most ln M); pi [T, M]. NaN without clients."""
    return float(entropies(pi).mean()) if len(pi) else float("nan")


def entropies(pi: np.ndarray) -> np.ndarray:
    """Entropy of each client's mixture weights, in nats, [T]; pi [T, M]."""
    return special.entr(pi).sum(axis=1)


def components_table(setting: Setting, papers: Papers) -> Table | None:
    """Entropy of pi, distances from the ground truth, groups and dead components; None if no run has any of them.

    Args:
        setting: the setting to compare.
        papers: published numbers; FedEM's Appendix J.3 gives two entropies.

    """
    table = Table(
        "components", f"{shorten(setting.title)}: components and groups after the last round", setting, dict(_COLUMNS)
    )
    for group in setting.groups:
        runs = [_measures(run, table.notes) for run in group.runs]
        if not all(runs):
            continue
        cells = {key: found for key in runs[0] if (found := cell(r.get(key) for r in runs)) is not None}
        for key in ("entropy", "unseen_entropy"):
            published = papers.find(group.runs[0], key, (COMPONENTS_TABLE,)) if key in cells else None
            if published is not None:
                cells[f"paper_{key}"] = Cell(published.value, published.std, 0, published.source, published.note)
        table.rows.append((group, {"seeds": Cell(len(runs)), **cells}))
    table.add_sources()
    return table if table.rows else None


def _measures(run: Run, notes: list[str]) -> dict[str, float]:
    measures: dict[str, float] = {}
    weights = mixture_weights(run)
    if weights is not None:
        dead = weights.dead()
        measures["components"] = weights.seen.shape[1]
        measures["entropy"] = entropy(weights.seen)
        if len(weights.unseen):
            measures["unseen_entropy"] = entropy(weights.unseen)
        if len(weights.seen):
            measures["smallest"] = float(weights.seen.mean(axis=0).min())
        measures["dead"] = len(dead)
        if dead:
            which = f"component{'s' * (len(dead) > 1)} {', '.join(map(str, dead))}"
            below = f"below {DEAD:g} / {weights.seen.shape[1]}"
            notes.append(f"dead: {run.algorithm}, seed {run.seed}, {which} (mean weight {below}) in {run.folder}")
    recovery = run.results.get("recovery") or {}
    for key in _RECOVERY:
        if recovery.get(key) is not None:
            measures[key] = recovery[key] * (100 if key == "group_accuracy" else 1)
    return measures
