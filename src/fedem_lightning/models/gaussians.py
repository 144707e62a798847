"""Gaussians over features: densities, and how they are fitted."""

import copy
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from fedem_lightning.data.block import Block
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.randomness import Purpose, generator
from fedem_lightning.data.tasks import Task
from fedem_lightning.models.personal_models import client_means
from fedem_lightning.models.tensors import Models, SizedByState, along, called
from fedem_lightning.settings.errors import require
from fedem_lightning.settings.recipes import Recorded

FAR = 1e30
"""The largest squared distance from a mean, in standard deviations; it keeps densities of outliers finite."""


def projected(x: Tensor, center: Tensor, projection: Tensor) -> Tensor:
    """Embedded inputs e(x): x [n, ...], center [d_in], projection [d_in, d] -> [n, d]; flat inputs if it is empty."""
    x = x.flatten(1).to(center.dtype)
    return (x - center) @ projection if projection.numel() else x


def log_densities(z: Tensor, means: Tensor, white: Tensor) -> Tensor:
    """log N(z; mu_m, Sigma_m): z [n, d], means and 1 / deviations [M, d] -> [n, M]; Sigma is diagonal."""
    require(white.ndim == 2, "covariance: the file has full ones, which commit 45f9539f has and later ones do not")
    found = []
    for mean, w in zip(means, white, strict=True):  # one by one: [n, M, d] may be large
        found.append(w.log().sum() - 0.5 * ((z - mean) * w).square().sum(dim=1).clamp(max=FAR))
    return torch.stack(found, dim=1) - 0.5 * z.shape[1] * math.log(2 * math.pi)


def component_weights(log_n: Tensor, joint: Tensor) -> Tensor:
    """p(m2 | x) ~ sum over m1 of pi(m1, m2) N(x; m1): log N [n, M1], pi [M1, M2] or [n, M1, M2] -> [n, M2]."""
    return torch.softmax(torch.logsumexp(joint.log() + log_n.unsqueeze(2), dim=1), dim=1)


class GatedMixture(SizedByState, Recorded, nn.Module):
    """sum over m of p(m | x) h_m(x), with weights from a client's joint mixture of inputs and networks.

    The M2 networks h_m, of which it holds copies, and the Gaussians are the same for all clients, and frozen. Without a
    task it cannot predict yet.
    """

    takes_samples = True
    sized = ("joint", "means", "white", "center", "projection")
    joint: Tensor  # pi(m1, m2), [M1, M2]; the client's own
    means: Tensor  # [M1, d]
    white: Tensor  # 1 / deviations, [M1, d]
    center: Tensor  # see `embedded`
    projection: Tensor

    def __init__(self, networks: Sequence[nn.Module], task: Task | None) -> None:
        super().__init__()
        self.networks = nn.ModuleList(copy.deepcopy(network) for network in networks).requires_grad_(False)
        self.task = task
        some = next(self.networks.parameters())
        self.register_buffer("joint", some.new_zeros(0, 0))
        for name in self.sized[1:]:
            self.register_parameter(name, nn.Parameter(some.new_zeros(0), requires_grad=False))

    def take(self, **tensors: Tensor) -> None:
        """Takes the Gaussians: `means`, `white`, `center` and `projection`."""
        for name, tensor in tensors.items():
            setattr(self, name, nn.Parameter(tensor.clone(), requires_grad=False))

    def log_density(self, x: Tensor) -> Tensor:
        """log p(x) under the client's mixture of Gaussians: [n, ...] -> [n]. Low values are novel inputs."""
        return torch.logsumexp(self._log_n(x) + self.joint.sum(dim=1).log(), dim=1)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs from which the task makes the mixture's prediction: [n, ...] -> [n, ...]."""
        assert self.task is not None
        predictions = torch.stack([self.task.predict(called(network, x)) for network in self.networks])
        return self.task.outputs(self.task.mix(predictions, component_weights(self._log_n(x), self.joint)))

    def _log_n(self, x: Tensor) -> Tensor:
        return log_densities(projected(x, self.center, self.projection), self.means, self.white)


def first_gaussians(federation: Federation, dimension: int | None, n_gaussians: int, seed: int) -> Models:
    """The start, float64, from the training samples of the seen clients.

    "center" [d_in] and "projection" [d_in, d] of the embedding into `dimension` principal components, both empty
    without one; "means" [M, d], each a sample drawn at random; and "variances" of all embedded samples, [d].
    """
    block, rng = federation.block(federation.clients(), "train"), generator(seed, Purpose.INITIAL)
    x = next(block.pieces()).vectors(torch.float64)
    center, projection, n_inputs = x.new_zeros(0), x.new_zeros(0, 0), x.shape[1]
    if dimension is not None:
        said = f"algorithm.dimension: expected at most {n_inputs}, the number of inputs, got {dimension}"
        require(dimension <= n_inputs, said)
        center, covariance = moments((p.vectors(torch.float64) for p in block.pieces()), full=True)
        axes = torch.linalg.eigh(covariance).eigenvectors.flip(1)[:, :dimension]  # of the largest variance
        largest = axes.gather(0, axes.abs().argmax(dim=0, keepdim=True))
        projection = axes * largest.sign()  # the largest entry is positive
    _, variances = moments(projected(p.vectors(torch.float64), center, projection) for p in block.pieces())
    positions = block.index.sort().values  # so that the draw does not depend on the clients' numbers
    drawn = rng.choice(len(positions), size=min(len(positions), 8 * n_gaussians), replace=False)
    chosen = positions[torch.from_numpy(drawn).to(positions)]
    some = Block(federation, block.clients, chosen, torch.zeros_like(chosen)).vectors(x.dtype)
    z = projected(some, center, projection)
    z = z[z.square().sum(dim=1).isfinite()]
    said = f"algorithm.n_gaussians: expected at most {len(z)}, the number of samples, got {n_gaussians}"
    require(len(z) >= n_gaussians, said)
    return {"center": center, "projection": projection, "means": z[:n_gaussians], "variances": variances}


def moments(samples: Iterator[Tensor], full: bool = False) -> tuple[Tensor, Tensor]:
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


def moments_about(means: Tensor, z: Tensor, q: Tensor, block: Block) -> Models:
    """What each client sends: the means over its samples of q, of q d and of the squares q d^2, with d = z - mu.

    From mu [M, d], embedded samples z [n, d] and responsibilities q [n, M]: "mass" [C, M], "first" and "second"
    [C, M d].
    """
    first, second = [], []
    for mean, weight in zip(means, q.T, strict=True):
        delta = z - mean
        weighted = weight.unsqueeze(1) * delta
        first.append(client_means(weighted, block))
        second.append(client_means(weighted * delta, block))
    return {"mass": client_means(q, block), "first": torch.cat(first, dim=1), "second": torch.cat(second, dim=1)}


def fitted(means: Tensor, variances: Tensor, sums: Models, regularization: float) -> tuple[Tensor, Tensor]:
    """The new mu and variances, [M, d], in closed form from the clients' mean moments about the old mu.

    `sums` are the means of what clients sent, [1, ...] each; `regularization` is added to the variances. A Gaussian
    without samples stays as it is.
    """
    mass = sums["mass"][0]
    shift, second = (sums[name][0].view_as(means) / along(mass, means) for name in ("first", "second"))
    used = along(mass > torch.finfo(mass.dtype).eps, means)
    new = (second - shift.square()).clamp(min=0) + regularization
    return torch.where(used, means + shift, means), torch.where(used, new, variances)
