"""FedPer, LG-FedAvg, FedBN and FedRep: the server averages a part of the model, and each client keeps the rest.

They differ in that part, and FedRep in the order of training:

- FedPer. Arivazhagan, Aggarwal, Singh, Choudhary: "Federated Learning with Personalization Layers", 2019, arXiv
  1912.00818. Clients keep the head.
- LG-FedAvg. Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency: "Think Locally, Act Globally: Federated
  Learning with Local and Global Representations", 2020, arXiv 2001.01523. Clients keep the body.
- FedBN. Li, Jiang, Zhang, Kamp, Dou: "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization",
  ICLR 2021, arXiv 2102.07623. Clients keep the normalisation layers: parameters and statistics.
- FedRep. Collins, Hassani, Mokhtari, Shakkottai: "Exploiting Shared Representations for Personalized Federated
  Learning", ICML 2021, arXiv 2102.07078. Algorithm 1. Clients keep the head, which they train before the body.
"""

from collections.abc import Collection
from typing import Any

from pytorch_lightning.utilities import rank_zero_only
from torch import Tensor

from fedem_lightning.aggregation import Models, Sent, all_finite
from fedem_lightning.algorithms.base import FederatedAlgorithm
from fedem_lightning.algorithms.facts import Facts
from fedem_lightning.data.block import Block
from fedem_lightning.data.federation import Federation
from fedem_lightning.local_solver import LocalStep
from fedem_lightning.models.client_store import ClientStore
from fedem_lightning.models.components import Backbone, model_state
from fedem_lightning.models.parts import normalization_tensors, share_of_bytes, split_body_head, with_own_statistics
from fedem_lightning.models.personal_models import OwnModels
from fedem_lightning.network import Transmission
from fedem_lightning.settings.ranges import Count, PositiveInt


class PartialAveraging(FederatedAlgorithm):
    """A model is (u, v_t): the server averages the shared part u, client t keeps its private part v_t.

    An unseen client trains the initial v with the newest u, which stays fixed.
    """

    facts = Facts(released=())
    private: tuple[str, ...]  # names of the tensors in v
    shared: tuple[str, ...]  # and in u

    def keep(self, private: Collection[str], personalize_epochs: int | None) -> None:
        """Says which tensors of a model clients keep, and how many passes an unseen client makes over its samples."""
        state = model_state(self.components[0])
        self.private = tuple(name for name in state if name in private)
        self.shared = tuple(name for name in state if name not in private)
        self.personalize_epochs = personalize_epochs
        rows = {name: state[name].unsqueeze(0) for name in self.private}
        self.own = ClientStore(self.n_clients, rows, alone=True)  # v_t
        self.sent_share = share_of_bytes(self.components[0], self.shared)

    def client_update(self, block: Block, round_: int) -> Sent:
        """The client trains u and v_t together; it keeps v_t and sends u."""
        step = self.local_step(block, round_)
        return self.kept_and_sent(block, self.local.solve(self.models_of(block.clients), block, round_, step=step))

    def local_step(self, block: Block, round_: int) -> LocalStep:
        """The local step of clients, in a round and when they join later. Default: `LocalStep`."""
        return self.local.step(block, round_)

    def models_of(self, clients: Tensor) -> Models:
        """(u, v_t) with the newest u, [C, 1, ...]."""
        return self.broadcast(clients) | self.own.read(clients)

    def kept_and_sent(self, block: Block, trained: Models) -> Sent:
        """Keeps v_t of the clients whose models [C, 1, ...] are finite; u goes to the server with weights n_t."""
        finite = all_finite(trained)  # [C]
        self.own.write(block.clients[finite], {name: trained[name][finite] for name in self.private})
        return Sent({name: trained[name] for name in self.shared}, block.counts())

    def unmoved(self, clients: Tensor, n_train: Tensor) -> Sent:
        """The shared part."""
        models = self.broadcast(clients)
        return Sent({name: models[name] for name in self.shared}, n_train.clamp(min=1))

    def transmission(self, clients: Tensor) -> Transmission:
        """The shared part each way."""
        return Transmission(down=self.sent_share, up=self.sent_share)

    def personal_models(self, clients: Tensor) -> OwnModels:
        """Client t predicts with (u, v_t), with the newest u."""
        return self.own_models(self.models_of(clients))

    def personalize_clients(self, federation: Federation, clients: Tensor) -> None:
        """An unseen client trains v from its initial values; u is fixed."""
        self.own.write(clients, {name: self.broadcast(clients)[name] for name in self.private})
        for block in self.local.blocks(federation, clients):
            self.train_private(self.models_of(block.clients), block)

    def train_private(self, models: Models, block: Block) -> None:
        """v_t <- local SGD on v alone, from `models` [C, 1, ...]."""
        round_ = self.statistics.rounds
        options: dict[str, Any] = {"only": self.private, "epochs": self.personalize_epochs}
        options["step"] = self.local_step(block, round_)
        self.kept_and_sent(block, self.local.solve(models, block, round_, **options))


