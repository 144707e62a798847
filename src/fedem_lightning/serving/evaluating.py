"""The command `evaluate`: scores of a run, again on its own data, or on other rows."""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from fedem_lightning.errors import require
from fedem_lightning.records.files import write_atomically
from fedem_lightning.records.measures import headline
from fedem_lightning.run.summary import by_class_line
from fedem_lightning.serving.clients_on_rows import scores_by_client
from fedem_lightning.serving.model_files import load_clients
from fedem_lightning.serving.options import clients_file
from fedem_lightning.serving.output import (
    Evaluation,
    Quality,
    draw_confusion,
    draw_distribution,
    for_json,
    number,
    print_scores,
    summaries,
    write_figure,
    write_table,
)
from fedem_lightning.serving.retest import on_own_samples, retest
from fedem_lightning.serving.rows import ClientRows, chosen_columns, read_rows


def run_evaluate(chosen: argparse.Namespace) -> bool:
    """Runs the command with the options of its parser.

    Returns:
        Whether the scores are those of results.json, or those that the client reported, if they were compared.

    Raises:
        UserError: the user's input is wrong; nothing has been written.

    """
    split, file = chosen.split or "test", clients_file(chosen.run.expanduser())
    if chosen.data is not None:
        found = on_rows(chosen)
    elif file is not None:
        found = on_own_samples(file, split, chosen.trust)
    else:
        found = retest(chosen.run, split, chosen.trust)
    print_evaluation(found)
    if chosen.out is not None:
        write_evaluation(found, chosen.out)
    return found.equal is not False


def on_rows(chosen: argparse.Namespace) -> Evaluation:
    """Scores the rows of DATA with the models of their clients."""
    models = load_clients(chosen.run, chosen.trust)
    schema = models.schema
    rows = read_rows(chosen.data, schema, chosen_columns(chosen), labelled=True)
    scored, quality, split = _scored(rows, chosen.split), Quality(schema), chosen.split or "test"
    weights, meaning = _weights(rows, schema)
    table = scores_by_client(models, rows, scored, split, quality)
    if split != "train":
        table.insert(1, "n_train", weights)
    title = f"{chosen.run.name} on {int(scored.sum())} rows of {chosen.data.name}"
    scores = {str(int((table[f"n_{split}"] > 0).sum())): summaries(table, weights, split)}
    return Evaluation(title, split, scores, table, quality, [f"weighted: by {meaning}"])


def _scored(rows: ClientRows, split: str | None) -> np.ndarray:
    """The rows that are scored, bool [n]."""
    if rows.split is None:
        require(split is None, f"--split: {split}, but DATA has no split")
        return np.ones(len(rows), dtype=bool)
    code = ("train", "val", "test").index(split or "test")
    scored = rows.split == code
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


def print_evaluation(found: Evaluation) -> None:
    """Prints the scores, the calibration error or the errors, the scores by class, and the notes."""
    print_scores(found.title, found.scores)
    figures = [f"{name.replace('_', ' ')} {number(value)}" for name, value in found.quality.figures().items()]
    if figures:
        print(f"all {found.quality.n} {found.split} samples together: {', '.join(figures)}")
    if by_class := for_json(found.quality.by_class()):
        print(by_class_line(**by_class))
    for line in found.notes:
        print(line)


def write_evaluation(found: Evaluation, folder: Path) -> None:
    """Writes evaluation.json, clients.csv, confusion.csv and the figures."""
    content = {
        "title": found.title,
        "split": found.split,
        "scores": found.scores,
        "quality": {**found.quality.figures(), **found.quality.by_class()},
        "n_samples": found.quality.n,
        "equal": found.equal,
        "notes": found.notes,
    }
    write_table(folder / "clients.csv", found.clients)
    confusion = found.quality.confusion()
    if confusion is not None:
        write_atomically(folder / "confusion.csv", confusion.to_csv().encode())
        figure = draw_confusion(confusion)
        if figure is not None:
            write_figure(folder / "confusion.png", figure)
    measure, factor, unit = headline(next(iter(found.scores.values()), {}))
    write_figure(folder / "clients.png", draw_distribution(found.clients[f"{found.split}_{measure}"], unit, factor))
    write_atomically(folder / "evaluation.json", (json.dumps(for_json(content), indent=2) + "\n").encode())
    print(f"written: {folder}")
