"""metrics.csv: rows are added at its end; the whole file is written again only if a column is new."""

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedem_lightning.errors import UserError
from fedem_lightning.records.files import regular, write_atomically, writing


class MetricsFile:
    """A row for each round, in ascending order; the newest row may still get cells.

    Args:
        path: the .csv file. Its first column is `round`.

    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._columns = ["round"]
        self._rows: list[str] = []  # their text
        self._newest: dict[str, Any] = {"round": 0}
        self._start = self._end = -1  # bytes before the newest row, and in all; -1: the file is to be written anew

    @property
    def rounds(self) -> int:
        """The newest round; 0: there is none."""
        return int(self._newest["round"])

    def keep(self, rounds: int) -> None:
        """Reads the file, and drops the rows after this round, which are computed again.

        Raises:
            UserError: another program has changed the file; it stays as it is.

        """
        columns, found = _read(self.path)
        rows = [row for row in found if int(row[0]) <= rounds]
        used = [i for i in range(len(columns)) if i == 0 or any(row[i] for row in rows)]
        self._columns = [columns[i] for i in used]
        self._rows = [_text(row[i] for i in used) for row in rows]
        last = [rows[-1][i] for i in used] if rows else [0]
        self._newest = dict(zip(self._columns, last, strict=False))
        self._start = self._end = -1
        if rows:
            self._write()
        else:
            with writing(self.path):
                self.path.unlink(missing_ok=True)

    def add(self, round_: int, cells: Mapping[str, Any]) -> None:
        """Adds cells to the row of this round, and writes it."""
        if round_ < self.rounds:
            self._mend(round_, cells)
            return
        if round_ > self.rounds:
            self._newest = {"round": round_}
            self._rows.append("")
            self._start = self._end
        self._newest |= cells
        self._widen(self._newest)
        self._rows[-1] = _text(self._newest.get(name, "") for name in self._columns)
        self._write()

    def _mend(self, round_: int, cells: Mapping[str, Any]) -> None:
        """Adds cells to an earlier row, which only a Trainer of the user's asks for."""
        self._widen(cells)
        for i, text in enumerate(self._rows):
            row = dict(zip(self._columns, next(csv.reader([text])), strict=True))
            if int(row["round"]) == round_:
                self._rows[i] = _text((row | dict(cells)).values())
        self._end = -1
        self._write()

    def _widen(self, cells: Mapping[str, Any]) -> None:
        new = [name for name in cells if name not in self._columns]
        if new:
            self._columns += new
            self._rows = [row + "," * len(new) for row in self._rows]
            self._end = -1

    def _write(self) -> None:
        """Writes the newest row, or everything if a column is new, or if another program has changed the file."""
        if self._end >= 0 and self.path.is_file() and self.path.stat().st_size == self._end:
            row = (self._rows[-1] + "\n").encode()
            with writing(self.path), self.path.open("r+b") as file:
                file.seek(self._start)
                file.write(row)
                file.truncate()
        else:
            *earlier, last = ((row + "\n").encode() for row in [_text(self._columns), *self._rows])
            row, self._start = last, sum(map(len, earlier))
            write_atomically(self.path, b"".join([*earlier, last]))
        self._end = self._start + len(row)


def _text(cells: Iterable[Any]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="").writerow(cells)
    return text.getvalue()


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
    before = 0
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
