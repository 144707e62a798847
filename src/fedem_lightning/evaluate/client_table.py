"""The clients' table: the scores of every client after the last round, its state, and their summaries."""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from fedem_lightning.data.federation import Federation
from fedem_lightning.data.tasks import MultiLabel
from fedem_lightning.evaluate.class_scores import class_scores, columns, label_scores, majority
from fedem_lightning.evaluate.convergence import whole_run
from fedem_lightning.evaluate.scores import (
    Predictions,
    SampleScores,
    all_scored_clients,
    fits,
    n_probabilities,
    score,
)
from fedem_lightning.evaluate.summaries import summarize_table
from fedem_lightning.method import Method

REFERENCES = {"bayes_accuracy": True, "minimum_loss": False}
"""Best possible test scores in the ground truth of generated data; whether higher is better."""


class ClientTable(NamedTuple):
    """Scores of all clients after the last round."""

    rows: pd.DataFrame  # a row a client
    samples: SampleScores | None  # of their test samples; None: there are too many
    classes: dict[str, Any] | None  # see `class_scores`
    labels: dict[str, Any] | None  # see `label_scores`


def client_table(algorithm: Method, federation: Federation, own_data: Federation | None = None) -> ClientTable:
    """Scores all clients that are to be scored; see `score`.

    Columns of the table: id, population, sizes, with faults whether a client was faulty in any round, every measure on
    each split, scores of imbalanced classes or of labels, client state.
    """
    clients = all_scored_clients(algorithm, federation)
    rows = clients.cpu().numpy()
    base = None if algorithm.remote is not None else majority(federation, clients)
    several = isinstance(federation.task, MultiLabel) and algorithm.remote is None
    wanted = several or (base is not None and base.imbalanced)
    with torch.inference_mode(False):  # its tensor is written to outside of inference
        kept = wanted and fits(federation, clients, n_probabilities(federation))
        predictions = Predictions(federation, clients) if kept else None
    measures, adapted, sizes, samples = score(algorithm, federation, clients, own_data, True, predictions)
    population = np.where(federation.seen.cpu().numpy()[rows], "seen", "unseen")
    table = pd.DataFrame({"id": [federation.names[t] for t in rows], "population": population})
    found = {f"n_{split}": n for split, n in sizes.items()}
    if algorithm.faults is not None:
        rounds = whole_run(algorithm)[0].rounds
        faulty = algorithm.faults.ever_faulty(federation.clients(), algorithm.seed, rounds)
        found["faulty"] = torch.isin(clients, faulty).cpu().numpy()
    found |= {f"{split}_{name}": values for split, of in measures.items() for name, values in of.items()}
    found |= {} if base is None else {"test_majority_accuracy": base.accuracy}
    found |= {} if predictions is None else columns(predictions, several)
    own = algorithm.states.columns(with_clients=not algorithm.is_deployed)
    found |= {f"adaptation_{name}" if name in own else name: column for name, column in adapted.items()}
    truth = {f"true_{name}": federation.truth[name] for name in ("group", *REFERENCES) if name in federation.truth}
    table = table.assign(**found, **{name: values[rows] for name, values in {**own, **truth}.items()})
    classes = None if base is None else class_scores(table, base, predictions, federation.notes.get("classes"))
    labels = label_scores(table, predictions) if several and predictions is not None else None
    return ClientTable(table, samples, classes, labels)


def final_metrics(table: pd.DataFrame) -> dict[str, float]:
    """Metrics that `Trainer.test` returns, from the clients' table: test scores of seen and of unseen clients.

    test/MEASURE is weighted by training samples; with the suffixes _pooled, _mean and _bottom_decile see `summarize`.
    Those of unseen clients are test_unseen/...
    """
    metrics = {}
    for population, prefix in (("seen", "test"), ("unseen", "test_unseen")):
        for measure, sums in summarize_table(table[table["population"] == population], "test").items():
            name = f"{prefix}/{measure}"
            metrics[name] = sums["weighted"]
            metrics |= {f"{name}_{kind}": sums[kind] for kind in ("pooled", "mean", "bottom_decile")}
    return metrics
