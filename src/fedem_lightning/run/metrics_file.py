"""metrics.csv, as a logger: rows are added at its end; the whole file is written again only if a column is new."""

import csv
import io
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from lightning_fabric.utilities.apply_func import convert_tensors_to_scalars
from pytorch_lightning.loggers import Logger
from pytorch_lightning.utilities import rank_zero_only

from fedem_lightning.errors import UserError
from fedem_lightning.records.files import regular, write_atomically, writing


class RoundCSVLogger(Logger):
    """Writes metrics.csv with one row for each round; a resumed run replaces the rows that it computes again.

    Scores of `Trainer.validate` and `Trainer.test` belong to no round and are left out. Lightning's CSVLogger removes
    the file that it finds, and a kill may leave half of the one that it writes.

    Args:
        path: the .csv file. Its first column is `round`. A cell is empty if the metric was not computed in that round.

    """

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self.path = Path(path)
        self._columns = ["round"]
        self._rows: dict[int, str] = {}  # their text by round, in ascending order
        self._end = -1  # bytes of the file; -1: it is to be written anew
        self._unsaved: dict[int, dict[str, Any]] = {}  # cells by round
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
        """Goes on after so many rounds; without a call, after the round before the first one that is logged.

        Raises:
            UserError: another program has changed the file; it stays as it is.

        """
        columns, found = _read(self.path)
        rows = [row for row in found if int(row[0]) <= rounds]
        used = [i for i in range(len(columns)) if i == 0 or any(row[i] for row in rows)]
        self._columns = [columns[i] for i in used]
        self._rows = {int(row[0]): _text(row[i] for i in used) for row in rows}
        self._begun, self._end = True, -1
        if rows:
            self._write_all()
        else:
            with writing(self.path):
                self.path.unlink(missing_ok=True)

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Adds metrics to the row of round `step`."""
        before_the_first = step == 0 and "round" in metrics and not self._rows
        if step is None or (int(step) <= self._finished and not before_the_first):
            return
        if not self._begun:
            self.begin(int(step) - 1)
        cells = {name: value for name, value in metrics.items() if name not in ("round", "epoch", "step")}
        self._unsaved.setdefault(int(step), {}).update(cells)

    @rank_zero_only
    def save(self) -> None:
        """Adds new metrics to the file."""
        while self._unsaved:
            round_ = min(self._unsaved)
            self._add(round_, self._unsaved[round_])
            del self._unsaved[round_]

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Writes the remaining metrics; a later training continues after these rounds."""
        self.save()
        self._finished = next(reversed(self._rows), 0)

    def _add(self, round_: int, cells: dict[str, Any]) -> None:
        """Adds cells to a row, and writes the newest row, or everything if a column or an earlier row has changed."""
        new = [name for name in cells if name not in self._columns]
        earlier = round_ < next(reversed(self._rows), -1)
        before = self._rows.get(round_)
        known = [str(round_)] if before is None else next(csv.reader([before]))
        row = dict(zip(self._columns, known, strict=False)) | cells
        self._columns += new
        text = self._rows[round_] = _text(row.get(name, "") for name in self._columns)
        if new or earlier or self._end < 0 or not self.path.is_file() or self.path.stat().st_size != self._end:
            others = ((r, other + "," * len(new)) for r, other in self._rows.items() if r != round_)
            self._rows = dict(sorted([*others, (round_, text)]))
            self._write_all()
            return
        start = self._end - (0 if before is None else len(_line(before)))
        self._end = -1  # until all is written
        with writing(self.path), self.path.open("r+b") as file:
            file.seek(start)
            file.write(_line(text))
            file.truncate()
        self._end = start + len(_line(text))

    def _write_all(self) -> None:
        content = b"".join(map(_line, [_text(self._columns), *self._rows.values()]))
        write_atomically(self.path, content)
        self._end = len(content)


class SaveRow(pl.Callback):
    """Writes a round's row before its checkpoint, so that a kill between the two loses none; Lightning logs later."""

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lightning calls the callbacks that save checkpoints after this one. All processes compute the metrics."""
        metrics = convert_tensors_to_scalars(dict(trainer._logger_connector.metrics["log"]))
        step = metrics.pop("step", None)
        for logger in trainer.loggers:
            if isinstance(logger, RoundCSVLogger) and step is not None:
                logger.log_metrics(metrics, int(step))
                logger.save()


def _text(cells: Iterable[Any]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="").writerow(cells)
    return text.getvalue()


def _line(row: str) -> bytes:
    return f"{row}\n".encode()


def _read(path: Path) -> tuple[list[str], list[list[str]]]:
    """Columns and rows, without a last line that a kill has cut off."""
    if not path.exists() or path.stat().st_size == 0:
        return ["round"], []
    advice = "put back what the run wrote, or move it away and go on without its rows"
    try:
        complete = regular(path).read_bytes().decode().rpartition("\n")[0]
        lines = csv.reader(io.StringIO(complete, newline=""), strict=True)
        columns, *rows = [*lines] or [["round"]]
        _check(columns, rows, complete)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, csv.Error) as error:
        raise UserError(f"{path}: another program has changed it ({error}); {advice}") from error
    return columns, rows


def _check(columns: list[str], rows: list[list[str]], text: str) -> None:
    """Raises ValueError if the run cannot have written this."""
    if columns[0] != "round" or len(set(columns)) < len(columns):
        raise ValueError("its first line is not a list of columns that begins with round")
    if any(line.endswith("\r") for line in text.split("\n")):
        raise ValueError("its lines end as on Windows")
    before = -1
    for number, row in enumerate(rows, start=2):
        if len(row) != len(columns):
            raise ValueError(f"row {number} has {len(row)} cells, the first line {len(columns)}")
        try:
            round_, *_ = int(row[0]), *(float(cell) for cell in row if cell)
        except ValueError:
            raise ValueError(f"row {number} has text among its numbers") from None
        if round_ <= before:
            raise ValueError(f"row {number} is of round {round_}, and follows round {before}")
        before = round_
