"""Tables of the report, with their columns and cells, independent of the output format; names as text and in CSV."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedem_lightning.errors import one_line
from fedem_lightning.report.groups import Group, Setting


@dataclass(frozen=True)
class Cell:
    """One entry of a table.

    Args:
        value: a mean over seeds, or a paper's number.
        std: standard deviation over seeds (ddof 1); None for one seed.
        n: number of seeds; 0 for a paper's number.
        source: source of a paper's number.
        note: remark on a paper's number.
        high: upper end of a range that begins with `value`.
        mark: a sign after the value that a note below the table explains.

    """

    value: float
    std: float | None = None
    n: int = 0
    source: str = ""
    note: str = ""
    high: float | None = None
    mark: str = ""


@dataclass(frozen=True)
class TableColumn:
    """Header and number format of a column.

    Args:
        header: header of the column.
        form: format of the mean.
        std_form: format of the standard deviation; empty: not shown (report.csv has it).
        is_detail: whether the column is in report.csv and on the page alone.

    """

    header: str
    form: str = ".3g"
    std_form: str = ""
    is_detail: bool = False

    def show(self, cell: Cell | None) -> str:
        """A cell as text; "-" for None and for a value that is not finite."""
        if cell is None or not math.isfinite(cell.value):
            return "-"
        value = "{:,.0f}" if self.form == ".3g" and abs(cell.value) >= 1000 else f"{{:{self.form}}}"
        text = "-".join(value.format(end) for end in (cell.value, cell.high) if end is not None) + cell.mark
        return f"{text} ± {cell.std:{self.std_form}}" if cell.std is not None and self.std_form else text


@dataclass
class Table:
    """A table, independent of the output format.

    Args:
        name: scores, components or bounds.
        what: what it shows; with the setting it makes the title.
        setting: the setting that is compared.
        columns: columns by key, in their order.
        rows: pairs of a group and its cells by key of the column.
        notes: lines below the table, such as sources.
        warnings: further lines, about what makes the table less sure.
        leaders: the label of the row that is best beyond chance, by key of the column.
        recommended: the label of the row that `--recommend` is sure of; a leader is bold if it is this row.
        seeds: test scores by key of the column, label of the row, and seed.

    """

    name: str
    what: str
    setting: Setting
    columns: dict[str, TableColumn]
    rows: list[tuple[Group, dict[str, Cell]]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    leaders: dict[str, str] = field(default_factory=dict)
    recommended: str | None = None
    seeds: dict[str, dict[str, dict[int, float]]] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The title for readers."""
        return f"{shorten(self.setting.title)}: {self.what}"

    def filled(self, details: bool = False) -> dict[str, TableColumn]:
        """The columns in which any row has a cell; those that are details only if `details`."""
        shown = {key: column for key, column in self.columns.items() if details or not column.is_detail}
        return {key: column for key, column in shown.items() if any(key in cells for _, cells in self.rows)}

    def is_leader(self, group: Group, key: str) -> bool:
        """Whether a row is the best of a column beyond chance."""
        return self.leaders.get(key) == group.label

    def is_bold(self, group: Group, key: str) -> bool:
        """Whether a row is the best of a column beyond chance, and validation scores recommend it too."""
        return self.is_leader(group, key) and self.recommended == group.label

    def lines(self, columns: Mapping[str, TableColumn]) -> Iterator[tuple[str, list[tuple[str, bool]]]]:
        """Every row's label, and the text of its cells, each with whether it is bold."""
        for group, cells in self.rows:
            texts = [(column.show(cells.get(key)), self.is_bold(group, key)) for key, column in columns.items()]
            yield shorten(group.in_text), texts

    def add_sources(self) -> None:
        """Adds notes with the sources of the papers' numbers."""
        sources: dict[str, dict[str, str]] = {}  # source -> label -> algorithm
        for group, cells in self.rows:
            for cell in cells.values():
                if cell.source:
                    note = f" ({cell.note})" if cell.note else ""
                    sources.setdefault(cell.source + note, {})[group.label] = group.algorithm
        for source, labels in sources.items():
            elsewhere = {group.algorithm for group, _ in self.rows if group.label not in labels}
            names = dict.fromkeys(label if name in elsewhere else name for label, name in labels.items())
            self.notes.append(f"paper: {source}, beside {', '.join(names)}")


def cell(values: Iterable[float | None]) -> Cell | None:
    """Mean and standard deviation over seeds; None if no seed has a value, NaN if some seed has none or diverged.

    Such a seed is not skipped, because a mean over the successful seeds would flatter the method.
    """
    given = list(values)
    numbers = [math.nan if v is None else float(v) for v in given]
    if all(v is None for v in given):
        return None
    std = float(np.std(numbers, ddof=1)) if len(numbers) > 1 else None
    return Cell(float(np.mean(numbers)), std, len(numbers))


def mean_cells(seeds: Sequence[Mapping[str, float | None]]) -> dict[str, Cell]:
    """The cells of a row by key of the column, from the values of each seed; see `cell`."""
    return {key: found for key in seeds[0] if (found := cell(values.get(key) for values in seeds)) is not None}


def shorten(text: str, longest: int = 80) -> str:
    """A text of at most `longest` letters; beginning and end are kept, because labels often differ at their end.

    Tables in CSV have it in full.
    """
    end = longest // 3
    return text if len(text) <= longest else f"{text[: longest - end - 3]}...{text[-end:]}"


def cell_text(text: Any) -> str:
    """A name in a CSV file; one that a spreadsheet would take for a formula begins with an apostrophe."""
    text = one_line(text)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text
