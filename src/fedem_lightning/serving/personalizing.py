"""The command `personalize`: models for new clients, and their scores."""

import argparse

import numpy as np

from fedem_lightning.evaluate.summaries import summarize_table
from fedem_lightning.serving.commands import check_out
from fedem_lightning.serving.model_files import load, write_clients
from fedem_lightning.serving.predicting import print_scores, scores_by_client
from fedem_lightning.serving.rows import read_rows


def personalize(chosen: argparse.Namespace) -> None:
    """Runs the command with the options of its parser; UserError: nothing has been written."""
    check_out(chosen, ".safetensors")
    model = load(chosen.run, chosen.trust)
    kind = type(model).__name__
    schema = model.schema
    assert schema is not None  # `load` refuses a model without
    rows = read_rows(chosen.data, schema, chosen.client, labelled=True)
    codes = rows.codes()
    models = model.trained_model.personalize_many(rows.samples, rows.client, codes.astype(np.int64), rows.names)
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
