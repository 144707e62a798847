"""Diagnostics of components: dead and equal ones, their agreement, and recovery of the ground truth."""

from typing import Any

import numpy as np
import torch
from scipy import special
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from fedem_lightning.aggregate import Models
from fedem_lightning.data.block import Block
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.randomness import keyed_streams
from fedem_lightning.data.tasks import known
from fedem_lightning.evaluate.scores import scored_clients
from fedem_lightning.method import Method
from fedem_lightning.models.em import responsibilities
from fedem_lightning.models.tensors import call_with

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
    algorithm: Method, federation: Federation, components: Models, pi: Tensor | None = None
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
    if pi is None or not q:
        return found
    by = {"label": (block.y(), getattr(task, "n_classes", 0)), "client": (block.owner, len(block.clients))}
    shares = {name: explained(torch.cat(q), *numbers) for name, numbers in by.items()}
    return found | {f"explained_by_{name}": share for name, share in shares.items() if share is not None}


def explained(q: Tensor, number: Tensor, size: int) -> float | None:
    """How much a sample's label or client, `number` int64 [n] in 0..size-1, says of its component, q [n, M] of Eq. 8.

    That is their mutual information as a share of the components' entropy. A mixture that tells clients apart has a
    large share for clients; one that only splits the classes has a large share for labels. With few samples a client,
    its share is too large by about (M - 1) (C - 1) / (2 n) nats of n samples of C clients. None where one component has
    nearly all samples.
    """
    joint = np.zeros((q.shape[1], size))
    np.add.at(joint.T, number.long().cpu().numpy(), q.double().cpu().numpy())
    p = joint / joint.sum()
    entropy = special.entr(p.sum(axis=1)).sum()
    information = special.rel_entr(p, np.outer(p.sum(axis=1), p.sum(axis=0))).sum()
    return None if entropy < LEAST_ENTROPY else float(np.clip(information / entropy, 0.0, 1.0))


def cosine_distance(a: np.ndarray, b: np.ndarray) -> float:
    """Cosine distance 1 - <a, b>_F / (|a| |b|) of arrays of equal shape."""
    return float(1.0 - (a * b).sum() / (np.linalg.norm(a) * np.linalg.norm(b)))


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
        scores["pi_cosine_distance"] = cosine_distance(pi[seen], true_pi[seen][:, match])
    if theta is not None and "theta" in truth:
        scores["theta_cosine_distance"] = cosine_distance(theta, truth["theta"][match])
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
