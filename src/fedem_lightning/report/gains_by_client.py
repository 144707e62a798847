"""Paired comparison of two groups of runs: the same clients, the same seeds, the same test samples; `--compare A B`."""

import difflib
from collections.abc import Sequence

import numpy as np
import pandas as pd

from fedem_lightning.errors import one_line, require
from fedem_lightning.evaluation.summaries import mean_tests
from fedem_lightning.report.finished_run import Run
from fedem_lightning.report.groups import Group, Setting
from fedem_lightning.report.significance import CHANCE_LEVEL, mcnemar


def compare_clients(a: Group, b: Group) -> pd.DataFrame | None:
    """Compares the clients of two groups, paired by seed and name; None if they have none in common.

    Returns:
        A row for each seed and client that both have: seed, id, n_test, a and b (scores in the table's unit), gain
        (positive where a is better), p (two-sided, that the client's two models differ, by its test samples: McNemar's
        exact test for right and wrong predictions; for losses the test of the mean difference, `mean_tests`; NaN for
        runs without test_samples.npz, or of different federations).

    """
    others = {run.seed: run for run in b.runs}
    pairs = [(run, others[run.seed]) for run in a.runs if run.seed in others]
    parts = [part for one, other in pairs if (part := _pair(one, other)) is not None]
    return pd.concat(parts, ignore_index=True) if parts else None


def _pair(a: Run, b: Run) -> pd.DataFrame | None:
    """The clients that two runs of one seed have in common; None without any."""
    if a.scored is None or b.scored is None or a.measure != b.measure:
        return None
    both = a.scored.join(b.scored["score"].rename("b"), how="inner")
    if both.empty:
        return None
    p = _p_values(a, b)
    both = both.reset_index().rename(columns={"score": "a"}).assign(seed=a.seed)
    both["gain"], both["p"] = a.sign * (both["a"] - both["b"]), np.nan if p is None else p[both["row"]]
    return both[["seed", "id", "n_test", "a", "b", "gain", "p"]]


def _p_values(a: Run, b: Run) -> np.ndarray | None:
    """p-values of all rows of clients.parquet from the scores of the same samples; None if the runs lack these."""
    clients, x, y, digest = a.clients, a.samples, b.samples, a.results.get("federation_digest")
    if clients is None or x is None or y is None or digest is None or digest != b.results.get("federation_digest"):
        return None
    if not (x.dtypes.equals(y.dtypes) and x[["row", "id"]].equals(y[["row", "id"]])):
        return None
    row, of_a, of_b = x["row"].to_numpy(), x.iloc[:, -1].to_numpy(), y.iloc[:, -1].to_numpy()
    n = np.bincount(row, minlength=len(clients))
    if of_a.dtype != bool:
        tested = mean_tests(of_a - of_b, row, len(n))
        return np.maximum(tested.p, np.minimum(1.0, 2.0 ** (1.0 - n)))  # as few samples as these show nothing
    return mcnemar(*(np.bincount(row[only], minlength=len(n)) for only in (of_a & ~of_b, of_b & ~of_a)))


def gains_and_losses(clients: pd.DataFrame) -> pd.Series:
    """The shares of the clients of `compare_clients` by the sign of their gain, and by what their own samples show.

    Returns:
        better, worse, equal; gains, loses: beyond chance, NaN if no client could be tested.

    """
    gain, p = clients.loc[clients["gain"].notna(), ["gain", "p"]].to_numpy().T
    sure = np.nan if np.isnan(p).all() else p < CHANCE_LEVEL
    better, worse = gain > 0, gain < 0
    found = {"better": better, "worse": worse, "equal": gain == 0, "gains": better * sure, "loses": worse * sure}
    return pd.DataFrame(found).mean()


def compared(settings: Sequence[Setting], names: Sequence[str]) -> list[tuple[Setting, Group, Group]]:
    """The two rows that `names` mean, for each setting that has both.

    Raises:
        UserError: no row has such a name (the message has the nearest), a name means several rows of one table, or no
            table has both.

    """
    found = [(setting, _row(setting, names[0]), _row(setting, names[1])) for setting in settings]
    groups = [group for setting in settings for group in setting.groups]
    known = [each for group in groups for each in (group.label, group.algorithm)]
    for name, rows in zip(names, ([a for _, a, _ in found], [b for _, _, b in found]), strict=True):
        nearest = difflib.get_close_matches(name, known, 1, cutoff=0)[0]
        require(any(rows), f"--compare: no row {one_line(name)!r}; the nearest is {nearest!r}")
    pairs = [(setting, a, b) for setting, a, b in found if a is not None and b is not None]
    require(bool(pairs), f"--compare: no table has both {one_line(names[0])!r} and {one_line(names[1])!r}")
    return pairs


def _row(setting: Setting, name: str) -> Group | None:
    for key in ("label", "algorithm", "name"):  # the last as on the page
        rows = [group for group in setting.groups if getattr(group, key) == name]
        labels = ", ".join(repr(group.label) for group in rows)
        what = f"means {len(rows)} rows of {setting.title}; expected one of {labels}"
        require(len(rows) < 2, f"--compare: {one_line(name)!r} {what}")
        if rows:
            return rows[0]
    return None
