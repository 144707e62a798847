"""The command `evaluate`: scores of rows by the models of their clients."""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedem_lightning.errors import require
from fedem_lightning.records.files import write_atomically
from fedem_lightning.run.summary import by_class_line
from fedem_lightning.serving.model_files import load_clients
from fedem_lightning.serving.output import Quality, number, print_scores, summaries, write_table
from fedem_lightning.serving.predicting import chosen_columns, scores_by_client
from fedem_lightning.serving.rows import ClientRows, read_rows


def run(chosen: argparse.Namespace) -> None:
    """Runs the command with the options of its parser.

    Raises:
        UserError: the user's input is wrong; nothing has been written.

    """
    models = load_clients(chosen.run, chosen.trust)
    rows = read_rows(chosen.data, models.schema, chosen_columns(chosen), labelled=True)
    split, scored, quality = chosen.split or "test", _scored(rows, chosen.split), Quality(models.schema)
    weights, meaning = _weights(rows, models.schema)
    table = scores_by_client(models, rows, scored, split, quality)
    if split != "train":
        table.insert(1, "n_train", weights)
    sums = summaries(table, weights, split)
    clients = int((table[f"n_{split}"] > 0).sum())
    print_scores(f"{chosen.run.name}: {int(scored.sum())} rows of {clients} clients in {chosen.data.name}", sums)
    figures, by_class = quality.figures(), _for_json(quality.by_class())
    if figures:
        told = ", ".join(f"{name.replace('_', ' ')} {number(value)}" for name, value in figures.items())
        print(f"all {quality.n} {split} samples together: {told}")
    if by_class:
        print(by_class_line(**by_class))
    print(f"weighted: by {meaning}")
    if chosen.out is not None:
        found = {"split": split, "scores": sums, "quality": {**figures, **by_class}, "weighted by": meaning}
        _write(chosen.out, found | {"n_samples": quality.n, "n_clients": clients}, table, quality)


def _scored(rows: ClientRows, split: str | None) -> np.ndarray:
    """The rows that are scored, bool [n]."""
    if rows.split is None:
        require(split is None, f"--split: {split}, but DATA has no split")
        return np.ones(len(rows), dtype=bool)
    scored = rows.split == ("train", "val", "test").index(split or "test")
    require(bool(scored.any()), f"--split: DATA has no {split or 'test'} rows")
    return scored


def _weights(rows: ClientRows, schema: Any) -> tuple[np.ndarray, str]:
    """The numbers of training samples of the clients [K], and what they are."""
    if rows.split is not None and len(np.unique(rows.client[rows.split == 0])) == len(rows.names):
        return np.bincount(rows.client[rows.split == 0], minlength=len(rows.names)), "the training rows of DATA"
    where = [schema.place(name) for name in rows.names]
    known = np.array([0 if t is None else int(schema.n_train[t]) for t in where])
    if (known > 0).all():
        return known, "the training samples of the run"
    return np.bincount(rows.client, minlength=len(rows.names)), "the rows of DATA"


def _write(folder: Path, found: dict[str, Any], clients: pd.DataFrame, quality: Quality) -> None:
    """Writes evaluation.json, clients.csv and confusion.csv."""
    write_table(folder / "clients.csv", clients)
    confusion = quality.confusion()
    if confusion is not None:
        write_atomically(folder / "confusion.csv", confusion.to_csv().encode())
    write_atomically(folder / "evaluation.json", (json.dumps(_for_json(found), indent=2) + "\n").encode())
    print(f"written: {folder}")


def _for_json(value: Any) -> Any:
    """The value for JSON: numbers that are not finite are None."""
    if isinstance(value, dict):
        return {key: _for_json(part) for key, part in value.items()}
    return None if isinstance(value, float) and not np.isfinite(value) else value
