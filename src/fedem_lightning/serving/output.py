"""What the commands print and write: scores, and tables."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from fedem_lightning.evaluation.summaries import summarize
from fedem_lightning.records.files import replacing
from fedem_lightning.records.measures import HIGHER_IS_BETTER, headline

SHOWN_SUMS = ("weighted", "mean", "bottom_decile", "worst")
"""The summaries that are shown, in their order."""


def summaries(table: pd.DataFrame, weights: np.ndarray, split: str = "test") -> dict[str, dict[str, float]]:
    """Summary of every measure over the clients of `scores_by_client`, with weights [K]; see `summarize`."""
    measures = {m: better for m, better in HIGHER_IS_BETTER.items() if f"{split}_{m}" in table}
    n_scored = table[f"n_{split}"].to_numpy()
    found = {m: summarize(table[f"{split}_{m}"].to_numpy(), weights, n_scored, b) for m, b in measures.items()}
    return {measure: sums for measure, sums in found.items() if sums}


def print_scores(title: str, scores: Mapping[str, Mapping[str, float]]) -> None:
    """Prints a row for each measure; see `summarize`."""
    rows = [[m, *(number(sums[kind], m) for kind in SHOWN_SUMS)] for m, sums in scores.items()]
    columns = ["score", *(kind.replace("_", " ") for kind in SHOWN_SUMS)]
    print(f"{title}\n{pd.DataFrame(rows, columns=columns).to_string(index=False)}")


def number(value: float, measure: str = "") -> str:
    """A score as it is shown: accuracies in percent."""
    return f"{100 * value:.2f} %" if measure and headline([measure])[1] == 100 else f"{value:.4g}"


def write_table(path: Path, table: pd.DataFrame) -> None:
    """Writes a table as .csv or .parquet, in one step."""
    with replacing(path) as temporary:
        (table.to_csv if path.suffix == ".csv" else table.to_parquet)(temporary, index=False)
