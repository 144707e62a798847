"""A client of its own scores its model on its own samples once more, and compares with what it told the server."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from fedem_lightning.data.federation import Federation
from fedem_lightning.data.one_client import load_client
from fedem_lightning.data.schema import Schema
from fedem_lightning.data.splits import SPLITS
from fedem_lightning.errors import UserError, require
from fedem_lightning.evaluation.scores import scores_of
from fedem_lightning.serving.client_files import read_clients, read_notes
from fedem_lightning.serving.output import summaries
from fedem_lightning.serving.quality import Evaluation, Quality

CLOSE = 1e-6
"""Largest difference of equal scores: the last bits depend on the number of threads."""


def on_own_samples(file: Path, split: str, trust: Sequence[str] = ()) -> Evaluation:
    """Scores the model of a client of its own on the samples that the file names.

    Args:
        file: the client's model.
        split: what is shown; the comparison takes all splits.
        trust: packages of yours whose classes the file may name.

    Raises:
        UserError: the file does not say where the samples are, or they are not there, or of another form.

    """
    models, notes = read_clients(file, trust), read_notes(file)
    name, schema = models.names[0], models.schema
    federation = _samples(file, notes.get("samples"), schema)
    personal = models.of(torch.zeros(1, dtype=torch.int64))
    scores = scores_of(personal, federation)
    table = pd.DataFrame({"id": [name]})
    for part in SPLITS:
        table[f"n_{part}"] = [int(federation.splits[part].counts().sum())]
    for part, found in scores.items():
        for measure, value in found.items():
            table[f"{part}_{measure}"] = [value]
    sums = summaries(table, table.n_train.to_numpy(), split)
    require(bool(sums), f"--split: the client has no {split} samples")
    block, quality = federation.block(torch.zeros(1, dtype=torch.int64), split), Quality(schema)
    for piece in block.pieces():
        quality.add(personal.predict(piece), piece.y())
    equal, line, rounds = _compared(file, notes.get("reported"), scores, table)
    title = f"{name} after {rounds} rounds, {split} samples"
    return Evaluation(title, split, {"1": sums}, table, quality, [line], equal)


def _samples(file: Path, given: Any, schema: Schema) -> Federation:
    """The client's samples."""
    try:
        path, name, task, n_classes = (given[key] for key in ("path", "name", "task", "n_classes"))
        path = Path(path)
    except (KeyError, TypeError):
        raise UserError(f"{file}: does not say where the client's samples are; give DATA") from None
    require(path.is_file(), f"{path}: the client's samples are not there any more; give DATA")
    try:
        federation = load_client(path, name, task, n_classes)
    except UserError as error:
        raise UserError(f"{path}: the client's samples cannot be read ({error}); or give DATA") from error
    now, then = Schema.of(federation), schema
    same = now.in_shape == then.in_shape and now.task.n_outputs == then.task.n_outputs
    require(same, f"{path}: the samples have another form than those of the training; give DATA")
    return federation


def _compared(file: Path, reported: Any, scores: dict[str, dict[str, float]], table: Any) -> tuple[bool, str, int]:
    """Whether the scores are those that the client reported, a line that says so, and the number of rounds."""
    try:
        rounds, before = int(reported["round"]), {s: dict(reported["measures"][s]) for s in SPLITS}
        pairs = [(s, m, value, float(before[s][m])) for s in SPLITS for m, value in scores[s].items()]
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{file}: does not say what the client reported; give DATA") from None
    scored = [pair for pair in pairs if table[f"n_{pair[0]}"][0] > 0]
    for split, measure, value, was in scored:
        both_nan = math.isnan(value) and math.isnan(was)
        if not both_nan and not math.isclose(value, was, rel_tol=CLOSE, abs_tol=CLOSE):
            what = f"{split} {measure}: {value} here, {was} there"
            return False, f"not equal to what the client reported after round {rounds}: {what}", rounds
    largest = max(np.nan_to_num([abs(value - was) for _, _, value, was in scored]))
    parts = ", ".join(dict.fromkeys(split for split, *_ in scored))
    line = f"equal to what the client reported after round {rounds} ({parts}); at most {largest:.0e} apart"
    return True, line, rounds
