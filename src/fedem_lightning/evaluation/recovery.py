"""Recovery of the ground truth of generated data (FedEM, Appendix J.4): components, and groups of clients."""

from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_rand_score


def cosine_distance(a: np.ndarray, b: np.ndarray) -> float:
    """Cosine distance 1 - <a, b>_F / (|a| |b|) of arrays of equal shape."""
    return float(1.0 - (a * b).sum() / (np.linalg.norm(a) * np.linalg.norm(b)))


def recovery_scores(
    pi: np.ndarray, theta: np.ndarray | None, truth: dict[str, Any], seen: np.ndarray
) -> dict[str, float | list[int]]:
    """Matches components to the true ones (Hungarian method on the seen clients), then measures their distances.

    Args:
        pi: learned mixture weights [T, M]; theta: learned linear models [M, d], or None.
        truth: may hold "pi" [T, M], "theta" [M, d], "group" int [T].
        seen: bool [T].

    Returns:
        If the ground truth is known and sizes agree: pi_cosine_distance, theta_cosine_distance, group_accuracy (the
        share of clients whose largest weight is on their group's component), and match: component m matches the true
        component match[m].

    """
    n_components = pi.shape[1]
    if "pi" in truth:
        true_pi = truth["pi"]
    elif "group" in truth:
        true_pi = np.eye(int(truth["group"].max()) + 1)[truth["group"]]
    else:
        return {}
    if true_pi.shape[1] != n_components:
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
    """Agreement of the groups that an algorithm found with the true groups.

    Args:
        found, true: the found and the true group of each client, int [T].

    Returns:
        adjusted_rand_index: 1 for the same groups in any numbering, about 0 for random groups or a single group;
        groups_found: number of groups. Empty if every client is a group of its own.

    """
    n_found = len(np.unique(found))
    if n_found == len(found):
        return {}
    return {"adjusted_rand_index": float(adjusted_rand_score(true, found)), "groups_found": n_found}
