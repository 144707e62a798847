"""APFL: adaptive personalised federated learning, an interpolation of parameters.

Deng, Kamani, Mahdavi: "Adaptive Personalized Federated Learning", 2020, arXiv 2003.13461. Algorithm 1.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedem_lightning.aggregate import Models, Update
from fedem_lightning.data.block import Block
from fedem_lightning.data.federation import Federation
from fedem_lightning.local.solver import Gradient, Learner, LocalStep, Step
from fedem_lightning.models.components import Backbone
from fedem_lightning.models.personal_models import OwnModels
from fedem_lightning.models.tensors import along
from fedem_lightning.module.algorithm import FederatedAlgorithm
from fedem_lightning.settings.ranges import Share


@dataclass(frozen=True)
class InterpolatedStep(LocalStep):
    """A local step of w on the loss of w, and of v on the loss of v_bar = alpha v + (1 - alpha) w, on one batch.

    The learner's "params" are w; "own", "own_momentum" and "own_buffers" belong to v; "mixing" holds alpha and the
    number of steps taken, one number for each learner.
    """

    adaptive: bool

    @property
    def gradients(self) -> float:
        """At w and at v_bar."""
        return 2

    def advance(self, learner: Learner, gradient: Gradient) -> None:
        """Updates w, v and alpha; all gradients are taken before the step."""
        w, v, mixing = learner["params"], learner["own"], learner["mixing"]
        alpha, first = mixing["alpha"], mixing["steps"] == 0
        v_bar = interpolate(alpha, v, w)
        g_w = gradient(learner)
        g_v_bar = gradient({"params": v_bar, "buffers": learner["own_buffers"]})
        slope = sum(((v[name] - w[name]) * g).flatten(alpha.ndim).sum(-1) for name, g in zip(v, g_v_bar, strict=True))
        g_v = [along(alpha, g) * g for g in g_v_bar]  # chain rule: d v_bar / d v = alpha
        self.optimizer.descend(learner, g_w, self.lr)
        self.optimizer.descend({"params": v, "momentum": learner["own_momentum"]}, g_v, self.lr)
        if self.adaptive:  # alpha moves once a round, at the first step
            alpha.copy_(torch.where(first, (alpha - self.lr * slope).clamp(0, 1), alpha))
        mixing["steps"] += 1


def interpolate(alpha: Tensor, own: Models, shared: Models) -> Models:
    """The sum alpha own + (1 - alpha) shared, name by name; integer tensors (counters) are those of `own`."""
    mixed = {}
    for name, v in own.items():
        a = along(alpha, v)
        mixed[name] = a * v + (1 - a) * shared[name] if v.is_floating_point() else v
    return mixed


class APFL(FederatedAlgorithm):
    """Client t predicts with alpha_t v_t + (1 - alpha_t) w; v_t and alpha_t are its own, w is the newest global model.

    The server averages w with weights n_t. Unseen clients make one local round from v = w and the initial alpha.

    Args:
        alpha: initial weight of the client's own model, in [0, 1].
        adaptive: whether alpha is learned, at the clients' learning rate.

    """

    private_ok = True
    alpha: Tensor  # [T]

    def __init__(
        self, backbone: Backbone, n_clients: int, alpha: Share = 0.5, adaptive: bool = True, **options: Any
    ) -> None:
        super().__init__(backbone, n_clients, n_components=1, **options)
        self.initial_alpha, self.adaptive = alpha, adaptive
        self.alpha = self.per_client(torch.full((n_clients,), float(alpha)), column="alpha")
        self.own = self.per_client(self.components)  # v_t [1, ...]
        self.own_momentum = self.optimizer_state()  # of v_t

    def client_update(self, batch: Block, round_: int) -> Update:
        """The client takes local steps of w and v together; it keeps v and alpha, and sends w."""
        t, w = batch.clients, self.received(batch.clients)
        v, alpha = self.own[t], self.alpha[t].unsqueeze(1)  # [C, 1, ...], [C, 1]
        own, kept = self.params_of(v), self.own_momentum
        tensors = {
            "own": own,
            "own_buffers": {name: tensor for name, tensor in v.items() if name not in own},
            "own_momentum": self.local.optimizer.init(own, axes=2) if kept is None else kept[t],
            "mixing": {"alpha": alpha, "steps": torch.zeros_like(alpha)},
        }
        step = Step(InterpolatedStep, tensors, adaptive=self.adaptive)
        models = self.local_sgd(w, batch, round_, step=step)
        if kept is not None:
            kept[t] = step.after["own_momentum"]
        self.own[t] = step.after["own"] | step.after["own_buffers"]
        self.alpha[t] = step.after["mixing"]["alpha"].squeeze(1)
        return Update(models, batch.counts(), start=w)

    def personal_models(self, clients: Tensor) -> OwnModels:
        """v_bar_t with the newest w; a client that never took part has w."""
        w = self.received(clients)
        return self.own_models(interpolate(self.alpha[clients].unsqueeze(1), self.own.get(clients, w), w))

    def personalize_clients(self, data: Federation, clients: Tensor) -> None:
        """An unseen client takes one local round."""
        self.own[clients] = self.received(clients)
        self.alpha[clients] = self.initial_alpha
        for batch in self.batches(data, clients):
            self.client_update(batch, self.statistics.rounds)
