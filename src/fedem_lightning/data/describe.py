"""Description of a federation as a table: clients, samples, classes, heterogeneity."""

from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from fedem_lightning.data.arrays import has_several
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.names import printable
from fedem_lightning.data.samples import Windows
from fedem_lightning.data.splits import SPLITS
from fedem_lightning.tasks import Regression


def label_counts(federation: Federation) -> np.ndarray | None:
    """Samples of each class of each client, int64 [T, Y]; None without classes, and where a sample has several labels.

    In text, the class of a window is its last target: with stride 1 every character counts about once.
    """
    if isinstance(federation.task, Regression) or has_several(federation.task):
        return None
    n_classes, samples = getattr(federation.task, "n_classes", federation.task.n_outputs), federation.samples
    clients = torch.arange(federation.n_clients)
    counts = np.zeros((len(clients), n_classes), dtype=np.int64)
    for split in federation.splits.values():
        index, client = split.positions(clients)
        last = isinstance(samples, Windows)
        y = samples.codes[index + samples.length].long() if last else samples.labels(index)  # type: ignore[attr-defined]
        np.add.at(counts, (client.numpy(), y.numpy()), 1)
    return counts


def describe(federation: Federation) -> dict[str, Any]:
    """Statistics of a federation as plain numbers; docs/data.md defines them."""
    parts = [federation.splits[split] for split in SPLITS]
    sizes = np.stack([part.counts().numpy() for part in parts])  # [split, T]
    counts = label_counts(federation)
    total = sizes.sum(axis=0)
    facts: dict[str, Any] = {
        "clients": federation.n_clients,
        "seen": int(federation.seen.sum()),
        "samples": sum(map(len, parts)),
        **{f"{split} samples": len(part) for split, part in zip(SPLITS, parts, strict=True)},
        "sample shape": federation.in_shape,
        "samples a client": f"{total.min()} to {total.max()}, median {int(np.median(total))}",
    }
    if counts is not None:
        own = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))  # label shares of each client [T, Y]
        pooled = counts.sum(axis=0) / max(1, counts.sum())
        distance = np.abs(own - pooled).sum(axis=1) / 2  # total variation, [T]
        facts["classes"] = f"{int((counts.sum(axis=0) > 0).sum())} of {counts.shape[1]} occur"
        facts["classes a client"] = f"{np.count_nonzero(counts, axis=1).mean():.1f} on average"
        meaning = "total variation between a client's labels and all, weighted by samples: 0 alike, 1 disjoint"
        facts["heterogeneity"] = f"{np.average(distance, weights=total):.3f} ({meaning})"
    if "group" in federation.truth:
        facts["clients by true group"] = np.bincount(federation.truth["group"]).tolist()
    if federation.domains is not None:
        names, domain = federation.domains  # [p], [positions]
        n_samples = torch.bincount(domain[domain >= 0], minlength=len(names)).tolist()
        facts["samples by domain"] = ", ".join(f"{name} {n}" for name, n in zip(names, n_samples, strict=True))
    return {**facts, **federation.notes, "digest": federation.digest()}


def print_description(federation: Federation, console: Console | None = None) -> None:
    """Prints the result of `describe` as a table."""
    table = Table(show_header=False)
    for name, value in describe(federation).items():
        table.add_row(name.replace("_", " "), printable(repr(value) if name == "vocabulary" else str(value)))
    (console or Console(markup=False, emoji=False)).print(table)
