"""Scoring every client's personal model on its own samples, and summing up over clients (FedEM, Sec. 4)."""

import math
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torchmetrics import Metric

from fedem_lightning.data.federation import Federation
from fedem_lightning.data.splits import SPLITS

if TYPE_CHECKING:
    from fedem_lightning.algorithms.base import FederatedAlgorithm


class ClientMetrics(Metric):
    """Accuracy and mean negative log-likelihood of every client.

    Args:
        n_clients: T.

    """

    full_state_update = False
    correct: Tensor
    loss: Tensor
    count: Tensor

    def __init__(self, n_clients: int) -> None:
        super().__init__()
        for state in ("correct", "loss", "count"):
            self.add_state(state, torch.zeros(n_clients, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, log_probs: Tensor, y: Tensor, client: Tensor) -> None:
        """log_probs [n, Y], y int64 [n], client int64 [n]."""
        right = log_probs.argmax(dim=1) == y
        loss = -log_probs.gather(1, y.unsqueeze(1)).squeeze(1)
        for total, values in ((self.correct, right), (self.loss, loss), (self.count, torch.ones_like(loss))):
            total.index_add_(0, client, values.double())

    def compute(self) -> tuple[Tensor, Tensor]:
        """Accuracy [T] in [0, 1] and loss [T] in nats; NaN for a client without samples."""
        return self.correct / self.count, self.loss / self.count


def score(
    algorithm: "FederatedAlgorithm", federation: Federation, clients: Tensor, split: str
) -> tuple[np.ndarray, np.ndarray]:
    """Accuracy and loss of `clients` (int64 [C]) on `split`, each float64 [C]; NaN for a client without samples."""
    metrics = ClientMetrics(federation.n_clients).to(clients.device)
    for piece in federation.block(clients, split).pieces():
        metrics.update(algorithm.log_probs(piece), piece.y(), piece.clients[piece.owner])
    accuracy, loss = metrics.compute()
    return accuracy[clients].cpu().numpy(), loss[clients].cpu().numpy()


def summarize(
    values: np.ndarray, n_train: np.ndarray, n_scored: np.ndarray, higher_is_better: bool
) -> dict[str, float]:
    """Sums up one value a client over clients; clients without samples in the split are left out.

    Args:
        values: [T]; n_train: training samples [T]; n_scored: samples that were scored [T].
        higher_is_better: which end is the worst.

    Returns:
        weighted: weights n_train; pooled: weights n_scored; mean: no weights; bottom_decile: the ceil(T/10)-th worst
        client; worst. Empty if nobody has a sample.

    """
    has = n_scored > 0
    if not has.any():
        return {}
    values, n_train, n_scored = values[has], n_train[has], n_scored[has]
    from_worst = np.sort(values if higher_is_better else -values)
    sign = 1.0 if higher_is_better else -1.0
    return {
        "weighted": float(np.average(values, weights=n_train)),
        "pooled": float(np.average(values, weights=n_scored)),
        "mean": float(values.mean()),
        "bottom_decile": float(sign * from_worst[math.ceil(len(values) / 10) - 1]),
        "worst": float(sign * from_worst[0]),
    }


def curve_metrics(algorithm: "FederatedAlgorithm", federation: Federation) -> dict[str, float]:
    """What the curves show during training: the seen clients on every split, weighted by training samples."""
    clients = federation.clients()
    n_train = federation.splits["train"].counts()[clients].cpu().numpy()
    metrics = {}
    for split in SPLITS:
        n_scored = federation.splits[split].counts()[clients].cpu().numpy()
        accuracy, loss = (
            summarize(v, n_train, n_scored, i == 0) for i, v in enumerate(score(algorithm, federation, clients, split))
        )
        if accuracy:
            metrics[f"{split}/accuracy"] = accuracy["weighted"]
            metrics[f"{split}/accuracy_bottom_decile"] = accuracy["bottom_decile"]
            metrics[f"{split}/loss"] = loss["weighted"]
    return metrics


def client_table(algorithm: "FederatedAlgorithm", federation: Federation) -> pd.DataFrame:
    """One row a client: id, population, sizes, accuracy and loss on each split, private state."""
    everybody = torch.arange(federation.n_clients, device=federation.y.device)
    table = pd.DataFrame(
        {
            "id": federation.names,
            "population": np.where(federation.seen.cpu().numpy(), "seen", "unseen"),
            **{f"n_{split}": federation.splits[split].counts().cpu().numpy() for split in SPLITS},
        }
    )
    for split in SPLITS:
        table[f"{split}_accuracy"], table[f"{split}_loss"] = score(algorithm, federation, everybody, split)
    for name, values in {**algorithm.client_columns(), **_truth_columns(federation)}.items():
        table[name] = values
    return table


def _truth_columns(federation: Federation) -> dict[str, np.ndarray]:
    return {f"true_{name}": federation.truth[name] for name in ("group", "bayes_accuracy") if name in federation.truth}


def summarize_table(table: pd.DataFrame, split: str) -> dict[str, dict[str, float]]:
    """Accuracy and loss of the table's clients on `split`, see `summarize`; empty if nobody has a sample."""
    n_train, n_scored = table["n_train"].to_numpy(), table[f"n_{split}"].to_numpy()
    sums = {
        measure: summarize(table[f"{split}_{measure}"].to_numpy(), n_train, n_scored, measure == "accuracy")
        for measure in ("accuracy", "loss")
    }
    return sums if sums["accuracy"] else {}
