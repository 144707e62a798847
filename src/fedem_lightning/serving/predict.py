"""The command `predict`: a table with the prediction of every row."""

import argparse

import numpy as np
import pandas as pd

from fedem_lightning.data.schema import Schema
from fedem_lightning.models.client_model import ClientModels
from fedem_lightning.serving.load import load_clients
from fedem_lightning.serving.models import places, predicted
from fedem_lightning.serving.output import write_table
from fedem_lightning.serving.personalize import columns_of
from fedem_lightning.serving.rows import Rows, read_rows


def run(chosen: argparse.Namespace) -> None:
    """Runs the command with the options of its parser.

    Raises:
        UserError: the user's input is wrong; nothing has been written.

    """
    models = load_clients(chosen.run, chosen.trust)
    rows = read_rows(chosen.data, models.schema, columns_of(chosen))
    table = predictions(models, rows)
    write_table(chosen.out, table)
    clients = f"{len(rows.names)} client{'s' * (len(rows.names) != 1)}"
    print(f"{len(table)} rows of {clients} predicted; written: {chosen.out}")


def predictions(models: ClientModels, rows: Rows) -> pd.DataFrame:
    """The predictions, a row for each row of DATA, in its order.

    Returns:
        Columns client; class and p_CLASS for each class; in a regression instead mean, or mean_0, mean_1, ...

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
    table = pd.DataFrame({"client": np.array(rows.names, dtype=object)[rows.client]})
    names = class_names(schema)
    if names is None:
        titles = ["mean"] if answers.shape[1] == 1 else [f"mean_{i}" for i in range(answers.shape[1])]
    else:
        best = answers.argmax(axis=1)
        table["class"] = best if schema.classes is None else np.array(names, dtype=object)[best]
        titles = [f"p_{name}" for name in names]
    return pd.concat([table, pd.DataFrame(answers, columns=titles)], axis=1)


def class_names(schema: Schema) -> list[str] | None:
    """The names of the classes, "0", "1", ... where they have none; None in a regression."""
    n = getattr(schema.task, "n_classes", None)
    if n is None:
        return None
    return list(schema.classes) if schema.classes is not None else [str(i) for i in range(n)]
