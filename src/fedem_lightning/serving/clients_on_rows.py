"""Models of many clients on rows: personalised in chunks, predictions and scores in blocks; the command `predict`."""

import argparse
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pandas as pd
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from fedem_lightning.algorithms import FederatedAlgorithm
from fedem_lightning.data.federation import Federation
from fedem_lightning.errors import require
from fedem_lightning.evaluation.scores import ClientMetrics
from fedem_lightning.models.client_model import ClientModels
from fedem_lightning.models.personal_models import OwnModels, SharedModels, joined
from fedem_lightning.serving.model_files import load_clients
from fedem_lightning.serving.output import Quality, write_table
from fedem_lightning.serving.rows import ClientRows, chosen_columns, read_rows
from fedem_lightning.tasks import MultiLabel

CHUNK_ROWS = 50_000
"""Training rows whose clients are personalised at a time."""


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on the terminal; what it yields moves it. It goes when the work is done."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task(what, total=total)
        yield lambda amount: bars.advance(task, amount)


def personalized(model: FederatedAlgorithm, rows: ClientRows, codes: np.ndarray) -> ClientModels:
    """The models that the clients get from their training rows.

    Args:
        model: the trained algorithm.
        rows: of K clients.
        codes: 0 train, 1 val, 2 test, -1: left out, int [n].

    """
    parts = []
    n_train = np.bincount(rows.client[codes == 0], minlength=len(rows.names))
    with progress("personalising clients", len(rows.names)) as advance:
        chunk_of = np.maximum(n_train.cumsum() - 1, 0) // CHUNK_ROWS
        bounds = [0, *(np.flatnonzero(np.diff(chunk_of)) + 1).tolist(), len(n_train)]
        for chunk in (range(a, b) for a, b in itertools.pairwise(bounds)):
            mine = (rows.client >= chunk.start) & (rows.client < chunk.stop)
            client, split = np.where(mine, rows.client - chunk.start, 0), np.where(mine, codes, -1)
            names = rows.names[chunk.start : chunk.stop]
            parts.append(model.trained_model.personalize_many(rows.samples, client, split.astype(np.int64), names))
            advance(len(chunk))
    return parts[0] if len(parts) == 1 else _joined(parts, rows.names)


def _joined(parts: list[ClientModels], names: tuple[str, ...]) -> ClientModels:
    first = parts[0].personal
    if isinstance(first, SharedModels):
        mixture = torch.cat([part.personal.mixture for part in parts])
        return ClientModels(names, SharedModels(first.components, mixture), parts[0].schema)
    own = [part.personal for part in parts if isinstance(part.personal, OwnModels)]
    return ClientModels(names, joined(own), parts[0].schema)


def places(models: ClientModels, names: tuple[str, ...]) -> Tensor:
    """Where the clients are among the models, int64 [K].

    Raises:
        UserError: some of them have no model.

    """
    found = [models.place(name) for name in names]
    unknown = [name for name, place in zip(names, found, strict=True) if place is None]
    some = ", ".join(unknown[:3]) + (", ..." if len(unknown) > 3 else "")
    n = f"{len(unknown)} of {len(names)} clients have no model"
    require(not unknown, f"DATA: {n}: {some}; personalise them first: python -m fedem_lightning.personalize --help")
    return torch.tensor(found, dtype=torch.int64)


def predicted(
    models: ClientModels, federation: Federation, where: Tensor, what: str = "predicting rows"
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Predictions for the test samples of a federation, in blocks.

    Args:
        models: of clients.
        federation: K clients.
        where: place of each client among the models, int64 [K].
        what: text of the progress bar.

    Yields:
        Clients int64 [b], positions of their samples int64 [b], and predictions as `Task.predict` gives them [b, ...].

    """
    everyone = torch.arange(len(where))
    personal, block = models.of(where), federation.block(everyone, "test")
    with progress(what, len(block.index)) as advance, torch.no_grad():
        for piece in block.pieces() if len(block.index) else ():
            yield piece.owner, piece.index, personal.predict(piece)
            advance(len(piece.index))


def scores_by_client(
    models: ClientModels, rows: ClientRows, scored: np.ndarray, split: str = "test", quality: Quality | None = None
) -> pd.DataFrame:
    """Scores of each client on its rows `scored`, bool [n], to which `quality` adds their predictions.

    Returns:
        Columns id, n_SPLIT and SPLIT_MEASURE, NaN without such rows.

    """
    federation = rows.federation(models.schema, np.where(scored, 2, -1))
    metric = ClientMetrics(len(rows.names), models.schema.task)
    metric._update_count = 1  # otherwise torchmetrics warns where there is nothing to score
    for owner, index, prediction in predicted(models, federation, places(models, rows.names), "scoring rows"):
        y = federation.samples.labels(index)
        metric.update(metric.task.scores(prediction, y), owner)
        if quality is not None:
            quality.add(prediction, y)
    table = pd.DataFrame({"id": rows.names, f"n_{split}": federation.splits["test"].counts().numpy()})
    for measure, values in metric.compute().items():
        table[f"{split}_{measure}"] = values.reshape(-1).numpy()  # torchmetrics squeezes a single client
    return table


def run_predict(chosen: argparse.Namespace) -> None:
    """Runs the command with the options of its parser.

    Raises:
        UserError: the user's input is wrong; nothing has been written.

    """
    models = load_clients(chosen.run, chosen.trust)
    rows = read_rows(chosen.data, models.schema, chosen_columns(chosen))
    table = predictions(models, rows)
    write_table(chosen.out, table)
    clients = f"{len(rows.names)} client{'s' * (len(rows.names) != 1)}"
    print(f"{len(table)} rows of {clients} predicted; written: {chosen.out}")


def predictions(models: ClientModels, rows: ClientRows) -> pd.DataFrame:
    """The predictions, a row for each row of DATA, in its order.

    Returns:
        Columns client; class and p_CLASS for each class; in a regression instead mean, or mean_0, mean_1, ...; in a
        multilabel task p_0, p_1, ..., the probability of each label.

    Raises:
        UserError: a client has no model.

    """
    schema = models.schema
    where = places(models, rows.names)
    federation = rows.federation(schema, np.full(len(rows), 2))
    answers = np.zeros((0, 0))
    for _, index, prediction in predicted(models, federation, where):
        answer = schema.task.answer(prediction).numpy()  # [b, Y] or [b, k]
        if not answers.size:
            answers = np.empty((len(rows), *answer.shape[1:]), dtype=answer.dtype)
        answers[index.numpy()] = answer
    arrays = "DATA: predictions for pixels or positions do not fit a table; ClientModel.predict returns them"
    require(answers.ndim == 2, arrays)
    table = pd.DataFrame({"client": np.array(rows.names, dtype=object)[rows.client]})
    names = schema.class_names
    if isinstance(schema.task, MultiLabel):
        titles = [f"p_{i}" for i in range(answers.shape[1])]
    elif names is None:
        titles = ["mean"] if answers.shape[1] == 1 else [f"mean_{i}" for i in range(answers.shape[1])]
    else:
        best = answers.argmax(axis=1)
        table["class"] = best if schema.classes is None else np.array(names, dtype=object)[best]
        titles = [f"p_{name}" for name in names]
    return pd.concat([table, pd.DataFrame(answers, columns=titles)], axis=1)
