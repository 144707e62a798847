"""What became of a mixture's components: whether they found the truth of generated data (FedEM, Appendix J.4), and
whether any of them collapsed. And whether groups of clients are the true ones.
"""

from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_rand_score


def cosine_distance(a: np.ndarray, b: np.ndarray) -> float:
    """1 - <a, b>_F / (|a| |b|), for arrays of equal shape."""
    return float(1.0 - (a * b).sum() / (np.linalg.norm(a) * np.linalg.norm(b)))


def recovery_scores(
    pi: np.ndarray, theta: np.ndarray | None, truth: dict[str, Any], seen: np.ndarray
) -> dict[str, float | list[int]]:
    """Matches components to the true ones (Hungarian method on the seen clients), then measures.

    Args:
        pi: learned mixture weights [T, M]; theta: learned linear models [M, d], or None.
        truth: may hold "pi" [T, M], "theta" [M, d], "group" int [T].
        seen: bool [T].

    Returns:
        As far as the truth is known and sizes agree: pi_cosine_distance, theta_cosine_distance, group_accuracy (the
        share of clients whose largest weight is on their group's component), and match: component m is true
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
    """Whether clients that an algorithm put together belong together.

    Args:
        found, true: the groups of the same clients, int [T].

    Returns:
        adjusted_rand_index: 1 for the same groups, whatever they are called, about 0 for groups by chance or one for
        all; groups_found. Nothing where each client is alone: these are no groups.

    """
    n_found = len(np.unique(found))
    if n_found == len(found):
        return {}
    return {"adjusted_rand_index": float(adjusted_rand_score(true, found)), "groups_found": n_found}


DEAD = 0.05
"""A component with less than this share of its fair share 1 / M of the weights is dead, for runs and reports."""

TWINS = 0.05
"""Two components nearer than this, relative to the longer one, are twins: EM can hardly part them again."""


def dead_components(pi: np.ndarray) -> list[int]:
    """Components that hardly any client uses: pi [T, M], T at least 1."""
    return np.flatnonzero(pi.mean(axis=0) < DEAD / pi.shape[1]).tolist()


def component_health(pi: np.ndarray, components: np.ndarray) -> dict[str, list[Any]]:
    """Which components nobody uses, and which are the same.

    Twins are found by their parameters; networks that compute the same from permuted units are not.

    Args:
        pi: mixture weights of the clients [T, M]; components: their parameters [M, D].

    Returns:
        mean_weights: of each component over clients; dead: components; twins: pairs of components.

    """
    n_components, norms = len(components), np.linalg.norm(components, axis=1)
    twins = [
        [a, b]
        for a in range(n_components)
        for b in range(a + 1, n_components)
        if np.linalg.norm(components[a] - components[b]) < TWINS * max(norms[a], norms[b], np.finfo(float).tiny)
    ]
    return {
        "mean_weights": pi.mean(axis=0).tolist(),
        "dead": dead_components(pi),
        "twins": twins,
    }
