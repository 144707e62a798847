"""Server side of collaboration: weights from distances between clients' gradients, and assignment to streams.

Mestoukirdi, Zecchin, Gesbert, Li, Gresset: "User-Centric Federated Learning", 2021, Section III; equation numbers are
the paper's.
"""

from typing import Literal

import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.decomposition import KernelPCA
from sklearn.metrics import silhouette_score
from torch import Tensor

from fedem_lightning.models.client_store import ClientStore

Similarity = Literal["eq6", "common", "cosine"]

MATRIX_LIMIT = 2_000
"""Largest number of clients for which W is saved and drawn; beyond, the figure is unreadable and checkpoints large."""

DENSE_LIMIT = 500
"""Largest number of clients for which eigenvectors are exact; beyond, random projections give the first ones."""

AXES = 50
"""Dimensions in which k-means sees the gradients' directions, beyond `DENSE_LIMIT` clients."""


def coefficients(distance: Tensor, noise: Tensor, other_noise: Tensor, counts: Tensor, rule: str) -> Tensor:
    """Collaboration weights by Eq. 6, before rows are scaled to sum to 1: n_j exp(-Delta_ij / (2 sigma_i sigma_j)).

    Args:
        distance: Delta, squared distances of gradients (with "cosine" of their directions), float64 [C, T].
        noise: sigma^2 [C]; other_noise: sigma^2 [T]. NaN is replaced by the mean of the known values.
        counts: n_j [T].
        rule: "eq6"; "common": one sigma for all clients, sigma^2 is the mean; "cosine": n_j cos(g_i, g_j), negative
            values of which become 0 after the rows of a stream are averaged.

    Returns:
        float64 [C, T]; a client's weight of itself is n_i, so that no row is all 0.

    """
    if rule == "cosine":
        return counts.double() * (1 - distance / 2)
    mean = other_noise.nanmean()
    sigma, other_sigma = (torch.where(v.isnan(), mean, v).sqrt() for v in (noise, other_noise))
    scale = 2 * mean if rule == "common" else 2 * sigma.unsqueeze(1) * other_sigma
    exponent = torch.where(distance > 0, distance / scale, 0.0)
    return counts.double() * torch.exp(-exponent)


def squared_norms(gradients: ClientStore, clients: Tensor) -> Tensor:
    """|g_i|^2, the squared norms of the clients' gradients, float64 [C]."""
    parts = [
        sum(rows.flatten(1).double().square().sum(dim=1) for rows in gradients.read(part).values())
        for part in clients.split(64)
    ]
    return torch.cat(parts)  # type: ignore[arg-type]


def gradient_distances(products: Tensor, squares: Tensor, other_squares: Tensor) -> Tensor:
    """|a_i - b_j|^2 from inner products [C, T] and squared norms [C], [T]; overwrites `products`."""
    distance = products.mul_(-2).add_(squares.unsqueeze(1)).add_(other_squares).clamp_(min=0)
    return distance.nan_to_num_(torch.inf, torch.inf)  # where norms overflow


def direction_distances(products: Tensor, squares: Tensor, other_squares: Tensor) -> Tensor:
    """|a_i / |a_i| - b_j / |b_j||^2 = 2 - 2 cos(a_i, b_j); overwrites `products`. A zero gradient has distance 0."""
    norms = squares.sqrt().unsqueeze(1) * other_squares.sqrt()  # [C, T]
    cos = torch.where(norms > 0, products.div_(norms), 1.0).clamp_(-1, 1)
    return cos.mul_(-2).add_(2)


def choose_streams(
    rows: Tensor, points: Tensor, n_streams: int | str | None, largest: int, seed: int
) -> tuple[Tensor, dict[str, float]]:
    """The stream of each client, and with "auto" the silhouette score for each number of streams.

    Args:
        rows: see `coefficients`, [T, T]; if all rows are equal there is one stream.
        points: the clients' coordinates for k-means, [T, *].
        n_streams: k; None: one stream for each client; "auto": the k with the largest score, 1 if none is positive.
        largest: the largest k that "auto" tries.
        seed: of k-means.

    Returns:
        int64 [T], 0..k-1.

    """
    n_clients, k = len(rows), n_streams
    scores: dict[int, float] = {}
    if bool((rows == rows[0]).all()):  # one mean for all
        return torch.zeros(n_clients, dtype=torch.int64, device=rows.device), {}
    if k is None or k == n_clients:
        return torch.arange(n_clients, device=rows.device), {}
    found = points.cpu().numpy()
    if k == "auto":
        scores = silhouettes(found, largest, seed)
        best = max(scores, key=scores.__getitem__, default=1)
        k = best if scores.get(best, 0.0) > 0 else 1
    assert isinstance(k, int)
    labels = find_streams(found, min(k, len(np.unique(found, axis=0))), seed)
    return torch.from_numpy(labels).long().to(rows.device), {str(number): score for number, score in scores.items()}


