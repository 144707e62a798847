"""The page of a comparison, to send to a colleague: the answer, a table, three pictures, what was tried, warnings."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from fedem_lightning.comparison.answer import gain
from fedem_lightning.comparison.runs import Runs
from fedem_lightning.comparison.sentences import Findings
from fedem_lightning.report.command import page
from fedem_lightning.report.figures import PALETTE, STYLE
from fedem_lightning.report.finished_run import read_run
from fedem_lightning.settings.files import write_atomically

_MOST_TICKS = 60
_CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, 0.866]])  # of the triangle


def write_page(
    findings: Findings, lines: Sequence[str], runs: Runs, doubts: Sequence[str], left_out: Mapping[str, str]
) -> Path:
    """Writes comparison.html, and the table and the runs as CSV; returns the page's path."""
    with mpl.rc_context(STYLE):
        pictures = [picture for picture in (_gains(findings), _weights(findings), _new_clients(findings)) if picture]
    table, path = findings.table(), runs.folder / "comparison.html"
    content = page(
        "comparison/page.html",
        lines=lines,
        columns=list(table.columns),
        rows=table.to_numpy().tolist(),
        pictures=[(title, _png(figure), caption) for title, figure, caption in pictures],
        doubts=doubts,
        left_out=[f"{name}: {reason}" for name, reason in left_out.items()],
        runs=[
            (one.candidate, one.seed, f"{one.error:.4g}", f"{one.seconds:.1f}", one.command)
            for one in runs.done.values()
        ],
        noun=findings.noun,
        seeds=findings.seeds,
    )
    write_atomically(path, content)
    write_atomically(runs.folder / "comparison.csv", table.to_csv(index=False).encode())
    return path


def _png(figure: Figure) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, dpi=144)
    return content.getvalue()


def _gains(findings: Findings) -> tuple[str, Figure, str]:
    """Each client's gain over the one model, and over being alone, sorted by the first."""
    chosen = findings.answer.chosen if findings.answer.verdict == "yes" else findings.answer.rival
    factor = 100 if findings.measure == "accuracy" else 1
    over = {"fedavg": "over one model", "local": f"over each {findings.noun} alone"}
    gains = {
        name: factor * (findings.errors[name] - findings.errors[chosen]).mean(axis=1) for name in over if name != chosen
    }
    order = next(iter(gains.values())).sort_values(ascending=False).index
    figure = Figure(figsize=(7, 1.2 + 1.5 * len(gains)), layout="constrained")
    panels = figure.subplots(len(gains), 1, sharex=True, squeeze=False)[:, 0]
    for place, (axes, (name, gain_of)) in enumerate(zip(panels, gains.items(), strict=True)):
        axes.bar(range(len(order)), gain_of[order], color=PALETTE[place])
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set_ylabel("points" if factor == 100 else findings.measure)
        axes.set_title(over[name], fontsize=9, loc="left")
    names = [str(name)[:12] for name in order]
    if len(names) <= _MOST_TICKS:
        panels[-1].set_xticks(range(len(names)), names, rotation=90, fontsize=7)
    sure = gain(findings.errors[chosen], findings.errors["fedavg" if chosen != "fedavg" else "local"])
    caption = f"Mean over seeds, above 0: {findings.title(chosen)} is better. On average {findings.interval(sure)}."
    return f"Gain of each {findings.noun} by {findings.title(chosen)}", figure, caption


def _weights(findings: Findings) -> tuple[str, Figure, str] | None:
    """The clients by their mixture weights: two components on a line, three in a triangle, more in their plane."""
    mixtures = [
        name for name, setting in findings.settings.items() if "n_components" in setting and name in findings.validation
    ]
    tables = {name: read_run(findings.folders[name]).clients for name in mixtures}
    tables = {name: table for name, table in tables.items() if "pi_1" in table}
    if not tables:
        return None
    first = min(tables, key=lambda name: (name != findings.answer.chosen, findings.validation[name]))
    name, clients = first, tables[first]
    columns = [column for column in map(str, clients) if column.startswith("pi_")]
    pi = clients[columns].to_numpy()  # [T, M]
    if pi.shape[1] == 3:
        place = pi @ _CORNERS
    elif pi.shape[1] == 2:
        place = np.stack([pi[:, 1], np.zeros(len(pi))], axis=1)
    else:
        centred = pi - pi.mean(axis=0)
        place = centred @ np.linalg.svd(centred, full_matrices=False)[2][:2].T
    place = place + np.random.default_rng(0).uniform(-0.02, 0.02, place.shape)  # equal clients stay visible
    figure, group = Figure(figsize=(7, 3.6), layout="constrained"), pi.argmax(axis=1)
    axes = figure.subplots()
    for m in range(pi.shape[1]):
        members = clients["id"].astype(str)[group == m].tolist()
        label = f"model {m + 1}: {', '.join(members[:6])}{', ...' if len(members) > 6 else ''} ({len(members)})"
        axes.scatter(
            place[group == m, 0], place[group == m, 1], color=PALETTE[m % len(PALETTE)], s=22, alpha=0.8, label=label
        )
    if pi.shape[1] == 3:
        axes.plot(*_CORNERS[[0, 1, 2, 0]].T, color="#888888", linewidth=0.8)
        axes.set_aspect("equal")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0))
    caption = "A corner is one model alone. " if pi.shape[1] == 3 else ""
    caption += f"Each {findings.noun} is with the model that has its largest weight; {findings.title(name)}, seed 1."
    return f"The {findings.noun}s by their mixture weights", figure, caption


def _new_clients(findings: Findings) -> tuple[str, Figure, str] | None:
    """Errors of new clients by their number of rows."""
    if findings.new.empty:
        return None
    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.subplots()
    for place, (name, errors) in enumerate(findings.new.items()):
        axes.plot(
            errors.index, errors, "o-", color=PALETTE[place], label=findings.title(str(name)), ms=4, linewidth=1.3
        )
    axes.set_xscale("log")
    axes.set_xticks(findings.new.index, [str(n) for n in findings.new.index])
    axes.minorticks_off()
    axes.set_xlabel(f"rows of a new {findings.noun}")
    axes.set_ylabel("test error" if findings.measure == "accuracy" else f"test {findings.measure}")
    axes.legend()
    caption = f"A fifth of the {findings.noun}s took no part in training, then got a model from so many of their rows."
    return f"New {findings.noun}s", figure, caption
