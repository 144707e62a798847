"""Models of many clients on rows, in blocks: the commands `personalize`, `predict` and `evaluate`."""

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fedem_lightning.data.arrays import listed
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.schema import Schema
from fedem_lightning.data.tasks import MultiLabel
from fedem_lightning.evaluate.scores import ClientMeans
from fedem_lightning.evaluate.summaries import summarize_table
from fedem_lightning.models.personal_models import ClientModels
from fedem_lightning.run.commands import check_folder
from fedem_lightning.run.results import finite
from fedem_lightning.serving.commands import check_out
from fedem_lightning.serving.model_files import load, load_clients, write_clients
from fedem_lightning.serving.rows import ClientRows, read_rows
from fedem_lightning.settings.errors import require
from fedem_lightning.settings.files import replacing, write_atomically
from fedem_lightning.settings.measures import SPLITS, headline, title_of_sum

SHOWN_SUMS = ("weighted", "mean", "bottom_decile", "worst")
"""The summaries that are shown, in their order."""


def personalize(chosen: argparse.Namespace) -> None:
    """Runs the command with the options of its parser; UserError: nothing has been written."""
    check_out(chosen, ".safetensors")
    model = load(chosen.run, chosen.trust)
    kind = type(model).__name__
    schema = model.schema
    assert schema is not None  # `load` refuses a model without
    rows = read_rows(chosen.data, schema, labelled="if there")
    codes = rows.codes()
    models = model.trained_model.personalize_many(rows.samples, rows.client, codes.astype(np.int64), rows.names)
    n_train = np.bincount(rows.client[codes == 0], minlength=len(rows.names))
    write_clients(chosen.out, models)
    n = f"{len(rows.names)} client{'s' * (len(rows.names) != 1)} personalised on {int(n_train.sum())} training rows"
    print(f"{kind}: {n}; written: {chosen.out}")
    places = {name: schema.place(name) for name in rows.names if rows.split is None}
    if held_out := [name for name, place in places.items() if place is not None and not schema.seen[place]]:
        print(f"note: {held_out[0]} was held out of the run; without a column `split` its test rows are used, too")
    if idle := int((n_train == 0).sum()):
        print(f"{idle} of the clients have no training row; they have what the method gives a client without samples")


def predict(chosen: argparse.Namespace) -> None:
    """Runs the command with the options of its parser; UserError: nothing has been written."""
    if chosen.out is not None:
        check_out(chosen, ".parquet", ".csv")
    models = load_clients(chosen.run, chosen.trust)
    rows = read_rows(chosen.data, models.schema)
    if chosen.out is None:
        print(predictions(models, rows).to_csv(index=False), end="")
        return
    write_table(chosen.out, predictions(models, rows))
    clients = f"{len(rows.names)} client{'s' * (len(rows.names) != 1)}"
    print(f"{len(rows)} rows of {clients} predicted; written: {chosen.out}")


def evaluate(chosen: argparse.Namespace) -> None:
    """Runs the command with the options of its parser; UserError: nothing has been written."""
    if chosen.out is not None:
        check_folder(chosen.out, ["evaluation.json", "clients.csv"], chosen.force)
    models = load_clients(chosen.run, chosen.trust)
    rows = read_rows(chosen.data, models.schema, labelled=True)
    scored = np.ones(len(rows), dtype=bool) if rows.split is None else rows.split == SPLITS.index("test")
    n = int(scored.sum())
    require(n > 0, "DATA: it has a split, but no test rows")
    weights, meaning = _weights(rows, models.schema)
    table = scores_by_client(models, rows, scored)
    table.insert(1, "n_train", weights)
    sums, clients = summarize_table(table, "test"), int((table["n_test"] > 0).sum())
    print_scores(f"{chosen.run.name}: {n} rows of {clients} clients in {chosen.data.name}", sums)
    print(f"weighted: by {meaning}")
    if chosen.out is not None:
        result = {"scores": sums, "weighted by": meaning, "n_samples": n, "n_clients": clients}
        write_table(chosen.out / "clients.csv", table)
        write_atomically(chosen.out / "evaluation.json", (json.dumps(finite(result), indent=2) + "\n").encode())
        print(f"written: {chosen.out}")


