"""Federated surrogate optimisation with a server (Alg. 3): the general form of which FedEM is an instance.

Marfoq, Neglia, Bellet, Kameni, Vidal: "Federated Multi-Task Learning under a Mixture of Distributions", NeurIPS 2021,
arXiv 2108.10252, Section 3.4 and Appendix F. It minimises f(u, v_{1:T}) = sum_t (n_t / n) f_t(u, v_t), u shared by all
clients, v_t private. `fedem_lightning.algorithms.decentralized` has the form without a server (Alg. 5).
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from fedem_lightning.aggregation import Sent
from fedem_lightning.algorithms.base import FederatedAlgorithm
from fedem_lightning.algorithms.facts import Facts
from fedem_lightning.data.block import Block
from fedem_lightning.data.federation import Federation
from fedem_lightning.em import mixture_losses, mixture_weights, responsibilities
from fedem_lightning.models.client_store import Owner
from fedem_lightning.models.components import Backbone
from fedem_lightning.models.personal_models import SampleWeights, SharedModels
from fedem_lightning.records.recipes import Recorded
from fedem_lightning.settings.ranges import PositiveInt


class Surrogate(Recorded, ABC):
    """Makes partial first-order surrogates (Definition 1) of the clients' objectives, up to constants in u:

    g_t(u, v) = (1 / n_t) sum_i sum_m weights[i, m] l(u_m; s_i). It must be at least f_t everywhere, and equal to it at
    (u^{k-1}, v_t^{k-1}) with the same gradient in u.
    """

    columns: str | None = None  # names of the columns of v in clients.parquet
    weigh: SampleWeights | None = None  # see `SharedModels`

    def private(self, n_clients: int, n_components: int) -> Tensor:
        """The initial v_t^0 of every client, [T, ...]. Default: none, [T, 0]."""
        return torch.zeros(n_clients, 0)

    @abstractmethod
    def majorize(self, algorithm: FederatedAlgorithm, block: Block, v: Tensor) -> tuple[Tensor, Tensor]:
        """The surrogates g_t of the block's C clients near (u^{k-1}, v_t^{k-1}).

        Args:
            algorithm: its `losses(block)` are those of the clients' u^{k-1}, [n, M]; `round_metrics` may be used.
            block: the clients and their n samples.
            v: the clients' private variables, [C, ...].

        Returns:
            v_t^k = argmin_v g_t(u^{k-1}, v), [C, ...], and the samples' weights [n, M].

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

    def majorize(self, algorithm: FederatedAlgorithm, block: Block, v: Tensor) -> tuple[Tensor, Tensor]:
        """The E-step (Eq. 8) and the mixture weights (Eq. 9)."""
        losses = algorithm.losses(block)  # [n, M]
        algorithm.round_metrics.add("objective", mixture_losses(v, losses, block.owner))
        q = responsibilities(v, losses, block.owner)
        return mixture_weights(q, block.owner, v), q

    def mixture(self, v: Tensor, n_components: int) -> Tensor:
        """The mixture weights pi (Eq. 5)."""
        return v


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
        self.surrogate, v = surrogate, surrogate.private(n_clients, n_components)
        self.states.declare("private", v, Owner.CLIENT, columns=surrogate.columns)

    def majorized(self, block: Block) -> Tensor:
        """The weights of the block's samples in the clients' surrogates, [n, M], whose minimal v the clients keep."""
        self.private[block.clients], weights = self.surrogate.majorize(self, block, self.private[block.clients])
        return weights

    def client_update(self, block: Block, round_: int) -> Sent | None:
        """Alg. 3: clients compute surrogate and private variable, then run the local solver; u_t has weight n_t."""
        weights = self.majorized(block)
        return Sent(self.local.solve(self.broadcast(block.clients), block, round_, weights), block.counts())

    def mixture_of(self, clients: Tensor) -> Tensor:
        """The weights of the M models in the clients' predictions, [C, M]."""
        return self.surrogate.mixture(self.private[clients], len(self.components)).to(self.parameter_dtype)

    def personal_models(self, clients: Tensor) -> Any:
        """All clients predict with the components; the surrogate gives their mixture weights."""
        return SharedModels(self.components, self.mixture_of(clients), self.surrogate.weigh)

    def personalize_clients(self, federation: Federation, clients: Tensor) -> None:
        """An unseen client minimises the surrogate once, from the initial v."""
        self.private[clients] = self.surrogate.private(len(clients), len(self.components)).to(self.private)
        for block in self.local.blocks(federation, clients):
            self.majorized(block)
