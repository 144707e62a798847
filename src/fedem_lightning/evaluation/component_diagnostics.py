"""Diagnostics of components: dead and equal ones, their agreement, and recovery of the ground truth."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from scipy import special
from scipy.optimize import linear_sum_assignment
from scipy.spatial import distance
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from fedem_lightning.aggregation import Models
from fedem_lightning.data.block import Block
from fedem_lightning.data.federation import Federation
from fedem_lightning.em import responsibilities
from fedem_lightning.evaluation.scores import scored_clients
from fedem_lightning.models.tensors import call_with
from fedem_lightning.randomness import keyed_streams
from fedem_lightning.tasks import known

if TYPE_CHECKING:
    from fedem_lightning.algorithms.base import FederatedAlgorithm


MOST_SAMPLES = 10_000
"""Of more test samples than this, as many are looked at, at even distances."""

DEAD = 0.05
"""A component with less than this fraction of the mean weight 1 / M is dead."""

TWINS = 0.05
"""Two components nearer than this, relative to the longer one, are twins: EM can hardly make them differ again."""

LEAST_ENTROPY = 0.05
"""Nats of the components' overall weights, below which nearly all samples belong to one component."""


def component_health(pi: np.ndarray, components: np.ndarray) -> dict[str, Any]:
    """Dead components, which no client uses, and twins, which are equal.

    Twins are found by their parameters [M, D]; networks that differ only by a permutation of units are not found.

    Returns:
        mean_weights: mean weight of each component over clients; effective: exp of their entropy, from 1 to M, the
        number of components that are in use; dead: indices; twins: pairs of indices.

    """
    n_components, norms, mean = len(components), np.linalg.norm(components, axis=1), pi.mean(axis=0)
    twins = [
        [a, b]
        for a in range(n_components)
        for b in range(a + 1, n_components)
        if np.linalg.norm(components[a] - components[b]) < TWINS * max(norms[a], norms[b], np.finfo(float).tiny)
    ]
    dead: list[int] = np.flatnonzero(mean < DEAD / n_components).tolist()
    in_use = float(np.exp(special.entr(mean).sum()))
    return {"mean_weights": mean.tolist(), "effective": in_use, "dead": dead, "twins": twins}


@torch.no_grad()
def agreement(
    algorithm: "FederatedAlgorithm", federation: Federation, components: Models, pi: Tensor | None = None
) -> dict[str, Any]:
    """The share of the test samples of the scored seen clients for which two components [M, ...] predict one class.

    Returns:
        agreement: the shares, [M, M], of several labels those that are known; with mixture weights pi [T, M], several
        components and one label a sample also `explained`. Empty for a task without classes, and without test samples.

    """
    task = federation.task
    if "accuracy" not in task.measures:
        return {}
    federation = federation.to(algorithm.device)
    block = federation.block(scored_clients(algorithm, federation), "test")
    if not len(block.index):
        return {}
    n = len(block.index)
    part = torch.linspace(0, n - 1, min(n, MOST_SAMPLES), dtype=torch.float64).round().long().to(block.index.device)
    block = Block(federation, block.clients, block.index[part], block.owner[part])
    backbone, n_models = algorithm.components[0].eval(), len(next(iter(components.values())))
    models = [{name: rows[m].to(algorithm.device) for name, rows in components.items()} for m in range(n_models)]
    explains = pi is not None and n_models > 1 and task.n_targets == 1 and hasattr(task, "n_classes")
    classes, q = [], []
    with keyed_streams(algorithm.device, algorithm.seed, algorithm.statistics.rounds):
        for piece in block.pieces():
            x, y = piece.x(algorithm.parameter_dtype), piece.y()
            outputs = [call_with(backbone, model, x) for model in models]
            predicted = torch.stack([task.predict(output).argmax(dim=-1).flatten() for output in outputs])
            classes.append(predicted[:, known(y).flatten()])  # [M, targets]
            if pi is not None and explains:
                losses = torch.stack([task.losses(output, y) for output in outputs], dim=1)  # [n, M]
                q.append(responsibilities(pi[block.clients].to(losses), losses, piece.owner))
    each = torch.cat(classes, dim=1)
    found = {"agreement": [[float((a == b).double().mean()) for b in each] for a in each]}
    return found | explained(torch.cat(q), label=block.y(), client=block.owner) if q else found


def explained(q: Tensor, **by: Tensor) -> dict[str, float]:
    """How much a sample's label, and its client, say of the component that explains it: `explained_by_...`, in [0, 1].

    That is the mutual information of the component, by q [n, M] of Eq. 8, and of a number [n], as a share of the
    components' entropy. A mixture that tells clients apart has a large share for clients; one that only splits the
    classes has a large share for labels. With few samples a client, its share is too large by about
    (M - 1) (C - 1) / (2 n) nats of n samples of C clients. Empty where one component has nearly all samples.
    """
    mean = q.double().mean(dim=0).cpu().numpy()
    entropy = special.entr(mean).sum()
    if entropy < LEAST_ENTROPY:
        return {}
    table, found = pd.DataFrame(q.double().cpu().numpy()) / len(q), {}
    for name, column in by.items():
        joint = table.groupby(column.cpu().numpy()).sum().to_numpy()  # [K, M]
        information = special.rel_entr(joint, np.outer(joint.sum(axis=1), mean)).sum()
        found[f"explained_by_{name}"] = float(np.clip(information / entropy, 0.0, 1.0))
    return found


def recovery_scores(
    pi: np.ndarray, theta: np.ndarray | None, truth: dict[str, Any], seen: np.ndarray
) -> dict[str, float | list[int]]:
    """Matches components to the true ones (Hungarian method on the seen clients), then measures their distances.

    `pi` are learned weights [T, M], `theta` linear models [M, d]; `truth` may hold both, and "group" int [T].

    Returns:
        If the ground truth is known and sizes agree: pi_cosine_distance, theta_cosine_distance, group_accuracy (the
        share of clients whose largest weight is on their group's component), and match: component m matches the true
        component match[m].

    """
    true_pi = truth.get("pi")
    if true_pi is None and "group" in truth:
        true_pi = np.eye(int(truth["group"].max()) + 1)[truth["group"]]
    if true_pi is None or true_pi.shape[1] != pi.shape[1]:
        return {}
    _, match = linear_sum_assignment(-(pi[seen].T @ true_pi[seen]))
    scores: dict[str, float | list[int]] = {"match": match.tolist()}
    if "pi" in truth:
        scores["pi_cosine_distance"] = float(distance.cosine(pi[seen].ravel(), true_pi[seen][:, match].ravel()))
    if theta is not None and "theta" in truth:
        scores["theta_cosine_distance"] = float(distance.cosine(theta.ravel(), truth["theta"][match].ravel()))
    if "group" in truth:
        found = match[pi[seen].argmax(axis=1)]
        scores["group_accuracy"] = float((found == truth["group"][seen]).mean())
    return scores


def group_scores(found: np.ndarray, true: np.ndarray) -> dict[str, float | int]:
    """Agreement of the groups that an algorithm found with the true groups, int [T] each.

    Returns:
        adjusted_rand_index: 1 for the same groups in any numbering, about 0 for random groups or a single group;
        groups_found: number of groups. Empty if every client is a group of its own.

    """
    n_found = len(np.unique(found))
    if n_found == len(found):
        return {}
    return {"adjusted_rand_index": float(adjusted_rand_score(true, found)), "groups_found": n_found}
