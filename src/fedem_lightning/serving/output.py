"""What the commands print and write: short tables of scores, and files in one step."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.table import Table

from fedem_lightning.evaluation.summaries import summarize
from fedem_lightning.records.files import write_atomically
from fedem_lightning.records.measures import HIGHER_IS_BETTER

SUMS = ("weighted", "mean", "bottom_decile", "worst")
"""The summaries that are shown, in their order."""


def summaries(table: pd.DataFrame, weights: np.ndarray, split: str = "test") -> dict[str, dict[str, float]]:
    """Summary of every measure over the clients of a table; see `summarize`.

    Args:
        table: columns n_SPLIT and SPLIT_MEASURE, one row a client.
        weights: numbers of training samples, [K].
        split: the one that was scored.

    """
    measures = {m: better for m, better in HIGHER_IS_BETTER.items() if f"{split}_{m}" in table}
    n_scored = table[f"n_{split}"].to_numpy()
    found = {m: summarize(table[f"{split}_{m}"].to_numpy(), weights, n_scored, b) for m, b in measures.items()}
    return {measure: sums for measure, sums in found.items() if sums}


def print_scores(title: str, groups: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    """Prints a table with a row for each group of clients and measure.

    Args:
        title: of the table.
        groups: group -> measure -> summary, see `summarize`.

    """
    rows = []
    for group, scores in groups.items():
        for i, (measure, sums) in enumerate(scores.items()):
            name = f"{measure}, %" if measure == "accuracy" else measure
            rows.append([group if i == 0 else "", name, *(number(sums[kind], measure) for kind in SUMS)])
    print_table(title, ["clients", "score", *(kind.replace("_", " ") for kind in SUMS)], rows, 2)


def number(value: float, measure: str = "") -> str:
    """A score as it is shown: accuracies in percent."""
    return f"{100 * value:.2f}" if measure == "accuracy" else f"{value:.4g}"


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], n_words: int = 1) -> None:
    """Prints a table whose numbers are never cut: only the first column breaks its lines where there is no room.

    Args:
        title: printed above it.
        columns: the names of the columns.
        rows: the cells.
        n_words: the number of columns, from the left, that hold words.

    """
    console = Console(markup=False, emoji=False)
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, name in enumerate(columns):
        justify = "left" if i < n_words else "right"
        shown.add_column(name, justify=justify, no_wrap=i > 0, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        shown.add_row(*row)
    console.print(title, highlight=False, soft_wrap=True)
    console.print(shown, highlight=False, width=max(console.width, 80))


def write_table(path: Path, table: pd.DataFrame) -> None:
    """Writes a table as .csv or .parquet, in one step."""
    if path.suffix == ".csv":
        return write_atomically(path, table.to_csv(index=False).encode())
    content = io.BytesIO()
    table.to_parquet(content, index=False)
    write_atomically(path, content.getvalue())


def write_figure(path: Path, figure: Figure) -> None:
    """Writes a figure as PNG, in one step."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=120)
    write_atomically(path, content.getvalue())