def find_streams(points: np.ndarray, n_streams: int, seed: int) -> np.ndarray:
    """K-means on the clients' points [T, *]: the stream of each client, int [T]."""
    return KMeans(n_streams, n_init=10, random_state=seed).fit_predict(points)


def silhouettes(points: np.ndarray, largest: int, seed: int) -> dict[int, float]:
    """The silhouette score of k streams, for k = 2..largest with which some stream has two clients or more."""
    n_distinct = len(np.unique(points, axis=0))
    candidates = range(2, min(largest, n_distinct, len(points) - 1) + 1)
    return {k: float(silhouette_score(points, find_streams(points, k, seed))) for k in candidates}


def stream_weights(rows: Tensor, labels: Tensor) -> Tensor:
    """The clients' weights in each stream: its members' row if they share one, else the mean of their scaled rows.

    Args:
        rows: see `coefficients`, [T, T].
        labels: the stream of each client, 0..k-1, int64 [T].

    Returns:
        Weights of any scale, none negative, [k, T].

    """
    weights = rows.new_zeros(int(labels.max()) + 1, rows.shape[1])
    for c in range(len(weights)):
        members = rows[labels == c]
        alike = bool((members == members[0]).all())
        weights[c] = (members[0] if alike else scaled(members).mean(dim=0)).clamp(min=0)
        if not weights[c].any():  # opposite members: no weight is positive
            weights[c] = torch.where(labels == c, rows.diagonal(), 0)
    return weights


def with_unknown(
    known: Tensor, w: Tensor, labels: Tensor, weights: Tensor, counts: Tensor, unicast: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Adds the clients whose gradients were rejected: they enter no average, and receive one of the others' models.

    Args:
        known: whether a client's gradient is known, bool [T]; H of them are.
        w: collaboration weights [H, H]; labels: the stream of each client, int64 [H]; weights: in each stream [k, H].
        counts: n_j [H].
        unicast: whether the added clients share a stream of their own, the mean by samples; else they are added to the
            stream with the most samples.

    Returns:
        w [T, T], labels [T], and weights [k, T], or [k + 1, T] if unicast.

    """
    share = w.new_zeros(len(known))
    share[known] = counts.to(w) / counts.sum()
    rows = share.repeat(len(known), 1)
    rows[known.unsqueeze(1) & known] = w.flatten()
    streams = weights.new_zeros(len(weights), len(known))
    streams[:, known] = weights
    largest = int(torch.bincount(labels, counts.double()).argmax())
    where = labels.new_full((len(known),), len(weights) if unicast else largest)
    where[known] = labels
    return rows, where, torch.cat([streams, share.unsqueeze(0)]) if unicast else streams


def member_weights(counts: Tensor, labels: Tensor) -> Tensor:
    """The clients' weights in each stream if only its members count, by their samples n_j [T]: [k, T]."""
    return counts * (labels == torch.arange(int(labels.max()) + 1, device=labels.device).unsqueeze(1))


def scaled(rows: Tensor) -> Tensor:
    """The rows [C, T], scaled so that their positive entries sum to 1."""
    return rows / rows.clamp(min=0).sum(dim=1, keepdim=True)


def coordinates(distance: Tensor, seed: int, n_axes: int | None = 2) -> Tensor:
    """Classical multidimensional scaling: points with few axes whose distances approximate the given ones.

    Args:
        distance: squared distances, float64 [T, T]; overwritten, because it may be large.
        seed: of the random projections.
        n_axes: number of axes, 2 or more; None: T, or `AXES` for more than `DENSE_LIMIT` clients.

    Returns:
        float64 [T, n_axes], largest variance first; NaN if distances overflow or are only rounding errors.

    """
    few = len(distance) <= DENSE_LIMIT
    n_axes = n_axes or max(2, len(distance) if few else AXES)
    points = distance.new_zeros(len(distance), n_axes)
    solver = "dense" if few else "randomized"
    scaling = KernelPCA(
        min(n_axes, len(distance)), kernel="precomputed", eigen_solver=solver, copy_X=False, random_state=seed
    )
    try:
        found = scaling.fit_transform(distance.mul_(-0.5).cpu().numpy())  # it subtracts the means
    except ValueError:  # not finite, or no positive eigenvalue
        return points.fill_(torch.nan)
    points[:, : found.shape[1]] = torch.from_numpy(found)  # one client has one axis
    return points
