"""Two rows client by client, and tests of the differences."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from scipy import special, stats

from fedem_lightning.evaluate.summaries import mean_tests
from fedem_lightning.report.doubts import doubts
from fedem_lightning.report.finished_run import Run
from fedem_lightning.report.groups import Group

CHANCE_LEVEL = 0.05
"""Level of every test: a difference with p below it is called beyond chance."""
ENOUGH_SEEDS = 5
"""Number of common seeds from which rows are tested."""


def mcnemar(only_a: np.ndarray, only_b: np.ndarray) -> np.ndarray:
    """McNemar's exact test for each client, float64 [T], by how many samples one model alone predicts well, int64 [T].

    Source: scipy.stats.binomtest(only_a, only_a + only_b), here for all clients at once.
    """
    return np.minimum(1.0, 2 * special.bdtr(np.minimum(only_a, only_b), only_a + only_b, 0.5))


def t_test(differences: Sequence[float] | np.ndarray) -> float:
    """Student's paired t-test of differences over seeds; NaN for fewer than two.

    Source: scipy.stats.ttest_1samp; but where all differences are equal, p is 1 if they are 0, and else that of the
    sign test, because so few values do not show that there is no variance.
    """
    d = np.asarray(differences, dtype=float)
    if len(d) < 2 or not np.isfinite(d).all():
        return math.nan
    if np.ptp(d) <= 1e-12 * np.abs(d).max():
        return 2.0 ** (1 - len(d)) if d.any() else 1.0
    return float(stats.ttest_1samp(d, 0).pvalue)


def t_interval(differences: np.ndarray) -> tuple[float, float]:
    """Student's 95 % interval of a mean difference over two seeds or more, which are assumed normal."""
    reach = stats.t.ppf(1 - CHANCE_LEVEL / 2, len(differences) - 1) * stats.sem(differences)
    return float(differences.mean() - reach), float(differences.mean() + reach)


def leaders(columns: Mapping[str, pd.DataFrame], sign: int) -> tuple[dict[str, str], list[str]]:
    """The rows that are best beyond chance.

    The best row of a column is compared with every other row by Student's paired test over the seeds that all rows
    share; the largest p-value is the column's, because the best row has to be better than all others. Holm's procedure
    then holds the columns of a table together. It returns for each of the columns, which have scores by seed and label,
    at most one label, and a note if the rows share fewer than five seeds.
    """
    several = {key: sign * scores for key, scores in columns.items() if scores.shape[1] > 1}
    n_shared = max((len(scores.dropna()) for scores in several.values()), default=ENOUGH_SEEDS)
    if n_shared < ENOUGH_SEEDS:
        takes = f"that takes a test over {ENOUGH_SEEDS} seeds that all rows share; these share {n_shared}"
        return {}, [f"no row is bold: {takes}"]
    tested = sorted(((key, *_best(scores)) for key, scores in several.items()), key=lambda result: result[2])
    bold = {}
    for i, (key, label, p) in enumerate(tested):
        if p * (len(tested) - i) >= CHANCE_LEVEL:
            break
        bold[key] = label
    return bold, []


def _best(scores: pd.DataFrame) -> tuple[str, float]:
    """The row with the best mean over its own seeds, and the largest p-value against another row; 1 without a test."""
    best = str(scores.mean().idxmax())
    shared = scores.dropna()
    gains = [(shared[best] - shared[other]).to_numpy() for other in scores if other != best]
    enough = len(shared) >= ENOUGH_SEEDS
    return best, max(t_test(gain) if enough and gain.mean() > 0 else 1.0 for gain in gains)


def compare_clients(a: Group, b: Group) -> pd.DataFrame:
    """Compares the clients of two groups, paired by seed and name.

    Returns:
        A row for each seed and client that both have: seed, id, n_test, a and b (scores in the table's unit), gain
        (positive where a is better), p (two-sided, that the client's two models differ, by its test samples: McNemar's
        exact test for right and wrong predictions; for losses the test of the mean difference, `mean_tests`; NaN for
        runs without test_samples.npz, or of different federations, and for rows with a doubt).

    """
    others, parts = {run.seed: run for run in b.runs}, []
    for run in a.runs:
        other = others.get(run.seed)
        if other is None or run.measure != other.measure:
            continue
        both = run.scored.rename(columns={"score": "a"}).join(other.scored["score"].rename("b"), how="inner")
        p = _p_values(run, other)
        both["p"] = np.nan if p is None else p[both["row"]]
        parts.append(both.reset_index().assign(seed=run.seed, gain=run.sign * (both["a"] - both["b"]).to_numpy()))
    columns = ["seed", "id", "n_test", "a", "b", "gain", "p"]
    table = pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)
    return table.assign(p=np.nan) if doubts([a, b]) else table


def _p_values(a: Run, b: Run) -> np.ndarray | None:
    """p-values of all rows of clients.parquet from the scores of the same samples; None if the runs lack these."""
    x, y, digest = a.samples, b.samples, a.results.get("federation_digest")
    if x is None or y is None or digest is None or digest != b.results.get("federation_digest"):
        return None
    if not (x.dtypes.equals(y.dtypes) and x[["row", "id"]].equals(y[["row", "id"]])):
        return None
    row, of_a, of_b = x["row"].to_numpy(), x.iloc[:, -1].to_numpy(), y.iloc[:, -1].to_numpy()
    n = np.bincount(row, minlength=len(a.clients))
    if of_a.dtype != bool:
        tested = mean_tests(of_a - of_b, row, len(n))
        return np.maximum(tested.p, np.minimum(1.0, 2.0 ** (1.0 - n)))  # as few samples as these show nothing
    return mcnemar(*(np.bincount(row[only], minlength=len(n)) for only in (of_a & ~of_b, of_b & ~of_a)))


def gains_and_losses(clients: pd.DataFrame) -> pd.Series:
    """The shares of the clients of `compare_clients` by their gain: better, worse, equal; beyond chance: gains, loses.

    The last two are NaN if no client could be tested alone.
    """
    gain, p = clients.loc[clients["gain"].notna(), ["gain", "p"]].to_numpy().T
    sure = np.nan if np.isnan(p).all() else p < CHANCE_LEVEL
    better, worse = gain > 0, gain < 0
    result = {"better": better, "worse": worse, "equal": gain == 0, "gains": better * sure, "loses": worse * sure}
    return pd.DataFrame(result).mean()