def predicted(
    models: ClientModels, rows: ClientRows, codes: np.ndarray
) -> Iterator[tuple[Federation, Tensor, Tensor, Tensor]]:
    """Predictions for the rows whose code is 2, in blocks; UserError if some of the clients have no model.

    Each block: the federation of the rows; clients int64 [b], positions of their samples int64 [b], and predictions as
    `Task.predict` gives them [b, ...].
    """
    result = [models.place(name) for name in rows.names]
    unknown = [name for name, place in zip(rows.names, result, strict=True) if place is None]
    message = f"DATA: {len(unknown)} of {len(rows.names)} clients have no model: {listed(unknown, 3)}"
    require(not unknown, f"{message}; personalise them first: python -m fedem_lightning.personalize --help")
    seen = np.zeros(len(result), dtype=bool)
    options: dict[str, Any] = {"task": models.schema.task, "names": rows.names, "seen": seen}
    federation = Federation.from_samples(rows.samples, rows.client, codes, **options)
    personal = models.of(torch.tensor(result, dtype=torch.int64))
    block = federation.block(torch.arange(len(result)), "test")
    with torch.no_grad():
        for piece in block.pieces() if len(block.index) else ():
            yield federation, piece.owner, piece.index, personal.predict(piece)


def scores_by_client(models: ClientModels, rows: ClientRows, scored: np.ndarray) -> pd.DataFrame:
    """Scores of each client on its rows `scored`, bool [n]: columns id, n_test and test_MEASURE, NaN without rows."""
    means = ClientMeans(len(rows.names), models.schema.task)
    for federation, owner, index, prediction in predicted(models, rows, np.where(scored, 2, -1)):
        means.update(means.task.scores(prediction, federation.samples.labels(index)), owner)
    counts = np.bincount(rows.client[scored], minlength=len(rows.names))
    table = pd.DataFrame({"id": rows.names, "n_test": counts})
    return table.assign(**{f"test_{measure}": values for measure, values in means.compute().items()})


def predictions(models: ClientModels, rows: ClientRows) -> pd.DataFrame:
    """The predictions, a row for each row of DATA, in its order.

    Columns: client; class and p_CLASS for each class; in a regression instead mean, or mean_0, mean_1, ...; in a
    multilabel task p_0, p_1, ..., the probability of each label.
    """
    schema, parts, order = models.schema, [], []
    for _, _, index, prediction in predicted(models, rows, np.full(len(rows), 2)):
        parts.append(schema.task.answer(prediction).numpy())  # [b, Y] or [b, k]
        order.append(index.numpy())
    answers = np.concatenate(parts)[np.argsort(np.concatenate(order))]
    require(answers.ndim == 2, "DATA: predictions for positions fit no table; ClientModel.predict returns them")
    table = pd.DataFrame({"client": np.array(rows.names, dtype=object)[rows.client]})
    names, n = schema.class_names, answers.shape[1]
    if isinstance(schema.task, MultiLabel):
        titles = [f"p_{i}" for i in range(n)]
    elif names is None:
        titles = ["mean"] if n == 1 else [f"mean_{i}" for i in range(n)]
    else:
        best = answers.argmax(axis=1)
        table["class"] = best if schema.classes is None else np.array(names, dtype=object)[best]
        titles = [f"p_{name}" for name in names]
    return pd.concat([table, pd.DataFrame(answers, columns=titles)], axis=1)


def _weights(rows: ClientRows, schema: Schema) -> tuple[np.ndarray, str]:
    """The numbers of training samples of the clients [K], and what they are."""
    if rows.split is not None:
        own = np.bincount(rows.client[rows.split == 0], minlength=len(rows.names))
        if (own > 0).all():
            return own, "the training rows of DATA"
    where = [schema.place(name) for name in rows.names]
    known = np.array([0 if t is None else int(schema.n_train[t]) for t in where])
    if (known > 0).all():
        return known, "the training samples of the run"
    return np.bincount(rows.client, minlength=len(rows.names)), "the rows of DATA"


def print_scores(title: str, scores: Mapping[str, Mapping[str, float]]) -> None:
    """Prints a row for each measure, accuracies in percent; see `summarize`."""
    percent = {measure: headline([measure])[1] == 100 for measure in scores}
    rows = [
        [m, *(f"{100 * sums[kind]:.2f} %" if percent[m] else f"{sums[kind]:.4g}" for kind in SHOWN_SUMS)]
        for m, sums in scores.items()
    ]
    columns = ["score", *map(title_of_sum, SHOWN_SUMS)]
    print(f"{title}\n{pd.DataFrame(rows, columns=columns).to_string(index=False)}")


def write_table(path: Path, table: pd.DataFrame) -> None:
    """Writes a table as .csv or .parquet, in one step."""
    with replacing(path) as temporary:
        (table.to_csv if path.suffix == ".csv" else table.to_parquet)(temporary, index=False)
