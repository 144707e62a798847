"""FedRoD and FedProto: a second way to predict from the features of a body.

- FedRoD: one body with a generic head, which is averaged, and a personal head, which stays with its client. Chen, Chao:
  "On Bridging Generic and Personalized Federated Learning for Image Classification", ICLR 2022, arXiv 2107.00778.
- FedProto: clients have models of their own and exchange class prototypes, the mean features of the classes. Tan, Long,
  Liu, Zhou, Lu, Jiang, Zhang: "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022, arXiv
  2105.00243. Algorithm 1, Eq. 6-8.
"""

import copy
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from fedem_lightning.aggregation import Means, Models, Sent
from fedem_lightning.algorithms.base import FederatedAlgorithm
from fedem_lightning.algorithms.checks import check_classes
from fedem_lightning.algorithms.facts import Facts
from fedem_lightning.algorithms.partial_averaging import PartialAveraging
from fedem_lightning.data.block import Block
from fedem_lightning.data.federation import Federation
from fedem_lightning.errors import require
from fedem_lightning.history import Round
from fedem_lightning.models.client_store import ClientStore, Owner
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
from fedem_lightning.models.parts import one_sample, wrapped
from fedem_lightning.models.personal_models import OwnModels, PersonalModels, component_outputs
from fedem_lightning.network import Transmission
from fedem_lightning.settings.ranges import NotNegative

LOG_ZERO = -1e9
"""In place of log 0, the logarithm of the number of samples of an absent class: no logit makes up for it."""


