"""Federated surrogate optimisation: the general form behind FedEM and its relatives, with a server (Alg. 3) and
without one (Alg. 5, `fedem_lightning.algorithms.decentralized`).

Marfoq, Neglia, Bellet, Kameni, Vidal: "Federated Multi-Task Learning under a Mixture of Distributions", NeurIPS 2021,
arXiv 2108.10252, Section 3.4 and Appendix F. It minimises f(u, v_{1:T}) = sum_t (n_t / n) f_t(u, v_t), u shared by all
clients, v_t private. State a `Surrogate`, and either algorithm runs it.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from fedem_lightning.aggregation import Models, Sent
from fedem_lightning.algorithms.base import FederatedAlgorithm
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.em import mixture_losses, mixture_weights, responsibilities
from fedem_lightning.errors import require_number, require_whole
from fedem_lightning.local_solver import ClientSGD, Gradient, Learner, LocalStep, along
from fedem_lightning.models.components import Backbone
from fedem_lightning.models.personal_models import SharedModels
from fedem_lightning.protocol import Algorithm


class Majorizer(NamedTuple):
    """g_t of a block's C clients, near (u^{k-1}, v_t^{k-1}) and up to constants in u:

    g_t(u, v) = (1 / n_t) sum_i sum_m weights[i, m] l(u_m; s_i) + (pull / 2) |u - anchor|^2.
    """

    private: Tensor  # v_t^k = argmin_v g_t(u^{k-1}, v), [C, ...]
    weights: Tensor | None = None  # [n, M]; None: 1
    anchor: Models | None = None  # [C, M, ...], parameters
    pull: float = 0.0


class Surrogate(ABC):
    """Makes partial first-order surrogates (Definition 1) of the clients' objectives.

    g_t must lie above f_t everywhere, and touch it at (u^{k-1}, v_t^{k-1}) with the same gradient in u.
    """

    columns: str | None = None  # of clients.parquet, from v
    by_responsibility = False  # as of `SharedModels`

    def private(self, n_clients: int, n_components: int) -> Tensor:
        """v_t^0 of every client, [T, ...]. Default: there is none, [T, 0]."""
        return torch.zeros(n_clients, 0)

    @abstractmethod
    def majorize(self, algorithm: Algorithm, block: Block, u: Models, v: Tensor, round_: int) -> Majorizer:
        """g_t of the block's clients, and the v that minimises it.

        Args:
            algorithm: its `losses(block)` are those of u; `solve` and `round_metrics` are at hand.
            block: the clients and their samples.
            u: where each client stands, [C, M, ...].
            v: their private variables, [C, ...].
            round_: number of the round, from 0; it sets the order of samples where local steps are taken.

        """

    def mixture(self, v: Tensor, n_components: int) -> Tensor:
        """The weights of the M models in the clients' predictions, [C, M]. Default: equal."""
        return v.new_full((len(v), n_components), 1 / n_components)


class OptimizesSurrogate(Algorithm, Protocol):
    """Algorithm 3 or 5."""

    surrogate: Surrogate
    private: Tensor  # v [T, ...]


class MixtureSurrogate(Surrogate):
    """FedEM's (App. G, Eq. 182): u = Theta, v_t = pi_t; the weights are the responsibilities."""

    columns = "pi_{m}"
    by_responsibility = True

    def private(self, n_clients: int, n_components: int) -> Tensor:
        """pi, uniform, [T, M]."""
        return torch.full((n_clients, n_components), 1.0 / n_components)

    def majorize(self, algorithm: Algorithm, block: Block, u: Models, v: Tensor, round_: int) -> Majorizer:
        """E-step (Eq. 8) and mixture weights (Eq. 9)."""
        losses = algorithm.losses(block)  # [n, M]
        algorithm.round_metrics.add("objective", mixture_losses(v, losses, block.owner))
        q = responsibilities(v, losses, block.owner)
        return Majorizer(mixture_weights(q, block.owner, v), q)

    def mixture(self, v: Tensor, n_components: int) -> Tensor:
        """Pi itself (Eq. 5)."""
        return v


class MoreauSurrogate(Surrogate):
    """pFedMe's (App. F.3, Eq. 91): f_t is the Moreau envelope min_theta f_t(theta) + (lambda / 2) |theta - u|^2.

    With theta = prox(u^{k-1}), g_t(u) = f_t(theta) + (lambda / 2) |theta - u|^2. No private variable.

    Args:
        penalty: lambda, above 0.
        inner_steps: gradient steps that approximate the proximal point.
        inner_lr: their rate.

    """

    def __init__(self, penalty: float = 15.0, inner_steps: int = 5, inner_lr: float = 0.01) -> None:
        require_number("algorithm.surrogate.penalty", penalty, above=0)
        require_whole("algorithm.surrogate.inner_steps", inner_steps, at_least=1)
        require_number("algorithm.surrogate.inner_lr", inner_lr, above=0)
        self.penalty, self.inner_steps, self.inner_lr = penalty, inner_steps, inner_lr

    def majorize(self, algorithm: Algorithm, block: Block, u: Models, v: Tensor, round_: int) -> Majorizer:
        """Theta = prox(u), by gradient steps on the client's batches."""
        backbone, task, params = algorithm.components[0], block.federation.task, algorithm.params_of(u)
        step = PulledStep(backbone, task, ClientSGD(lr=self.inner_lr), self.inner_lr)
        extra = pulled(params, torch.full(v.shape[:1], self.penalty, device=v.device), len(algorithm.components))
        theta = algorithm.solve(u, block, round_, step=step, extra=extra, steps=self.inner_steps, keep_momentum=False)
        none = torch.zeros(len(block.index), len(algorithm.components), dtype=algorithm.parameter_dtype)
        return Majorizer(v, none.to(v.device), theta["params"], self.penalty)


