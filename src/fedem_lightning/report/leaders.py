"""Which rows of a table are best beyond chance: a paired test over seeds, at 5 % for the whole table."""

from collections.abc import Mapping

import numpy as np

from fedem_lightning.report.pair_tests import LEVEL, t_test

ENOUGH_SEEDS = 5
"""Number of common seeds from which rows are tested."""
TESTED = ("weighted", "pooled", "mean", "bottom_decile", "worst", "honest", "unseen", "unseen_mean")
"""The columns that are tested: scores on test samples."""

Rows = Mapping[str, Mapping[int, float]]
"""A column's finite scores by label and seed."""


def leaders(columns: Mapping[str, Rows], sign: int) -> tuple[dict[str, set[str]], list[str]]:
    """The rows that are best beyond chance.

    The best row of a column is compared with every other row by Student's paired test over the seeds that all rows
    share; the largest p-value is the column's, because the best row has to be better than all others. Holm's procedure
    then holds the columns of a table together.

    Args:
        columns: scores by column.
        sign: 1 if higher scores are better, else -1.

    Returns:
        For each column at most one label, and a note if the rows share fewer than five seeds.

    """
    several = {key: rows for key, rows in columns.items() if key in TESTED and len(rows) > 1}
    n_shared = max((len(_shared(rows)) for rows in several.values()), default=ENOUGH_SEEDS)
    if n_shared < ENOUGH_SEEDS:
        return {}, [
            f"no row is bold: that takes a test over {ENOUGH_SEEDS} seeds that all rows share; these share {n_shared}"
        ]
    tested = sorted(((key, *_best(rows, sign)) for key, rows in several.items()), key=lambda found: found[2])
    bold: dict[str, set[str]] = {}
    for i, (key, label, p) in enumerate(tested):
        if p * (len(tested) - i) >= LEVEL:
            break
        bold[key] = {label}
    return bold, []


def _shared(rows: Rows) -> list[int]:
    return sorted(set.intersection(*(set(scores) for scores in rows.values())))


def _best(rows: Rows, sign: int) -> tuple[str, float]:
    """The row with the best mean over its own seeds, and the largest p-value against another row; 1 without a test."""
    best = max(rows, key=lambda label: sign * float(np.mean(list(rows[label].values()))))
    seeds = _shared(rows)
    if len(seeds) < ENOUGH_SEEDS:
        return best, 1.0
    gains = [[sign * (rows[best][s] - other[s]) for s in seeds] for label, other in rows.items() if label != best]
    return best, max(t_test(gain) if np.mean(gain) > 0 else 1.0 for gain in gains)