class FedPer(PartialAveraging):
    """The server averages the body; client t keeps its head h_t.

    Args:
        backbone, n_clients, options: see `FederatedAlgorithm`.
        head: a regular expression found in the names of the head's tensors; None: the last layer.
        personalize_epochs: passes of an unseen client over its samples; None: as in a round.

    """

    def __init__(
        self,
        backbone: Backbone,
        n_clients: int,
        head: str | None = None,
        personalize_epochs: PositiveInt | None = None,
        **options: Any,
    ) -> None:
        super().__init__(backbone, n_clients, n_components=1, **options)
        self.keep(split_body_head(self.components[0], head).head, personalize_epochs)


class LGFedAvg(PartialAveraging):
    """The server averages the head; client t keeps its body phi_t.

    Args:
        backbone, n_clients, head, personalize_epochs, options: see `FedPer`.

    """

    def __init__(
        self,
        backbone: Backbone,
        n_clients: int,
        head: str | None = None,
        personalize_epochs: PositiveInt | None = None,
        **options: Any,
    ) -> None:
        super().__init__(backbone, n_clients, n_components=1, **options)
        self.keep(split_body_head(self.components[0], head).body, personalize_epochs)


class FedBN(PartialAveraging):
    """The server averages all but the normalisation layers, whose parameters and statistics clients keep.

    A normalisation layer is known by its type: BatchNorm, GroupNorm, LayerNorm or InstanceNorm. Without any the method
    is FedAvg.

    Args:
        backbone, n_clients, personalize_epochs, options: see `FedPer`.

    """

    def __init__(
        self, backbone: Backbone, n_clients: int, personalize_epochs: PositiveInt | None = None, **options: Any
    ) -> None:
        super().__init__(backbone, n_clients, n_components=1, **options)
        self.keep(normalization_tensors(self.components[0]), personalize_epochs)

    def initialize(self, federation: Federation) -> None:
        """Says so where there is nothing that clients could keep."""
        super().initialize(federation)
        if not self.private:
            rank_zero_only(print)("backbone: it has no normalisation layers, so FedBN is FedAvg")

    def personalize_clients(self, federation: Federation, clients: Tensor) -> None:
        """An unseen client estimates the statistics on its samples, then trains the normalisation's parameters."""
        for block in self.local.blocks(federation, clients) if self.private else ():
            models = self.broadcast(block.clients)
            self.train_private(with_own_statistics(self.components[0], models, block, self.local.batch_size), block)


class FedRep(PartialAveraging):
    """tau_h epochs on h_t with the received phi fixed, then phi with h_t fixed; the server averages phi.

    An unseen client takes tau_h epochs on the initial head.

    Args:
        backbone, n_clients, options: see `FederatedAlgorithm`; `local_epochs` or `local_steps` are those of phi.
        head: a regular expression found in the names of the head's tensors; None: the last layer.
        head_epochs: tau_h.

    """

    def __init__(
        self, backbone: Backbone, n_clients: int, head: str | None = None, head_epochs: Count = 1, **options: Any
    ) -> None:
        super().__init__(backbone, n_clients, n_components=1, **options)
        self.keep(split_body_head(self.components[0], head).head, head_epochs)
        self.head_epochs = head_epochs

    def client_update(self, block: Block, round_: int) -> Sent:
        """Alg. 1: first the head, then the body."""
        models = self.models_of(block.clients)  # [C, 1, ...]
        models = self.local.solve(models, block, round_, only=self.private, epochs=self.head_epochs, quiet=True)
        return self.kept_and_sent(block, self.local.solve(models, block, round_, only=self.shared))

    def local_work(self, federation: Federation, clients: Tensor, round_: int) -> Tensor:
        """Gradients of the body's steps and of tau_h epochs of the head's."""
        counts = federation.splits["train"].counts(clients)
        return super().local_work(federation, clients, round_) + self.head_epochs * counts
