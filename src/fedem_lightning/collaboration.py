"""Who should learn with whom: clients' gradients at a common point, coefficients from their distances, streams, a map.

Mestoukirdi, Zecchin, Gesbert, Li, Gresset: "User-Centric Federated Learning", 2021, Section III; equation numbers are
the paper's.
"""

import re
from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.decomposition import KernelPCA
from sklearn.metrics import silhouette_score
from torch import Tensor

from fedem_lightning.aggregation import Models
from fedem_lightning.client_store import ClientStore
from fedem_lightning.data.federation import Block
from fedem_lightning.errors import UserError, require
from fedem_lightning.local_solver import Gradient, Learner, LocalStep
from fedem_lightning.randomness import Purpose, fold

if TYPE_CHECKING:
    from fedem_lightning.algorithms.base import FederatedAlgorithm

MATRIX_LIMIT = 2_000
"""Clients up to which W itself is kept and shown; more of them are no picture, and every checkpoint would hold it."""

DENSE_LIMIT = 500
"""Clients up to which all eigenvectors are found exactly; beyond, the first two by random projections."""


def compared_parameters(params: Models, pattern: str | None) -> Models:
    """The parameters whose names the expression is found in; None: all.

    Raises:
        UserError: it is no regular expression, or is found in no name.

    """
    try:
        kept = {name: rows for name, rows in params.items() if pattern is None or re.search(pattern, name)}
    except re.error as error:
        raise UserError(f"algorithm.compared: {pattern!r} is no regular expression ({error})") from error
    names = ", ".join(params)
    require(len(kept) > 0, f"algorithm.compared: {pattern!r} is in no parameter's name; they are {names}")
    return kept


class GradientStep(LocalStep):
    """Adds the gradient of a batch's summed loss to the learner's "total"; its params stay."""

    def mean_loss(self, losses: Tensor, weight: Tensor, size: Tensor) -> Tensor:
        """The sum: losses and weight [..., B] -> [...]."""
        return (weight * losses).sum(dim=-1) / self.task.n_targets

    def advance(self, learner: Learner, gradient: Gradient) -> None:
        """No step."""
        for total, g in zip(learner["total"].values(), gradient(learner), strict=True):
            total.add_(g)


def gradients(
    algorithm: "FederatedAlgorithm", block: Block, n_parts: int, compared: Collection[str]
) -> tuple[Models, Tensor]:
    """Each client's gradient at component 0, and how much it varies between parts of its samples (Eq. 7).

        g_i = (1/n_i) sum over D_i of grad l,    sigma_i^2 = (1/K) sum_k |g_i^k - g_i|^2

    Args:
        algorithm: its engine computes them, in training mode.
        block: the clients and their samples.
        n_parts: K, disjoint parts of a client's samples, drawn at random, of equal size up to one sample.
        compared: names of the parameters whose gradients are wanted.

    Returns:
        g [C, 1, ...] and sigma^2 [C]; a client with a single part that is not empty has NaN.

    """
    counts, part = block.counts(), _parts(block, n_parts, algorithm.seed)
    theta = {name: rows[:, :1] for name, rows in algorithm.broadcast(block.clients).items()}  # [C, 1, ...]
    step = algorithm.local_step(block, 0, GradientStep)
    found, sizes = [], []  # K x [C, 1, ...], K x [C]
    for k in range(n_parts):
        mine = part == k
        piece = Block(block.federation, block.clients, block.index[mine], block.owner[mine])
        zeros = {name: torch.zeros_like(rows) for name, rows in algorithm.params_of(theta).items()}
        extra = {"total": zeros}
        trained = algorithm.solve(theta, piece, 0, step=step, extra=extra, epochs=1, keep_momentum=False)
        found.append({name: rows for name, rows in trained["total"].items() if name in compared})
        sizes.append(piece.counts())
    mean = {name: _over(sum(total[name] for total in found), counts) for name in found[0]}
    variance, filled = mean_square(found, sizes, mean), sum((size > 0).long() for size in sizes)
    return mean, torch.where(torch.as_tensor(filled) > 1, variance / filled, torch.nan)


def mean_square(found: list[Models], sizes: list[Tensor], mean: Models) -> Tensor:
    """sum_k |g^k - g|^2 over the parts that are not empty, float64 [C]."""
    total = torch.zeros(len(sizes[0]), dtype=torch.float64, device=sizes[0].device)
    for sums, size in zip(found, sizes, strict=True):
        for name, rows in sums.items():
            squares = (_over(rows, size) - mean[name]).flatten(1).double().square().sum(dim=1)
            total += torch.where(size > 0, squares, 0.0)
    return total


def _over(total: Tensor | int, counts: Tensor) -> Tensor:
    """A sum [C, ...] divided by numbers of samples [C]; 0 without any."""
    assert isinstance(total, Tensor)
    return total / counts.clamp(min=1).view(-1, *[1] * (total.ndim - 1))


