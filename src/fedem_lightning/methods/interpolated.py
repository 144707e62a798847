"""APFL and L2SGD: every client has its own model, interpolated with the global one.

- APFL. Deng, Kamani, Mahdavi: "Adaptive Personalized Federated Learning", 2020, arXiv 2003.13461. Algorithm 1.
- L2SGD. Hanzely, Richtarik: "Federated Learning of a Mixture of Global and Local Models", 2020, arXiv 2002.05516.
  Algorithm 1. A step of the paper draws one xi for all clients: if xi = 0 (probability 1 - p) every client takes a
  gradient step, if xi = 1 all models move towards their mean. A round here is all gradient steps before the next
  xi = 1, J of them (geometric, mean (1 - p) / p), and then one step towards the mean. Models are sent only when xi
  changes: in a round with J = 0 the mean is still that of the round before (or of the common start), and every client
  has it.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedem_lightning.aggregate import Means, Models, Update
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.data.randomness import Purpose, generator
from fedem_lightning.local.solver import Gradient, Learner, LocalStep, Step
from fedem_lightning.methods.initialization import load_models
from fedem_lightning.models.components import Backbone
from fedem_lightning.models.personal_models import OwnModels
from fedem_lightning.models.tensors import along
from fedem_lightning.module.algorithm import FederatedAlgorithm
from fedem_lightning.module.round import draw_cohort
from fedem_lightning.settings.errors import require
from fedem_lightning.settings.ranges import PositiveShare, Share
from fedem_lightning.state.history import Round
from fedem_lightning.state.network import Transmission


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


class L2SGD(FederatedAlgorithm):
    """Each client keeps x_t; x_t <- x_t - eta grad f_t(x_t), J times, then x_t <- (1 - rho) x_t + rho x_bar.

    In the paper's symbols eta = a / (T (1 - p)) and rho = a lambda / (T p). The objective is (1/T) sum_t f_t(x_t) +
    lambda / (2T) sum_t |x_t - x_bar|^2 with lambda = rho p / (eta (1 - p)). Unseen clients get x_bar.

    Args:
        backbone, n_clients, options: see `FederatedAlgorithm`. `client_optimizer.lr` is eta; the server optimiser must
            be the plain average.
        pull: rho, in [0, 1]; the paper requires 1/2 at most.
        probability: p, in (0, 1]; None: the p with which a round has as many local steps as an epoch, on average.

    """

    needs_sgd = True  # the rate of gradient steps is in its objective, lambda = rho p / (lr (1 - p))
    one_process = True  # the server changes the clients' models

    def __init__(
        self,
        backbone: Backbone,
        n_clients: int,
        pull: Share = 0.5,
        probability: PositiveShare | None = None,
        **options: Any,
    ) -> None:
        super().__init__(backbone, n_clients, n_components=1, **options)
        require(self.local.steps is None, "local_steps: L2SGD draws them; set probability instead")
        self.pull, self.probability = pull, probability
        self.models = self.per_client(self.components, held_by="both")  # x_t, rows [1, ...]
        self.private_ok = probability is not None  # else it follows from the clients' numbers of samples

    def client_update(self, batch: Block, round_: int) -> Update:
        """The J local steps (xi = 0)."""
        t, steps = batch.clients, self.local_steps_of(batch.federation, round_)  # J
        self.models[t] = x = self.local_sgd(self.models[t], batch, round_, steps=steps)  # [C, 1, ...]
        return Update(x, torch.ones_like(batch.counts()), start=self.received(t))  # x_bar is a plain mean

    def server_update(self, means: Means | None, round_: Round) -> None:
        """x_t <- (1 - rho) x_t + rho x_bar for the cohort (xi = 1); x_bar becomes the shared component."""
        if means is not None:
            for clients in round_.cohort.split(256):
                x = self.models[clients]  # [C, 1, ...]
                floats = {name: mean for name, mean in means.models.items() if mean.is_floating_point()}
                self.models[clients] = x | {name: x[name].lerp(mean, self.pull) for name, mean in floats.items()}
            load_models(self.components, means.models)
        # over another cohort, or with noise, the mean is another one, which has to be sent even if J = 0
        always = self.aggregation.samples_independently or len(
            draw_cohort(self, round_.federation, round_.number)
        ) < len(round_.federation.clients())
        exchanged = int(always or self.local_steps_of(round_.federation, round_.number) > 0)
        self.traffic = Transmission(down=exchanged, up=exchanged)

    def local_steps_of(self, data: Federation, round_: int) -> int:
        """J, the number of xi = 0 before the next xi = 1; the same for all clients."""
        p = self.probability
        if p is None:
            counts = data.splits["train"].counts(data.clients())
            p = 1 / (1 + self.local.epochs * float((-(-counts // self.local.batch_size)).double().mean()))
        return int(generator(self.seed, Purpose.LOCAL_STEPS, round_).geometric(p)) - 1

    def personal_models(self, clients: Tensor) -> OwnModels:
        """Client t predicts with x_t; a client that never took part has x_bar."""
        return self.own_models(self.models.get(clients, self.received(clients)))

    def personalize_clients(self, data: Federation, clients: Tensor) -> None:
        """An unseen client takes x_bar."""
        self.models[clients] = self.received(clients)
