"""What a setting's clients hold: their number, sizes and labels, in words and as figures; from its first run."""

import numpy as np
import pandas as pd

from fedem_lightning.records.measures import SPLITS
from fedem_lightning.report.cells import cell_text
from fedem_lightning.report.drawing import CHROME, GRID_COLOUR, Drawn, DrawnRows
from fedem_lightning.report.finished_run import Run
from fedem_lightning.report.groups import Setting

_WORDS = {"train": "for training", "val": "for validation", "test": "for tests"}
_SHOWN = 400
"""Clients in the figure of labels; of more every n-th is drawn."""


def data_card(setting: Setting) -> dict[str, str]:
    """Lines about the clients' data, by what they say; as far as the files of the first run know it."""
    run = setting.runs[0]
    clients, table = run.results["n_clients"], run.clients
    unseen = run.results.get("n_unseen_clients")
    card = {"clients": f"{clients:,} that train" + (f", {unseen:,} unseen" if unseen else "")}
    if table is None:
        return card
    sizes = {
        split: pd.to_numeric(table[f"n_{split}"], errors="coerce").fillna(0)
        for split in SPLITS
        if f"n_{split}" in table
    }
    if sizes:
        card["samples"] = ", ".join(f"{values.sum():,.0f} {_WORDS[split]}" for split, values in sizes.items())
    if "train" in sizes and (trained := sizes["train"][sizes["train"] > 0]).size:
        low, middle, high = trained.quantile([0, 0.5, 1])
        card["training samples a client"] = f"{low:,.0f} to {high:,.0f}, median {middle:,.0f}"
    counts = label_counts(run)
    if counts is not None:
        largest = counts.max(axis=1) / counts.sum(axis=1)
        card["labels"] = (
            f"{counts.shape[1]} classes; a client has samples of {np.median((counts > 0).sum(axis=1)):.0f}, and "
            f"{100 * np.median(largest):.0f} % of them are of its most frequent class (medians over clients)"
        )
    if "true_group" in table:
        card["true groups"] = f"{table['true_group'].nunique()}"
    return card


def label_counts(run: Run) -> np.ndarray | None:
    """Training samples by client that has any and class, int [C, Y]; None if label_counts.npz is missing or damaged."""
    counts = run.arrays("label_counts").get("counts")
    if counts is None or counts.ndim != 2 or not np.issubdtype(counts.dtype, np.integer) or (counts < 0).any():
        return None
    counts = counts[counts.sum(axis=1) > 0]
    return counts if counts.size else None


def data_figures(rows: DrawnRows) -> list[Drawn]:
    """The figures of the clients' sizes and labels for which the setting's first run has data."""
    return [drawn for drawn in (_sizes(rows), _labels(rows)) if drawn is not None]


def _sizes(rows: DrawnRows) -> Drawn | None:
    """Draws how many clients have how many training samples; None if all have as many."""
    table = rows.setting.runs[0].clients
    if table is None or "n_train" not in table:
        return None
    sizes = pd.to_numeric(table["n_train"], errors="coerce").dropna().to_numpy()
    if len(sizes) < 2 or np.ptp(sizes) == 0:
        return None
    figure, axes = rows.axes(f"{rows.setting.title}: clients by size", height=2.6)
    axes.hist(sizes, bins=min(30, max(5, int(np.sqrt(len(sizes))))), color=GRID_COLOUR, edgecolor=CHROME, linewidth=0.4)
    axes.set(xlabel="training samples of a client", ylabel="clients")
    data = pd.DataFrame({"id": table["id"].map(cell_text), "n_train": table["n_train"]})
    caption = f"Number of clients by their number of training samples; {len(sizes):,} clients."
    return Drawn(f"{rows.setting.title}_client_sizes", "data", caption, figure, data=data)


def _labels(rows: DrawnRows) -> Drawn | None:
    """Draws the share of each class among a client's training samples, a column a client."""
    counts = label_counts(rows.setting.runs[0])
    if counts is None:
        return None
    shares = counts / counts.sum(axis=1, keepdims=True)  # [C, Y]
    order = np.lexsort((-shares.max(axis=1), shares.argmax(axis=1)))[:: max(1, -(-len(shares) // _SHOWN))]
    height = 1.4 + min(2.6, 0.2 * shares.shape[1])
    figure, axes = rows.axes(f"{rows.setting.title}: labels by client", height=height)
    image = axes.imshow(shares[order].T, aspect="auto", vmin=0, cmap="cividis", interpolation="nearest")
    axes.set(xlabel="clients, sorted by their most frequent class", ylabel="class")
    axes.locator_params(integer=True)
    axes.grid(visible=False)
    figure.colorbar(image, ax=axes, label="share of the client's samples")
    left_out = f"; every {-(-len(shares) // _SHOWN)}th of {len(shares):,} clients" if len(order) < len(shares) else ""
    caption = f"Share of each class among a client's training samples{left_out}."
    data = pd.DataFrame(counts).add_prefix("class_")
    return Drawn(f"{rows.setting.title}_labels", "data", caption, figure, data=data)
