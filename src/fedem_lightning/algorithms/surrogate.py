"""Federated surrogate optimisation: the general form behind FedEM and its relatives, with a server (Alg. 3) and
without one (Alg. 5, `fedem_lightning.algorithms.decentralized`).

Marfoq, Neglia, Bellet, Kameni, Vidal: "Federated Multi-Task Learning under a Mixture of Distributions", NeurIPS 2021,
arXiv 2108.10252, Section 3.4 and Appendix F. It minimises f(u, v_{1:T}) = sum_t (n_t / n) f_t(u, v_t), u shared by all
clients, v_t private. Either algorithm runs any `Surrogate`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedem_lightning.aggregation import Models, Sent
from fedem_lightning.algorithms.base import FederatedAlgorithm
from fedem_lightning.algorithms.facts import Facts
from fedem_lightning.algorithms.sharing import JointTraining
from fedem_lightning.client_optimizers import ClientSGD
from fedem_lightning.data.block import Block
from fedem_lightning.data.federation import Federation
from fedem_lightning.em import mixture_losses, mixture_weights, responsibilities
from fedem_lightning.local_solver import Gradient, Learner, LocalStep
from fedem_lightning.models.client_store import Owner
from fedem_lightning.models.components import Backbone
from fedem_lightning.models.personal_models import SampleWeights, SharedModels
from fedem_lightning.models.tensors import along
from fedem_lightning.records.recipes import Recorded
from fedem_lightning.settings.ranges import Positive, PositiveInt


class Majorizer(NamedTuple):
    """The surrogates g_t of a block's C clients near (u^{k-1}, v_t^{k-1}), up to constants in u:

    g_t(u, v) = (1 / n_t) sum_i sum_m weights[i, m] l(u_m; s_i) + (pull / 2) |u - anchor|^2.
    """

    private: Tensor  # v_t^k = argmin_v g_t(u^{k-1}, v), [C, ...]
    weights: Tensor | None = None  # [n, M]; None: 1
    anchor: Models | None = None  # [C, M, ...], parameters
    pull: float = 0.0


class Surrogate(Recorded, ABC):
    """Makes partial first-order surrogates (Definition 1) of the clients' objectives.

    g_t must be at least f_t everywhere, and equal to it at (u^{k-1}, v_t^{k-1}) with the same gradient in u.
    """

    columns: str | None = None  # names of the columns of v in clients.parquet
    weigh: SampleWeights | None = None  # see `SharedModels`

    def private(self, n_clients: int, n_components: int) -> Tensor:
        """The initial v_t^0 of every client, [T, ...]. Default: none, [T, 0]."""
        return torch.zeros(n_clients, 0)

    @abstractmethod
    def majorize(self, algorithm: FederatedAlgorithm, block: Block, u: Models, v: Tensor, round_: int) -> Majorizer:
        """The surrogates g_t of the block's clients, and the v that minimises them.

        Args:
            algorithm: its `losses(block)` are those of u; `solve` and `round_metrics` may be used.
            block: the clients and their samples.
            u: each client's shared variable u^{k-1}, [C, M, ...].
            v: the clients' private variables, [C, ...].
            round_: number of the round, from 0; it sets the order of samples if local steps are taken.

        """

    def mixture(self, v: Tensor, n_components: int) -> Tensor:
        """The weights of the M models in the clients' predictions, [C, M]. Default: equal weights."""
        return v.new_full((len(v), n_components), 1 / n_components)


class MixtureSurrogate(Surrogate):
    """FedEM's surrogate (App. G, Eq. 182): u = Theta, v_t = pi_t; the weights are the responsibilities."""

    columns = "pi_{m}"
    weigh = staticmethod(lambda v, losses, block: responsibilities(v, losses, block.owner))

    def private(self, n_clients: int, n_components: int) -> Tensor:
        """The uniform pi, [T, M]."""
        return torch.full((n_clients, n_components), 1.0 / n_components)

    def majorize(self, algorithm: FederatedAlgorithm, block: Block, u: Models, v: Tensor, round_: int) -> Majorizer:
        """The E-step (Eq. 8) and the mixture weights (Eq. 9)."""
        losses = algorithm.losses(block)  # [n, M]
        algorithm.round_metrics.add("objective", mixture_losses(v, losses, block.owner))
        q = responsibilities(v, losses, block.owner)
        return Majorizer(mixture_weights(q, block.owner, v), q)

    def mixture(self, v: Tensor, n_components: int) -> Tensor:
        """The mixture weights pi (Eq. 5)."""
        return v


