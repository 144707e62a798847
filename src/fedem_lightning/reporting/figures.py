"""Figures of a run, as PNG."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

SPLIT_STYLES = {"train": ("tab:gray", "--"), "val": ("tab:blue", "-"), "test": ("tab:orange", "-")}


def draw_figures(folder: Path, results: dict[str, Any], clients: pd.DataFrame) -> list[Path]:
    """Draws what the run has: accuracy by round, mixture weights, accuracy over clients. Returns the files."""
    title = f"{results['algorithm']} on {results['dataset']}, seed {results['seed']}"
    figures = {
        "accuracy_by_round": _accuracy_by_round(folder / "metrics.csv", results),
        "mixture_weights": _mixture_weights(clients),
        "accuracy_over_clients": _accuracy_over_clients(clients),
    }
    paths = []
    for name, figure in figures.items():
        if figure is not None:
            figure.suptitle(title)
            paths.append(folder / f"{name}.png")
            figure.savefig(paths[-1], dpi=120)
    return paths


def _accuracy_by_round(path: Path, results: dict[str, Any]) -> Figure | None:
    curves = pd.read_csv(path) if path.exists() else pd.DataFrame()
    if "val/accuracy" not in curves and "test/accuracy" not in curves:
        return None
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for split, (colour, line) in SPLIT_STYLES.items():
        if f"{split}/accuracy" in curves:
            points = curves[["round", f"{split}/accuracy"]].dropna()
            axes.plot(points["round"], 100 * points[f"{split}/accuracy"], line, color=colour, label=split)
    if "bayes_accuracy" in results["reference"]:
        ceiling = 100 * results["reference"]["bayes_accuracy"]
        axes.axhline(ceiling, color="black", linewidth=0.8, linestyle=":", label=f"Bayes ceiling {ceiling:.1f} %")
    axes.set(xlabel="communication round", ylabel="accuracy of seen clients, % (weighted)")
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def _mixture_weights(clients: pd.DataFrame) -> Figure | None:
    names = [name for name in clients if str(name).startswith("pi_")]
    if not names:
        return None
    pi = clients[names].to_numpy()  # [T, M]
    main = pi.argmax(axis=1)
    order = np.lexsort((-pi.max(axis=1), main))  # by largest component, the purest clients first
    figure = Figure(figsize=(8, 1.6 + 0.35 * len(names)), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(pi[order].T, aspect="auto", vmin=0, vmax=1, cmap="viridis", interpolation="nearest")
    axes.set(xlabel="clients, sorted by their largest component", ylabel="component", yticks=range(len(names)))
    figure.colorbar(image, label="mixture weight")
    return figure


def _accuracy_over_clients(clients: pd.DataFrame) -> Figure | None:
    scored = clients.dropna(subset=["test_accuracy"])
    if scored.empty:
        return None
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for population, group in scored.groupby("population"):
        accuracy = np.sort(100 * group.test_accuracy.to_numpy())
        share = 100 * np.arange(1, len(accuracy) + 1) / len(accuracy)
        axes.step(accuracy, share, where="post", label=f"{len(accuracy)} {population} clients")
    axes.axhline(10, color="black", linewidth=0.8, linestyle=":", label="bottom decile")
    axes.set(xlabel="test accuracy of a client, %", ylabel="clients at or below, %", ylim=(0, 101))
    axes.grid(alpha=0.3)
    axes.legend()
    return figure
