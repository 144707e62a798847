"""Collaboration: what clients' gradients say (client side), and the weights and streams that follow (server side).

Mestoukirdi, Zecchin, Gesbert, Li, Gresset: "User-Centric Federated Learning", 2021, Section III; equation numbers are
the paper's.
"""

from typing import Literal

import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.decomposition import KernelPCA
from torch import Tensor

from fedem_lightning.aggregate import Models
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.data.randomness import Purpose, fold
from fedem_lightning.method import Method

Similarity = Literal["eq6", "cosine"]

DENSE_LIMIT = 500  # clients for which eigenvectors are exact; beyond, random projections give the first ones
AXES = 50  # in which k-means sees the gradients' directions, beyond `DENSE_LIMIT` clients


def gradients(algorithm: Method, block: Block, n_parts: int, explained: Models) -> tuple[Models, Tensor]:
    """Each client's gradient at component 0, and its variance over parts of the client's samples (Eq. 7).

        g_i = (1/n_i) sum over D_i of grad l,    sigma_i^2 = (1/K) sum_k |g_i^k - g_i|^2

    K is `n_parts`: disjoint parts of a client's samples, drawn at random, of equal size up to one sample. `explained`
    is subtracted from each sample's gradient, by its class, [Y, 1, ...]; see `class_gradients`.

    Returns:
        g [C, 1, ...] and sigma^2, float64 [C]; it is NaN for a client of whose parts all but one are empty.

    """
    counts, part = block.counts(), _parts(block, n_parts, algorithm.seed)
    pieces, result = [_where(block, part == k) for k in range(n_parts)], []
    for piece in pieces:
        less = _explained(piece, explained)
        result.append({name: rows - less[name] for name, rows in _sums(algorithm, piece).items()})
    mean = {name: _over(sum((sums[name] for sums in result[1:]), result[0][name]), counts) for name in explained}
    variance, n_filled = torch.zeros(len(counts), dtype=torch.float64, device=counts.device), torch.zeros_like(counts)
    for sums, size in zip(result, (piece.counts() for piece in pieces), strict=True):
        n_filled += size > 0
        for name, rows in sums.items():
            squares = (_over(rows, size) - mean[name]).flatten(1).double().square().sum(dim=1)
            variance += torch.where(size > 0, squares, 0.0)
    return mean, torch.where(n_filled > 1, variance / n_filled, torch.nan)


def class_gradients(algorithm: Method, federation: Federation, n_classes: int) -> Models:
    """The mean gradient of each class's samples at component 0, over all clients that train, [Y, 1, ...].

    If all clients had the same x given y, client i's gradient would be sum_y p_i(y) mean_y, p_i its label frequencies.
    With `n_classes=1` it is the mean over all samples. It is 0 for a class without samples.
    """
    clients = federation.clients()
    counts, total = torch.zeros(n_classes, dtype=torch.int64, device=clients.device), dict[str, Tensor]()
    for k in range(n_classes):
        for block in algorithm.local.blocks(federation, clients):
            part = _where(block, _kinds(block, n_classes) == k)
            counts[k] += len(part.index)
            for name, rows in _sums(algorithm, part).items():
                total.setdefault(name, rows.new_zeros(n_classes, *rows.shape[1:]))[k] += rows.sum(dim=0)
    return {name: _over(rows, counts) for name, rows in total.items()}


def _sums(algorithm: Method, block: Block) -> Models:
    """Summed gradients at component 0, [C, 1, ...]."""
    return algorithm.local.summed_gradients(algorithm.received(block.clients), block, 0)


def _explained(piece: Block, means: Models) -> Models:
    """The sum of the mean gradients of the samples' classes, over each client's samples, [C, 1, ...]."""
    n_classes, n_clients = len(next(iter(means.values()))), len(piece.clients)
    pairs = piece.owner * n_classes + _kinds(piece, n_classes)
    each = torch.bincount(pairs, minlength=n_clients * n_classes).view(n_clients, n_classes)  # sample counts, [C, Y]
    return {name: torch.tensordot(each.to(rows), rows, 1) for name, rows in means.items()}


def _kinds(block: Block, n_classes: int) -> Tensor:
    """The class of each sample, int64 [n]; 0 for all if there is one class."""
    return block.y().long() if n_classes > 1 else torch.zeros_like(block.owner)


def _where(block: Block, mine: Tensor) -> Block:
    return Block(block.federation, block.clients, block.index[mine], block.owner[mine])


def _over(total: Tensor, counts: Tensor) -> Tensor:
    """A sum [C, ...] divided by the numbers of samples [C]; 0 for a client without samples."""
    return total / counts.clamp(min=1).view(-1, *[1] * (total.ndim - 1))