class MoreauSurrogate(Surrogate):
    """pFedMe's surrogate (App. F.3, Eq. 91) of the Moreau envelope min_theta f_t(theta) + (lambda / 2) |theta - u|^2.

    With theta = prox(u^{k-1}), g_t(u) = f_t(theta) + (lambda / 2) |theta - u|^2. No private variable.

    Args:
        penalty: lambda, above 0.
        inner_steps: gradient steps that approximate the proximal point.
        inner_lr: learning rate of these steps.

    """

    def __init__(self, penalty: Positive = 15.0, inner_steps: PositiveInt = 5, inner_lr: Positive = 0.01) -> None:
        self.penalty, self.inner_steps, self.inner_lr = penalty, inner_steps, inner_lr

    def majorize(self, algorithm: FederatedAlgorithm, block: Block, u: Models, v: Tensor, round_: int) -> Majorizer:
        """theta = prox(u), by gradient steps on the client's batches."""
        backbone, params = algorithm.components[0], algorithm.params_of(u)
        step = PulledStep(
            backbone, PulledStep.loss_of(block.federation.task), ClientSGD(lr=self.inner_lr), self.inner_lr
        )
        extra = pulled(params, torch.full(v.shape[:1], self.penalty, device=v.device), len(algorithm.components))
        theta = algorithm.local.train(u, block, round_, step=step, extra=extra, steps=self.inner_steps, momentum=None)
        none = torch.zeros(len(block.index), len(algorithm.components), dtype=algorithm.parameter_dtype)
        return Majorizer(v, none.to(v.device), theta["params"], self.penalty)


@dataclass(frozen=True)
class PulledStep(LocalStep):
    """A local step on the weighted loss + (pull / 2) |u - anchor|^2; the learner has "anchor" and its own "pull"."""

    def advance(self, learner: Learner, gradient: Gradient) -> None:
        """The gradient is g + pull (u - anchor)."""
        pull, grads = learner["pull"]["pull"], []
        for g, u, anchor in zip(gradient(learner), learner["params"].values(), learner["anchor"].values(), strict=True):
            grads.append(g + along(pull, g) * (u - anchor))
        self.optimizer.descend(learner, grads, self.lr)


def pulled(anchor: Models, pull: Tensor, n_components: int) -> Learner:
    """The extra tensors of `PulledStep`: anchor [C, M, ...], pull [C]."""
    dtype = next(iter(anchor.values())).dtype
    return {"anchor": anchor, "pull": {"pull": pull.to(dtype).unsqueeze(1).repeat(1, n_components)}}


def descend_surrogate(
    algorithm: FederatedAlgorithm,
    g: Majorizer,
    u: Models,
    block: Block,
    round_: int,
    scale: Tensor | None = None,
    sharing: JointTraining | None = None,
) -> Models:
    """LocalSolver on g_t: u <- u - eta scale_t grad g_t(u, v_t; xi), [C, M, ...].

    Args:
        algorithm: its client optimiser and engine take the steps.
        g: the clients' surrogates; u: where the clients start, [C, M, ...].
        block: the clients and their samples; round_: number of the round.
        scale: factor of each client's step, [C]; None: 1.
        sharing: takes the steps where models share parameters; for a surrogate without an anchor.

    """
    weights, options, n_components = g.weights, {}, len(algorithm.components)
    if scale is not None:
        each = scale[block.owner].unsqueeze(1)  # [n, 1]
        weights = each.expand(-1, n_components) if weights is None else weights * each
    if g.anchor is not None:
        pull = torch.full((len(block.clients),), g.pull, device=block.clients.device)
        extra = pulled(g.anchor, pull if scale is None else pull * scale, n_components)
        options = {"step": algorithm.local.step(block, round_, PulledStep), "extra": extra}
    solver: Any = sharing or algorithm.local
    return solver.solve(u, block, round_, weights, **options)


def majorized(algorithm: Any, block: Block) -> Majorizer:
    """The clients' surrogates at their newest u and v."""
    u, v = algorithm.personal_models(block.clients).models, algorithm.private[block.clients]
    return algorithm.surrogate.majorize(algorithm, block, u, v, algorithm.statistics.rounds)


class SurrogateOptimization(FederatedAlgorithm):
    """Client-server federated surrogate optimisation, Alg. 3. With `MixtureSurrogate` it is FedEM, bit for bit.

    Args:
        backbone, n_clients, n_components, options: see `FederatedAlgorithm`.
        surrogate: makes the surrogates of the clients' objectives.

    """

    facts = Facts(released=(), with_adaptive="steps no longer shrink with the surrogate's weights of the samples")
    private: Tensor  # v [T, ...]

    def __init__(
        self, backbone: Backbone, n_clients: int, surrogate: Surrogate, n_components: PositiveInt = 1, **options: Any
    ) -> None:
        super().__init__(backbone, n_clients, n_components, **options)
        self.surrogate = surrogate
        self.states.declare(
            "private", surrogate.private(n_clients, n_components), Owner.CLIENT, columns=surrogate.columns
        )

    def client_update(self, block: Block, round_: int) -> Sent:
        """Alg. 3: clients compute surrogate and private variable, then run the local solver; u_t has weight n_t."""
        t, u = block.clients, self.broadcast(block.clients)
        g = self.surrogate.majorize(self, block, u, self.private[t], round_)
        self.private[t] = g.private
        return Sent(descend_surrogate(self, g, u, block, round_), block.counts())

    def personal_models(self, clients: Tensor) -> SharedModels:
        """All clients predict with the components; the surrogate gives their mixture weights."""
        mixture = self.surrogate.mixture(self.private[clients], len(self.components)).to(self.parameter_dtype)
        return SharedModels(self.components, mixture, self.surrogate.weigh)

    def personalize_clients(self, federation: Federation, clients: Tensor) -> None:
        """An unseen client minimises the surrogate once, from the initial v."""
        block = federation.block(clients, "train")
        self.private[clients] = self.surrogate.private(len(clients), len(self.components)).to(self.private)
        self.private[clients] = majorized(self, block).private
