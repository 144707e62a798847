"""The clients' table: the scores of every client after the last round, its state, and their summaries."""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fedem_lightning.data.federation import Federation
from fedem_lightning.evaluate.convergence import whole_run
from fedem_lightning.evaluate.global_scores import global_scores
from fedem_lightning.evaluate.scores import SampleScores, all_scored_clients, score
from fedem_lightning.evaluate.summaries import summarize, summarize_table
from fedem_lightning.method import Method

REFERENCES = {"bayes_accuracy": True, "minimum_loss": False}
"""Best possible test scores in the ground truth of generated data; whether higher is better."""
IMBALANCE = 0.2
"""Classes count as imbalanced above this share of the way from even classes (an accuracy of 1 / Y for the majority
class) to a single class (1): with two classes above 60 %, with ten above 28 %."""


class ClientTable(NamedTuple):
    """Scores of all clients after the last round."""

    rows: pd.DataFrame  # a row a client
    samples: SampleScores | None  # of their test samples; None: there are too many
    classes: dict[str, Any] | None  # see `class_scores`


def client_table(algorithm: Method, federation: Federation, own_data: Federation | None = None) -> ClientTable:
    """Scores all clients that are to be scored; see `score`.

    Columns of the table: id, population, sizes, with faults whether a client was faulty in any round, every measure on
    each split, the accuracy of the majority class, scores on all clients' samples (`global_scores`), client state.
    """
    clients = all_scored_clients(algorithm, federation)
    rows = clients.cpu().numpy()
    base = None if algorithm.remote is not None else majority(federation, clients)
    measures, adapted, sizes, samples = score(algorithm, federation, clients, own_data, by_sample=True)
    population = np.where(federation.seen.cpu().numpy()[rows], "seen", "unseen")
    table = pd.DataFrame({"id": [federation.names[t] for t in rows], "population": population})
    result = {f"n_{split}": n for split, n in sizes.items()}
    if algorithm.faults is not None:
        rounds = whole_run(algorithm)[0].rounds
        faulty = algorithm.faults.ever_faulty(federation.clients(), algorithm.seed, rounds)
        result["faulty"] = torch.isin(clients, faulty).cpu().numpy()
    result |= {f"{split}_{name}": values for split, of in measures.items() for name, values in of.items()}
    result |= {} if base is None else {"test_majority_accuracy": base.accuracy}
    if algorithm.global_samples and algorithm.remote is None:
        everywhere = global_scores(algorithm, federation, clients, own_data, algorithm.global_samples)
        result |= {f"global_{name}": values for name, values in everywhere.items()}
    own = algorithm.states.columns(with_clients=not algorithm.is_deployed)
    result |= {f"adaptation_{name}" if name in own else name: column for name, column in adapted.items()}
    truth = {f"true_{name}": federation.truth[name] for name in ("group", *REFERENCES) if name in federation.truth}
    table = table.assign(**result, **{name: values[rows] for name, values in {**own, **truth}.items()})
    return ClientTable(table, samples, None if base is None else class_scores(table, base))


class Majority(NamedTuple):
    """The model that predicts a client's own most frequent class of its training samples (the first of several)."""

    accuracy: np.ndarray  # on each client's test samples, float64 [C]; NaN without any
    imbalanced: bool  # whether its accuracy on all test samples of seen clients is above the threshold
    threshold: float


def majority(federation: Federation, clients: Tensor) -> Majority | None:
    """The majority classes of `clients` (int64 [C]); None if samples have no class of their own, or are not stored."""
    task = federation.task
    scored = "accuracy" in task.measures and task.n_targets == 1 and hasattr(federation.samples, "y")
    if not scored or not (n_classes := getattr(task, "n_classes", 0)):
        return None
    blocks = [federation.block(clients, split) for split in ("train", "test")]
    (y, owner), (y_test, owner_test) = ((b.y().cpu().numpy(), b.owner.cpu().numpy()) for b in blocks)
    counts = pd.DataFrame({"owner": owner, "y": y}).groupby(["owner", "y"]).size().reset_index(name="n")  # in order
    first = counts.sort_values("n", ascending=False, kind="stable").drop_duplicates("owner")
    label = np.full(len(clients), -1)
    label[first["owner"]] = first["y"]
    n, right = (np.bincount(owner_test, w, len(clients)) for w in (None, (label[owner_test] == y_test).astype(float)))
    seen = federation.seen[clients].cpu().numpy()
    threshold = (1 + IMBALANCE * (n_classes - 1)) / n_classes
    with np.errstate(invalid="ignore"):
        return Majority(right / n, bool(right[seen].sum() > threshold * n[seen].sum()), threshold)


def class_scores(table: pd.DataFrame, base: Majority) -> dict[str, Any] | None:
    """What results.json says of the classes, over the seen clients; docs/results.md describes the keys."""
    has = ((table["population"] == "seen") & (table["n_test"] > 0)).to_numpy()
    if not has.any():
        return None
    rows, accuracy = table[has], base.accuracy[has]
    return {
        "imbalanced": base.imbalanced,
        "threshold": base.threshold,
        "majority_accuracy": summarize(accuracy, rows["n_train"].to_numpy(), rows["n_test"].to_numpy(), True),
        "worse_than_majority": float((~(rows["test_accuracy"].to_numpy() >= accuracy)).mean()),
    }


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
