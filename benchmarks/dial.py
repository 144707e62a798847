"""Figures of the dials: accuracy and the worst tenth of the clients by the share of writers that a shift separates.

    python benchmarks/dial.py docs/lab_notes/dial.csv docs/figures

It draws dial_femnist.png (permuted labels) and dial_femnist_rotation.png from the table, in the reports' style.
"""

import argparse
from pathlib import Path

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from fedem_lightning.run.figure_style import HEIGHT, MARKERS, PALETTE, STYLE, WIDTH

FIGURES = {"permuted labels": "dial_femnist", "rotation": "dial_femnist_rotation"}
"""Shift of the table -> name of the figure."""
SHARES = {
    "permuted labels": "writers dealt to four groups; three permute the labels",
    "rotation": "writers dealt to four groups; three rotate the images",
}
METHODS = (
    *("FedEM, M = 4", "FedAvg", "Local", "FedAvg+", "FedAvg ensemble, M = 4", "HypCluster, q = 4"),
    *("Oracle (is told the groups)", "user-centric, 4 streams"),
)
"""The colour of a method is that of its place, as in reports."""
MEASURES = {"accuracy": "test accuracy, %", "decile": "worst tenth of the writers, %"}


def draw(table: pd.DataFrame, shift: str) -> Figure:
    """Draws a panel for each measure.

    Args:
        table: columns shift, method, share (0 to 1), accuracy and decile (%).
        shift: the rows to draw.

    """
    figure = Figure(figsize=(2 * WIDTH * 0.85, HEIGHT + 1.0), layout="constrained")
    rows = table[table["shift"] == shift]
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    for axes, (measure, label) in zip(panels, MEASURES.items(), strict=True):
        for i, method in enumerate(METHODS):
            own = rows[rows["method"] == method]
            width = 2.6 if i == 0 else 1.3
            look = {"color": PALETTE[i], "marker": MARKERS[i], "markersize": 4, "linewidth": width}
            axes.plot(own["share"], own[measure], label=method, **look)
        axes.set(ylabel=label, xlabel=SHARES[shift])
        axes.xaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    figure.suptitle(f"FEMNIST, {shift}: when does personalisation pay? Means over two seeds")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    return figure


def main() -> None:
    """Draws all figures into the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    table = pd.read_csv(options.table)
    with mpl.rc_context(STYLE):
        for shift, name in FIGURES.items():
            draw(table, shift).savefig(options.folder / f"{name}.png", dpi=120)


if __name__ == "__main__":
    main()