def _parts(block: Block, n_parts: int, seed: int) -> Tensor:
    """The part of each sample, int64 [n]: its client's samples are shuffled and cut into `n_parts`."""
    owner, ranks = block.owner, block.ranks()
    order = torch.argsort((owner << 32) | fold(seed, Purpose.COLLABORATION, block.keys[owner], ranks), stable=True)
    part = torch.empty_like(owner)
    part[order] = ranks * n_parts // block.counts()[owner]
    return part


def coefficients(distance: Tensor, noise: Tensor, other_noise: Tensor, counts: Tensor, rule: Similarity) -> Tensor:
    """Collaboration weights before rows are scaled to sum to 1, float64 [C, T]; `counts` are n_j [T].

    "eq6": n_j exp(-Delta_ij / (2 sigma_i sigma_j)) of squared distances [C, T] and sigma^2 [C] and [T], NaN of which is
    replaced by the mean; "cosine": n_j cos(g_i, g_j), negative values of which become 0 once a stream's are averaged.
    """
    if rule == "cosine":
        return counts.double() * (1 - distance / 2)
    sigma, other_sigma = (torch.where(v.isnan(), other_noise.nanmean(), v).sqrt() for v in (noise, other_noise))
    exponent = torch.where(distance > 0, distance / (2 * sigma.unsqueeze(1) * other_sigma), 0.0)
    return counts.double() * torch.exp(-exponent)


def distances(products: Tensor, squares: Tensor, other_squares: Tensor, rule: Similarity) -> Tensor:
    """Squared distances from inner products [C, T] and squared norms [C], [T]; overwrites `products`.

    "eq6": |a_i - b_j|^2; "cosine": |a_i / |a_i| - b_j / |b_j||^2 = 2 - 2 cos(a_i, b_j). A zero gradient has distance 0.
    """
    if rule == "eq6":
        return products.mul_(-2).add_(squares.unsqueeze(1)).add_(other_squares).clamp_(min=0)
    norms = squares.sqrt().unsqueeze(1) * other_squares.sqrt()  # [C, T]
    cos = torch.where(norms > 0, products.div_(norms), 1.0).clamp_(-1, 1)
    return cos.mul_(-2).add_(2)


def choose_streams(rows: Tensor, points: Tensor, k: int | None, seed: int) -> Tensor:
    """The stream of each client, 0..k-1, int64 [T].

    Args:
        rows: see `coefficients`, [T, T]; if all rows are equal there is one stream.
        points: the clients' coordinates for k-means, [T, *].
        k: number of streams; None: one for each client.
        seed: of k-means.

    """
    if bool((rows == rows[0]).all()):  # one mean for all
        return torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
    if k is None or k == len(rows):
        return torch.arange(len(rows), device=rows.device)
    result = points.cpu().numpy()
    kmeans = KMeans(min(k, len(np.unique(result, axis=0))), n_init=10, random_state=seed)
    return torch.from_numpy(kmeans.fit_predict(result)).long().to(rows.device)


def stream_weights(rows: Tensor, labels: Tensor) -> Tensor:
    """The clients' weights in each stream: its members' row if they share one, else the mean of their scaled rows.

    They are of any scale, none negative, [k, T]; `labels` are the streams 0..k-1 of the clients, int64 [T].
    """
    weights = rows.new_zeros(int(labels.max()) + 1, rows.shape[1])
    for c in range(len(weights)):
        members = rows[labels == c]
        alike = bool((members == members[0]).all())
        weights[c] = (members[0] if alike else scaled(members).mean(dim=0)).clamp(min=0)
        if not weights[c].any():  # opposite members: no weight is positive
            weights[c] = torch.where(labels == c, rows.diagonal(), 0)
    return weights


def scaled(rows: Tensor) -> Tensor:
    """The rows [C, T], scaled so that their positive entries sum to 1."""
    return rows / rows.clamp(min=0).sum(dim=1, keepdim=True)


def coordinates(distance: Tensor, seed: int) -> Tensor:
    """Classical multidimensional scaling: points [T, *] that have the given squared distances, float64 [T, T].

    These are overwritten, because they may be large. For more than `DENSE_LIMIT` clients the points have `AXES` axes,
    by random projections, and approximate the distances. All points are 0 if distances are only rounding errors.
    """
    small = len(distance) <= DENSE_LIMIT
    options = {"eigen_solver": "dense" if small else "randomized", "copy_X": False, "random_state": seed}
    scaling = KernelPCA(len(distance) if small else AXES, kernel="precomputed", **options)
    try:
        points = scaling.fit_transform(distance.mul_(-0.5).cpu().numpy())  # it subtracts the means
    except ValueError:  # no positive eigenvalue
        points = np.zeros((len(distance), 1))
    return torch.from_numpy(points).to(distance)
