"""Models of many clients on rows: personalised in chunks, and predictions and scores in blocks."""

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
from fedem_lightning.serving.rows import Rows

CHUNK = 50_000
"""Training rows whose clients are personalised at a time."""


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on the terminal; what it yields moves it. It goes when the work is done."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task(what, total=total)
        yield lambda amount: bars.advance(task, amount)


def personalized(model: FederatedAlgorithm, rows: Rows, codes: np.ndarray) -> ClientModels:
    """The models that the clients get from their training rows.

    Args:
        model: the trained algorithm.
        rows: of K clients.
        codes: 0 train, 1 val, 2 test, -1: left out, int [n].

    """
    parts = []
    n_train = np.bincount(rows.client[codes == 0], minlength=len(rows.names))
    with progress("personalising clients", len(rows.names)) as advance:
        for chunk in _chunks(n_train):
            mine = (rows.client >= chunk.start) & (rows.client < chunk.stop)
            client, split = np.where(mine, rows.client - chunk.start, 0), np.where(mine, codes, -1)
            names = rows.names[chunk.start : chunk.stop]
            parts.append(model.trained_model.personalize_many(rows.samples, client, split.astype(np.int64), names))
            advance(len(chunk))
    return parts[0] if len(parts) == 1 else _joined(parts, rows.names)


def _chunks(n_train: np.ndarray) -> Iterator[range]:
    """Ranges of clients with about CHUNK training rows."""
    chunk_of = np.maximum(n_train.cumsum() - 1, 0) // CHUNK
    bounds = [0, *(np.flatnonzero(np.diff(chunk_of)) + 1).tolist(), len(n_train)]
    yield from (range(a, b) for a, b in itertools.pairwise(bounds))


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


def client_scores(models: ClientModels, rows: Rows, codes: np.ndarray) -> pd.DataFrame:
    """Scores of each client on its rows of code 2: columns id, n_test, and test_MEASURE, NaN without such rows."""
    federation = rows.federation(models.schema, codes)
    metric = ClientMetrics(len(rows.names), models.schema.task)
    metric._update_count = 1  # otherwise torchmetrics warns where there is nothing to score
    for owner, index, prediction in predicted(models, federation, places(models, rows.names), "scoring rows"):
        metric.update(metric.task.scores(prediction, federation.samples.labels(index)), owner)
    table = pd.DataFrame({"id": rows.names, "n_test": federation.splits["test"].counts().numpy()})
    for measure, values in metric.compute().items():
        table[f"test_{measure}"] = values.reshape(-1).numpy()  # torchmetrics squeezes a single client
    return table