class FedRoD(PartialAveraging):
    """The server averages the body and the generic head h_G; client t keeps its personal head h_t.

    h_G and the body are trained with balanced softmax, cross-entropy of the logits h_G(z) + log n_{t,y}, where n_{t,y}
    is the client's number of training samples of class y; h_t on the logits h_G(z) + h_t(z), which do not change z and
    h_G. Clients predict with h_G(z) + h_t(z). Column `test_generic_accuracy`: that of h_G alone, on the test split.

    An unseen client trains h_t from its initial values; body and h_G are fixed.

    Args:
        backbone, n_clients, options: see `FederatedAlgorithm`.
        head: a regular expression found in the names of the head's tensors, which are those of one module or of the
            last ones of a Sequential; None: the last layer.

    """

    facts = Facts(released=(), score_columns=("test_generic_accuracy",))

    def __init__(self, backbone: Backbone, n_clients: int, head: str | None = None, **options: Any) -> None:
        network = wrapped(backbone, lambda own: TwoHeads(own, head))
        super().__init__(network, n_clients, n_components=1, **options)
        names = model_state(self.components[0])
        self.keep([name for name in names if name.startswith("personal.")])

    def prepare(self, federation: Federation) -> None:
        """Balanced softmax needs classes."""
        check_classes(self, federation)

    def client_update(self, block: Block, round_: int) -> Sent:
        """Local steps of both losses at once; the client keeps h_t and sends the rest."""
        step = self.local.step(block, round_)
        models = self.models_of(block.clients) | {"log_counts": self.log_counts(block)}
        step = replace(step, task=BothLosses(step.task))
        return self.kept_and_sent(block, self.local.solve(models, block, round_, step=step))

    def log_counts(self, block: Block) -> Tensor:
        """log n_{t,y} of each client, [C, 1, Y]; log n_{t,1} - log n_{t,0} where there is one logit, [C, 1, 1]."""
        task: Any = block.federation.task
        logs = class_counts(block, task.n_classes).to(self.parameter_dtype).log().clamp(min=LOG_ZERO)  # [C, Y]
        return (logs if task.n_outputs > 1 else logs[:, 1:] - logs[:, :1]).unsqueeze(1)

    def scored_models(self, block: Block) -> PersonalModels:
        """The personal models, with the column `test_generic_accuracy`."""
        personal = super().scored_models(block)
        assert isinstance(personal, OwnModels)
        return personal._replace(columns={**personal.columns, "test_generic_accuracy": self.generic_accuracy(block)})

    def generic_accuracy(self, block: Block) -> Tensor:
        """The accuracy of h_G alone on each client's test samples, [C]; NaN without any. The component's h_t is 0."""
        task, test = block.federation.task, block.federation.block(block.clients, "test")
        right = torch.zeros(len(block.clients), dtype=torch.float64, device=block.clients.device)
        for piece in test.pieces() if len(test.index) else ():
            outputs = component_outputs(self.components, piece)[0]
            right.index_add_(0, piece.owner, task.scores(task.predict(outputs), piece.y())["accuracy"].double())
        return right / test.counts()


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
        prediction: "prototype", or "head" for the clients' own heads.

    """

    facts = Facts(
        released=("sums of features and numbers of samples by class",),
        uses_server_optimizer=False,
        sends_updates=False,
    )
    prototypes: Tensor  # [Y, d]; empty before the first round
    known: Tensor  # bool [Y], the classes that have a prototype

    def __init__(
        self,
        backbone: Backbone,
        n_clients: int,
        penalty: NotNegative = 1.0,
        prediction: Literal["prototype", "head"] = "prototype",
        head: str | None = None,
        **options: Any,
    ) -> None:
        fits = prediction == "head" or getattr(options.get("adaptation"), "part", "all") != "head"
        require(fits, "adaptation.part: FedProto predicts by features, expected all or body, or prediction=head")
        network = wrapped(backbone, lambda own: PrototypeNetwork(own, head))
        super().__init__(network, n_clients, n_components=1, **options)
        self.penalty, self.prediction = penalty, prediction
        self.models = ClientStore.of_components(n_clients, self.components, alone=True)  # theta_t, rows [1, ...]
        self.states.declare("prototypes", torch.zeros(0, 0), Owner.SERVER)
        self.states.declare("known", torch.zeros(0, dtype=torch.bool), Owner.SERVER)
        self._shape: tuple[int, ...] = ()  # Y and d
        self.has_frozen.fill_(True)  # clients have all of the first model from the start

    def prepare(self, federation: Federation) -> None:
        """Prototypes need classes."""
        check_classes(self, federation)
        if self.remote is not None and not self._shape:
            task: Any = federation.task
            network: Any = copy.deepcopy(self.components[0]).eval()
            outputs, z = network.outputs_and_features(one_sample(federation, network))
            self._shape = task.n_classes, z.flatten(outputs.ndim - 1).shape[-1]

    def unmoved(self, clients: Tensor, n_train: Tensor) -> Sent:
        """Sums of features by class, and numbers of samples."""
        sums = torch.zeros(len(clients), 1, *self._shape, dtype=self.parameter_dtype)
        return Sent({"sums": sums, "counts": sums[..., 0]}, torch.ones_like(clients))

    def client_update(self, block: Block, round_: int) -> Sent:
        """theta_t <- local SGD; the client sends the sums of its features by class, and the numbers of samples."""
        trained = self.train_models(block, round_)
        sums, counts = class_sums(self.own_models(trained | apart(block)), block)  # [C, Y, d], [C, Y]
        return Sent({"sums": sums.unsqueeze(1), "counts": counts.unsqueeze(1)}, torch.ones_like(block.clients))

    def train_models(self, block: Block, round_: int) -> Models:
        """Local SGD on the pulled loss, or on the task's before there are prototypes."""
        models, step = self.models.read(block.clients), self.local.step(block, round_)
        if len(self.known):
            step = replace(step, task=PulledLoss(step.task, self.prototypes, self.known, self.penalty))
            models |= apart(block)
        trained = self.local.solve(models, block, round_, step=step)
        self.models.write(block.clients, trained)
        return trained

    def server_update(self, means: Means | None, round_: Round) -> None:
        """Eq. 7: C_y <- the sum of the cohort's features of class y, divided by their number."""
        if means is not None:
            sums, counts = means.models["sums"][0], means.models["counts"][0]  # [Y, d], [Y]
            if not len(self.known):  # the first round
                self.prototypes, self.known = torch.zeros_like(sums), counts > 0
            self.prototypes = torch.where(counts[:, None] > 0, sums / counts[:, None], self.prototypes)
            self.known = self.known | (counts > 0)
        self.server.step()

    def transmission(self, clients: Tensor) -> Transmission:
        """Prototypes and counts, no models; in the first round the server has none to send."""
        share = (self.prototypes.numel() + len(self.known)) * self.prototypes.element_size() / self.message_bytes
        return Transmission(down=share if self.statistics.rounds else 0, up=share)

    def own_models(self, models: Models, mixture: Tensor | None = None) -> OwnModels:
        """Models of the clients' own, with prototypes if `models` has them."""
        own, network = super().own_models(models, mixture), self.components[0]
        assert isinstance(network, PrototypeNetwork)
        return own._replace(backbone=network.of_shape(self.prototypes.shape)) if "prototypes" in models else own

    def personal_models(self, clients: Tensor) -> OwnModels:
        """theta_t, with the newest prototypes if clients predict by them."""
        models = self.models.read(clients)
        if self.prediction == "prototype" and len(self.known):
            shared = {"prototypes": self.prototypes, "known": self.known}
            models |= {name: t.expand(len(clients), 1, *t.shape) for name, t in shared.items()}
        return self.own_models(models)

    def personalize_clients(self, federation: Federation, clients: Tensor) -> None:
        """One round of local training from the initial model."""
        self.models.write(clients, self.broadcast(clients))
        for block in self.local.blocks(federation, clients):
            self.train_models(block, self.statistics.rounds)
