"""The health of a mixture's components by their weights and parameters; without PyTorch, as reports read it too."""

from typing import Any

import numpy as np
from scipy import special

DEAD = 0.05
"""A component with less than this fraction of the mean weight 1 / M is dead, in runs and reports."""

TWINS = 0.05
"""Two components nearer than this, relative to the longer one, are twins: EM can hardly make them differ again."""


def dead_components(pi: np.ndarray) -> list[int]:
    """Indices of the components that hardly any client uses: pi [T, M], T at least 1."""
    return np.flatnonzero(pi.mean(axis=0) < DEAD / pi.shape[1]).tolist()


def component_health(pi: np.ndarray, components: np.ndarray) -> dict[str, Any]:
    """Dead components, which no client uses, and twins, which are equal.

    Twins are found by their parameters; networks that differ only by a permutation of units are not found.

    Args:
        pi: mixture weights of the clients [T, M]; components: their parameters [M, D].

    Returns:
        mean_weights: mean weight of each component over clients; effective: exp of their entropy, from 1 to M, the
        number of components that are in use; dead: indices; twins: pairs of indices.

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
        "effective": float(np.exp(special.entr(pi.mean(axis=0)).sum())),
        "dead": dead_components(pi),
        "twins": twins,
    }
