"""FedPer, LG-FedAvg, FedBN, FedRep and FedBABU: the server averages a part of the model alone.

They differ in that part, and in what becomes of the rest:

- FedPer. Arivazhagan, Aggarwal, Singh, Choudhary: "Federated Learning with Personalization Layers", 2019, arXiv
  1912.00818. Clients keep the head.
- LG-FedAvg. Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency: "Think Locally, Act Globally: Federated
  Learning with Local and Global Representations", 2020, arXiv 2001.01523. Clients keep the body.
- FedBN. Li, Jiang, Zhang, Kamp, Dou: "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization",
  ICLR 2021, arXiv 2102.07623. Clients keep the normalisation layers: parameters and statistics.
- FedRep. Collins, Hassani, Mokhtari, Shakkottai: "Exploiting Shared Representations for Personalized Federated
  Learning", ICML 2021, arXiv 2102.07078. Algorithm 1. Clients keep the head, which they train before the body.
- FedBABU. Oh, Kim, Yun: "FedBABU: Toward Enhanced Representation for Federated Image Classification", ICLR 2022, arXiv
  2106.06042. Algorithm 1. The head never moves; each client then tunes the whole model.
"""

from collections.abc import Collection
from typing import Any, Literal

from pytorch_lightning.utilities import rank_zero_only
from torch import Tensor

from fedem_lightning.aggregate import Models, Update
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.evaluate.adapt import Adaptation, Finetune
from fedem_lightning.local.solver import Step
from fedem_lightning.models.components import Backbone, model_state
from fedem_lightning.models.parts import normalization_tensors, split_body_head, with_own_statistics
from fedem_lightning.models.personal_models import OwnModels
from fedem_lightning.module.algorithm import FederatedAlgorithm
from fedem_lightning.settings.ranges import Count


class PartialAveraging(FederatedAlgorithm):
    """A model is (u, v_t): the server averages the shared part u, client t keeps its private part v_t.

    An unseen client trains the initial v with the newest u, which stays fixed.
    """

    private_ok = True
    private: tuple[str, ...]  # names of the tensors in v
    shared: tuple[str, ...]  # and in u
    own_epochs: int | None = None  # passes of an unseen client over its samples; None: as in a round

    def keep(self, private: Collection[str]) -> None:
        """Says which tensors of a model clients keep."""
        state = model_state(self.components[0])
        self.private = tuple(name for name in state if name in private)
        self.shared = tuple(name for name in state if name not in private)
        self.own = self.per_client({name: state[name].unsqueeze(0) for name in self.private})  # v_t [1, ...]

    def client_update(self, batch: Block, round_: int) -> Update:
        """The client trains u and v_t together; it keeps v_t and sends u."""
        models = self.local_sgd(self.models_of(batch.clients), batch, round_, step=self.local_step(batch))
        return self.keep_and_send(batch, models)

    def local_step(self, batch: Block) -> Step | None:
        """The local step of the batch's clients, in a round and when they join later; None: SGD's."""
        return None

    def models_of(self, clients: Tensor) -> Models:
        """(u, v_t) with the newest u, [C, 1, ...]."""
        return self.received(clients) | self.own[clients]

    def keep_and_send(self, batch: Block, trained: Models) -> Update:
        """Keeps v_t of the models [C, 1, ...]; u goes to the server with weights n_t."""
        w = self.received(batch.clients)
        self.own[batch.clients] = {name: trained[name] for name in self.private}
        sent, start = ({name: models[name] for name in self.shared} for models in (trained, w))
        return Update(sent, batch.counts(), start=start)

    def personal_models(self, clients: Tensor) -> OwnModels:
        """Client t predicts with (u, v_t), with the newest u."""
        return self.own_models(self.models_of(clients))

    def personalize_clients(self, data: Federation, clients: Tensor) -> None:
        """An unseen client trains v from its initial values; u is fixed."""
        self.own[clients] = {name: self.received(clients)[name] for name in self.private}
        for batch in self.batches(data, clients):
            self.train_private(self.models_of(batch.clients), batch)

    def train_private(self, models: Models, batch: Block) -> None:
        """v_t <- local SGD on v alone, from `models` [C, 1, ...]."""
        step, epochs = self.local_step(batch), self.own_epochs
        trained = self.local_sgd(models, batch, self.statistics.rounds, step=step, epochs=epochs, only=self.private)
        self.keep_and_send(batch, trained)


