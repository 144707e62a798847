"""The command `personalize`: models for new clients, written to a file, and the scores of their test rows."""

import argparse
import re
import time
from pathlib import Path
from typing import Any

import numpy as np

from fedem_lightning.algorithms import FederatedAlgorithm
from fedem_lightning.errors import UserError, require
from fedem_lightning.serving.client_files import write_clients
from fedem_lightning.serving.load import load
from fedem_lightning.serving.models import client_scores, personalized
from fedem_lightning.serving.output import print_scores, summaries
from fedem_lightning.serving.rows import Columns, read_rows


def run(chosen: argparse.Namespace) -> None:
    """Runs the command with the options of its parser.

    Raises:
        UserError: the user's input is wrong; nothing has been written.

    """
    model = load_with_steps(chosen.run, chosen)
    schema = schema_of(model)
    rows = read_rows(chosen.data, schema, columns_of(chosen), labelled=True)
    codes, began = rows.codes(), time.perf_counter()
    models = personalized(model, rows, codes)
    seconds = time.perf_counter() - began
    n_train = np.bincount(rows.client[codes == 0], minlength=len(rows.names))
    table = client_scores(models, rows, codes) if bool((codes == 2).any()) else None
    write_clients(chosen.out, models)
    places = {name: schema.place(name) for name in rows.names}
    held_out = [name for name, place in places.items() if place is not None and not schema.seen[place]]
    if held_out and rows.split is None:
        print(f"note: {held_out[0]} was held out of the run; without a column `split` its test rows are used, too")
    n = f"{len(rows.names)} client{'s' * (len(rows.names) != 1)} personalised on {int(n_train.sum())} training rows"
    print(f"{type(model).__name__}: {n} in {seconds:.2f} s; written: {chosen.out}")
    idle = int((n_train == 0).sum())
    if idle:
        print(f"{idle} of the clients have no training row; they have what the method gives a client without samples")
    if table is not None:
        clients = f"{int((table.n_test > 0).sum())}"
        title = f"scores on {int(table.n_test.sum())} test rows"
        print_scores(title, {clients: summaries(table, n_train)})


def load_with_steps(path: Path, chosen: argparse.Namespace, strict: bool = True) -> FederatedAlgorithm:
    """The model of a run, with --steps and --tolerance.

    Args:
        path: the run.
        chosen: the options.
        strict: whether a method that has no such thing is refused; otherwise it goes without.

    """
    model = load(path, chosen.trust)
    wanted = {"personalize_steps": chosen.steps, "personalize_tolerance": chosen.tolerance}
    given: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
    if not given:
        return model
    missing = [name.replace("personalize_", "--") for name in given if not hasattr(model, name)]
    require(not missing or not strict, f"{', '.join(missing)}: {type(model).__name__} has no such steps")
    try:
        return model if missing else load(path, chosen.trust, **given)
    except UserError as error:  # names the arguments of the class
        raise UserError(re.sub(r"(?:\w+\.)?personalize_(?=steps|tolerance)", "--", str(error))) from error


def columns_of(chosen: argparse.Namespace) -> Columns:
    """Where DATA has what."""
    return Columns(chosen.client, chosen.client_column, chosen.label_column)


def schema_of(model: FederatedAlgorithm) -> Any:
    """The schema of a trained model."""
    assert model.schema is not None  # `load` refuses a model without
    return model.schema
