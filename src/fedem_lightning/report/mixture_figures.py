"""Figures of who learns with whom: mixture weights, the tree of clusters, collaboration weights, the map of clients."""

import math
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fedem_lightning.report.cells import cell_text
from fedem_lightning.report.diagnostic_tables import entropies, final_weights
from fedem_lightning.report.drawing import CHROME, WIDTH, Drawn, DrawnRows, axes_of, legend, titled, whole_numbers
from fedem_lightning.report.finished_run import Run
from fedem_lightning.report.groups import Group
from fedem_lightning.run.client_maps import coefficients_figure, embedding_figure, weights_figure
from fedem_lightning.run.figure_style import MARKERS, PALETTE, drawn_text

_CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]])  # of the simplex in the plane
_TITLES = {
    "weights": "mixture weights",
    "simplex": "each client's mixture weights",
    "weights_by_round": "mixture weights by round",
    "agreement": "agreement of components",
    "clusters": "tree of clusters",
    "coefficients": "collaboration weights",
    "embedding": "map of clients",
}
"""What a figure shows, by the end of its file's name."""
_JITTER = 0.008
"""Standard deviation of what moves a point of the triangle, whose sides are 1 long."""
_GROUPS_NAMED = 12
"""Groups in the legend of the triangle."""
_PATHS = 24
"""Clients whose path through the simplex is drawn."""


def has_structure(run: Run) -> bool:
    """Whether a run left something that says who learns with whom."""
    return any((run.folder / f"{name}.npz").exists() for name in ("clusters", "coefficients"))


def structure_figures(rows: DrawnRows, group: Group) -> list[Drawn]:
    """The figures of a row's first seed for which its run has data."""
    run = group.runs[0]
    clients = pd.DataFrame(columns=["population"]) if run.clients is None else run.clients
    tree, found = run.arrays("clusters"), []
    if {"node", "parent"} <= set(tree) and "cluster" in clients:
        figure = _tree(tree, clients[clients["population"] == "seen"], rows.looks[group.label].colour)
        caption = "How clusters were split, from all clients at the top to those of the end."
        found.append(("clusters", caption, figure, pd.DataFrame({key: tree[key] for key in ("node", "parent")})))
    shares = run.arrays("coefficients")
    if (coefficients := coefficients_figure(shares)) is not None:
        caption = "Collaboration weights: the row's client receives this share of the column's model."
        found.append(("coefficients", caption, coefficients, pd.DataFrame(shares["w"]).add_prefix("client_")))
    if (places := embedding_figure(clients)) is not None:
        caption = "Clients whose gradients are similar lie near one another."
        columns = [n for n in ("id", "embedding_0", "embedding_1", "stream", "true_group") if n in clients]
        table = clients[columns].assign(id=clients["id"].map(cell_text))
        found.append(("embedding", caption, places, table))
    return [_own(rows, group, name, "structure", words, figure, data=data) for name, words, figure, data in found]


def _own(rows: DrawnRows, group: Group, name: str, section: str, caption: str, figure: Figure, **tips: Any) -> Drawn:
    """A figure of a row's first seed; its title says what it shows, of which row and seed."""
    words = f"{rows.setting.title}: {_TITLES[name]}, {group.name}, seed {group.runs[0].seed}"
    if rows.ax is None:
        titled(figure, words)
    else:
        rows.ax.set_title(drawn_text(words))
    mine = figure.axes if rows.ax is None else [rows.ax]
    for axes in mine if mine[0].images else ():
        axes.grid(visible=False)
    return Drawn(f"{rows.setting.title}_{group.name}_{name}", section, caption, figure, **tips)


def _tree(tree: dict[str, np.ndarray], seen: pd.DataFrame, colour: str) -> Figure:
    """Draws the tree of clusters: the root above, each leaf with its clients and their true groups."""
    parent = dict(zip(tree["node"].tolist(), tree["parent"].tolist(), strict=True))

    def path(node: int) -> tuple[int, ...]:
        return (*path(parent[node]), node) if node in parent else ()

    leaves = sorted(set(parent) - set(parent.values()), key=path)
    x = {node: float(np.mean([i for i, leaf in enumerate(leaves) if node in path(leaf)])) for node in parent}
    lowest = max(len(path(leaf)) for leaf in leaves)
    figure, axes = axes_of("", height=2.0 + 0.45 * lowest)
    axes.set_axis_off()
    for node, above in parent.items():
        if above in parent:
            bottom = lowest if node in leaves else len(path(node))
            axes.plot([x[above], x[node], x[node]], [1 - len(path(node))] * 2 + [-bottom], color=colour, linewidth=1.3)
    depth = 1
    for i, leaf in enumerate(leaves):
        mine = seen[seen["cluster"] == leaf]
        lines = [f"{len(mine)} client{'s' * (len(mine) != 1)}"]
        if "true_group" in seen:
            lines += [f"group {group}: {n}" for group, n in mine["true_group"].value_counts().head(3).items()]
        depth = max(depth, len(lines))
        axes.text(i, -lowest - 0.1, "\n".join(lines), ha="center", va="top", fontsize=8)
    axes.set(xlim=(-0.6, len(leaves) - 0.4), ylim=(-lowest - 0.3 * (1 + depth), -0.8))
    return figure


