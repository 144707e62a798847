"""Figures of mixture weights: heat map, simplex, by round; and how often components agree."""

import math
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedem_lightning.report import components
from fedem_lightning.report.components import mixture_weights
from fedem_lightning.report.figures.base import WIDTH, Drawn, Rows, axes_of, legend, titled, whole_numbers
from fedem_lightning.report.finished_run import Run
from fedem_lightning.report.groups import Group
from fedem_lightning.report.looks import CHROME
from fedem_lightning.run.figures import weights_figure
from fedem_lightning.run.palette import MARKERS, PALETTE

CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]])  # of the simplex in the plane
PATHS = 24
"""Clients whose path through the simplex is drawn."""


def mixture_figures(rows: Rows, group: Group) -> list[Drawn]:
    """All figures of a row's first seed that has mixture weights."""
    run = group.runs[0]
    weights = mixture_weights(run)
    if weights is None or not len(weights.seen):
        return []
    name = f"{rows.setting.title}_{rows.names[group.label]}"
    head = f"{rows.names[group.label]}, seed {run.seed}"
    found = [Drawn(f"{name}_weights", "mixture", _MAP, titled(weights_figure(weights.seen, WIDTH), head))]
    history = run.arrays("mixture_weights")
    if weights.seen.shape[1] == 3:
        found.append(_simplex(run, weights.seen, history, name, head))
    if "mean" in history and len(history["round"]) > 1:
        found.append(_by_round(history, name, head))
    agreement = (run.results.get("components") or {}).get("agreement")
    if agreement:
        found.append(Drawn(f"{name}_agreement", "mixture", _AGREE, agreement_map(np.array(agreement), head)))
    return found


_MAP = "Mixture weights after the last round: one column a client, sorted by its largest component."
_AGREE = "Share of the test samples on which two components predict the same class."


def _simplex(run: Run, pi: np.ndarray, history: dict[str, np.ndarray], name: str, head: str) -> Drawn:
    """Three components: every client is a point in a triangle, near the corner of its largest component."""
    figure, axes = axes_of(f"{head}: clients in the simplex", height=4.2, width=4.6)
    axes.set_axis_off()
    axes.plot(*np.vstack([CORNERS, CORNERS[:1]]).T, color=CHROME, linewidth=0.8)
    for m, (corner, away) in enumerate(zip(CORNERS, ((-0.04, -0.05), (0.04, -0.05), (0, 0.04)), strict=True)):
        x, y = corner + away
        axes.text(x, y, f"component {m}", ha="center", va="center", fontsize=8.5, color=CHROME)
    if "pi" in history and len(history["round"]) > 1:
        clients = np.linspace(0, history["pi"].shape[1] - 1, min(PATHS, history["pi"].shape[1])).astype(int)
        for path in (history["pi"][:, np.unique(clients)] @ CORNERS).swapaxes(0, 1):
            axes.plot(*path.T, color=PALETTE[2], linewidth=0.5, alpha=0.6)
    assert run.clients is not None
    seen = run.clients[run.clients["population"] == "seen"]
    groups = seen["true_group"].to_numpy() if "true_group" in seen else pi.argmax(axis=1)
    tips = {}
    for i, value in enumerate(np.unique(groups)):
        mine = groups == value
        look: dict[str, Any] = {"color": PALETTE[i % len(PALETTE)], "marker": MARKERS[i % len(MARKERS)]}
        x, y = (pi[mine] @ CORNERS).T
        axes.scatter(x, y, s=14, linewidths=0, alpha=0.8, gid=f"corner-{i}", zorder=3, **look)
        tips[f"corner-{i}"] = [
            f"{client}: {', '.join(f'{w:.2f}' for w in row)}"
            for client, row in zip(seen["id"][mine], pi[mine], strict=True)
        ]
    axes.set_aspect("equal")
    by = "true group" if "true_group" in seen else "largest component"
    caption = (
        f"Every client by its mixture weights, coloured by its {by}; grey: paths of {PATHS} clients over the rounds."
    )
    caption = caption if "pi" in history else caption.partition(";")[0] + "."
    return Drawn(f"{name}_simplex", "mixture", caption, figure, points=tips)


def _by_round(history: dict[str, np.ndarray], name: str, head: str) -> Drawn:
    figure, axes = axes_of(f"{head}: mixture weights by round")
    n_components = history["mean"].shape[1]
    for m in range(n_components):
        colour, marker = PALETTE[m % len(PALETTE)], MARKERS[m % len(MARKERS)]
        look: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 3}
        axes.plot(history["round"], history["mean"][:, m], linewidth=1.4, label=f"component {m}", gid=f"c-{m}", **look)
    entropy = history["entropy"] / np.log(n_components)
    axes.plot(
        history["round"], entropy, color=CHROME, linestyle=":", linewidth=1.2, label="entropy / ln M", gid="entropy"
    )
    axes.set(xlabel="communication round", ylabel="mean over clients", ylim=(0, 1.02))
    whole_numbers(axes)
    legend(figure, axes)
    names = {f"c-{m}": f"component {m}" for m in range(n_components)} | {"entropy": "entropy / ln M"}
    caption = "Mean weight of each component, and the clients' mean entropy relative to that of equal weights."
    return Drawn(f"{name}_weights_by_round", "mixture", caption, figure, names)


def agreement_map(shares: np.ndarray, head: str) -> Figure:
    """Draws the shares [M, M] of samples on which components agree, with the numbers in the cells."""
    figure, axes = axes_of(f"{head}: agreement of components", height=2.2 + 0.35 * len(shares), width=4.2)
    axes.grid(visible=False)
    axes.imshow(shares, vmin=0, vmax=1, cmap="cividis", interpolation="nearest")
    for (i, j), share in np.ndenumerate(shares):
        axes.text(
            j,
            i,
            f"{100 * share:.0f}",
            ha="center",
            va="center",
            fontsize=8,
            color="#fefefe" if share < 0.6 else "#111111",
        )
    axes.set(xticks=range(len(shares)), yticks=range(len(shares)), xlabel="component", ylabel="component")
    return figure


def entropies(rows: Rows) -> Drawn | None:
    """Draws the clients' entropies of all rows with mixture weights, from the lowest to the highest."""
    figure, axes = axes_of(f"{rows.setting.title}: entropy of the mixture weights")
    largest = 0.0
    for group in rows.setting.groups:
        weights = mixture_weights(group.runs[0])
        if weights is None or not len(weights.seen):
            continue
        pi = weights.seen
        largest = max(largest, math.log(pi.shape[1]))
        each = np.sort(components.entropies(pi))
        look = rows.looks[group.label]
        axes.plot(
            100 * np.arange(1, len(each) + 1) / len(each),
            each,
            label=rows.label(group),
            **look.lined(rows.gid(group)),
        )
    if not axes.lines:
        return None
    axes.set(xlabel="percentile of clients, lowest entropy first", ylabel="entropy of a client's weights, nats")
    axes.set_ylim(-0.02 * largest, 1.04 * largest)
    legend(figure, axes)
    caption = "Zero: the client uses one component; ln M: it uses all alike. First seed of each row."
    return Drawn(f"{rows.setting.title}_entropy", "mixture", caption, figure, rows.tips())
