"""Diagnostics of components: dead and equal ones, and recovery of the ground truth."""

from typing import Any

import numpy as np
from scipy import special
from scipy.optimize import linear_sum_assignment

DEAD = 0.05
"""A component with less than this fraction of the mean weight 1 / M is dead."""

TWINS = 0.05
"""Two components nearer than this, relative to the longer one, are twins: EM can hardly make them differ again."""


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
        result = match[pi[seen].argmax(axis=1)]
        scores["group_accuracy"] = float((result == truth["group"][seen]).mean())
    return scores
