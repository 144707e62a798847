"""How FedGMM's Gaussians are fitted: where they start, what clients send, and what the server makes of it."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from fedem_lightning.aggregation import Models
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.errors import require
from fedem_lightning.models.gaussians import embedded, regularized
from fedem_lightning.models.personal_models import client_means
from fedem_lightning.randomness import Purpose, generator


class Start(NamedTuple):
    """The embedding's center [d_in] and projection [d_in, d], both empty without one; means [M, d]; covariance."""

    center: Tensor
    projection: Tensor
    means: Tensor
    covariance: Tensor  # of all embedded samples, [d] or [d, d]


def start(federation: Federation, embedding: str, dimension: int, n_gaussians: int, full: bool, seed: int) -> Start:
    """The start, float64; unseen clients have no part in it.

    Args:
        federation: whose seen clients' training samples are read.
        embedding: "inputs", "pca" or "random".
        dimension: d, of the last two.
        n_gaussians: M; each mean is a sample, drawn at random.
        full: whether the covariance is a matrix; if not, the variances.
        seed: of the draws.

    Raises:
        UserError: d is larger than the number of inputs, or there are fewer samples than Gaussians.

    """
    block, rng = federation.block(federation.clients(), "train"), generator(seed, Purpose.INITIAL)
    x = federation.samples.features(block.index[:1], torch.float64)
    n_inputs = x[0].numel()
    center, projection = x.new_zeros(0), x.new_zeros(0, 0)
    if embedding != "inputs":
        fits = dimension <= n_inputs
        require(fits, f"algorithm.dimension: expected at most {n_inputs}, the number of inputs, got {dimension}")
    if embedding == "pca":
        center, covariance = moments((p.x(torch.float64).flatten(1) for p in block.pieces()), full=True)
        projection = principal_axes(covariance, dimension)
    elif embedding == "random":
        center = x.new_zeros(n_inputs)
        projection = torch.from_numpy(rng.normal(size=(n_inputs, dimension)) / dimension**0.5).to(x)
    _, covariance = moments((embedded(p.x(torch.float64), center, projection) for p in block.pieces()), full)
    positions = block.index.sort().values  # so that the draw does not depend on the clients' numbers
    drawn = rng.choice(len(positions), size=min(len(positions), 8 * n_gaussians), replace=False)
    some = federation.samples.features(positions[torch.from_numpy(drawn).to(positions)], x.dtype)
    z = embedded(some, center, projection)
    z = z[z.square().sum(dim=1).isfinite()]
    enough = len(z) >= n_gaussians
    require(enough, f"algorithm.n_gaussians: expected at most {len(z)}, the number of samples, got {n_gaussians}")
    return Start(center, projection, z[:n_gaussians], covariance)


def moments(samples: Iterator[Tensor], full: bool) -> tuple[Tensor, Tensor]:
    """The mean, float64 [d], and the variances [d] or the covariance [d, d] of samples, given in parts [n, d].

    Samples that are not finite, or so large that their squares are not, are left out.
    """
    count, first, second = 0, torch.zeros(()), torch.zeros(())
    for part in samples:
        z = part.double()
        z = z[z.square().sum(dim=1).isfinite()]
        count, first = count + len(z), first.to(z) + z.sum(dim=0)
        second = second.to(z) + (z.T @ z if full else z.square().sum(dim=0))
    mean = first / max(1, count)
    return mean, second / max(1, count) - (torch.outer(mean, mean) if full else mean.square())


def principal_axes(covariance: Tensor, dimension: int) -> Tensor:
    """The `dimension` directions of the largest variance, [d_in, d]; each one's largest entry is positive."""
    axes = torch.linalg.eigh(covariance).eigenvectors.flip(1)[:, :dimension]
    largest = axes.gather(0, axes.abs().argmax(dim=0, keepdim=True))
    return axes * largest.sign()


def moments_about(means: Tensor, z: Tensor, q: Tensor, block: Block, full: bool) -> Models:
    """What each client sends: the means over its samples of q, of q d and of q d d', with d = z - mu.

    Args:
        means: mu, [M, d].
        z: embedded samples [n, d].
        q: responsibilities of the Gaussians, [n, M].
        block: C clients and the samples.
        full: whether d d' is a matrix; if not, its diagonal.

    Returns:
        "mass" [C, M], "first" [C, M d], and "second" [C, M d d] or [C, M d].

    """
    first, second, counts = [], [], block.counts().tolist()
    for mean, weight in zip(means, q.T, strict=True):
        delta = z - mean
        weighted = weight.unsqueeze(1) * delta
        first.append(client_means(weighted, block))
        if full:
            parts = zip(weighted.split(counts), delta.split(counts), strict=True)
            second.append(torch.stack([(w.T @ d).flatten() / max(1, len(d)) for w, d in parts]))
        else:
            second.append(client_means(weighted * delta, block))
    return {"mass": client_means(q, block), "first": torch.cat(first, dim=1), "second": torch.cat(second, dim=1)}


def fitted(means: Tensor, covariances: Tensor, sums: Models, regularization: float) -> tuple[Tensor, Tensor]:
    """The new mu and Sigma, in closed form from the clients' mean moments about the old mu.

    Args:
        means: the old ones, [M, d].
        covariances: the old ones, [M, d] or [M, d, d]. A Gaussian without samples stays as it is.
        sums: the means of what clients sent, [1, ...] each.
        regularization: is added to the variances.

    """
    mass = sums["mass"][0]
    shift = sums["first"][0].view_as(means) / along(mass, means)
    second = sums["second"][0].view_as(covariances) / along(mass, covariances)
    square = shift.square() if covariances.ndim == 2 else shift.unsqueeze(2) * shift.unsqueeze(1)
    used = mass > torch.finfo(mass.dtype).eps
    moved = torch.where(along(used, means), means + shift, means)
    new = regularized(torch.where(along(used, covariances), second - square, covariances), regularization)
    return moved, torch.where(along(used, covariances), new, covariances)


def along(values: Tensor, tensor: Tensor) -> Tensor:
    """One value for each Gaussian, [M], with trailing axes of length 1, for tensors [M, *]."""
    return values.view(-1, *[1] * (tensor.ndim - 1))
