"""What all figures have in common: colours, markers, Matplotlib's settings, sizes, and text that is no formula."""

from typing import Any

from fedem_lightning.errors import one_line

PALETTE = ("#d55e00", "#0072b2", "#7f7f7f", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#882255")
"""Okabe and Ito's colours (Color Universal Design, 2008), without black and yellow; grey; and a wine red of Tol's."""
MARKERS = "os^Dv<>P"
"""Markers of Matplotlib; with the colours they repeat after the eighth."""
STYLE: dict[Any, Any] = {
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize"), 8.5),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    **{"axes.labelsize": 9, "axes.linewidth": 0.6, "legend.fontsize": 8, "figure.titlesize": 10},
    **{"axes.grid": True, "axes.axisbelow": True, "grid.color": "#c0c1c2", "grid.linewidth": 0.5},
}
"""Matplotlib's settings while figures are made and saved; reports have the same, and more for their page."""
WIDTH, HEIGHT = 4.9, 3.3
"""Inches of a figure without its legend."""
GROUPS_SHOWN = 20
"""Largest number of groups for which lines between them and a legend are drawn."""


def drawn_text(text: Any, limit: int = 80) -> str:
    """A text on one line that Matplotlib draws as it is.

    Args:
        text: any text; Matplotlib would read what stands between two dollar signs as a formula.
        limit: the most characters that are kept; an ellipsis stands for the others.

    """
    line = one_line(text)
    shown = line if len(line) <= limit else line[: limit - 1] + "…"
    return shown.replace("$", r"\$")
