"""Generalisation bounds as diagnostics: should a client learn alone, with all, with its cluster, or in between?

Mansour, Mohri, Ro, Suresh: "Three Approaches for Personalization with Applications to Federated Learning", 2020, arXiv
2002.10619; equation numbers are the paper's. The bounds hide constants, ask for a loss of at most 1 and hold with a
probability 1 - delta; here constants are 1 and terms with delta are left out. So the terms say which part grows with
what and can be compared with one another. They guarantee nothing, and no test error should be read from them.

Symbols: T clients, k one of them with n_k training samples, n their sum, H models h, q clusters, and d the
pseudo-dimension of the models. For networks d is not known. The number of parameters, the usual stand-in, is crude:
where it exceeds n the terms are above 1, which is vacuous, and say little more than that clients should not learn
alone. A smaller d, for instance such that sqrt(d / n_k) is what `local` loses on test samples compared with training
samples, compares better. A loss of up to B has B^2 d in place of d.
"""

import numpy as np

UNDECIDED = (0.05, 0.95)
"""Between these a weight of the client's own data is an interpolation; beyond them it is nearly global or local."""


def skewness(sizes: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Of B.2: s(lambda, m) = sum_k lambda_k^2 / (n_k / n), how far weights are from the sizes.

    Args:
        sizes: n_k, [T].
        weights: lambda, [T], any scale; None: all clients alike.

    Returns:
        1 for lambda_k = n_k / n, else more.

    """
    share = np.ones(len(sizes)) / len(sizes) if weights is None else weights / np.sum(weights)
    return float(np.sum(share**2 * np.sum(sizes) / sizes))


def discrepancies(losses: np.ndarray, sizes: np.ndarray, groups: np.ndarray | None = None) -> np.ndarray:
    """Sec. 2.3: disc(D_k, C) = max_h |L_k(h) - L_C(h)| over some models, a lower estimate of that over all.

    Args:
        losses: L_k(h), the mean loss of each client's samples under each model, [H, T].
        sizes: n_k, [T].
        groups: what C is for each client: the pool of all samples of its group, [T]; None: of all clients.

    Returns:
        [T], in the unit of the losses; 0 without models.

    """
    _, group = np.unique(np.zeros(len(sizes)) if groups is None else groups, return_inverse=True)
    member = group[:, None] == np.arange(group.max() + 1)  # [T, q]
    pooled = (losses * sizes) @ member / (sizes @ member)  # [H, q]
    return np.abs(losses - pooled[:, group]).max(axis=0, initial=0.0)


def local_term(sizes: np.ndarray, dimension: float) -> np.ndarray:
    """Eq. 1: sqrt(d / n_k), [T]."""
    return np.sqrt(dimension / sizes)


def global_term(n: int, dimension: float, discrepancy: np.ndarray) -> np.ndarray:
    """Eq. 2: sqrt(d / n) + disc(D_k, U), with the discrepancies [T] to all n samples; [T]."""
    return np.sqrt(dimension / n) + discrepancy


def cluster_term(n: int, n_clients: int, n_clusters: int, dimension: float, discrepancy: np.ndarray) -> np.ndarray:
    """Cor. 4.2 and after it: sqrt(d q / n log(e n / d)) + sqrt(T log(2 q) / n) + disc(D_k, C_f(k)).

    The paper's is a mean over clients; the last term is each client's own here. Its logarithms, which Eq. 1 and 2 hide,
    stay, so that clusters must be worth them. Where d > n, which the corollary excludes, log(e n / d) is 1.

    Args:
        n, n_clients, n_clusters: samples and clients that train; q.
        dimension: d.
        discrepancy: of each client to the samples of its cluster, [T].

    """
    complexity = dimension * n_clusters / n * max(1.0, np.log(np.e * n / dimension))
    return np.sqrt(complexity) + np.sqrt(n_clients * np.log(2 * n_clusters) / n) + discrepancy


def interpolation_term(
    sizes: np.ndarray, n: int, dimension: float, discrepancy: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Lemma 5.1, Dapper: min_lambda sqrt(d (lambda^2 / n_k + (1 - lambda)^2 / n)) + (1 - lambda) disc(D_k, C).

    The first part is the lemma's; the second is what a model of lambda D_k + (1 - lambda) C loses on D_k. At lambda = 1
    it is `local_term`, at 0 `global_term`. The lemma takes C's samples to be others than the client's.

    Args:
        sizes: n_k, [T].
        n: samples of C.
        dimension: d.
        discrepancy: of each client to C, [T].

    Returns:
        The term and the best lambda, [T] each.

    """
    # with u = (1/n_k + 1/n) lambda - 1/n the derivative is 0 at u^2 (d (1/n_k + 1/n) - disc^2) = disc^2 / (n_k n)
    both = 1 / sizes + 1 / n
    slack = dimension * both - discrepancy**2
    u = discrepancy * np.sqrt(1 / (sizes * n) / np.where(slack > 0, slack, 1.0))
    share = np.where(slack > 0, np.minimum(1.0, (1 / n + u) / both), 1.0)
    deviation = np.sqrt(dimension * (share**2 / sizes + (1 - share) ** 2 / n))
    return deviation + (1 - share) * discrepancy, share


def suggest(terms: dict[str, np.ndarray], share: np.ndarray) -> np.ndarray:
    """Which way each client should learn by the smallest of its terms: local, global, cluster or interpolate.

    "interpolate" if its term is the smallest and its best lambda lies inside (0.05, 0.95). Otherwise the smallest of
    the others, the first one of equals: a lambda near 0 or 1 is the global or the local model for a lower price.
    Clients that share a federation with few others (under 20 of equal size) have a lambda above 0.05 in any case.

    Args:
        terms: "local", "global", "interpolate" and, where clusters are known, "cluster", [T] each.
        share: the best lambda, [T].

    Returns:
        str [T].

    """
    names = [name for name in ("local", "global", "cluster") if name in terms]
    single = np.stack([terms[name] for name in names])  # [2 or 3, T]
    inside = (share > UNDECIDED[0]) & (share < UNDECIDED[1]) & (terms["interpolate"] <= single.min(axis=0))
    return np.where(inside, "interpolate", np.array(names)[single.argmin(axis=0)])
