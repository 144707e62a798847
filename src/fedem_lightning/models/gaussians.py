"""Mixtures of Gaussians over embedded inputs, and models that are weighted by them: FedGMM."""

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedem_lightning.models.sized import SizedByState
from fedem_lightning.records.recipes import Recorded
from fedem_lightning.tasks import Task

FAR = 1e30
"""The largest squared distance from a mean, in standard deviations; it keeps densities of outliers finite."""


def embedded(x: Tensor, center: Tensor, projection: Tensor) -> Tensor:
    """Embedded inputs e(x): x [n, ...] -> [n, d]; flat inputs if the projection is empty.

    Args:
        x: the inputs.
        center: [d_in].
        projection: [d_in, d].

    """
    x = x.flatten(1)
    return (x - center) @ projection if projection.numel() else x


def whitening(covariances: Tensor) -> Tensor:
    """W with W' W = Sigma^-1: variances [M, d] -> [M, d], or covariances [M, d, d] -> lower triangles [M, d, d]."""
    if covariances.ndim == 2:
        return covariances.rsqrt()
    eye = torch.eye(covariances.shape[-1], dtype=covariances.dtype, device=covariances.device)
    return torch.linalg.solve_triangular(torch.linalg.cholesky(covariances), eye.expand_as(covariances), upper=False)


def log_densities(z: Tensor, means: Tensor, white: Tensor) -> Tensor:
    """log N(z; mu_m, Sigma_m): z [n, d], means [M, d], `whitening` [M, d] or [M, d, d] -> [n, M].

    Example:
        >>> log_densities(torch.zeros(1, 2), torch.zeros(1, 2), torch.ones(1, 2))
        tensor([[-1.8379]])

    """
    found = []
    for mean, w in zip(means, white, strict=True):  # one by one: [n, M, d] may be large
        delta = z - mean
        scaled = delta * w if w.ndim == 1 else delta @ w.T
        log_determinant = (w if w.ndim == 1 else w.diagonal()).log().sum()
        found.append(log_determinant - 0.5 * scaled.square().sum(dim=1).clamp(max=FAR))
    return torch.stack(found, dim=1) - 0.5 * z.shape[1] * math.log(2 * math.pi)


def component_weights(log_n: Tensor, joint: Tensor) -> Tensor:
    """p(m2 | x) ~ sum over m1 of pi(m1, m2) N(x; m1): log N [n, M1], pi [M1, M2] or [n, M1, M2] -> [n, M2]."""
    return torch.softmax(torch.logsumexp(joint.log() + log_n.unsqueeze(2), dim=1), dim=1)


def regularized(covariances: Tensor, amount: float) -> Tensor:
    """The same [..., d] or [..., d, d] with `amount` added to all variances; negative ones count as 0."""
    if covariances.ndim == 2:
        return covariances.clamp(min=0) + amount
    values, axes = torch.linalg.eigh((covariances + covariances.mT) / 2)
    return (axes * (values.clamp(min=0) + amount).unsqueeze(-2)) @ axes.mT


class GatedMixture(SizedByState, Recorded, nn.Module):
    """sum over m of p(m | x) h_m(x), with weights from a client's joint mixture of inputs and networks.

    The networks and the Gaussians are the same for all clients, and frozen; `joint` is a client's own.

    Args:
        networks: the M2 networks h_m; it holds copies.
        task: of the networks; None: it cannot predict yet.

    """

    sized = ("joint", "means", "white", "center", "projection")
    joint: Tensor  # pi(m1, m2), [M1, M2]
    means: Tensor  # [M1, d]
    white: Tensor  # see `whitening`
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

    def take(self, **tensors: Tensor) -> "GatedMixture":
        """Takes the Gaussians: `means`, `white` (see `whitening`), `center` and `projection`; returns the module."""
        for name, tensor in tensors.items():
            getattr(self, name).data = tensor.clone()
        return self

    def log_density(self, x: Tensor) -> Tensor:
        """log p(x) under the client's mixture of Gaussians: [n, ...] -> [n]. Low values are novel inputs."""
        return torch.logsumexp(self._log_n(x) + self.joint.sum(dim=1).log(), dim=1)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs from which the task makes the mixture's prediction: [n, ...] -> [n, ...]."""
        assert self.task is not None
        predictions = torch.stack([self.task.predict(network(x)) for network in self.networks])
        return self.task.outputs(self.task.mix(predictions, component_weights(self._log_n(x), self.joint)))

    def _log_n(self, x: Tensor) -> Tensor:
        return log_densities(embedded(x, self.center, self.projection), self.means, self.white)
