"""Names, colours, lines and markers of rows for readers: each method looks the same in all figures of a report."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.colors import to_hex, to_rgb

from fedem_lightning.report.groups import ALGORITHMS, BASELINES, Group, Setting, as_typed, differing_keys, short
from fedem_lightning.run.figures import MARKERS, PALETTE

FIRST = ("fedem", *reversed(BASELINES))
"""The first colours belong to the method that the package is named after, and to its two baselines."""
_LINES: tuple[str | tuple[int, tuple[float, ...]], ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)))
CHROME = "#010203"
"""Colour of axes and text, which the page replaces by the reader's text colour."""
GRID_COLOUR = "#c0c1c2"
MAIN_WIDTH, WIDTH = 2.6, 1.3
"""Points of the main method's lines, and of all others."""


@dataclass(frozen=True)
class Look:
    """How a row is drawn.

    Args:
        colour: in hexadecimal.
        line: line style of Matplotlib.
        marker: marker of Matplotlib.
        width: of the line, in points.

    """

    colour: str
    line: str | tuple[int, tuple[float, ...]]
    marker: str
    width: float = WIDTH

    def lined(self, gid: str = "") -> dict[str, Any]:
        """Matplotlib's arguments for a line; `gid` names it in an SVG file."""
        return {"color": self.colour, "linestyle": self.line, "linewidth": self.width, "gid": gid or None}


def looks(settings: Sequence[Setting]) -> dict[str, Look]:
    """The look of every row, by its label.

    Each method has a colour, and after eight methods another line. Rows of one method share its colour, in other
    shades and lines. The rows of the first of `FIRST` are wider.
    """
    rows: dict[str, list[str]] = {}  # algorithm -> labels
    for setting in settings:
        for group in setting.groups:
            labels = rows.setdefault(group.algorithm, [])
            if group.label not in labels:
                labels.append(group.label)
    found = {}
    for slot, algorithm in _slots(rows).items():
        labels = rows[algorithm]
        for i, label in enumerate(labels):
            colour = _shade(PALETTE[slot % len(PALETTE)], i / len(labels))
            line = _LINES[(slot // len(PALETTE) + i) % len(_LINES)]
            width = MAIN_WIDTH if algorithm == FIRST[0] and len(rows) > 1 else WIDTH
            found[label] = Look(colour, line, MARKERS[(slot + i) % len(MARKERS)], width)
    return found


def _slots(algorithms: Iterable[str]) -> dict[int, str]:
    """Methods by slot: `FIRST` have their own, the others follow in the order of tables, then alphabetically."""
    order = {name: i for i, name in enumerate(ALGORITHMS)}
    others = sorted((a for a in algorithms if a not in FIRST), key=lambda a: (order.get(a, len(order)), a))
    slots = {FIRST.index(name): name for name in algorithms if name in FIRST}
    return slots | dict(enumerate(others, len(FIRST)))


def _shade(colour: str, share: float) -> str:
    """The colour, mixed with up to 55 % of white."""
    red, green, blue = (c + 0.55 * share * (1 - c) for c in to_rgb(colour))
    return to_hex((red, green, blue))


def row_names(setting: Setting) -> dict[str, str]:
    """A short name for every row of a table, by the row's label: the title, and the keys in which rivals differ."""
    return {group.label: _row_name(group, setting.groups) for group in setting.groups}


def _row_name(group: Group, rivals: list[Group]) -> str:
    same = [rival.config for rival in rivals if rival.algorithm == group.algorithm]
    return title_with(group.title, differing_keys(same), group.config)


def title_with(title: str, keys: Iterable[str], config: dict[str, Any]) -> str:
    """The method's title, in brackets the values of some keys, e.g. those in which rows of the method differ."""
    details = ", ".join(f"{short(key, config)}={as_typed(config.get(key))}" for key in keys)
    return f"{title} ({details})" if details else title
