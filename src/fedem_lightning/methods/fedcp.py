"""FedCP: for each sample a policy divides the features between a personal and a generic head.

Zhang, Hua, Wang, Song, Xue, Ma, Guan: "FedCP: Separating Feature Information for Personalized Federated Learning via
Conditional Policy", KDD 2023, arXiv 2307.01217.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedem_lightning.aggregate import Models, Update
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.data.samples import Inputs
from fedem_lightning.local.solver import LocalStep, Step
from fedem_lightning.methods.partial_averaging import PartialAveraging
from fedem_lightning.models.components import Backbone, model_state
from fedem_lightning.models.feature_networks import PolicyNetwork
from fedem_lightning.models.heads import apart
from fedem_lightning.models.parts import wrapped
from fedem_lightning.models.tensors import call_with
from fedem_lightning.settings.ranges import NotNegative

WIDTHS = (10, 15, 20, 50)
"""The a of the kernel, sum over a of exp(-|z - z'|^2 / (2 a))."""


@dataclass(frozen=True)
class PolicyStep(LocalStep):
    """A local step on f(theta) + lambda MMD^2(phi(x), phi_0(x)) of a batch's features, phi_0 as received."""

    received: Models  # the network as received; its features are constants
    penalty: float  # lambda

    def objective(
        self, params: Models, buffers: Models, x: Inputs, y: Tensor, weight: Tensor, size: Tensor, key: Tensor
    ) -> tuple[Tensor, Models]:
        """See `LocalStep`; the network gives outputs and then features."""
        outputs, buffers = self.outputs(params, buffers, x, size, key)  # [B, ..., n_outputs + d]
        network: Any = self.backbone
        n_outputs = outputs.shape[-1] - network.n_features
        self.backbone.eval()  # else it would count its batches, or drop features
        with torch.no_grad():
            before = call_with(self.backbone, self.received, x)[..., n_outputs:]
        self.backbone.train()
        loss = self.mean_loss(self.task.losses(outputs[..., :n_outputs], y), weight, size)
        return loss + self.penalty * squared_mmd(outputs[..., n_outputs:], before, weight, size), buffers


def squared_mmd(z: Tensor, other: Tensor, weight: Tensor, size: Tensor) -> Tensor:
    """MMD^2 [] of two sets of features [B, ..., d] with weights [B] of sum `size`; means are over all pairs."""
    d, each = z.shape[-1], z[..., 0].numel() // len(weight)
    w = weight.repeat_interleave(each).unsqueeze(1) / (size * each)  # [B', 1]; sums to 1
    a, b = z.reshape(-1, d), other.reshape(-1, d)  # [B', d]

    def mean(one: Tensor, two: Tensor) -> Tensor:
        squares = one.square().sum(dim=1, keepdim=True) + two.square().sum(dim=1).unsqueeze(0) - 2 * one @ two.T
        return (w * w.T * sum((-squares / (2 * a)).exp() for a in WIDTHS)).sum()

    return mean(a, a) + mean(b, b) - 2 * mean(a, b)


class FedCP(PartialAveraging):
    """Client t has the logits h_t(r * z) + h_G(s * z), z = phi(x), where (r, s) = CPN(v_t * z) and r + s = 1.

    v_t is the sum of the rows of h_t's weight, of length 1, at the start of a round. The client trains phi, h_t and the
    policy CPN on f_t + lambda MMD^2(phi(x), phi_0(x)), with phi_0 as received and h_G fixed. The server averages phi,
    CPN and (h_t + h_G) / 2, which is the next h_G; the client keeps h_t.

    An unseen client trains h_t from the newest h_G; the rest is fixed.

    Args:
        penalty: lambda.
        head: a regular expression found in the names of the head's tensors, one linear layer; None: the last layer.

    """

    def __init__(
        self,
        backbone: Backbone,
        n_clients: int,
        penalty: NotNegative = 5.0,
        head: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(wrapped(backbone, lambda own: PolicyNetwork(own, head)), n_clients, 1, **options)
        network: Any = self.components[0]
        self.keep([name for name in model_state(network) if name.startswith("personal.")])
        self.generic = {
            f"network.{network.head}.{name.removeprefix('personal.')}": name for name in self.private
        }  # h_G
        self.trained = tuple(name for name in model_state(network) if name not in self.generic)
        self.penalty = penalty

    def prepare(self, data: Federation) -> None:
        """v_t is made of the rows of a linear head."""
        network: Any = self.components[0]
        network.check_head()

    def client_update(self, batch: Block, round_: int) -> Update:
        """Local steps of phi, h_t and CPN; the client keeps h_t and sends phi, CPN and (h_t + h_G) / 2."""
        received = {**model_state(self.components[0]), "apart": torch.zeros(0)}
        step = Step(PolicyStep, received=received, penalty=self.penalty)
        models = self.divided_models(batch) | apart(batch)
        models = self.local_sgd(models, batch, round_, step=step, only=self.trained)
        heads = {name: (models[own] + models[name]) / 2 for name, own in self.generic.items()}
        return self.keep_and_send(batch, models | heads)

    def divided_models(self, batch: Block) -> Models:
        """(phi, h_G, CPN, h_t) with v_t, [C, 1, ...]; see `PolicyNetwork`."""
        network: Any = self.components[0]
        models = self.models_of(batch.clients)
        return models | {"context": network.direction(models["personal.weight"])}

    def personalize_clients(self, data: Federation, clients: Tensor) -> None:
        """h_t <- h_G; then local SGD on h_t alone."""
        w = self.received(clients)
        self.own[clients] = {own: w[name] for name, own in self.generic.items()}
        for batch in self.batches(data, clients):
            self.train_private(self.divided_models(batch), batch)
