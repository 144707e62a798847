"""What the commands print and write: scores, and how good predictions are beyond them; tables."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torchmetrics import MeanAbsoluteError, MetricCollection, R2Score
from torchmetrics.classification import MulticlassCalibrationError, MulticlassConfusionMatrix

from fedem_lightning.data.schema import Schema
from fedem_lightning.evaluation.class_scores import MOST_NUMBERS, by_class
from fedem_lightning.evaluation.summaries import summarize
from fedem_lightning.records.files import replacing
from fedem_lightning.records.measures import HIGHER_IS_BETTER, headline
from fedem_lightning.tasks import known

BINS = 15
"""Of the confidence, for the calibration error."""
SHOWN_SUMS = ("weighted", "mean", "bottom_decile", "worst")
"""The summaries that are shown, in their order."""


class Quality:
    """Collects predictions, in blocks. Of a density there is nothing beyond the loss.

    Args:
        schema: form of the samples, and the task.

    """

    def __init__(self, schema: Schema) -> None:
        self.task, self.n, self.names = schema.task, 0, schema.class_names
        n_classes: int = getattr(schema.task, "n_classes", 0)
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
