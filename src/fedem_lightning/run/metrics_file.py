"""metrics.csv, a row a round: what the algorithm has logged, which its checkpoints have, too."""

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl

from fedem_lightning.evaluate.convergence import whole_run
from fedem_lightning.settings.files import write_atomically, writing


class MetricsFile(pl.Callback):
    """Writes metrics.csv: a row after each round, and the whole file where it lacks a column.

    A resumed run has the rows of its checkpoint, whatever the file has. The first process alone writes.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self._columns: list[str] = []  # of the file, once this run has written it

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Adds the round's row."""
        curves: Any = pl_module.curves
        row = curves[max(curves)]
        if not trainer.is_global_zero:
            return
        if row.keys() - {*self._columns}:
            self._columns = write_rows(self.path, curves)
            return
        with writing(self.path), self.path.open("ab") as file:
            file.write(_lines(self._columns, [row]))

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leaves no row of a later round, which a run that was killed has written after its last checkpoint."""
        if trainer.is_global_zero:
            write_rows(self.path, whole_run(pl_module)[1])  # type: ignore[arg-type]


def write_rows(path: Path, curves: Mapping[int, Mapping[str, float]]) -> list[str]:
    """Writes the file with these rounds; returns its columns, the first of which is `round`."""
    rows = [curves[round_] for round_ in sorted(curves)]
    columns = [*dict.fromkeys(["round", *(name for row in rows for name in row)])]
    write_atomically(path, (",".join(columns) + "\n").encode() + _lines(columns, rows))
    return columns


def _lines(columns: list[str], rows: Iterable[Mapping[str, float]]) -> bytes:
    """The rows as text; a cell is float32, as loggers get it, and empty if the metric was not computed."""
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    table.writerows({**{k: float(np.float32(v)) for k, v in row.items()}, "round": int(row["round"])} for row in rows)
    return text.getvalue().encode()
