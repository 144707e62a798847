"""Figures of who learns with whom: mixture weights, the tree of clusters, collaboration weights, the map of clients."""

import math
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fedem_lightning.report.diagnostic_tables import entropies, final_weights
from fedem_lightning.report.figures.drawing import WIDTH, Drawn, DrawnRows, axes_of, legend, titled, whole_numbers
from fedem_lightning.report.finished_run import Run
from fedem_lightning.report.groups import Group
from fedem_lightning.report.looks import CHROME
from fedem_lightning.run.figures import MARKERS, PALETTE, coefficients_figure, embedding_figure, weights_figure

_CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]])  # of the simplex in the plane
_PATHS = 24
"""Clients whose path through the simplex is drawn."""
_MAP = "Mixture weights after the last round: one column a client, sorted by its largest component."
_AGREE = "Share of the test samples on which two components predict the same class."


def has_structure(run: Run) -> bool:
    """Whether a run left something that says who learns with whom."""
    return any((run.folder / f"{name}.npz").exists() for name in ("clusters", "coefficients"))


def structure_figures(rows: DrawnRows, group: Group) -> list[Drawn]:
    """The figures of a row's first seed for which its run has data."""
    run = group.runs[0]
    name, head = f"{rows.setting.title}_{rows.names[group.label]}", f"{rows.names[group.label]}, seed {run.seed}"
    found = []
    tree = run.arrays("clusters")
    if run.clients is not None and {"node", "parent"} <= set(tree) and "cluster" in run.clients:
        found.append(_tree(tree, run.clients, name, head, rows.looks[group.label].colour))
    coefficients = coefficients_figure(run.arrays("coefficients"))
    if coefficients is not None:
        caption = "Collaboration weights: the row's client receives this share of the column's model."
        found.append(Drawn(f"{name}_coefficients", "structure", caption, titled(coefficients, head)))
    places = embedding_figure(run.clients) if run.clients is not None else None
    if places is not None:
        caption = "Clients whose gradients are similar lie near one another."
        found.append(Drawn(f"{name}_embedding", "structure", caption, titled(places, head)))
    return found


def _tree(tree: dict[str, np.ndarray], clients: pd.DataFrame, name: str, head: str, colour: str) -> Drawn:
    """Draws the tree of clusters: the root above, each leaf with its clients and their true groups."""
    parent = {int(v): int(p) for v, p in zip(tree["node"], tree["parent"], strict=True)}
    children = {v: sorted(w for w in parent if parent[w] == v) for v in parent}
    depth = {v: _depth(v, parent) for v in parent}
    leaves = _leaves(min(parent, key=lambda v: depth[v]), children)
    x = {leaf: float(i) for i, leaf in enumerate(leaves)}
    for node in sorted(parent, key=lambda v: -depth[v]):  # from the leaves up
        if children[node]:
            x[node] = float(np.mean([x[child] for child in children[node]]))
    lowest = max(depth.values())
    figure, axes = axes_of(f"{head}: tree of clusters", height=2.0 + 0.45 * lowest)
    axes.set_axis_off()
    for node, above in parent.items():
        bottom = lowest if not children[node] else depth[node]
        if above in parent:
            y = [-depth[above], -depth[above], -bottom]
            axes.plot([x[above], x[node], x[node]], y, color=colour, linewidth=1.3)
    seen = clients[clients["population"] == "seen"]
    words = {leaf: _members(seen[seen["cluster"] == leaf]) for leaf in leaves}
    for leaf in leaves:
        axes.text(x[leaf], -lowest - 0.1, words[leaf], ha="center", va="top", fontsize=8, color=CHROME)
    axes.set(xlim=(-0.6, len(leaves) - 0.4), ylim=(-lowest - 0.3 * (1 + max(map(_lines, words.values()))), 0.2))
    caption = "How clusters were split, from all clients at the top to the clusters of the last round."
    return Drawn(f"{name}_clusters", "structure", caption, figure)


def _members(clients: pd.DataFrame) -> str:
    """The number of a leaf's clients, and the true groups that most of them belong to."""
    lines = [f"{len(clients)} client{'s' * (len(clients) != 1)}"]
    if "true_group" in clients:
        lines += [f"group {group}: {n}" for group, n in clients["true_group"].value_counts().head(3).items()]
    return "\n".join(lines)


def _lines(text: str) -> int:
    return text.count("\n") + 1


def _depth(node: int, parent: dict[int, int]) -> int:
    """Number of edges from the root to a node."""
    return 1 + _depth(parent[node], parent) if parent[node] in parent else 0


def _leaves(node: int, children: dict[int, list[int]]) -> list[int]:
    """The leaves below a node, from left to right."""
    below = [leaf for child in children[node] for leaf in _leaves(child, children)]
    return below or [node]


