"""Figures of mixture weights: of every client after the last round, and their means by round."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.image import AxesImage

from fedem_lightning.report.drawing import Drawn, legend, panels, whole_numbers
from fedem_lightning.report.finished_run import Run
from fedem_lightning.report.groups import Setting
from fedem_lightning.run.figure_style import GROUPS_SHOWN, MARKERS, PALETTE

_MOST = 6
"""Rows whose mixture weights are drawn."""


def weights_figure(name: str, settings: Sequence[Setting]) -> Drawn | None:
    """Draws mixture weights after the last round: a column a client."""
    drawn = [(title, run, pi) for title, run in _first_seeds(settings) if (pi := run.weights()) is not None][:_MOST]
    if not drawn:
        return None
    figure, found = panels([title for title, *_ in drawn], 1.7 + 0.3 * max(pi.shape[1] for *_, pi in drawn))
    for axes, (_, run, pi) in zip(found, drawn, strict=True):
        figure.colorbar(_heat_map(axes, pi, _true_groups(run)), ax=axes, label="mixture weight")
    caption = (
        "One column a client, sorted by its true group, where the data know it, and its largest component. First seed "
        f"of each row{f', the first {_MOST} rows' if len(drawn) == _MOST else ''}."
    )
    return Drawn(name, "Mixture weights after the last round", caption, figure)


def weights_by_round_figure(name: str, settings: Sequence[Setting]) -> Drawn | None:
    """Draws the mean weight of each component over the rounds, and the clients' mean entropy."""
    found_arrays = [(title, run.arrays("mixture_weights")) for title, run in _first_seeds(settings)]
    drawn = [(title, found) for title, found in found_arrays if "mean" in found and len(found["round"]) > 1][:_MOST]
    if not drawn:
        return None
    figure, panels_found = panels([title for title, _ in drawn])
    for axes, (_, history) in zip(panels_found, drawn, strict=True):
        for m, mean in enumerate(history["mean"].T):
            look: dict[str, Any] = {
                "color": PALETTE[m % len(PALETTE)],
                "marker": MARKERS[m % len(MARKERS)],
                "markersize": 3,
            }
            axes.plot(history["round"], mean, label=f"component {m}", **look)
        entropy = history["entropy"] / np.log(history["mean"].shape[1])
        axes.plot(history["round"], entropy, color="black", linestyle=":", label="entropy / ln M")
        axes.set(xlabel="communication round", ylabel="mean over clients", ylim=(0, 1.02))
        whole_numbers(axes)
    legend(figure)
    caption = "Entropy 1: every client uses all components alike; 0: it uses one. First seed of each row."
    return Drawn(name, "Mixture weights by round", caption, figure)


def _first_seeds(settings: Sequence[Setting]) -> list[tuple[str, Run]]:
    """The first seed of every row with a title."""
    return [(f"{setting.title}: {group.name}", group.runs[0]) for setting in settings for group in setting.groups]


def _true_groups(run: Run) -> np.ndarray | None:
    """The true groups of the clients that train, [T]; None if the data do not know them."""
    clients = run.clients
    if clients is None or "true_group" not in clients:
        return None
    return clients.loc[clients["population"] == "seen", "true_group"].to_numpy()


def _heat_map(axes: Axes, pi: np.ndarray, groups: np.ndarray | None) -> AxesImage:
    """Draws weights [T, M], with lines between true groups [T]; few groups have their names below them."""
    names, codes = np.unique(np.zeros(len(pi)) if groups is None else groups, return_inverse=True)
    order = np.lexsort((-pi.max(axis=1), pi.argmax(axis=1), codes))
    image = axes.imshow(pi[order].T, aspect="auto", vmin=0, vmax=1, cmap="viridis", interpolation="nearest")
    axes.locator_params(integer=True)
    axes.set(xlabel="clients" if groups is None else "clients by true group", ylabel="component")
    axes.grid(visible=False)
    if 1 < len(names) <= GROUPS_SHOWN:
        ends = np.cumsum(np.bincount(codes))
        axes.vlines(ends[:-1] - 0.5, -0.5, pi.shape[1] - 0.5, color="white", linewidth=0.8)
        axes.set_xticks((ends + np.append(0, ends[:-1])) / 2 - 0.5, [str(name) for name in names])
    return image
