"""Figures of a run, as PNG: scores by round and over the clients, and mixture weights."""

import textwrap
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedem_lightning.settings.errors import one_line
from fedem_lightning.settings.files import replacing
from fedem_lightning.settings.keys import method_title
from fedem_lightning.settings.measures import HIGHER_IS_BETTER, headline

PALETTE = ("#d55e00", "#0072b2", "#7f7f7f", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#882255")
"""Okabe and Ito's colours (Color Universal Design, 2008), without black and yellow; grey; and a wine red of Tol's."""
STYLE: dict[Any, Any] = {
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize"), 8.5),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    **{"axes.labelsize": 9, "axes.linewidth": 0.6, "legend.fontsize": 8, "figure.titlesize": 10},
    **{"axes.grid": True, "axes.axisbelow": True, "grid.color": "#c0c1c2", "grid.linewidth": 0.5},
}
"""Matplotlib's settings while figures are made and saved; reports have the same, and more for their page."""
WIDTH, HEIGHT = 4.9, 3.3
"""Inches of a figure without its legend."""
_SPLITS = {
    "train": ("training samples", PALETTE[2], "--"),
    "val": ("validation samples", PALETTE[1], "-"),
    "test": ("test samples", PALETTE[0], "-"),
}
_TITLE_LETTERS = 52
"""Letters of a line of a title, which fit into a figure of `WIDTH`."""


def draw_figures(folder: Path, results: dict[str, Any], clients: pd.DataFrame, method: str | None = None) -> list[Path]:
    """Draws the figures for which the run has data; returns their files."""
    measure, _, unit = headline(results["train"])
    name = unit.partition(",")[0]
    run = f"{method_title(results['algorithm'], method)} on {results['dataset']}, seed {results['seed']}"
    with mpl.rc_context(STYLE):
        figures = {
            f"{measure}_by_round": (f"{name.capitalize()} by round", _by_round(folder, results, measure)),
            "mixture_weights": ("Mixture weights of the clients", _mixture_weights(clients)),
            f"{measure}_over_clients": (f"Test {name} over the clients", _over_clients(clients, measure)),
        }
        drawn = []
        for stem, (words, figure) in figures.items():
            if figure is not None:
                drawn.append(folder / f"{stem}.png")
                lines = [part for line in (words, run) for part in textwrap.wrap(drawn_text(line, 120), _TITLE_LETTERS)]
                figure.suptitle("\n".join(lines))
                with replacing(drawn[-1]) as temporary:
                    figure.savefig(temporary, dpi=150, format="png")
    return drawn


def legend_below(figure: Figure) -> None:
    """Draws one legend for all axes below them, whole and in columns that fit; the figure grows by its height."""
    found = {
        label: handle for axes in figure.axes for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    if not found:
        return
    width = figure.get_figwidth()
    labels = [textwrap.fill(label, int(14 * width) - 6) for label in found]  # an inch has about 14 letters
    for columns in range(min(len(found), max(1, int(2 * width))), 0, -1):
        legend = figure.legend(list(found.values()), labels, loc="outside lower center", ncols=columns)
        extent = legend.get_window_extent()
        if extent.width <= figure.bbox.width or columns == 1:
            break
        legend.remove()
    figure.set_figheight(figure.get_figheight() + extent.height / figure.dpi)


def _axes(height: float = HEIGHT) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.subplots()


def _by_round(folder: Path, results: dict[str, Any], measure: str) -> Figure | None:
    path = folder / "metrics.csv"
    curves = pd.read_csv(path) if path.exists() else pd.DataFrame()
    if f"val/{measure}" not in curves and f"test/{measure}" not in curves:
        return None
    _, factor, unit = headline([measure])
    figure, axes = _axes()
    for split, (label, colour, line) in _SPLITS.items():
        if (column := f"{split}/{measure}") in curves:
            points = curves[["round", column]].dropna()
            look: Any = {"marker": "o", "clip_on": False} if len(points) == 1 else {}  # a line would not be seen
            axes.plot(points["round"], factor * points[column], color=colour, ls=line, label=label, **look)
    if "bayes_accuracy" in results["reference"] and measure == "accuracy":
        ceiling = 100 * results["reference"]["bayes_accuracy"]
        axes.axhline(ceiling, color="black", linewidth=0.8, linestyle=":", label=f"Bayes ceiling {ceiling:.1f} %")
    axes.set(xlabel="communication round", ylabel=f"{unit}, seen clients, weighted")
    by_round_axis(axes, results["rounds"])
    legend_below(figure)
    return figure


def by_round_axis(axes: Axes, rounds: int) -> None:
    """Makes the x-axis that of communication rounds, in whole numbers up to the last one."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlim(0, rounds or None)


def _over_clients(clients: pd.DataFrame, measure: str) -> Figure | None:
    """The share of the clients whose test score is at most x."""
    scored = clients.dropna(subset=[f"test_{measure}"])
    if scored.empty:
        return None
    _, factor, unit = headline([measure])
    figure, axes = _axes()
    for colour, (population, group) in zip(PALETTE, scored.groupby("population"), strict=False):
        n = len(group)
        label = f"{n} {population} client{'s' * (n != 1)}"
        scores = np.sort(factor * group[f"test_{measure}"])
        axes.step(scores, 100 * np.arange(1, n + 1) / n, where="post", label=label, color=colour)
    worst_tenth = 10 if HIGHER_IS_BETTER[measure] else 90
    axes.axhline(worst_tenth, color="black", linewidth=0.8, linestyle=":", label="worst tenth")
    axes.set(xlabel=f"a client's test {unit}", ylabel="clients at or below, %", ylim=(0, 101))
    legend_below(figure)
    return figure


def _mixture_weights(clients: pd.DataFrame) -> Figure | None:
    """A column for each client, by its largest component, the purest clients first."""
    pi = clients[[name for name in clients if str(name).startswith("pi_")]].to_numpy(dtype=float)  # [T, M]
    if not pi.size:
        return None
    order = np.lexsort((-pi.max(axis=1), pi.argmax(axis=1)))
    figure, axes = _axes(1.6 + 0.35 * pi.shape[1])
    image = axes.imshow(pi[order].T, aspect="auto", vmin=0, vmax=1, cmap="viridis", interpolation="nearest")
    axes.set(xlabel="clients, sorted by their largest component", ylabel="component")
    axes.locator_params(integer=True)
    axes.grid(visible=False)
    figure.colorbar(image, ax=axes, label="mixture weight")
    return figure


def drawn_text(text: Any, limit: int = 80) -> str:
    """A text on one line of at most `limit` letters, which Matplotlib draws as it is: $ begins no formula."""
    line = one_line(text)
    shown = line if len(line) <= limit else line[: limit - 1] + "…"
    return shown.replace("$", r"\$")