def weights_heat_map(rows: DrawnRows, group: Group) -> Drawn | None:
    """The mixture weights of a row's first seed after the last round; None if it has none."""
    weights = final_weights(group.runs[0])
    if weights is None or not len(weights.seen):
        return None
    groups = _true_groups(group.runs[0])
    first = "" if groups is None else "true group, then by its "
    caption = f"Mixture weights after the last round: one column a client, sorted by its {first}largest component."
    figure = weights_figure(weights.seen, WIDTH, rows.ax, groups)
    return _own(rows, group, "weights", "mixture", caption, figure, data=_weights_rows(group.runs[0], weights.seen))


def _true_groups(run: Run) -> np.ndarray | None:
    """The true groups of the clients that train, [T]; None if the data do not know them."""
    clients = run.clients
    if clients is None or "true_group" not in clients:
        return None
    return clients.loc[clients["population"] == "seen", "true_group"].to_numpy()


def _weights_rows(run: Run, pi: np.ndarray) -> pd.DataFrame:
    """The weights [T, M] of the clients that train, with their names."""
    assert run.clients is not None
    table = run.clients.loc[run.clients["population"] == "seen", ["id"]].reset_index(drop=True)
    table["id"] = table["id"].map(cell_text)
    return table.join(pd.DataFrame(pi).add_prefix("pi_"))


def mixture_figures(rows: DrawnRows, group: Group) -> list[Drawn]:
    """All figures of a row's first seed that has mixture weights."""
    run = group.runs[0]
    weights, history, heat_map = final_weights(run), run.arrays("mixture_weights"), weights_heat_map(rows, group)
    if weights is None or heat_map is None:
        return []
    found = [heat_map]
    several = "mean" in history and len(history["round"]) > 1
    if weights.seen.shape[1] == 3:
        found.append(_simplex(rows, group, weights.seen, history["pi"] if several else None))
    if several:
        found.append(_by_round(rows, group, history))
    if agreement := run.results["components"].get("agreement"):
        caption = "Share of the test samples on which two components predict the same class."
        shares = np.array(agreement)  # [M, M]
        data = pd.DataFrame(shares).add_prefix("component_")
        found.append(_own(rows, group, "agreement", "mixture", caption, _agreement_map(shares), data=data))
    return found


def _simplex(rows: DrawnRows, group: Group, pi: np.ndarray, history: np.ndarray | None) -> Drawn:
    """Three components: every client is a point in a triangle, near the corner of its largest component."""
    figure, axes = axes_of("", height=4.2, width=4.6)
    axes.set_axis_off()
    axes.plot(*np.vstack([_CORNERS, _CORNERS[:1]]).T, color=CHROME, linewidth=0.8)
    for m, (x, y) in enumerate(_CORNERS + np.array([[-0.04, -0.05], [0.04, -0.05], [0, 0.04]])):
        axes.text(x, y, f"component {m}", ha="center", va="center", fontsize=8.5)
    paths = "" if history is None else f"; grey: paths of {_PATHS} clients over the rounds"
    if history is not None:
        shown = np.unique(np.linspace(0, history.shape[1] - 1, _PATHS).astype(int))
        axes.plot(*(history[:, shown] @ _CORNERS).transpose(2, 0, 1), color=PALETTE[2], linewidth=0.5, alpha=0.6)
    clients = group.runs[0].clients
    assert clients is not None
    seen = clients[clients["population"] == "seen"]
    groups = _true_groups(group.runs[0])
    by, values = ("largest component", pi.argmax(axis=1)) if groups is None else ("true group", groups)
    places = pi @ _CORNERS + np.random.default_rng(0).normal(0, _JITTER, size=(len(pi), 2))  # [T, 2]
    tips = {}
    for i, value in enumerate(np.unique(values)):
        mine = values == value
        x, y = places[mine].T
        named: dict[str, Any] = {"label": f"{by} {value}" if i < _GROUPS_NAMED else None}
        axes.scatter(x, y, s=14, linewidths=0, alpha=0.8, gid=f"corner-{i}", zorder=3, **named, **_look(i))
        weights = [", ".join(f"{w:.2f}" for w in row) for row in pi[mine]]
        tips[f"corner-{i}"] = [f"{client}: {row}" for client, row in zip(seen["id"][mine], weights, strict=True)]
    axes.set_aspect("equal")
    legend(figure, axes)
    caption = f"Every client by its mixture weights, coloured by its {by}, moved a little where points coincide{paths}."
    return _own(rows, group, "simplex", "mixture", caption, figure, points=tips, data=_weights_rows(group.runs[0], pi))