@dataclass(frozen=True)
class PulledStep(LocalStep):
    """A step on the weighted loss + (pull / 2) |u - anchor|^2; the learner carries "anchor" and its own "pull"."""

    def advance(self, learner: Learner, gradient: Gradient) -> None:
        """The gradient is g + pull (u - anchor)."""
        pull, grads = learner["pull"]["pull"], []
        for g, u, anchor in zip(gradient(learner), learner["params"].values(), learner["anchor"].values(), strict=True):
            grads.append(g + along(pull, g) * (u - anchor))
        self.optimizer.descend(learner, grads, self.lr)


def pulled(anchor: Models, pull: Tensor, n_components: int) -> Learner:
    """What `PulledStep` needs: anchor [C, M, ...], pull [C]."""
    dtype = next(iter(anchor.values())).dtype
    return {"anchor": anchor, "pull": {"pull": pull.to(dtype).unsqueeze(1).repeat(1, n_components)}}


def descend_surrogate(
    algorithm: Algorithm, g: Majorizer, u: Models, block: Block, round_: int, scale: Tensor | None = None
) -> Models:
    """LocalSolver on g_t: u <- u - eta scale_t grad g_t(u, v_t; xi), [C, M, ...].

    Args:
        algorithm: its client optimiser and engine do it.
        g: the clients' surrogates; u: where they stand, [C, M, ...].
        block: the clients and their samples; round_: its number.
        scale: of each client's step, [C]; None: 1.

    """
    weights, options, n_components = g.weights, {}, len(algorithm.components)
    if scale is not None:
        each = scale[block.owner].unsqueeze(1)  # [n, 1]
        weights = each.expand(-1, n_components) if weights is None else weights * each
    if g.anchor is not None:
        pull = torch.full((len(block.clients),), g.pull, device=block.clients.device)
        extra = pulled(g.anchor, pull if scale is None else pull * scale, n_components)
        options = {"step": algorithm.local_step(block, round_, PulledStep), "extra": extra}
    return algorithm.local_solver(u, block, round_, weights, **options)


def majorized(algorithm: OptimizesSurrogate, block: Block) -> Majorizer:
    """The clients' surrogates where they stand after the rounds done."""
    u, v = algorithm.personal_models(block.clients).models, algorithm.private[block.clients]
    return algorithm.surrogate.majorize(algorithm, block, u, v, algorithm.statistics.rounds)


class SurrogateOptimization(FederatedAlgorithm):
    """Client-server federated surrogate optimisation, Alg. 3. With `MixtureSurrogate` it is FedEM, bit for bit.

    Args:
        backbone, n_clients, n_components, options: see `FederatedAlgorithm`.
        surrogate: of the clients' objectives.

    """

    private: Tensor  # v [T, ...]

    def __init__(
        self, backbone: Backbone, n_clients: int, surrogate: Surrogate, n_components: int = 1, **options: Any
    ) -> None:
        super().__init__(backbone, n_clients, n_components, **options)
        self.surrogate = surrogate
        self.add_client_state("private", surrogate.private(n_clients, n_components), columns=surrogate.columns)

    def client_update(self, block: Block, round_: int) -> Sent:
        """Alg. 3: surrogate, private variable, local solver; the server averages u_t with weights n_t."""
        t, u = block.clients, self.broadcast(block.clients)
        g = self.surrogate.majorize(self, block, u, self.private[t], round_)
        self.private[t] = g.private
        return Sent(descend_surrogate(self, g, u, block, round_), block.counts())

    def personal_models(self, clients: Tensor) -> SharedModels:
        """The components, mixed as the surrogate says."""
        mixture = self.surrogate.mixture(self.private[clients], len(self.components)).to(self.parameter_dtype)
        return SharedModels(self.components, mixture, self.surrogate.by_responsibility)

    def personalize(self, federation: Federation, clients: Tensor) -> None:
        """From the initial v, one argmin of the surrogate."""
        block = federation.block(clients, "train")
        self.private[clients] = self.surrogate.private(len(clients), len(self.components)).to(self.private)
        self.private[clients] = majorized(self, block).private
