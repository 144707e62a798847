"""Who gains and who loses between any two rows of a table, as data for the page."""

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from fedem_lightning.report.figures.drawing import DrawnRows
from fedem_lightning.report.gains_by_client import Shares, compare_clients, gains_and_losses
from fedem_lightning.report.looks import FIRST
from fedem_lightning.report.significance import CHANCE_LEVEL

MARKS_SHOWN = 400_000
"""Largest number of marks (pairs of rows times clients) in a page; more clients are thinned out evenly."""


def pairs_data(rows: DrawnRows) -> dict[str, Any] | None:
    """Scores of every client and seed with every row, and for every pair of rows who gains and loses; None for one row.

    Returns:
        rows: names and colours; unit; clients: name and seed; scores [rows][clients], None where a row has none; pairs:
        by "i,j" (i < j) shares of clients, and a string with one mark a client: + (i is better beyond chance), -, or .

    """
    groups = rows.setting.groups
    scores = _scores(rows)
    if len(groups) < 2 or scores.empty:
        return None
    n_pairs = len(groups) * (len(groups) - 1) // 2
    step = max(1, -(-len(scores) * n_pairs // MARKS_SHOWN))
    shown = scores.iloc[::step]
    pairs = {}
    for i, j in combinations(range(len(groups)), 2):
        found = compare_clients(groups[i], groups[j])
        if found is not None and not found.empty:
            marks = np.where(found.p < CHANCE_LEVEL, np.sign(found.gain), 0)
            by_client = pd.Series(marks, index=pd.MultiIndex.from_frame(found[["seed", "id"]]))
            aligned = by_client.reindex(shown.index).fillna(0).astype(int)
            pairs[f"{i},{j}"] = {
                "shares": _known(gains_and_losses(found)),
                "marks": "".join("-.+"[mark + 1] for mark in aligned),
            }
    return {
        "rows": [{"name": rows.names[g.label], "colour": rows.looks[g.label].colour} for g in groups],
        "unit": rows.setting.unit,
        "clients": [[str(client), int(seed)] for seed, client in shown.index],
        "scores": [[None if np.isnan(v) else round(float(v), 4) for v in shown[g.label]] for g in groups],
        "left_out": len(scores) - len(shown),
        "pairs": pairs,
    }


def _scores(rows: DrawnRows) -> pd.DataFrame:
    """The score of every client, by (seed, id) and row."""
    columns = {}
    for group in rows.setting.groups:
        scored = {run.seed: run.scored for run in group.runs}
        known = {seed: pd.Series(s.score, index=s.id) for seed, s in scored.items() if s is not None}
        if known:
            columns[group.label] = pd.concat(known, names=["seed", "id"])
    unique = {label: c[~c.index.duplicated()] for label, c in columns.items()}
    return pd.DataFrame(unique, columns=[g.label for g in rows.setting.groups], dtype=float)


def _known(shares: Shares) -> list[float | None]:
    """The shares, None where no client could be tested."""
    return [None if np.isnan(share) else float(share) for share in shares]


def baselines(rows: DrawnRows, pairs: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For every row the shares of clients that are worse with it than with each baseline, as lines of a table.

    Args:
        rows: the setting.
        pairs: those of `pairs_data`.

    """
    groups = rows.setting.groups
    bases = [j for name in FIRST[1:] for j, group in enumerate(groups) if group.algorithm == name][:4]
    lines = []
    for i, group in enumerate(groups):
        against = [(rows.names[groups[j].label], _against(pairs, i, j)) for j in bases]
        if any(share is not None for _, shares in against for share in shares):
            lines.append({"name": rows.names[group.label], "against": against})
    return lines


def _against(pairs: Mapping[str, Mapping[str, Any]], i: int, j: int) -> list[float | None]:
    """Shares of clients with a worse model of row i than of j, a worse one beyond chance, a better one, and so on."""
    pair = pairs.get(f"{min(i, j)},{max(i, j)}")
    if pair is None:
        return [None] * 4
    better, worse, _, gains, loses, *_ = pair["shares"]
    return [worse, loses, better, gains] if i < j else [better, gains, worse, loses]