def _look(i: int) -> dict[str, Any]:
    return {"color": PALETTE[i % len(PALETTE)], "marker": MARKERS[i % len(MARKERS)]}


def _by_round(rows: DrawnRows, group: Group, history: dict[str, np.ndarray]) -> Drawn:
    figure, axes = axes_of("")
    n_components = history["mean"].shape[1]
    names = {f"c-{m}": f"component {m}" for m in range(n_components)} | {"entropy": "entropy / ln M"}
    for m in range(n_components):
        look: dict[str, Any] = {
            **_look(m),
            "label": names[f"c-{m}"],
            "gid": f"c-{m}",
            "markersize": 3,
            "linewidth": 1.4,
        }
        axes.plot(history["round"], history["mean"][:, m], **look)
    look = {"color": CHROME, "linestyle": ":", "linewidth": 1.2, "label": names["entropy"], "gid": "entropy"}
    axes.plot(history["round"], history["entropy"] / np.log(n_components), **look)
    axes.set(xlabel="communication round", ylabel="mean over clients", ylim=(0, 1.02))
    whole_numbers(axes)
    legend(figure, axes)
    weights = pd.DataFrame(history["mean"]).add_prefix("component_")
    data = weights.assign(entropy=history["entropy"])
    data.insert(0, "round", history["round"])
    caption = "Mean weight of each component, and the clients' mean entropy relative to that of equal weights."
    return _own(rows, group, "weights_by_round", "mixture", caption, figure, names=names, data=data)


def _agreement_map(shares: np.ndarray) -> Figure:
    """Draws the shares [M, M] of samples on which components agree, with the numbers in the cells."""
    figure, axes = axes_of("", height=2.2 + 0.35 * len(shares), width=4.2)
    axes.imshow(shares, vmin=0, vmax=1, cmap="cividis", interpolation="nearest")
    for (i, j), share in np.ndenumerate(shares):
        colour = "#fefefe" if share < 0.6 else "#111111"
        axes.text(j, i, f"{100 * share:.0f}", ha="center", va="center", fontsize=8, color=colour)
    axes.set(xticks=range(len(shares)), yticks=range(len(shares)), xlabel="component", ylabel="component")
    return figure


def entropy_figure(rows: DrawnRows) -> Drawn | None:
    """Draws the clients' entropies of all rows with mixture weights, from the lowest to the highest."""
    figure, axes = axes_of(f"{rows.setting.title}: entropy of the mixture weights")
    largest, data = 0.0, []
    for group in rows.setting.groups:
        weights = final_weights(group.runs[0])
        if weights is None or not len(weights.seen):
            continue
        largest = max(largest, math.log(weights.seen.shape[1]))
        share = 100 * np.arange(1, len(weights.seen) + 1) / len(weights.seen)
        lowest_first = np.sort(entropies(weights.seen))
        scores = {"percentile": share, "entropy": lowest_first}
        data.append(pd.DataFrame({"method": cell_text(group.name), **scores}))
        look = rows.looks[group.label].lined(rows.gid(group))
        axes.plot(share, lowest_first, label=rows.label(group), **look)
    if not axes.lines:
        return None
    axes.set(xlabel="percentile of clients, lowest entropy first", ylabel="entropy of a client's weights, nats")
    axes.set_ylim(-0.02 * largest, 1.04 * largest)
    legend(figure, axes)
    caption = "Zero: the client uses one component; ln M: it uses all alike. First seed of each row."
    return Drawn(f"{rows.setting.title}_entropy", "mixture", caption, figure, rows.tips(), data=pd.concat(data))
