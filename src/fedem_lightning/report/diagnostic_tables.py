"""Tables beside that of scores: components and groups (entropy, ground truth, dead ones)."""

import re
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import special

from fedem_lightning.evaluation.component_health import DEAD, dead_components
from fedem_lightning.report.cells import Cell, Table, TableColumn, mean_cells
from fedem_lightning.report.finished_run import Run
from fedem_lightning.report.groups import Setting
from fedem_lightning.report.papers import COMPONENTS_TABLE, Papers

_COMPONENTS = {
    "seeds": TableColumn("seeds", ".0f"),
    "components": TableColumn("components", ".0f"),
    "pi_cosine_distance": TableColumn("weights' distance", ".2g", ".1g"),
    "theta_cosine_distance": TableColumn("components' distance", ".2g", ".1g"),
    "group_accuracy": TableColumn("clients in their group, %", ".1f", ".2f"),
    "adjusted_rand_index": TableColumn("adjusted Rand index", ".2f", ".2f"),
    "groups_found": TableColumn("groups found", ".3g", ".2g"),
    "entropy": TableColumn("entropy", ".2f", ".2f"),
    "paper_entropy": TableColumn("paper entropy", ".2f"),
    "unseen_entropy": TableColumn("unseen entropy", ".2f", ".2f"),
    "paper_unseen_entropy": TableColumn("paper unseen entropy", ".2f"),
    "smallest": TableColumn("smallest mean weight", ".2g", ".1g"),
    "dead": TableColumn("dead components", ".2g"),
}
_RECOVERY = ("pi_cosine_distance", "theta_cosine_distance", "group_accuracy", "adjusted_rand_index", "groups_found")


class FinalWeights(NamedTuple):
    """Mixture weights of a run: of the clients that trained [T, M], and of the unseen clients [U, M]."""

    seen: np.ndarray
    unseen: np.ndarray


def final_weights(run: Run) -> FinalWeights | None:
    """The columns pi_0, pi_1, ... of clients.parquet; None if there are fewer than two."""
    clients = run.clients if run.clients is not None else pd.DataFrame()
    names = sorted((str(c) for c in clients if re.fullmatch(r"pi_\d+", str(c))), key=lambda name: int(name[3:]))
    if len(names) < 2:
        return None
    seen = (clients["population"] == "seen").to_numpy()
    pi = clients[names].to_numpy(dtype=float)
    return FinalWeights(pi[seen], pi[~seen])


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
    table = Table("components", "components and groups after the last round", setting, dict(_COMPONENTS))
    for group in setting.groups:
        runs = [_of_components(run, table.notes) for run in group.runs]
        if not all(runs):
            continue
        cells = mean_cells(runs)
        for key in ("entropy", "unseen_entropy"):
            published = papers.find(group.runs[0], key, (COMPONENTS_TABLE,)) if key in cells else None
            if published is not None:
                cells[f"paper_{key}"] = published
        table.rows.append((group, {"seeds": Cell(len(runs)), **cells}))
    table.add_sources()
    return table if table.rows else None


def _of_components(run: Run, notes: list[str]) -> dict[str, float]:
    measures: dict[str, float] = {}
    weights = final_weights(run)
    if weights is not None:
        dead, m = dead_components(weights.seen) if len(weights.seen) else [], weights.seen.shape[1]
        measures = {"components": m, "entropy": entropy(weights.seen), "dead": len(dead)}
        measures |= {"unseen_entropy": entropy(weights.unseen)} if len(weights.unseen) else {}
        measures |= {"smallest": float(weights.seen.mean(axis=0).min())} if len(weights.seen) else {}
        if dead:
            which = f"component{'s' * (len(dead) > 1)} {', '.join(map(str, dead))} (mean weight below {DEAD:g} / {m})"
            notes.append(f"dead: {run.algorithm}, seed {run.seed}, {which} in {run.folder}")
    recovery = run.results["recovery"]
    known = {key: recovery[key] for key in _RECOVERY if recovery.get(key) is not None}
    return measures | {key: value * (100 if key == "group_accuracy" else 1) for key, value in known.items()}