def _parts(block: Block, n_parts: int, seed: int) -> Tensor:
    """The part of each sample, int64 [n]: its client's samples are shuffled and cut into `n_parts`."""
    owner, counts = block.owner, block.counts()
    order = torch.argsort((owner << 32) | fold(seed, Purpose.COLLABORATION, block.index), stable=True)
    rank = torch.arange(len(owner), device=owner.device) - (counts.cumsum(0) - counts)[owner]
    part = torch.empty_like(owner)
    part[order] = rank * n_parts // counts[owner]
    return part


def coefficients(distance: Tensor, noise: Tensor, other_noise: Tensor, counts: Tensor, rule: str) -> Tensor:
    """The weights of Eq. 6 before they are scaled to sum to 1: n_j exp(-Delta_ij / (2 sigma_i sigma_j)).

    Args:
        distance: Delta, squared distances of gradients, float64 [C, T].
        noise: sigma^2 [C]; other_noise: sigma^2 [T]. NaN stands for the mean of the known ones.
        counts: n_j [T].
        rule: "eq6", or "common": one sigma for all, sigma^2 being the mean.

    Returns:
        float64 [C, T]; a client has n_i for itself, so that no row is empty.

    """
    mean = other_noise.nanmean()
    sigma, other_sigma = (torch.where(v.isnan(), mean, v).sqrt() for v in (noise, other_noise))
    scale = 2 * mean if rule == "common" else 2 * sigma.unsqueeze(1) * other_sigma
    exponent = torch.where(distance > 0, distance / scale, 0.0)
    return counts.double() * torch.exp(-exponent)


def squared_norms(gradients: ClientStore, clients: Tensor) -> Tensor:
    """|g_i|^2, float64 [C]."""
    parts = [
        sum(rows.flatten(1).double().square().sum(dim=1) for rows in gradients.read(part).values())
        for part in clients.split(64)
    ]
    return torch.cat(parts)  # type: ignore[arg-type]


def squared_distances(products: Tensor, squares: Tensor, other_squares: Tensor) -> Tensor:
    """|a_i - b_j|^2 from inner products [C, T] and squared norms [C], [T]; overwrites `products`."""
    distance = products.mul_(-2).add_(squares.unsqueeze(1)).add_(other_squares).clamp_(min=0)
    return distance.nan_to_num_(torch.inf, torch.inf)  # norms that overflow


def find_streams(w: np.ndarray, n_streams: int, seed: int) -> np.ndarray:
    """K-means on the rows of W [T, T]: the stream of each client, int [T]."""
    return KMeans(n_streams, n_init=10, random_state=seed).fit_predict(w)


def silhouettes(w: np.ndarray, largest: int, seed: int) -> dict[int, float]:
    """The silhouette score of k streams, for k = 2..largest that leave at least two clients in some stream."""
    n_distinct = len(np.unique(w, axis=0))
    candidates = range(2, min(largest, n_distinct, len(w) - 1) + 1)
    return {k: float(silhouette_score(w, find_streams(w, k, seed))) for k in candidates}


def stream_weights(rows: Tensor, w: Tensor, labels: Tensor) -> Tensor:
    """The clients' weights in each stream: what its members share, or else their mean row (the centroid).

    Args:
        rows: of Eq. 6, any scale [T, T].
        w: the same, scaled to sum to 1.
        labels: the stream of each client, 0..k-1, int64 [T].

    Returns:
        Any scale, [k, T].

    """
    weights = w.new_zeros(int(labels.max()) + 1, w.shape[1])
    for c in range(len(weights)):
        members = rows[labels == c]
        alike = bool((members == members[0]).all())
        weights[c] = members[0] if alike else w[labels == c].mean(dim=0)
    return weights


def plane(distance: Tensor, seed: int) -> Tensor:
    """Classical multidimensional scaling: points in the plane, as far apart as can be as they are given.

    Args:
        distance: squared distances, float64 [T, T]; overwritten, for it may be large.
        seed: of the random projections.

    Returns:
        float64 [T, 2], along the two directions of largest variance; NaN if distances overflow or are rounding alone.

    """
    points = distance.new_zeros(len(distance), 2)
    solver = "dense" if len(distance) <= DENSE_LIMIT else "randomized"
    scaling = KernelPCA(2, kernel="precomputed", eigen_solver=solver, copy_X=False, random_state=seed)
    try:
        found = scaling.fit_transform(distance.mul_(-0.5).cpu().numpy())  # it takes the means off
    except ValueError:  # not finite, or no positive eigenvalue
        return points.fill_(torch.nan)
    points[:, : found.shape[1]] = torch.from_numpy(found)  # one client has one axis
    return points
