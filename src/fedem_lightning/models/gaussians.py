"""Gaussians over features: densities, and how they are fitted."""

import copy
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.data.randomness import Purpose, generator
from fedem_lightning.data.tasks import Task
from fedem_lightning.models.personal_models import client_means
from fedem_lightning.models.tensors import Models, SizedByState, called
from fedem_lightning.settings.errors import require
from fedem_lightning.settings.recipes import Recorded

FAR = 1e30
"""The largest squared distance from a mean, in standard deviations; it keeps densities of outliers finite."""


def log_densities(z: Tensor, means: Tensor, white: Tensor) -> Tensor:
    """log N(z; mu_m, Sigma_m): z [n, d], means [M, d], inverse standard deviations [M, d] -> [n, M]."""
    result = []
    for mean, w in zip(means, white, strict=True):  # one by one: [n, M, d] may be large
        squares = ((z - mean) * w).square().sum(dim=1).clamp(max=FAR)
        result.append(w.log().sum() - 0.5 * squares)
    return torch.stack(result, dim=1) - 0.5 * z.shape[1] * math.log(2 * math.pi)


def component_weights(log_n: Tensor, joint: Tensor) -> Tensor:
    """p(m2 | x) ~ sum over m1 of pi(m1, m2) N(x; m1): log N [n, M1], pi [M1, M2] or [n, M1, M2] -> [n, M2]."""
    return torch.softmax(torch.logsumexp(joint.log() + log_n.unsqueeze(2), dim=1), dim=1)


class GatedMixture(SizedByState, Recorded, nn.Module):
    """sum over m of p(m | x) h_m(x), with weights from a client's joint mixture of inputs and networks.

    The M2 networks h_m, of which it holds copies, and the Gaussians are the same for all clients, and frozen. Without a
    task it cannot predict yet.
    """

    takes_samples = True
    sized = ("joint", "means", "white")
    joint: Tensor  # pi(m1, m2), [M1, M2]; the client's own
    means: Tensor  # [M1, d]
    white: Tensor  # inverse standard deviations [M1, d]

    def __init__(self, networks: Sequence[nn.Module], task: Task | None) -> None:
        super().__init__()
        self.networks = nn.ModuleList(copy.deepcopy(network) for network in networks).requires_grad_(False)
        self.task = task
        some = next(self.networks.parameters())
        self.register_buffer("joint", some.new_zeros(0, 0))
        for name in self.sized[1:]:
            self.register_parameter(name, nn.Parameter(some.new_zeros(0), requires_grad=False))

    def take(self, **tensors: Tensor) -> None:
        """Takes the Gaussians: `means` and `white`."""
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
        return log_densities(x.flatten(1).to(self.means.dtype), self.means, self.white)


def first_gaussians(federation: Federation, n_gaussians: int, seed: int) -> tuple[Tensor, Tensor]:
    """The start, float64 [M, d] and [d]: means, each a training sample drawn at random, and the variances of all."""
    block, rng = federation.block(federation.clients(), "train"), generator(seed, Purpose.INITIAL)
    positions = block.index.sort().values  # so that the draw does not depend on the clients' numbers
    drawn = rng.choice(len(positions), size=min(len(positions), 8 * n_gaussians), replace=False)
    chosen = positions[torch.from_numpy(drawn).to(positions)]
    z = Block(federation, block.clients, chosen, torch.zeros_like(chosen)).vectors(torch.float64)
    z = z[z.square().sum(dim=1).isfinite()]
    message = f"algorithm.n_gaussians: expected at most {len(z)}, the number of samples, got {n_gaussians}"
    require(len(z) >= n_gaussians, message)
    return z[:n_gaussians], _variances(piece.vectors(torch.float64) for piece in block.pieces())


def _variances(samples: Iterator[Tensor]) -> Tensor:
    """The variances, float64 [d], of samples given in parts [n, d], without those whose squares are not finite."""
    count, first, second = 0, torch.zeros(()), torch.zeros(())
    for part in samples:
        z = part[part.square().sum(dim=1).isfinite()]
        count, first, second = count + len(z), first.to(z) + z.sum(dim=0), second.to(z) + z.square().sum(dim=0)
    return second / max(1, count) - (first / max(1, count)).square()


def moments_about(means: Tensor, z: Tensor, q: Tensor, block: Block) -> Models:
    """What each client sends: the means over its samples of q, of q d and of q d^2, with d = z - mu.

    From mu [M, d], samples z [n, d] and responsibilities q [n, M]: "mass" [C, M], "first" and "second" [C, M d].
    """
    first, second = [], []
    for mean, weight in zip(means, q.T, strict=True):
        delta = z - mean
        weighted = weight.unsqueeze(1) * delta
        first.append(client_means(weighted, block))
        second.append(client_means(weighted * delta, block))
    return {"mass": client_means(q, block), "first": torch.cat(first, dim=1), "second": torch.cat(second, dim=1)}


def fitted(means: Tensor, variances: Tensor, sums: Models, regularization: float) -> tuple[Tensor, Tensor]:
    """The new mu and Sigma [M, d], in closed form from the clients' mean moments about the old mu.

    `sums` are the means of what clients sent, [1, ...] each; `regularization` is added to the variances. A Gaussian
    without samples stays as it is.
    """
    mass = sums["mass"][0].unsqueeze(1)  # [M, 1]
    shift, second = (sums[name][0].view_as(means) / mass for name in ("first", "second"))
    used = mass > torch.finfo(mass.dtype).eps
    new = (second - shift.square()).clamp(min=0) + regularization
    return torch.where(used, means + shift, means), torch.where(used, new, variances)
