"""Figures of a run, as PNG; colours and texts as all figures have them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedem_lightning.errors import one_line
from fedem_lightning.records.files import replacing
from fedem_lightning.records.measures import HIGHER_IS_BETTER, headline
from fedem_lightning.settings.shipped import method_title

PALETTE = ("#d55e00", "#0072b2", "#7f7f7f", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#882255")
"""Okabe and Ito's colours (Color Universal Design, 2008), without black and yellow; grey; and a wine red of Tol's."""
MARKERS = "os^Dv<>P"
"""Markers of Matplotlib; with the colours they repeat after the eighth."""
SPLIT_STYLES = {"train": ("tab:gray", "--"), "val": ("tab:blue", "-"), "test": ("tab:orange", "-")}
GROUPS_SHOWN = 20
"""Largest number of groups for which lines between them and a legend are drawn."""


def draw_figures(
    folder: Path,
    results: dict[str, Any],
    clients: pd.DataFrame,
    artifacts: Mapping[str, Mapping[str, np.ndarray]],
    method: str | None = None,
) -> list[Path]:
    """Draws the figures for which the run has data: scores, mixture weights, collaboration weights.

    Args:
        folder: folder of the figures.
        results: results of the run, see docs/results.md.
        clients: the clients' table.
        artifacts: arrays by file and name; "coefficients" is drawn.
        method: the configuration's title of it.

    Returns:
        Paths of the files.

    """
    measure, factor, unit = headline(results["train"])
    title = run_title(results, method)
    figures = {
        f"{measure}_by_round": _by_round(folder / "metrics.csv", results, measure, factor, unit),
        "mixture_weights": _mixture_weights(clients),
        f"{measure}_over_clients": _over_clients(clients, measure, factor, unit),
        "coefficients": coefficients_figure(artifacts.get("coefficients", {})),
        "embedding": embedding_figure(clients),
    }
    drawn = {folder / f"{name}.png": figure for name, figure in figures.items() if figure is not None}
    for path, figure in drawn.items():
        _save(figure, title, path)
    return list(drawn)


def _save(figure: Figure, title: str, path: Path) -> None:
    figure.suptitle(title)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=120, format="png")


def drawn_text(text: Any, limit: int = 80) -> str:
    """A text on one line that Matplotlib draws as it is.

    Args:
        text: any text; Matplotlib would read what stands between two dollar signs as a formula.
        limit: the most characters that are kept; an ellipsis stands for the others.

    """
    line = one_line(text)
    shown = line if len(line) <= limit else line[: limit - 1] + "…"
    return shown.replace("$", r"\$")


def run_title(names: Mapping[str, Any], method: str | None = None) -> str:
    """The title of a run's figures: the method, by its name or the configuration's title of it, the data and seed."""
    return drawn_text(f"{method_title(names['algorithm'], method)} on {names['dataset']}, seed {names['seed']}")


def draw_rounds(folder: Path, title: str) -> None:
    """Draws the scores by round of an unfinished run, from metrics.csv; nothing before the first evaluation."""
    path = folder / "metrics.csv"
    columns = pd.read_csv(path, nrows=0).columns if path.exists() else pd.Index([])
    measure, factor, unit = headline(str(name).rpartition("/")[2] for name in columns)
    figure = _by_round(path, {"reference": {}}, measure, factor, unit)
    if figure is not None:
        _save(figure, title, folder / f"{measure}_by_round.png")


def _by_round(path: Path, results: dict[str, Any], measure: str, factor: float, unit: str) -> Figure | None:
    curves = pd.read_csv(path) if path.exists() else pd.DataFrame()
    if f"val/{measure}" not in curves and f"test/{measure}" not in curves:
        return None
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for split, (colour, line) in SPLIT_STYLES.items():
        if (column := f"{split}/{measure}") in curves:
            points = curves[["round", column]].dropna()
            axes.plot(points["round"], factor * points[column], line, color=colour, label=split)
    if "bayes_accuracy" in results["reference"]:
        ceiling = 100 * results["reference"]["bayes_accuracy"]
        axes.axhline(ceiling, color="black", linewidth=0.8, linestyle=":", label=f"Bayes ceiling {ceiling:.1f} %")
    axes.set(xlabel="communication round", ylabel=f"{unit}, seen clients, weighted")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def _mixture_weights(clients: pd.DataFrame) -> Figure | None:
    names = [name for name in clients if str(name).startswith("pi_")]
    return weights_figure(clients[names].to_numpy(dtype=float)) if names else None


def weights_figure(
    pi: np.ndarray, width: float = 8.0, ax: Axes | None = None, groups: np.ndarray | None = None
) -> Figure:
    """Draws mixture weights: a column for each client, by its largest component, the purest clients first.

    Args:
        pi: mixture weights [T, M].
        width: inches of a new figure.
        ax: where to draw; None: a new figure.
        groups: the clients' true groups [T], by which they are sorted first; a strip above the columns shows them.

    """
    names, codes = np.unique(np.zeros(len(pi)) if groups is None else groups, return_inverse=True)
    order = np.lexsort((-pi.max(axis=1), pi.argmax(axis=1), codes))
    axes = ax or Figure(figsize=(width, 1.6 + 0.35 * pi.shape[1]), layout="constrained").subplots()
    figure = axes.get_figure(root=True)
    assert figure is not None
    image = axes.imshow(pi[order].T, aspect="auto", vmin=0, vmax=1, cmap="viridis", interpolation="nearest")
    first = "" if groups is None else "true group and "
    axes.set(xlabel=f"clients, sorted by their {first}largest component", ylabel="component")
    axes.locator_params(integer=True)
    figure.colorbar(image, ax=axes, label="mixture weight")
    if groups is not None:
        _group_strip(axes, codes[order], [str(name) for name in names])
    return figure


def _group_strip(axes: Axes, codes: np.ndarray, names: list[str]) -> None:
    """Draws sorted groups [T] as a strip of colours above the columns of a heat map; few groups have their names."""
    strip = axes.inset_axes((0, 1.03, 1, 0.09))
    strip.imshow(codes[None] % len(PALETTE), aspect="auto", cmap=ListedColormap(PALETTE), vmin=0, vmax=len(PALETTE) - 1)
    strip.set(xticks=[], yticks=[0], yticklabels=["true group"])
    strip.grid(visible=False)
    for code in np.unique(codes) if len(names) <= GROUPS_SHOWN else ():
        strip.text(
            np.flatnonzero(codes == code).mean(), 0, names[code], ha="center", va="center", color="white", fontsize=8
        )


def _over_clients(clients: pd.DataFrame, measure: str, factor: float, unit: str) -> Figure | None:
    column = f"test_{measure}"
    scored = clients.dropna(subset=[column])
    if scored.empty:
        return None
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for population, group in scored.groupby("population"):
        scores = np.sort(factor * group[column].to_numpy())
        share = 100 * np.arange(1, len(scores) + 1) / len(scores)
        axes.step(scores, share, where="post", label=f"{len(scores)} {population} clients")
    worst_tenth = 10 if HIGHER_IS_BETTER[measure] else 90
    axes.axhline(worst_tenth, color="black", linewidth=0.8, linestyle=":", label="worst tenth")
    axes.set(xlabel=f"a client's test {unit}", ylabel="clients at or below, %", ylim=(0, 101))
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def coefficients_figure(found: Mapping[str, np.ndarray]) -> Figure | None:
    """Draws W as a heat map, with clients ordered by group."""
    if not found:
        return None
    kind = _kind(found)
    order = np.argsort(found[kind], kind="stable")
    w, group = found["w"][np.ix_(order, order)], found[kind][order]
    others = np.where(np.eye(len(w), dtype=bool), 0.0, w)  # without the diagonal, which would hide the rest
    figure = Figure(figsize=(6, 5), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(w, vmin=0, vmax=others.max() or 1.0, cmap="viridis", interpolation="nearest")
    borders = np.flatnonzero(np.diff(group)) + 0.5
    if len(borders) < GROUPS_SHOWN:
        for draw in (axes.axhline, axes.axvline):
            for border in borders:
                draw(border, color="white", linewidth=0.8)
    axes.set(xlabel=f"whose model, by {kind.replace('_', ' ')}", ylabel="for which client")
    axes.locator_params(integer=True)
    figure.colorbar(image, label="coefficient w_ij", extend="max" if w.max() > others.max() > 0 else "neither")
    return figure


def embedding_figure(clients: pd.DataFrame) -> Figure | None:
    """Draws clients as points in the plane, which are near one another if their gradients are similar."""
    placed = clients.dropna(subset=["embedding_0"]) if "embedding_0" in clients else pd.DataFrame()
    if placed.empty:
        return None
    kind = _kind(placed)
    figure = Figure(figsize=(6, 5), layout="constrained")
    axes = figure.subplots()
    if placed[kind].nunique() > GROUPS_SHOWN:
        axes.scatter(placed.embedding_0, placed.embedding_1, s=16, c=placed[kind], cmap="viridis")
    else:
        for i, (name, group) in enumerate(placed.groupby(kind)):
            look: dict[str, Any] = {
                "color": PALETTE[i % len(PALETTE)],
                "marker": MARKERS[(i // len(PALETTE)) % len(MARKERS)],
            }
            label = f"{kind.replace('_', ' ')} {name}"
            axes.scatter(group.embedding_0, group.embedding_1, s=16, label=label, **look)
        # beside the panel it would hide the axis' label; a frame would stay white on a dark page
        figure.legend(loc="outside lower center", ncols=4, frameon=False)
    axes.set(xlabel="gradients, first direction", ylabel="gradients, second direction", aspect="equal")
    axes.grid(alpha=0.3)
    return figure


def _kind(found: Any) -> str:
    """The groups to show, with the name of their column."""
    return "true_group" if "true_group" in found else "stream"
