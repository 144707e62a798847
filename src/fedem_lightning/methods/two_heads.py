"""FedRoD and FedProto: a second way to predict from the features of a body.

- FedRoD: one body with a generic head, which is averaged, and a personal head, which stays with its client. Chen, Chao:
  "On Bridging Generic and Personalized Federated Learning for Image Classification", ICLR 2022, arXiv 2107.00778.
- FedProto: clients have models of their own and exchange class prototypes, the mean features of the classes. Tan, Long,
  Liu, Zhou, Lu, Jiang, Zhang: "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022, arXiv
  2105.00243. Algorithm 1, Eq. 6-8.
"""

import functools
from typing import Any

import torch
from torch import Tensor

from fedem_lightning.aggregate import Means, Models, Update
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.local.solver import LocalStep, Step
from fedem_lightning.methods.partial_averaging import PartialAveraging
from fedem_lightning.models.components import Backbone, model_state
from fedem_lightning.models.heads import (
    BothLosses,
    PrototypeNetwork,
    PulledLoss,
    TwoHeads,
    apart,
    class_counts,
    class_sums,
)
from fedem_lightning.models.parts import wrapped
from fedem_lightning.models.personal_models import OwnModels
from fedem_lightning.module.algorithm import FederatedAlgorithm
from fedem_lightning.module.checks import check_classes
from fedem_lightning.settings.ranges import NotNegative
from fedem_lightning.state.history import Round

LOG_ZERO = -1e9
"""In place of log 0, the logarithm of the number of samples of an absent class: no logit makes up for it."""


class FedRoD(PartialAveraging):
    """The server averages the body and the generic head h_G; client t keeps its personal head h_t.

    h_G and the body are trained with balanced softmax, cross-entropy of the logits h_G(z) + log n_{t,y}, where n_{t,y}
    is the client's number of training samples of class y; h_t on the logits h_G(z) + h_t(z), which do not change z and
    h_G. Clients predict with h_G(z) + h_t(z).

    An unseen client trains h_t from its initial values; body and h_G are fixed.

    Args:
        head: a regular expression found in the names of the head's tensors, which are those of one module or of the
            last ones of a Sequential; None: the last layer.

    """

    def __init__(self, backbone: Backbone, n_clients: int, head: str | None = None, **options: Any) -> None:
        network = wrapped(backbone, lambda own: TwoHeads(own, head))
        super().__init__(network, n_clients, n_components=1, **options)
        self.keep([name for name in model_state(self.components[0]) if name.startswith("personal.")])

    def prepare(self, data: Federation) -> None:
        """Balanced softmax needs classes."""
        check_classes(self, data)

    def client_update(self, batch: Block, round_: int) -> Update:
        """Local steps of both losses at once; the client keeps h_t and sends the rest."""
        models = self.models_of(batch.clients) | {"log_counts": self.log_counts(batch)}
        return self.keep_and_send(batch, self.local_sgd(models, batch, round_, step=Step(LocalStep, loss=BothLosses)))

    def log_counts(self, batch: Block) -> Tensor:
        """log n_{t,y} of each client, [C, 1, Y]; log n_{t,1} - log n_{t,0} where there is one logit, [C, 1, 1]."""
        task: Any = batch.federation.task
        logs = class_counts(batch, task.n_classes).to(self.parameter_dtype).log().clamp(min=LOG_ZERO)  # [C, Y]
        return (logs if task.n_outputs > 1 else logs[:, 1:] - logs[:, :1]).unsqueeze(1)


