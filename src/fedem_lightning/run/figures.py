"""Figures of a run, as PNG, in the style of all figures."""

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedem_lightning.errors import one_line
from fedem_lightning.records.files import replacing
from fedem_lightning.records.measures import HIGHER_IS_BETTER, headline
from fedem_lightning.run.client_maps import coefficients_figure, embedding_figure, weights_figure
from fedem_lightning.run.figure_style import HEIGHT, PALETTE, STYLE, WIDTH, drawn_text
from fedem_lightning.settings.shipped import method_title

SPLIT_STYLES = {"train": (PALETTE[2], "--"), "val": (PALETTE[1], "-"), "test": (PALETTE[0], "-")}
SPLIT_NAMES = {"train": "training samples", "val": "validation samples", "test": "test samples"}
POPULATION_COLOURS = {"seen": PALETTE[0], "unseen": PALETTE[1]}
_TITLE_LETTERS = 52
"""Letters of a line of a title, which fit into a figure of `WIDTH`."""
WEIGHTS_WORDS = "Mixture weights of the clients"


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
    measure, _, unit = headline(results["train"])
    title = run_title(results, method)
    name = unit.partition(",")[0]
    with mpl.rc_context(STYLE):
        figures = {
            f"{measure}_by_round": (by_round_words(name), _by_round(folder / "metrics.csv", results, measure)),
            "mixture_weights": (WEIGHTS_WORDS, _mixture_weights(clients)),
            f"{measure}_over_clients": (f"Test {name} over the clients", _over_clients(clients, measure)),
            "coefficients": ("Collaboration weights", coefficients_figure(artifacts.get("coefficients", {}))),
            "embedding": ("Clients by the similarity of their gradients", embedding_figure(clients)),
        }
        drawn = {folder / f"{stem}.png": found for stem, found in figures.items() if found[1] is not None}
        for path, (words, figure) in drawn.items():
            assert figure is not None
            _save(entitled(figure, words, title), path)
    return list(drawn)


def by_round_words(name: str) -> str:
    """The title of the scores by round, such as "Accuracy by round"."""
    return f"{name.capitalize()} by round"


def entitled(figure: Figure, *lines: str) -> Figure:
    """The figure with a title: what it shows, and of which run; long lines are broken, and the longest cut."""
    shown = [line if len(line) <= 120 else line[:119] + "…" for line in map(one_line, lines)]
    broken = [part for line in shown for part in textwrap.wrap(line, _TITLE_LETTERS)]
    figure.suptitle("\n".join(drawn_text(part) for part in broken))
    return figure


def _save(figure: Figure, path: Path) -> None:
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=150, format="png")


def run_title(names: Mapping[str, Any], method: str | None = None) -> str:
    """The second line of a run's titles: the method, by its name or the configuration's title, the data and seed."""
    return one_line(f"{method_title(names['algorithm'], method)} on {names['dataset']}, seed {names['seed']}")


def _by_round(path: Path, results: dict[str, Any], measure: str) -> Figure | None:
    curves = pd.read_csv(path) if path.exists() else pd.DataFrame()
    if f"val/{measure}" not in curves and f"test/{measure}" not in curves:
        return None
    _, factor, unit = headline([measure])
    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    axes = figure.subplots()
    for split, (colour, line) in SPLIT_STYLES.items():
        if (column := f"{split}/{measure}") in curves:
            points = curves[["round", column]].dropna()
            alone = {"marker": "o", "markersize": 4} if len(points) == 1 else {}  # a line would not be seen
            look: dict[str, Any] = {"color": colour, "linestyle": line, "label": SPLIT_NAMES[split], **alone}
            axes.plot(points["round"], factor * points[column], **look)
    if "bayes_accuracy" in results["reference"] and measure == "accuracy":
        ceiling = 100 * results["reference"]["bayes_accuracy"]
        axes.axhline(ceiling, color="black", linewidth=0.8, linestyle=":", label=f"Bayes ceiling {ceiling:.1f} %")
    axes.set(xlabel="communication round", ylabel=f"{unit}, seen clients, weighted")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.legend(loc="outside lower center", ncols=3)
    return figure


def _mixture_weights(clients: pd.DataFrame) -> Figure | None:
    names = [name for name in clients if str(name).startswith("pi_")]
    return weights_figure(clients[names].to_numpy(dtype=float)) if names else None


def _over_clients(clients: pd.DataFrame, measure: str) -> Figure | None:
    scored = clients.dropna(subset=[f"test_{measure}"])
    groups = {str(name): group[f"test_{measure}"].to_numpy() for name, group in scored.groupby("population")}
    return clients_figure(groups, measure) if groups else None


def clients_figure(scores: Mapping[str, np.ndarray], measure: str) -> Figure:
    """Draws the share of the clients whose test score is at most x.

    Args:
        scores: of the clients by population, seen or unseen: [C] each.
        measure: accuracy, loss or mse.

    """
    _, factor, unit = headline([measure])
    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    axes = figure.subplots()
    for population, values in scores.items():
        share = 100 * np.arange(1, len(values) + 1) / len(values)
        label = f"{len(values)} {population} client{'s' * (len(values) != 1)}"
        axes.step(np.sort(factor * values), share, where="post", label=label, color=POPULATION_COLOURS[population])
    worst_tenth = 10 if HIGHER_IS_BETTER[measure] else 90
    axes.axhline(worst_tenth, color="black", linewidth=0.8, linestyle=":", label="worst tenth")
    axes.set(xlabel=f"a client's test {unit}", ylabel="clients at or below, %", ylim=(0, 101))
    figure.legend(loc="outside lower center", ncols=3)
    return figure
