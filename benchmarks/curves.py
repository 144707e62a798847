"""The curves of docs/reproduction/real_data.md: test accuracy by megabytes of a client, a panel for each data set.

    python benchmarks/curves.py curves.png FEMNIST=runs/femnist,runs/femnist_wide EMNIST=runs/emnist,runs/emnist_wide

A panel is TITLE=DIR or TITLE=DIR,DIR,...: where two folders have the same method and seed, the later one counts. A
folder whose name ends in `_wide` has the wide control, which is drawn as a method of its own. Points are means over the
seeds. A method that sends nothing is a level.
"""

import argparse
import json
from pathlib import Path

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

from fedem_lightning.run.figure_style import PALETTE
from fedem_lightning.settings.shipped import method_title

DRAWN = {  # method -> colour, line
    "fedem": (PALETTE[0], "-"),
    "fedavg": (PALETTE[1], "-"),
    "fedavg, wide": (PALETTE[1], "--"),
    "fedavg_ensemble": (PALETTE[7], "-"),
    "fedavg_plus": (PALETTE[3], "-"),
    "local": (PALETTE[2], "-"),
}


def points(folders: list[Path]) -> pd.DataFrame:
    """A row for each method and evaluated round, means over the seeds: megabytes of a client, test accuracy in %."""
    runs: dict[tuple[str, int], pd.DataFrame] = {}
    for folder in folders:
        for path in sorted(folder.rglob("results.json")):
            found = json.loads(path.read_text())
            method = found["algorithm"] + (", wide" if folder.name.endswith("_wide") else "")
            metrics = pd.read_csv(path.parent / "metrics.csv").set_index("round")
            metrics.loc[metrics.index[-1], "test/accuracy"] = found["test"]["accuracy"]["weighted"]
            sent = (metrics["up_megabytes"] + metrics["down_megabytes"]) / found["n_clients"]
            scores = pd.DataFrame({"megabytes": sent, "accuracy": 100 * metrics["test/accuracy"]})
            runs[method, found["seed"]] = scores.dropna().reset_index()
    if not runs:
        raise ValueError(f"{', '.join(map(str, folders))}: no results.json in it")
    every = pd.concat([run.assign(method=method) for (method, _), run in runs.items()])
    return every.groupby(["method", "round"]).mean().reset_index()


def draw(axes: Axes, name: str, table: pd.DataFrame) -> None:
    """Draws a data set's panel."""
    axes.set_title(name, fontsize=10)
    for method, (colour, line) in DRAWN.items():
        own = table[table["method"] == method]
        label = method_title("fedavg") + ", wide" if method == "fedavg, wide" else method_title(method)
        if own.empty:
            continue
        look = {"color": colour, "linestyle": line, "linewidth": 2.4 if method == "fedem" else 1.3}
        if not own["megabytes"].any():
            axes.axhline(own["accuracy"].iloc[-1], label=f"{label}, 0 MB", **look)
            continue
        axes.plot(own["megabytes"], own["accuracy"], label=label, marker="o", markersize=3, **look)
    axes.set_xscale("log")
    sent = table["megabytes"][table["megabytes"] > 0]
    ticks = [t for t in (1, 2, 5, 10, 20, 50, 100, 200, 500) if sent.min() * 0.8 <= t <= sent.max() * 1.2]
    axes.xaxis.set(major_locator=FixedLocator(ticks), minor_locator=NullLocator())
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.grid(alpha=0.4)
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    """Draws all panels into one file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("panels", nargs="+", metavar="TITLE=DIR,...")
    options = parser.parse_args()
    mpl.rcParams["font.size"] = 9
    n_columns = min(3, len(options.panels) + 1)
    n_rows = -(-(len(options.panels) + 1) // n_columns)
    figure = Figure(figsize=(3.1 * n_columns, 2.6 * n_rows), layout="constrained")
    cells = list(figure.subplots(n_rows, n_columns, squeeze=False).flat)
    for axes, panel in zip(cells, options.panels, strict=False):
        name, _, folders = panel.partition("=")
        try:
            draw(axes, name, points([Path(folder) for folder in folders.split(",")]))
        except ValueError as error:
            parser.error(str(error))
    for axes in cells[len(options.panels) :]:
        axes.set_axis_off()
    drawn = [axes.get_legend_handles_labels() for axes in cells[: len(options.panels)]]
    lines = {label: line for lines, labels in drawn for line, label in zip(lines, labels, strict=True)}
    cells[len(options.panels)].legend(lines.values(), lines.keys(), loc="center", frameon=False)
    figure.supxlabel("megabytes of a client, up and down", fontsize=9)
    figure.supylabel("test accuracy, %", fontsize=9)
    figure.savefig(options.out, dpi=120)


if __name__ == "__main__":
    main()
