"""The command `evaluate`: scores of rows by the models of their clients."""

import argparse
import json
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torchmetrics.functional import mean_absolute_error, r2_score
from torchmetrics.functional.classification import multiclass_calibration_error, multiclass_confusion_matrix

from fedem_lightning.data.schema import Schema
from fedem_lightning.errors import require
from fedem_lightning.evaluation.class_scores import of_all
from fedem_lightning.evaluation.scores import MOST_NUMBERS
from fedem_lightning.evaluation.summaries import summarize_table
from fedem_lightning.records import SPLITS
from fedem_lightning.records.files import write_atomically
from fedem_lightning.run.results import finite
from fedem_lightning.run.summary import by_class_line
from fedem_lightning.serving.model_files import load_clients
from fedem_lightning.serving.predicting import chosen_columns, number, print_scores, scores_by_client, write_table
from fedem_lightning.serving.rows import ClientRows, read_rows
from fedem_lightning.tasks import known

BINS = 15
"""Of the confidence, for the calibration error."""


def run(chosen: argparse.Namespace) -> None:
    """Runs the command with the options of its parser; UserError: nothing has been written."""
    models = load_clients(chosen.run, chosen.trust)
    rows = read_rows(chosen.data, models.schema, chosen_columns(chosen), labelled=True)
    split, scored = chosen.split or "test", _scored(rows, chosen.split)
    answers: list[tuple[Tensor, Tensor]] = []
    weights, meaning = _weights(rows, models.schema)
    table = scores_by_client(models, rows, scored, split, answers)
    if split != "train":
        table.insert(1, "n_train", weights)
    sums = summarize_table(table, split, weights)
    clients = int((table[f"n_{split}"] > 0).sum())
    print_scores(f"{chosen.run.name}: {int(scored.sum())} rows of {clients} clients in {chosen.data.name}", sums)
    figures, classes, confusion = quality(models.schema, *map(torch.cat, zip(*answers, strict=True)))
    if figures:
        told = ", ".join(f"{name.replace('_', ' ')} {number(value)}" for name, value in figures.items())
        print(f"all {int(scored.sum())} {split} samples together: {told}")
    if classes:
        print(by_class_line(**finite(classes)))
    print(f"weighted: by {meaning}")
    if chosen.out is not None:
        found = {"split": split, "scores": sums, "quality": {**figures, **classes}, "weighted by": meaning}
        found |= {"n_samples": int(scored.sum()), "n_clients": clients}
        write_table(chosen.out / "clients.csv", table)
        if confusion is not None:
            write_atomically(chosen.out / "confusion.csv", confusion.to_csv().encode())
        write_atomically(chosen.out / "evaluation.json", (json.dumps(finite(found), indent=2) + "\n").encode())
        print(f"written: {chosen.out}")


def _scored(rows: ClientRows, split: str | None) -> np.ndarray:
    """The rows that are scored, bool [n]."""
    if rows.split is None:
        require(split is None, f"--split: {split}, but DATA has no split")
        return np.ones(len(rows), dtype=bool)
    scored = rows.split == SPLITS.index(split or "test")
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


def quality(schema: Schema, answer: Tensor, y: Tensor) -> tuple[dict[str, float], dict[str, Any], pd.DataFrame | None]:
    """How good predictions (`Task.answer`) are for all samples together; of a density there is nothing.

    The calibration error in [0, 1], or of a regression mean_absolute_error and (of two rows or more) r2;
    balanced_accuracy, auroc and sensitivity (of each class), {} of sequences and of more than `MOST_NUMBERS`
    probabilities; and numbers of samples, a row for each true class and a column for each predicted one.
    """
    task, names = schema.task, schema.class_names
    if "mse" in task.measures:
        targets = y.reshape(len(y), -1).double()
        given = known(targets).all(dim=1)  # samples of which no target is missing
        both = answer.flatten(1).double()[given], targets[given]
        r2 = {"r2": float(r2_score(*both))} if len(y) > 1 else {}
        return {"mean_absolute_error": float(mean_absolute_error(*both))} | r2, {}, None
    if "accuracy" not in task.measures or names is None:
        return {}, {}, None
    p, labels = answer.flatten(0, -2).clamp(0, 1), y.flatten()  # torchmetrics would take what is beyond for logits
    both = p[known(labels)], labels[known(labels)]
    counts = multiclass_confusion_matrix(*both, len(names)).numpy()
    confusion = pd.DataFrame(counts, index=pd.Index(names, name="true class"), columns=names)
    classes: dict[str, Any] = {}
    if task.n_targets == 1 and p.numel() <= MOST_NUMBERS:
        classes = of_all(p.numpy(), y.numpy(), names)
    return {"calibration_error": float(multiclass_calibration_error(*both, len(names), BINS))}, classes, confusion
