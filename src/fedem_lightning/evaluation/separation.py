"""Whether components differ by client or by label: what a test sample's responsibilities depend on."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy import special
from torch import Tensor

from fedem_lightning.aggregation import Models
from fedem_lightning.data.federation import Federation
from fedem_lightning.em import responsibilities
from fedem_lightning.evaluation.component_diagnostics import looked_at
from fedem_lightning.models.tensors import call_with
from fedem_lightning.randomness import keyed_streams

if TYPE_CHECKING:
    from fedem_lightning.algorithms.base import FederatedAlgorithm

LEAST_ENTROPY = 0.05
"""Nats of the components' overall weights, below which nearly all samples belong to one component."""


@torch.no_grad()
def separation(
    algorithm: "FederatedAlgorithm", federation: Federation, components: Models, pi: Tensor
) -> dict[str, float]:
    """How much a test sample's label, and its client, say of the component that explains it.

    With q from Eq. 8 on the test samples, the mutual information of component and label, and of component and client,
    each as a share of the entropy of the components. A mixture that tells clients apart has a large share for clients;
    one that only splits the classes has a large share for labels. With few samples a client, its share is too large by
    about (M - 1) (T - 1) / (2 n) nats of n samples of T clients.

    Args:
        algorithm: a method with mixture weights.
        federation: the data, on any device.
        components: parameters and buffers of the M components, [M, ...].
        pi: mixture weights, [T, M].

    Returns:
        explained_by_label and explained_by_client, in [0, 1]. Empty for one component, without test samples, for labels
        that are no single classes, and where nearly all samples belong to one component.

    """
    n_classes, federation = getattr(federation.task, "n_classes", 0), federation.to(algorithm.device)
    block = looked_at(algorithm, federation)
    if pi.shape[1] < 2 or not n_classes or federation.task.n_targets > 1 or not len(block.index):
        return {}
    backbone = algorithm.components[0].eval()
    joint = {"label": np.zeros((pi.shape[1], n_classes)), "client": np.zeros((pi.shape[1], len(block.clients)))}
    with keyed_streams(algorithm.device, algorithm.seed, algorithm.statistics.rounds):
        for piece in block.pieces():
            x, y = piece.x(algorithm.parameter_dtype), piece.y()
            models = ({name: rows[m].to(x.device) for name, rows in components.items()} for m in range(pi.shape[1]))
            losses = torch.stack([federation.task.losses(call_with(backbone, model, x), y) for model in models], dim=1)
            q = responsibilities(pi[block.clients].to(losses), losses, piece.owner).double().cpu().numpy()  # [n, M]
            for sums, column in ((joint["label"], y), (joint["client"], piece.owner)):
                np.add.at(sums.T, column.long().cpu().numpy(), q)
    if special.entr(joint["label"].sum(axis=1) / joint["label"].sum()).sum() < LEAST_ENTROPY:
        return {}
    return {f"explained_by_{name}": information_share(sums) for name, sums in joint.items()}


def information_share(joint: np.ndarray) -> float:
    """The mutual information of rows and columns as a share of the rows' entropy; joint weights [M, K]."""
    p = joint / joint.sum()
    rows, columns = p.sum(axis=1), p.sum(axis=0)
    entropy = special.entr(rows).sum()
    information = special.rel_entr(p, np.outer(rows, columns)).sum()
    return float(np.clip(information / entropy, 0.0, 1.0))
