"""metrics.csv, a row a round, as one of Lightning's loggers: rows are added at its end, and a resumed run goes on."""

import csv
import io
import math
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from lightning_fabric.utilities.apply_func import convert_tensors_to_scalars
from pytorch_lightning.loggers import Logger
from pytorch_lightning.utilities import rank_zero_only

from fedem_lightning.settings.errors import UserError
from fedem_lightning.settings.files import regular, write_atomically, writing


class RoundCSVLogger(Logger):
    """Writes metrics.csv with one row for each round; a resumed run replaces the rows that it computes again.

    Scores of `Trainer.validate` and `Trainer.test` belong to no round and are left out. Lightning's CSVLogger removes
    the file that it finds, and a kill may leave half of the one that it writes. The first column is `round`; a cell is
    empty if the metric was not computed in that round.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self.path = Path(path)
        self.rows: dict[int, dict[str, str]] = {}  # cells by round
        self.newest_before = -1  # round of the newest row that `begin` has found, also if it has dropped it
        self._columns = ["round"]
        self._changed: set[int] = set()  # rounds whose rows the file does not have
        self._newest = math.inf  # round of the file's last row
        self._begun = False
        self._finished = 0  # rounds of finished trainings

    @property
    def name(self) -> str:
        """An empty name, because the path is given."""
        return ""

    @property
    def version(self) -> str:
        """An empty version, because the path is given."""
        return ""

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Does nothing, because the run's folder holds the whole configuration."""

    @rank_zero_only
    def begin(self, rounds: int) -> None:
        """Goes on after so many rounds, without a call where logging begins; UserError if the file was changed."""
        columns, found = _read(self.path)
        self.newest_before = max(found, default=-1)
        self.rows = {round_: cells for round_, cells in found.items() if round_ <= rounds}
        self._columns = ["round", *(name for name in columns if any(name in cells for cells in self.rows.values()))]
        self._changed, self._begun = set(self.rows), True
        if self.rows:
            self.write()
        else:
            with writing(self.path):
                self.path.unlink(missing_ok=True)

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Adds metrics to the row of round `step`."""
        before_the_first = step == 0 and "round" in metrics and not self.rows
        if step is None or (int(step) <= self._finished and not before_the_first):
            return
        if not self._begun:
            self.begin(int(step) - 1)
        cells = {name: str(value) for name, value in metrics.items() if name not in ("round", "epoch", "step")}
        row = self.rows.setdefault(int(step), {})
        if cells.items() - row.items():
            row.update(cells)
            self._changed.add(int(step))

    @rank_zero_only
    def write(self) -> None:
        """Adds new rows to the file, which is written again if it lacks a column or an earlier row has changed."""
        if not self._changed:
            return
        names = dict.fromkeys(name for round_ in sorted(self._changed) for name in self.rows[round_])
        columns = [*dict.fromkeys([*self._columns, *names])]
        adds = columns == self._columns and min(self._changed) > self._newest
        text = io.StringIO(newline="")
        table = csv.DictWriter(text, columns, restval="", lineterminator="\n")
        if not adds:
            table.writeheader()
        table.writerows({"round": r, **self.rows[r]} for r in sorted(self._changed if adds else self.rows))
        content = text.getvalue().encode()
        if adds:
            with writing(self.path), self.path.open("ab") as file:
                file.write(content)
        else:
            write_atomically(self.path, content)
        self._columns, self._newest = columns, max(self.rows)
        self._changed.clear()

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Writes the remaining rows; a later training continues after these rounds."""
        self.write()
        self._finished = max(self.rows, default=0)


class SaveRow(pl.Callback):
    """Writes a round's row before its checkpoint, so that a kill between the two loses none; Lightning logs later."""

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lightning calls the callbacks that save checkpoints after this one. All processes compute the metrics."""
        metrics = convert_tensors_to_scalars(dict(trainer._logger_connector.metrics["log"]))
        step = metrics.pop("step", None)
        if step is not None:
            rows = rows_of(trainer)
            rows.log_metrics(metrics, int(step))
            rows.write()


def rows_of(trainer: pl.Trainer) -> RoundCSVLogger:
    """The logger that writes metrics.csv."""
    return next(logger for logger in trainer.loggers if isinstance(logger, RoundCSVLogger))


def _read(path: Path) -> tuple[list[str], dict[int, dict[str, str]]]:
    """Columns, and the cells that are not empty by round; without a last line that a kill has cut off."""
    if not path.exists():
        return [], {}
    try:
        text = regular(path).read_bytes().decode().rpartition("\n")[0]
        table = csv.DictReader(io.StringIO(text, newline=""))
        found = [{name: cell for name, cell in row.items() if cell != ""} for row in table]
        rows = {int(cells.pop("round")): cells for cells in found}
        [*map(float, (cell for cells in found for cell in cells.values()))]  # a row of another length has None
    except (OSError, ValueError, TypeError, KeyError, csv.Error) as error:
        advice = "put back what the run wrote, or move it away and go on without its rows"
        raise UserError(f"{path}: unreadable, or another program has changed it ({error}); {advice}") from error
    return list(table.fieldnames or []), rows
