"""FedAS: clients align the body that they receive with the one that they had, and count by their Fisher information.

Yang, Huang, Ye: "FedAS: Bridging Inconsistency in Personalized Federated Learning", CVPR 2024. What the paper leaves
open here follows the authors' code.
"""

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedem_lightning.aggregate import Models, Update
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.data.tasks import OfTask
from fedem_lightning.local.optimizers import ClientSGD
from fedem_lightning.local.solver import Gradient, Learner, LocalStep, Step
from fedem_lightning.local.training import shuffled_batches
from fedem_lightning.models.components import Backbone
from fedem_lightning.models.feature_networks import DistanceNetwork, split_distances
from fedem_lightning.models.heads import apart, class_sums
from fedem_lightning.models.parts import split_body_head, users_network, wrapped
from fedem_lightning.models.personal_models import OwnModels
from fedem_lightning.module.algorithm import FederatedAlgorithm
from fedem_lightning.module.checks import check_classes
from fedem_lightning.settings.errors import require
from fedem_lightning.settings.ranges import NotNegative


@dataclass(frozen=True)
class AlignmentLoss(OfTask):
    """|phi(x) - P_y|^2 / d."""

    n_classes: int

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Outputs and distances [n, n_outputs + Y], y [n] -> [n]."""
        return split_distances(outputs, y, self.n_classes)[1]


@dataclass(frozen=True)
class FisherStep(LocalStep):
    """Adds |grad of the batch's mean loss|^2 to the learner's "trace"; the model does not move."""

    def advance(self, learner: Learner, gradient: Gradient) -> None:
        """The sum runs over all parameters."""
        trace = learner["trace"]["sum"]
        for g in gradient(learner):
            trace.add_(g.reshape(*trace.shape, -1).square().sum(dim=-1))


class FedAS(FederatedAlgorithm):
    """Client t keeps (phi_t, h_t), its model after its last round; the server averages the bodies phi_t.

    In a round the client aligns the body phi that it receives: one epoch of SGD on the sum, over the classes of a
    batch, of the mean of |phi(x) - P_y|^2 / d, where P_y is the class's mean feature by the body phi_t that it had.
    Then it trains phi and h_t together. Its weight is F_t = sum over batches of |grad of the mean loss|^2, at the
    trained model. A client that trains for the first time has no earlier body, and does not align. Clients predict
    with (phi_t, h_t); one that never trained with the newest phi and the first h.

    An unseen client trains the newest phi and the first h for one round.

    Args:
        align_lr: the rate of the alignment; 0: there is none.
        head: a regular expression found in the names of the head's tensors; None: the last layer.

    """

    private_ok = True
    one_process = True  # Flower's server takes no weight above a client's number of samples

    def __init__(
        self,
        backbone: Backbone,
        n_clients: int,
        align_lr: NotNegative = 0.01,
        head: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(wrapped(backbone, lambda own: DistanceNetwork(own, head)), n_clients, 1, **options)
        names = split_body_head(users_network(self.components[0]), head).body
        self.body = tuple(f"network.{name}" for name in names)
        self.align_lr = align_lr
        self.own = self.per_client(self.components)  # (phi_t, h_t), rows [1, ...]

    def prepare(self, data: Federation) -> None:
        """Class means need a class for each sample."""
        check_classes(self, data)
        require(data.task.n_targets == 1, "dataset.task: FedAS needs one class for each sample, got sequences")

    def client_update(self, batch: Block, round_: int) -> Update:
        """Alignment, local training of body and head, and the client's weight F_t."""
        t, w = batch.clients, self.received(batch.clients)  # [C, 1, ...]
        phi = self.aligned(batch, round_) if self.align_lr else w
        models = self.own[t] | {name: phi[name] for name in self.body}
        self.own[t] = models = self.local_sgd(models, batch, round_)
        sent, start = ({name: tensors[name] for name in self.body} for tensors in (models, w))
        return Update(sent, self.fisher_trace(models, batch, round_), start=start)

    def aligned(self, batch: Block, round_: int) -> Models:
        """phi after one epoch towards P_y; each sample counts B / (its class's samples in its batch of B)."""
        before, w = self.own[batch.clients], self.received(batch.clients)
        sums, counts = class_sums(self.own_models(before | apart(batch)), batch)  # [C, Y, d], [C, Y]
        means = sums / counts.clamp(min=1).unsqueeze(2)  # P_y
        n_classes, size = counts.shape[1], self.local.batch_size
        order = shuffled_batches(batch, size, 1, self.seed, round_).order[0]  # [n], client after client
        step = batch.ranks() // size
        batches = batch.owner * (int(step.max()) + 1 if len(step) else 1) + step  # the batch of each place
        classes = batches * n_classes + batch.y()[order].long()
        weights = torch.empty_like(order, dtype=self.parameter_dtype)
        weights[order] = (torch.bincount(batches)[batches] / torch.bincount(classes)[classes]).to(weights)
        weights *= self.own.written[batch.clients][batch.owner]  # else there is nothing to align with
        options: dict[str, Any] = {"epochs": 1, "state": None, "optimizer": ClientSGD(lr=self.align_lr)}
        options["step"] = Step(LocalStep, loss=functools.partial(AlignmentLoss, n_classes=n_classes))
        models = w | {"prototypes": means.unsqueeze(1)}
        return self.local_sgd(models, batch, round_, weights.unsqueeze(1), only=self.body, **options)

    def fisher_trace(self, models: Models, batch: Block, round_: int) -> Tensor:
        """F_t [C], of gradients in training mode; 0 where it overflows."""
        zeros = {"sum": torch.zeros(len(batch.clients), 1, dtype=self.parameter_dtype, device=self.device)}
        step = Step(FisherStep, {"trace": zeros}, loss=lambda _: batch.federation.task)
        self.local_sgd(models, batch, round_, step=step, epochs=1, state=None)
        return step.after["trace"]["sum"][:, 0].nan_to_num(0.0, 0.0, 0.0)

    def personal_models(self, clients: Tensor) -> OwnModels:
        """(phi_t, h_t) as the client trained them last; a client that never trained has the newest phi."""
        return self.own_models(self.own.get(clients, self.received(clients)))

    def personalize_clients(self, data: Federation, clients: Tensor) -> None:
        """One round of local training from the newest phi and the first h."""
        for batch in self.batches(data, clients):
            self.own[batch.clients] = self.local_sgd(self.received(batch.clients), batch, self.statistics.rounds)