class FedProto(FederatedAlgorithm):
    """Client t trains theta_t on cross-entropy + lambda |z - C_y|^2 / d; C_y is the mean feature of class y.

    The server averages the clients' prototypes of a class by their numbers of samples. Models, which start equal, are
    never sent: Y d features and Y counts go up, and the same comes down from the second round on. A class that no
    client of a round has keeps its prototype. Clients predict the class of the nearest prototype that exists, with
    probabilities softmax(-|z - C_y|^2); before the first round by their heads.

    An unseen client trains the initial model for one round, with the newest prototypes.

    Args:
        backbone, n_clients, head, options: see `FedRoD`; the input of the head is z, of d features.
        penalty: lambda; the distance is a mean over the d features.

    """

    sends_models = False
    prototypes: Tensor  # [Y, d]; empty before the first round
    known: Tensor  # bool [Y], the classes that have a prototype

    def __init__(
        self,
        backbone: Backbone,
        n_clients: int,
        penalty: NotNegative = 1.0,
        head: str | None = None,
        **options: Any,
    ) -> None:
        network = wrapped(backbone, lambda own: PrototypeNetwork(own, head))
        super().__init__(network, n_clients, n_components=1, **options)
        self.penalty = penalty
        self.models = self.per_client(self.components)  # theta_t, rows [1, ...]
        self.register_buffer("prototypes", torch.zeros(0, 0))
        self.register_buffer("known", torch.zeros(0, dtype=torch.bool))
        self.has_frozen.fill_(True)  # clients have all of the first model from the start

    def prepare(self, data: Federation) -> None:
        """Prototypes need classes."""
        check_classes(self, data)

    def client_update(self, batch: Block, round_: int) -> Update:
        """theta_t <- local SGD; the client sends the sums of its features by class, and the numbers of samples."""
        trained = self.train_models(batch, round_)
        sums, counts = class_sums(self.own_models(trained | apart(batch)), batch)  # [C, Y, d], [C, Y]
        sent = {"sums": sums.unsqueeze(1), "counts": counts.unsqueeze(1)}  # [C, 1, ...]
        start = {name: torch.zeros_like(rows) for name, rows in sent.items()}
        shared = {"prototypes": self.prototypes, "counts": self.prototypes[:, 0]} if len(self.known) else {}
        receives = {name: rows.expand(len(sums), *rows.shape) for name, rows in shared.items()}
        return Update(sent, torch.ones_like(batch.clients), start=start, receives=receives)

    def train_models(self, batch: Block, round_: int) -> Models:
        """Local SGD on the pulled loss, or on the task's before there are prototypes."""
        models, step = self.models[batch.clients], None
        if len(self.known):
            pulled: dict[str, Any] = {"prototypes": self.prototypes, "known": self.known, "penalty": self.penalty}
            models, step = models | apart(batch), Step(LocalStep, loss=functools.partial(PulledLoss, **pulled))
        trained = self.local_sgd(models, batch, round_, step=step)
        self.models[batch.clients] = trained
        return trained

    def server_update(self, means: Means | None, round_: Round) -> None:
        """Eq. 7: C_y <- the sum of the cohort's features of class y, divided by their number."""
        if means is not None:
            sums, counts = means.models["sums"][0], means.models["counts"][0]  # [Y, d], [Y]
            if not len(self.known):  # the first round
                self.prototypes, self.known = torch.zeros_like(sums), counts > 0
            self.prototypes = torch.where(counts[:, None] > 0, sums / counts[:, None], self.prototypes)
            self.known = self.known | (counts > 0)

    def own_models(self, models: Models, mixture: Tensor | None = None) -> OwnModels:
        """Models of the clients' own, with prototypes if `models` has them."""
        own, network = super().own_models(models, mixture), self.components[0]
        assert isinstance(network, PrototypeNetwork)
        return own._replace(backbone=network.of_shape(self.prototypes.shape)) if "prototypes" in models else own

    def personal_models(self, clients: Tensor) -> OwnModels:
        """theta_t, with the newest prototypes."""
        models = self.models[clients]
        if len(self.known):
            shared = {"prototypes": self.prototypes, "known": self.known}
            models |= {name: t.expand(len(clients), 1, *t.shape) for name, t in shared.items()}
        return self.own_models(models)

    def personalize_clients(self, data: Federation, clients: Tensor) -> None:
        """One round of local training from the initial model."""
        self.models[clients] = self.received(clients)
        for batch in self.batches(data, clients):
            self.train_models(batch, self.statistics.rounds)
