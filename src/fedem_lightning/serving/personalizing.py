"""The command `personalize`: models for new clients, and their scores; with `--few-shot` by the number of samples."""

import argparse
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedem_lightning.errors import require
from fedem_lightning.evaluation.summaries import summarize_table
from fedem_lightning.models.client_model import ClientModels
from fedem_lightning.module import FederatedAlgorithm
from fedem_lightning.randomness import Purpose, generator
from fedem_lightning.records import headline
from fedem_lightning.serving.commands import check_out
from fedem_lightning.serving.model_files import load, write_clients
from fedem_lightning.serving.predicting import SHOWN_SUMS, print_scores, scores_by_client, write_table
from fedem_lightning.serving.rows import ClientRows, read_rows


def personalize(chosen: argparse.Namespace) -> None:
    """Runs the command with the options of its parser; UserError: nothing has been written."""
    require(0 <= chosen.seed < 2**32, f"--seed: expected a whole number of at least 0, got {chosen.seed}")
    check_out(chosen, ".safetensors" if chosen.few_shot is None else ".csv")
    shots = None if chosen.few_shot is None else parse_shots(chosen.few_shot)
    model = load(chosen.run, chosen.trust)
    kind = type(model).__name__
    if chosen.steps is not None:
        require(hasattr(model, "personalize_steps"), f"--steps: {kind} has no such steps")
        require(chosen.steps >= 1, f"--steps: expected a number greater than or equal to 1, got {chosen.steps}")
        model = load(chosen.run, chosen.trust, personalize_steps=chosen.steps)
    schema = model.schema
    assert schema is not None  # `load` refuses a model without
    rows = read_rows(chosen.data, schema, chosen.client, labelled=True)
    if shots is not None:
        table = scores(model, rows, shots, chosen.seed)
        write_table(chosen.out, table)
        measure = headline(str(column).removesuffix("_weighted") for column in table)[0]
        shown = table[["k", "samples", *(f"{measure}_{kind}" for kind in SHOWN_SUMS)]]
        print(f"{kind}: {measure} on test rows of {int(table.clients.max())} clients")
        print(shown.to_string(index=False, float_format="%.4g"))
        print(f"written: {chosen.out}")
        return
    codes = rows.codes()
    models = personalized(model, rows, codes)
    n_train = np.bincount(rows.client[codes == 0], minlength=len(rows.names))
    tested = scores_by_client(models, rows, codes == 2) if bool((codes == 2).any()) else None
    write_clients(chosen.out, models)
    n = f"{len(rows.names)} client{'s' * (len(rows.names) != 1)} personalised on {int(n_train.sum())} training rows"
    print(f"{kind}: {n}; written: {chosen.out}")
    places = {name: schema.place(name) for name in rows.names if rows.split is None}
    if held_out := [name for name, place in places.items() if place is not None and not schema.seen[place]]:
        print(f"note: {held_out[0]} was held out of the run; without a column `split` its test rows are used, too")
    if idle := int((n_train == 0).sum()):
        print(f"{idle} of the clients have no training row; they have what the method gives a client without samples")
    if tested is not None:
        title = f"scores on {int(tested.n_test.sum())} test rows of {int((tested.n_test > 0).sum())} clients"
        print_scores(title, summarize_table(tested, "test", n_train))


def personalized(model: FederatedAlgorithm, rows: ClientRows, codes: np.ndarray) -> ClientModels:
    """The models that the clients get from their training rows; codes: 0 train, 1 val, 2 test, -1 left out, int [n]."""
    return model.trained_model.personalize_many(rows.samples, rows.client, codes.astype(np.int64), rows.names)


def parse_shots(text: str) -> list[int | None]:
    """Numbers of samples, ascending; None is "all". UserError for anything else."""
    words = [word.strip() for word in text.split(",")]
    wrong = [word for word in words if word != "all" and not (word.isdecimal() and len(word) < 19)]  # it fits 64 bits
    require(not wrong, f"--few-shot: expected numbers of samples, or all, as in 0,1,5,all; got {text!r}")
    return [*sorted({int(word) for word in words if word != "all"}), *[None] * ("all" in words)]


def only_shots(rows: ClientRows, k: int | None, seed: int) -> np.ndarray:
    """The split with k (None: all) training samples of each client; the others are -1, left out.

    Fewer are among those of more. The draw depends on the seed and on the client's name and rows alone.
    """
    codes = rows.codes()
    if k is None:
        return codes
    left = codes.copy()
    for t, name in enumerate(rows.names):
        train = np.flatnonzero((codes == 0) & (rows.client == t))
        key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
        left[train[generator(seed, Purpose.FEW_SHOT, 1, key).permutation(len(train)) >= k]] = -1
    return left


def scores(model: FederatedAlgorithm, rows: ClientRows, shots: Sequence[int | None], seed: int) -> pd.DataFrame:
    """A row for each number of samples: k, clients, samples (mean number used), n_test, MEASURE_SUMMARY.

    The weights of the weighted mean are all training samples of each client, whatever k is.
    """
    codes = rows.codes()
    require(bool((codes == 2).any()), "DATA: no row is a test row (split), which few-shot scores need")
    n_train, found = np.bincount(rows.client[codes == 0], minlength=len(rows.names)), []
    for k in shots:
        split = only_shots(rows, k, seed)
        table = scores_by_client(personalized(model, rows, split), rows, split == 2)
        used = n_train if k is None else n_train.clip(max=k)
        row: dict[str, Any] = {"k": "all" if k is None else str(k), "clients": int((table.n_test > 0).sum())}
        by_measure = summarize_table(table, "test", n_train)
        sums = {f"{measure}_{kind}": v for measure, kinds in by_measure.items() for kind, v in kinds.items()}
        found.append({**row, "samples": float(used.mean()), "n_test": int(table.n_test.sum()), **sums})
    return pd.DataFrame(found)