class FedPer(PartialAveraging):
    """The server averages the body; client t keeps its head h_t.

    Args:
        head: a regular expression found in the names of the head's tensors; None: the last layer.

    """

    part_of_clients: Literal["body", "head"] = "head"

    def __init__(self, backbone: Backbone, n_clients: int, head: str | None = None, **options: Any) -> None:
        super().__init__(backbone, n_clients, n_components=1, **options)
        self.keep(getattr(split_body_head(self.components[0], head), self.part_of_clients))


class LGFedAvg(FedPer):
    """The server averages the head; client t keeps its body phi_t. Its arguments are those of `FedPer`."""

    part_of_clients = "body"


class FedBN(PartialAveraging):
    """The server averages all but the normalisation layers, whose parameters and statistics clients keep.

    A normalisation layer is known by its type: BatchNorm, GroupNorm, LayerNorm or InstanceNorm. Without any the method
    is FedAvg.
    """

    def __init__(self, backbone: Backbone, n_clients: int, **options: Any) -> None:
        super().__init__(backbone, n_clients, n_components=1, **options)
        self.keep(normalization_tensors(self.components[0]))

    def initialize(self, data: Federation) -> None:
        """Says so where there is nothing that clients could keep."""
        super().initialize(data)
        if not self.private:
            rank_zero_only(print)("backbone: it has no normalisation layers, so FedBN is FedAvg")

    def personalize_clients(self, data: Federation, clients: Tensor) -> None:
        """An unseen client estimates the statistics on its samples, then trains the normalisation's parameters."""
        for batch in self.batches(data, clients) if self.private else ():
            models = self.received(batch.clients)
            self.train_private(with_own_statistics(self.components[0], models, batch, self.local.batch_size), batch)


class FedRep(FedPer):
    """tau_h epochs on h_t with the received phi fixed, then phi with h_t fixed; the server averages phi.

    An unseen client takes tau_h epochs on the initial head.

    Args:
        backbone, n_clients, options: see `FederatedAlgorithm`; `local_epochs` or `local_steps` are those of phi.
        head: see `FedPer`.
        head_epochs: tau_h.

    """

    def __init__(
        self, backbone: Backbone, n_clients: int, head: str | None = None, head_epochs: Count = 1, **options: Any
    ) -> None:
        super().__init__(backbone, n_clients, head, **options)
        self.head_epochs = self.own_epochs = head_epochs

    def client_update(self, batch: Block, round_: int) -> Update:
        """Alg. 1: first the head, then the body."""
        models = self.models_of(batch.clients)  # [C, 1, ...]
        models = self.local_sgd(models, batch, round_, only=self.private, epochs=self.head_epochs)
        return self.keep_and_send(batch, self.local_sgd(models, batch, round_, only=self.shared))


class FedBABU(FederatedAlgorithm):
    """The server averages the body phi; all clients have the same random head h, which training does not change.

    Args:
        head: see `FedPer`.
        adaptation: the tuning before every scoring; None: `Finetune()`, tau_f = 1 epoch of body and head.

    """

    private_ok = True

    def __init__(
        self,
        backbone: Backbone,
        n_clients: int,
        head: str | None = None,
        adaptation: Adaptation | None = None,
        **options: Any,
    ) -> None:
        tuning = Finetune() if adaptation is None else adaptation
        super().__init__(backbone, n_clients, n_components=1, adaptation=tuning, **options)
        self.body = split_body_head(self.components[0], head).body

    def client_update(self, batch: Block, round_: int) -> Update:
        """Local steps of phi; h is fixed."""
        w = self.received(batch.clients)  # [C, 1, ...]
        models = self.local_sgd(w, batch, round_, only=self.body)
        sent, start = ({name: tensors[name] for name in self.body} for tensors in (models, w))
        return Update(sent, batch.counts(), start=start)
