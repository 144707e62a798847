"""Models of many clients on rows, in blocks: predictions and scores, shown and written; the command `predict`."""

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fedem_lightning.algorithms import FederatedAlgorithm
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.names import listed
from fedem_lightning.errors import require
from fedem_lightning.evaluation.scores import ClientMeans
from fedem_lightning.models.client_model import ClientModels
from fedem_lightning.records import headline, title_of_sum
from fedem_lightning.records.files import replacing
from fedem_lightning.serving.model_files import load_clients
from fedem_lightning.serving.rows import ClientRows, RowColumns, read_rows
from fedem_lightning.tasks import MultiLabel

SHOWN_SUMS = ("weighted", "mean", "bottom_decile", "worst")
"""The summaries that are shown, in their order."""


def run(chosen: argparse.Namespace) -> None:
    """Runs the command with the options of its parser; UserError: nothing has been written."""
    models = load_clients(chosen.run, chosen.trust)
    rows = read_rows(chosen.data, models.schema, chosen_columns(chosen))
    table = predictions(models, rows)
    write_table(chosen.out, table)
    clients = f"{len(rows.names)} client{'s' * (len(rows.names) != 1)}"
    print(f"{len(table)} rows of {clients} predicted; written: {chosen.out}")


def chosen_columns(chosen: argparse.Namespace) -> RowColumns:
    """Column names of DATA, from the options of a command."""
    return RowColumns(chosen.client, chosen.client_column, chosen.label_column)


def personalized(model: FederatedAlgorithm, rows: ClientRows, codes: np.ndarray) -> ClientModels:
    """The models that the clients get from their training rows; codes: 0 train, 1 val, 2 test, -1 left out, int [n]."""
    return model.trained_model.personalize_many(rows.samples, rows.client, codes.astype(np.int64), rows.names)


def predicted(
    models: ClientModels, rows: ClientRows, codes: np.ndarray
) -> Iterator[tuple[Federation, Tensor, Tensor, Tensor]]:
    """Predictions for the rows whose code is 2, in blocks; UserError if some of the clients have no model.

    Each block: the federation of the rows; clients int64 [b], positions of their samples int64 [b], and predictions as
    `Task.predict` gives them [b, ...].
    """
    found = [models.place(name) for name in rows.names]
    unknown = [name for name, place in zip(rows.names, found, strict=True) if place is None]
    said = f"DATA: {len(unknown)} of {len(rows.names)} clients have no model: {listed(unknown, 3)}"
    require(not unknown, f"{said}; personalise them first: python -m fedem_lightning.personalize --help")
    federation = rows.federation(models.schema, codes)
    personal = models.of(torch.tensor(found, dtype=torch.int64))
    block = federation.block(torch.arange(len(found)), "test")
    with torch.no_grad():
        for piece in block.pieces() if len(block.index) else ():
            yield federation, piece.owner, piece.index, personal.predict(piece)


def scores_by_client(
    models: ClientModels,
    rows: ClientRows,
    scored: np.ndarray,
    split: str = "test",
    answers: list[tuple[Tensor, Tensor]] | None = None,
) -> pd.DataFrame:
    """Scores of each client on its rows `scored`, bool [n]: columns id, n_SPLIT and SPLIT_MEASURE, NaN without rows.

    `answers` gets its predictions and labels, in blocks.
    """
    means = ClientMeans(len(rows.names), models.schema.task)
    for federation, owner, index, prediction in predicted(models, rows, np.where(scored, 2, -1)):
        y = federation.samples.labels(index)
        means.update(means.task.scores(prediction, y), owner)
        if answers is not None:
            answers.append((means.task.answer(prediction), y))
    counts = np.bincount(rows.client[scored], minlength=len(rows.names))
    table = pd.DataFrame({"id": rows.names, f"n_{split}": counts})
    for measure, values in means.compute().items():
        table[f"{split}_{measure}"] = values
    return table


def predictions(models: ClientModels, rows: ClientRows) -> pd.DataFrame:
    """The predictions, a row for each row of DATA, in its order.

    Columns: client; class and p_CLASS for each class; in a regression instead mean, or mean_0, mean_1, ...; in a
    multilabel task p_0, p_1, ..., the probability of each label.
    """
    schema, answers = models.schema, np.zeros((0, 0))
    for _, _, index, prediction in predicted(models, rows, np.full(len(rows), 2)):
        answer = schema.task.answer(prediction).numpy()  # [b, Y] or [b, k]
        if not answers.size:
            answers = np.empty((len(rows), *answer.shape[1:]), dtype=answer.dtype)
        answers[index.numpy()] = answer
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


def print_scores(title: str, scores: Mapping[str, Mapping[str, float]]) -> None:
    """Prints a row for each measure; see `summarize`."""
    rows = [[m, *(number(sums[kind], m) for kind in SHOWN_SUMS)] for m, sums in scores.items()]
    columns = ["score", *map(title_of_sum, SHOWN_SUMS)]
    print(f"{title}\n{pd.DataFrame(rows, columns=columns).to_string(index=False)}")


def number(value: float, measure: str = "") -> str:
    """A score as it is shown: accuracies in percent."""
    return f"{100 * value:.2f} %" if measure and headline([measure])[1] == 100 else f"{value:.4g}"


def write_table(path: Path, table: pd.DataFrame) -> None:
    """Writes a table as .csv or .parquet, in one step."""
    with replacing(path) as temporary:
        (table.to_csv if path.suffix == ".csv" else table.to_parquet)(temporary, index=False)
