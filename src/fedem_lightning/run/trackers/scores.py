"""Numbers of a finished run for trackers: best and last scores, and the numbers of results.json."""

import math
from typing import Any

import numpy as np
import pandas as pd

from fedem_lightning.records.configs import flatten
from fedem_lightning.records.measures import HIGHER_IS_BETTER, headline


def best_and_last(curves: pd.DataFrame) -> dict[str, float]:
    """Scores of the best and of the last round with an evaluation.

    The best round is chosen on validation alone: it has the best `val/accuracy` (of a regression `val/mse`, of a
    density `val/loss`), and of equal ones it is the first. `best/test/accuracy` is the test score of that round, not
    the largest test score.

    Args:
        curves: metrics.csv.

    Returns:
        best/NAME and last/NAME for every score NAME of validation and test, and their rounds best/round, last/round;
        without validation samples no best; empty without an evaluation.

    """
    names = [name for name in curves.columns if str(name).startswith(("val/", "test/"))]
    evaluated = curves.dropna(subset=names, how="all") if names else curves.iloc[:0]
    if evaluated.empty:
        return {}
    found = {"last": evaluated.iloc[-1]}
    measure = headline(str(name).partition("/")[2] for name in names)[0]
    if f"val/{measure}" in evaluated and evaluated[f"val/{measure}"].notna().any():
        values = evaluated[f"val/{measure}"].to_numpy()
        best = np.nanargmax(values) if HIGHER_IS_BETTER[measure] else np.nanargmin(values)
        found["best"] = evaluated.iloc[int(best)]
    return {f"{kind}/{name}": float(row[name]) for kind, row in found.items() for name in ["round", *names]}


def flat_numbers(results: dict[str, Any]) -> dict[str, float]:
    """The finite numbers of results.json, by paths such as results/test/accuracy/weighted; lists are left out."""
    flat = {f"results/{key.replace('.', '/')}": value for key, value in flatten(results).items()}
    return {
        key: value
        for key, value in flat.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def client_scores(clients: pd.DataFrame) -> dict[str, np.ndarray]:
    """Test scores of the scored clients for histograms: clients/test_MEASURE, and clients/unseen_test_MEASURE."""
    found = {}
    for population, group in clients.groupby("population"):
        before = "" if population == "seen" else f"{population}_"
        for column in (name for name in group if str(name).startswith("test_")):
            if len(values := group[column].dropna().to_numpy()):
                found[f"clients/{before}{column}"] = values
    return found
