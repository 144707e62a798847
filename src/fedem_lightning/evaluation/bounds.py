"""Generalisation bounds as diagnostics: should a client learn alone, with all, with its cluster, or in between?

Mansour, Mohri, Ro, Suresh: "Three Approaches for Personalization with Applications to Federated Learning", 2020, arXiv
2002.10619; equation numbers are the paper's. The bounds hide constants, need a loss of at most 1 and hold with
probability 1 - delta; here constants are 1 and terms with delta are left out. So the terms can be compared with one
another, and show how each part grows. They guarantee nothing, and are no estimates of a test error.

Symbols: T clients, k one of them with n_k training samples, n their sum, H models h, q clusters, and d the
pseudo-dimension of the models. For networks d is not known. The number of parameters is the usual substitute, but
crude: if it exceeds n the terms are above 1, which is vacuous, and only show that clients should not learn alone. A
smaller d gives a better comparison, for instance the d for which sqrt(d / n_k) is the gap between test and training
loss of `local`. For losses of up to B use B^2 d in place of d.
"""

import numpy as np

UNDECIDED = (0.05, 0.95)
"""Weights of a client's own data between which a model is an interpolation; beyond, it is nearly global or local."""


def skewness(sizes: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Skewness (B.2): s(lambda, m) = sum_k lambda_k^2 / (n_k / n), how far weights are from the clients' sizes.

    Args:
        sizes: n_k, [T].
        weights: lambda, [T], any scale; None: equal weights.

    Returns:
        1 for lambda_k = n_k / n, else more.

    """
    share = np.ones(len(sizes)) / len(sizes) if weights is None else weights / np.sum(weights)
    return float(np.sum(share**2 * np.sum(sizes) / sizes))


def discrepancies(losses: np.ndarray, sizes: np.ndarray, groups: np.ndarray | None = None) -> np.ndarray:
    """Discrepancies (Sec. 2.3): disc(D_k, C) = max_h |L_k(h) - L_C(h)| over some models, a lower estimate.

    Args:
        losses: L_k(h), the mean loss of each client's samples under each model, [H, T].
        sizes: n_k, [T].
        groups: group of each client, [T]; C is the pool of its group's samples. None: C is the pool of all samples.

    Returns:
        The discrepancies [T], in the unit of the losses; 0 without models.

    """
    _, group = np.unique(np.zeros(len(sizes)) if groups is None else groups, return_inverse=True)
    member = group[:, None] == np.arange(group.max() + 1)  # [T, q]
    pooled = (losses * sizes) @ member / (sizes @ member)  # [H, q]
    return np.abs(losses - pooled[:, group]).max(axis=0, initial=0.0)


def local_term(sizes: np.ndarray, dimension: float) -> np.ndarray:
    """The term of local training, Eq. 1: sqrt(d / n_k), [T]."""
    return np.sqrt(dimension / sizes)


def global_term(n: int, dimension: float, discrepancy: np.ndarray) -> np.ndarray:
    """The term of a global model, Eq. 2: sqrt(d / n) + disc(D_k, U), the discrepancy to all n samples; [T]."""
    return np.sqrt(dimension / n) + discrepancy


def cluster_term(n: int, n_clients: int, n_clusters: int, dimension: float, discrepancy: np.ndarray) -> np.ndarray:
    """The term of clusters, Cor. 4.2 ff.: sqrt(d q / n log(e n / d)) + sqrt(T log(2 q) / n) + disc(D_k, C_f(k)).

    The paper has a mean over clients; here the last term is that of each client. The logarithms, which Eq. 1 and 2
    hide, are kept: they are the price of clusters. For d > n, which the corollary excludes, log(e n / d) is 1.

    Args:
        n, n_clients, n_clusters: samples and clients that train; q.
        dimension: d.
        discrepancy: discrepancy of each client to the samples of its cluster, [T].

    """
    complexity = dimension * n_clusters / n * max(1.0, np.log(np.e * n / dimension))
    return np.sqrt(complexity) + np.sqrt(n_clients * np.log(2 * n_clusters) / n) + discrepancy


def interpolation_term(
    sizes: np.ndarray, n: int, dimension: float, discrepancy: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The term of Dapper, Lemma 5.1: min_lambda sqrt(d (lambda^2 / n_k + (1 - lambda)^2 / n)) + (1 - lambda) disc.

    The first part is the lemma's; the second, with disc(D_k, C), is the excess loss on D_k of a model of lambda D_k +
    (1 - lambda) C. At lambda = 1 the term is `local_term`, at 0 `global_term`. In the lemma C has no samples of the
    client.

    Args:
        sizes: n_k, [T].
        n: number of samples of C.
        dimension: d.
        discrepancy: disc(D_k, C), [T].

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
    """The way each client should learn, by its smallest term: local, global, cluster or interpolate.

    It is "interpolate" if that term is the smallest and its best lambda lies in (0.05, 0.95). Otherwise it is the
    smallest of the other terms, the first of equal ones: a lambda near 0 or 1 is nearly the global or the local model,
    which cost less. In a federation of few clients (under 20 of equal size) lambda is always above 0.05.

    Args:
        terms: "local", "global", "interpolate" and, where clusters are known, "cluster", [T] each.
        share: the best lambda, [T].

    Returns:
        The suggestions, str [T].

    """
    names = [name for name in ("local", "global", "cluster") if name in terms]
    single = np.stack([terms[name] for name in names])  # [2 or 3, T]
    inside = (share > UNDECIDED[0]) & (share < UNDECIDED[1]) & (terms["interpolate"] <= single.min(axis=0))
    return np.where(inside, "interpolate", np.array(names)[single.argmin(axis=0)])
