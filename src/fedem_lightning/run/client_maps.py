"""Figures of who belongs to whom: mixture weights, collaboration weights, and the map of clients."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from fedem_lightning.run.figure_style import GROUPS_SHOWN, MARKERS, PALETTE, WIDTH


def weights_figure(
    pi: np.ndarray, width: float = WIDTH, ax: Axes | None = None, groups: np.ndarray | None = None
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
    axes.grid(visible=False)
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


def coefficients_figure(found: Mapping[str, np.ndarray]) -> Figure | None:
    """Draws W as a heat map, with clients ordered by group."""
    if not found:
        return None
    kind = _kind(found)
    order = np.argsort(found[kind], kind="stable")
    w, group = found["w"][np.ix_(order, order)], found[kind][order]
    others = np.where(np.eye(len(w), dtype=bool), 0.0, w)  # without the diagonal, which would hide the rest
    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(w, vmin=0, vmax=others.max() or 1.0, cmap="viridis", interpolation="nearest")
    borders = np.flatnonzero(np.diff(group)) + 0.5
    if len(borders) < GROUPS_SHOWN:
        for draw in (axes.axhline, axes.axvline):
            for border in borders:
                draw(border, color="white", linewidth=0.8)
    axes.set(xlabel=f"client whose model it is, by {kind.replace('_', ' ')}", ylabel="client that receives it")
    axes.locator_params(integer=True)
    axes.grid(visible=False)
    figure.colorbar(image, label="collaboration weight", extend="max" if w.max() > others.max() > 0 else "neither")
    return figure


def embedding_figure(clients: pd.DataFrame) -> Figure | None:
    """Draws clients as points in the plane, which are near one another if their gradients are similar."""
    placed = clients.dropna(subset=["embedding_0"]) if "embedding_0" in clients else pd.DataFrame()
    if placed.empty:
        return None
    kind = _kind(placed)
    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    axes = figure.subplots()
    if placed[kind].nunique() > GROUPS_SHOWN:
        points = axes.scatter(placed.embedding_0, placed.embedding_1, s=16, c=placed[kind], cmap="viridis")
        figure.colorbar(points, label=f"number of the {kind.replace('_', ' ')}")
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
    return figure


def _kind(found: Any) -> str:
    """The groups to show, with the name of their column."""
    return "true_group" if "true_group" in found else "stream"
