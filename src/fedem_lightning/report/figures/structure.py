"""Figures of who learns with whom: the tree of clusters, collaboration weights, and the map of clients."""

import numpy as np
import pandas as pd

from fedem_lightning.report.figures.base import Drawn, Rows, axes_of, titled
from fedem_lightning.report.finished_run import Run
from fedem_lightning.report.groups import Group
from fedem_lightning.report.looks import CHROME
from fedem_lightning.run.figures import coefficients_figure, embedding_figure


def has_structure(run: Run) -> bool:
    """Whether a run left something that says who learns with whom."""
    return any((run.folder / f"{name}.npz").exists() for name in ("clusters", "coefficients"))


def structure_figures(rows: Rows, group: Group) -> list[Drawn]:
    """The figures of a row's first seed for which its run has data."""
    run = group.runs[0]
    name = f"{rows.setting.title}_{rows.names[group.label]}"
    head = f"{rows.names[group.label]}, seed {run.seed}"
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
            axes.plot(
                [x[above], x[node], x[node]], [-depth[above], -depth[above], -bottom], color=colour, linewidth=1.3
            )
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
