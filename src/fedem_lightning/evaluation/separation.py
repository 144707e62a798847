"""Whether components differ by client or by label: what a sample's responsibilities depend on."""

import numpy as np
from scipy import special
from torch import Tensor

from fedem_lightning.em import responsibilities

LEAST_ENTROPY = 0.05
"""Nats of the components' overall weights, below which nearly all samples belong to one component."""


class Separation:
    """How much a sample's label, and its client, say of the component that explains it.

    With q from Eq. 8, the mutual information of component and label, and of component and client, each as a share of
    the entropy of the components. A mixture that tells clients apart has a large share for clients; one that only
    splits the classes has a large share for labels. With few samples a client, its share is too large by about
    (M - 1) (C - 1) / (2 n) nats of n samples of C clients.

    Args:
        pi: mixture weights of the clients, [C, M].
        n_classes: Y.

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


def information_share(joint: np.ndarray) -> float:
    """The mutual information of rows and columns as a share of the rows' entropy; joint weights [M, K]."""
    p = joint / joint.sum()
    rows, columns = p.sum(axis=1), p.sum(axis=0)
    entropy = special.entr(rows).sum()
    information = special.rel_entr(p, np.outer(rows, columns)).sum()
    return float(np.clip(information / entropy, 0.0, 1.0))
