"""What a mixture is good for: whether components differ by client or by label, and what mixing them gains."""

import numpy as np
import torch
from scipy import special
from torch import Tensor
from torch.nn.functional import one_hot

from fedem_lightning.em import responsibilities
from fedem_lightning.evaluation.summaries import mean_tests
from fedem_lightning.tasks import Task

LEAST_ENTROPY = 0.05
"""Nats of the components' overall weights, below which nearly all samples belong to one component."""


class Separation:
    """How much a sample's label, and its client, say of the component that explains it.

    With q from Eq. 8, the mutual information of component and label, and of component and client, each as a share of
    the entropy of the components. A mixture that tells clients apart has a large share for clients; one that only
    splits the classes has a large share for labels. With few samples a client, its share is too large by about
    (M - 1) (C - 1) / (2 n) nats of n samples of C clients, whose mixture weights are `pi` [C, M].
    """

    def __init__(self, pi: Tensor, n_classes: int) -> None:
        self._pi = pi
        self._by_label, self._by_client = np.zeros((pi.shape[1], n_classes)), np.zeros((pi.shape[1], len(pi)))

    def add(self, losses: Tensor, y: Tensor, owner: Tensor) -> None:
        """Adds n samples: losses in nats [n, M], labels [n], and their clients' rows in pi [n]."""
        q = responsibilities(self._pi.to(losses), losses, owner).double().cpu().numpy()  # [n, M]
        for sums, column in ((self._by_label, y), (self._by_client, owner)):
            np.add.at(sums.T, column.long().cpu().numpy(), q)

    def shares(self) -> dict[str, float]:
        """explained_by_label and explained_by_client, in [0, 1]; empty where one component has nearly all samples."""
        weights = self._by_label.sum(axis=1)
        if special.entr(weights / weights.sum()).sum() < LEAST_ENTROPY:
            return {}
        found = {"label": self._by_label, "client": self._by_client}
        return {f"explained_by_{name}": information_share(sums) for name, sums in found.items()}


class MixtureGain:
    """What mixing by `pi` [C, M] adds to a client's accuracy: that of Eq. 5 less that of other mixtures."""

    def __init__(self, pi: Tensor, task: Task) -> None:
        strongest = one_hot(pi.argmax(dim=1), pi.shape[1]).to(pi)
        self.mixtures = {"mixture": pi, "strongest": strongest, "equal": torch.full_like(pi, 1 / pi.shape[1])}
        self.hits = {name: torch.zeros(len(pi)) for name in self.mixtures}
        self.task, self.n, self.mixes = task, torch.zeros(len(pi)), bool((pi.amax(dim=1) < 1).any())

    def add(self, predictions: Tensor, y: Tensor, owner: Tensor) -> None:
        """Adds n samples: the components' predictions [M, n, Y], labels [n], and their clients' rows in pi [n]."""
        owner_there = owner.cpu()
        self.n.index_add_(0, owner_there, torch.ones(len(y)))
        for name, pi in self.mixtures.items():
            right = self.task.scores(self.task.mix(predictions, pi[owner]), y)["accuracy"]
            self.hits[name].index_add_(0, owner_there, right.float().cpu())

    def gains(self) -> dict[str, dict[str, float]]:
        """Means over the clients with samples, with 95 % intervals (`mean_tests`) of these trained components.

        Returns:
            gain_over_strongest: over each client's component with the largest weight; gain_over_equal: over all
            components with equal weights; each with mean, low and high. Empty where every client has one component, and
            for fewer than two clients, which have no interval.

        """
        if not self.mixes or int((self.n > 0).sum()) < 2:
            return {}
        accuracy = {name: (hits / self.n)[self.n > 0].double().numpy() for name, hits in self.hits.items()}
        found = {}
        for other in ("strongest", "equal"):
            gain = accuracy["mixture"] - accuracy[other]
            ends = mean_tests(gain, np.zeros(len(gain), dtype=np.int64), 1)
            low, high = float(ends.low[0]), float(ends.high[0])
            found[f"gain_over_{other}"] = {"mean": float(gain.mean()), "low": low, "high": high}
        return found


def information_share(joint: np.ndarray) -> float:
    """The mutual information of rows and columns as a share of the rows' entropy; joint weights [M, K]."""
    p = joint / joint.sum()
    rows, columns = p.sum(axis=1), p.sum(axis=0)
    entropy = special.entr(rows).sum()
    information = special.rel_entr(p, np.outer(rows, columns)).sum()
    return float(np.clip(information / entropy, 0.0, 1.0))