def mixture_figures(rows: DrawnRows, group: Group) -> list[Drawn]:
    """All figures of a row's first seed that has mixture weights."""
    run = group.runs[0]
    weights = final_weights(run)
    if weights is None or not len(weights.seen):
        return []
    name, head = f"{rows.setting.title}_{rows.names[group.label]}", f"{rows.names[group.label]}, seed {run.seed}"
    found = [Drawn(f"{name}_weights", "mixture", _MAP, titled(weights_figure(weights.seen, WIDTH), head))]
    history = run.arrays("mixture_weights")
    if weights.seen.shape[1] == 3:
        found.append(_simplex(run, weights.seen, history, name, head))
    if "mean" in history and len(history["round"]) > 1:
        found.append(_by_round(history, name, head))
    agreement = (run.results.get("components") or {}).get("agreement")
    if agreement:
        found.append(Drawn(f"{name}_agreement", "mixture", _AGREE, _agreement_map(np.array(agreement), head)))
    return found


def _simplex(run: Run, pi: np.ndarray, history: dict[str, np.ndarray], name: str, head: str) -> Drawn:
    """Three components: every client is a point in a triangle, near the corner of its largest component."""
    figure, axes = axes_of(f"{head}: clients in the simplex", height=4.2, width=4.6)
    axes.set_axis_off()
    axes.plot(*np.vstack([_CORNERS, _CORNERS[:1]]).T, color=CHROME, linewidth=0.8)
    for m, (corner, away) in enumerate(zip(_CORNERS, ((-0.04, -0.05), (0.04, -0.05), (0, 0.04)), strict=True)):
        x, y = corner + away
        axes.text(x, y, f"component {m}", ha="center", va="center", fontsize=8.5, color=CHROME)
    if "pi" in history and len(history["round"]) > 1:
        clients = np.linspace(0, history["pi"].shape[1] - 1, min(_PATHS, history["pi"].shape[1])).astype(int)
        for path in (history["pi"][:, np.unique(clients)] @ _CORNERS).swapaxes(0, 1):
            axes.plot(*path.T, color=PALETTE[2], linewidth=0.5, alpha=0.6)
    assert run.clients is not None
    seen = run.clients[run.clients["population"] == "seen"]
    groups = seen["true_group"].to_numpy() if "true_group" in seen else pi.argmax(axis=1)
    tips = {}
    for i, value in enumerate(np.unique(groups)):
        mine = groups == value
        x, y = (pi[mine] @ _CORNERS).T
        axes.scatter(x, y, s=14, linewidths=0, alpha=0.8, gid=f"corner-{i}", zorder=3, **_look(i))
        tips[f"corner-{i}"] = [
            f"{client}: {', '.join(f'{w:.2f}' for w in row)}"
            for client, row in zip(seen["id"][mine], pi[mine], strict=True)
        ]
    axes.set_aspect("equal")
    by = "true group" if "true_group" in seen else "largest component"
    caption = (
        f"Every client by its mixture weights, coloured by its {by}; grey: paths of {_PATHS} clients over the rounds."
    )
    caption = caption if "pi" in history else caption.partition(";")[0] + "."
    return Drawn(f"{name}_simplex", "mixture", caption, figure, points=tips)


def _look(i: int) -> dict[str, Any]:
    return {"color": PALETTE[i % len(PALETTE)], "marker": MARKERS[i % len(MARKERS)]}


def _by_round(history: dict[str, np.ndarray], name: str, head: str) -> Drawn:
    figure, axes = axes_of(f"{head}: mixture weights by round")
    n_components = history["mean"].shape[1]
    for m in range(n_components):
        look: dict[str, Any] = {**_look(m), "markersize": 3, "linewidth": 1.4}
        axes.plot(history["round"], history["mean"][:, m], label=f"component {m}", gid=f"c-{m}", **look)
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


def _agreement_map(shares: np.ndarray, head: str) -> Figure:
    """Draws the shares [M, M] of samples on which components agree, with the numbers in the cells."""
    figure, axes = axes_of(f"{head}: agreement of components", height=2.2 + 0.35 * len(shares), width=4.2)
    axes.grid(visible=False)
    axes.imshow(shares, vmin=0, vmax=1, cmap="cividis", interpolation="nearest")
    for (i, j), share in np.ndenumerate(shares):
        colour = "#fefefe" if share < 0.6 else "#111111"
        axes.text(j, i, f"{100 * share:.0f}", ha="center", va="center", fontsize=8, color=colour)
    axes.set(xticks=range(len(shares)), yticks=range(len(shares)), xlabel="component", ylabel="component")
    return figure


def entropy_figure(rows: DrawnRows) -> Drawn | None:
    """Draws the clients' entropies of all rows with mixture weights, from the lowest to the highest."""
    figure, axes = axes_of(f"{rows.setting.title}: entropy of the mixture weights")
    largest = 0.0
    for group in rows.setting.groups:
        weights = final_weights(group.runs[0])
        if weights is None or not len(weights.seen):
            continue
        pi = weights.seen
        largest = max(largest, math.log(pi.shape[1]))
        each = np.sort(entropies(pi))
        share = 100 * np.arange(1, len(each) + 1) / len(each)
        axes.plot(share, each, label=rows.label(group), **rows.looks[group.label].lined(rows.gid(group)))
    if not axes.lines:
        return None
    axes.set(xlabel="percentile of clients, lowest entropy first", ylabel="entropy of a client's weights, nats")
    axes.set_ylim(-0.02 * largest, 1.04 * largest)
    legend(figure, axes)
    caption = "Zero: the client uses one component; ln M: it uses all alike. First seed of each row."
    return Drawn(f"{rows.setting.title}_entropy", "mixture", caption, figure, rows.tips())
