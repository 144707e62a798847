"""What the commands find, print and write: scores, and how good predictions are beyond them; tables and figures."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torchmetrics import MeanAbsoluteError, MetricCollection, R2Score
from torchmetrics.classification import MulticlassCalibrationError, MulticlassConfusionMatrix

from fedem_lightning.data.schema import Schema
from fedem_lightning.evaluation.class_scores import MOST_NUMBERS, by_class
from fedem_lightning.evaluation.summaries import summarize
from fedem_lightning.records.files import replacing, write_atomically
from fedem_lightning.records.measures import HIGHER_IS_BETTER, headline
from fedem_lightning.tasks import known

BINS = 15
"""Of the confidence, for the calibration error."""
CLASSES_DRAWN = 100
"""Largest number of classes for which the confusion matrix is drawn."""
SHOWN_SUMS = ("weighted", "mean", "bottom_decile", "worst")
"""The summaries that are shown, in their order."""


class Quality:
    """Collects predictions, in blocks. Of a density there is nothing beyond the loss.

    Args:
        schema: form of the samples, and the task.

    """

    def __init__(self, schema: Schema) -> None:
        self.task, self.n = schema.task, 0
        n_classes: int = getattr(schema.task, "n_classes", 0)
        self.names = schema.class_names
        self.by_classes = n_classes > 0 and "accuracy" in self.task.measures
        self.kept: list[tuple[np.ndarray, np.ndarray]] | None = None  # probabilities and labels
        metrics: dict[str, Any] = {}
        if self.by_classes:
            metrics["calibration_error"] = MulticlassCalibrationError(n_classes, n_bins=BINS)
            metrics["confusion"] = MulticlassConfusionMatrix(n_classes)
            self.kept = [] if self.task.n_targets == 1 else None
        elif "mse" in self.task.measures:
            metrics = {"r2": R2Score(multioutput="uniform_average"), "mean_absolute_error": MeanAbsoluteError()}
        self.metrics = MetricCollection(metrics, compute_groups=False)
        if not self.by_classes:
            self.metrics.set_dtype(torch.float64)

    def add(self, prediction: Tensor, y: Tensor) -> None:
        """Adds predictions as `Task.predict` gives them, [n, ...], and labels [n, ...]."""
        answer, y = self.task.answer(prediction).detach().cpu(), y.cpu()
        self.n += len(y)
        if not self.by_classes:
            targets = y.reshape(len(y), -1).double()
            given = known(targets).all(dim=1)  # samples of which no target is missing
            self.metrics.update(answer.flatten(1).double()[given], targets[given])
            return
        p = answer.flatten(0, -2).clamp(0, 1)  # rounding may leave [0, 1], and torchmetrics would take logits
        given = known(y).flatten()
        self.metrics.update(p[given], y.flatten()[given])
        self.kept = None if self.n * p.shape[1] > MOST_NUMBERS else self.kept
        if self.kept is not None:
            self.kept.append((p.numpy(), y.numpy()))

    def figures(self) -> dict[str, float]:
        """The calibration error in [0, 1]; in a regression r2 (with two rows or more) and mean_absolute_error."""
        told = {name: metric for name, metric in self.metrics.items() if name != "confusion"}
        return {name: float(m.compute()) for name, m in told.items() if self.n > (name == "r2")}

    def by_class(self) -> dict[str, Any]:
        """balanced_accuracy, auroc and sensitivity (of each class) of all samples together; {} of sequences.

        Of more than `MOST_NUMBERS` probabilities there are none either.
        """
        if not self.kept or self.names is None:
            return {}
        p, y = (np.concatenate(parts) for parts in zip(*self.kept, strict=True))
        found = by_class(p, y, np.zeros(len(y), dtype=np.int64), 1)
        sensitivity = dict(zip(self.names, found.recall[0].tolist(), strict=True))
        pooled = {"balanced_accuracy": float(found.balanced_accuracy[0]), "auroc": float(found.auroc[0])}
        return {**pooled, "sensitivity": sensitivity}

    def confusion(self) -> pd.DataFrame | None:
        """Numbers of samples, a row for each true class and a column for each predicted one; None without accuracy."""
        if not self.by_classes or self.names is None or self.n == 0:
            return None
        counts = self.metrics["confusion"].compute().numpy()
        return pd.DataFrame(counts, index=pd.Index(self.names, name="true class"), columns=self.names)


@dataclass
class Evaluation:
    """What the command found.

    Args:
        title: what was scored.
        split: the split that was scored.
        scores: group of clients -> measure -> summary.
        clients: the clients' table.
        quality: of the predictions.
        notes: lines that are printed below.
        equal: whether the scores are those of results.json; None: there is nothing to compare with.

    """

    title: str
    split: str
    scores: dict[str, dict[str, dict[str, float]]]
    clients: pd.DataFrame
    quality: Quality
    notes: list[str]
    equal: bool | None = None


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
            name = f"{measure}, %" if headline([measure])[1] == 100 else measure
            rows.append([group if i == 0 else "", name, *(number(sums[kind], measure) for kind in SHOWN_SUMS)])
    print_table(title, ["clients", "score", *(kind.replace("_", " ") for kind in SHOWN_SUMS)], rows, 2)


def number(value: float, measure: str = "") -> str:
    """A score as it is shown: accuracies in percent."""
    return f"{100 * value:.2f}" if measure and headline([measure])[1] == 100 else f"{value:.4g}"


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
    with replacing(path) as temporary:
        (table.to_csv if path.suffix == ".csv" else table.to_parquet)(temporary, index=False)


def write_figure(path: Path, figure: Figure) -> None:
    """Writes a figure as PNG, in one step."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=120)
    write_atomically(path, content.getvalue())


def draw_confusion(confusion: pd.DataFrame) -> Figure | None:
    """The share of each true class that is predicted as each class; None where there are too many to draw."""
    n = len(confusion)
    if n > CLASSES_DRAWN:
        return None
    counts = confusion.to_numpy().astype(float)
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    side = min(12.0, 3.5 + 0.25 * n)
    figure = Figure(figsize=(side + 0.8, side), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(100 * share, vmin=0, vmax=100, cmap="Blues", interpolation="nearest")
    names = [str(name)[:16] for name in confusion.columns]
    size = 8 if n <= 40 else 5
    axes.set_xticks(range(n), names, rotation=90, fontsize=size)
    axes.set_yticks(range(n), names, fontsize=size)
    axes.set(xlabel="predicted class", ylabel="true class")
    if n <= 12:
        for (i, j), value in np.ndenumerate(share):
            colour = "white" if value > 0.5 else "black"
            axes.text(j, i, f"{100 * value:.0f}", ha="center", va="center", color=colour, fontsize=8)
    figure.colorbar(image, label="share of the true class, %")
    return figure


def draw_distribution(scores: pd.Series, unit: str, factor: float) -> Figure:
    """The share of clients with a score of at most x."""
    values = np.sort(factor * scores.dropna().to_numpy())
    figure = Figure(figsize=(5, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.step(values, 100 * np.arange(1, len(values) + 1) / max(1, len(values)), where="post")
    axes.set(xlabel=unit, ylabel="clients at or below, %", ylim=(0, 101))
    axes.grid(alpha=0.3)
    return figure


def for_json(value: Any) -> Any:
    """The value for JSON: numbers that are not finite are None."""
    if isinstance(value, dict):
        return {key: for_json(part) for key, part in value.items()}
    return None if isinstance(value, float) and not np.isfinite(value) else value
