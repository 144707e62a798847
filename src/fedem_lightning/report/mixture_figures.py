"""The figure of mixture weights: of every client after the last round."""

from collections.abc import Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes

from fedem_lightning.report.drawing import Drawn, with_panels
from fedem_lightning.report.finished_run import Run
from fedem_lightning.report.groups import Setting
from fedem_lightning.run.figure_style import GROUPS_SHOWN

_MOST = 6
"""Rows whose mixture weights are drawn."""


def weights_figure(name: str, settings: Sequence[Setting]) -> Drawn | None:
    """Draws mixture weights after the last round: a column a client; of the first seed of each row."""
    rows = [(f"{setting.title}: {group.name}", group.runs[0]) for setting in settings for group in setting.groups]
    drawn = [(title, run, pi) for title, run in rows if (pi := run.weights()) is not None][:_MOST]
    caption = (
        "One column a client, sorted by its true group, where the data know it, and its largest component. First seed "
        f"of each row{f', the first {_MOST} rows' if len(drawn) == _MOST else ''}."
    )
    panels = [(title, partial(_heat_map, pi=pi, groups=_true_groups(run))) for title, run, pi in drawn]
    height = 1.7 + 0.3 * max((pi.shape[1] for *_, pi in drawn), default=0)
    return with_panels(name, "Mixture weights after the last round", caption, panels, height)


def _true_groups(run: Run) -> np.ndarray | None:
    """The true groups of the clients that train, [T]; None if the data do not know them."""
    clients = run.clients
    if clients is None or "true_group" not in clients:
        return None
    return clients.loc[clients["population"] == "seen", "true_group"].to_numpy()


def _heat_map(axes: Axes, pi: np.ndarray, groups: np.ndarray | None) -> None:
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
    axes.figure.colorbar(image, ax=axes, label="mixture weight")
