"""FedEM: federated expectation-maximisation over a mixture of M component models.

Marfoq, Neglia, Bellet, Kameni, Vidal: "Federated Multi-Task Learning under a Mixture of Distributions", NeurIPS 2021,
arXiv 2108.10252. Algorithms 1 and 2; equation numbers are the paper's.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from fedem_lightning.aggregation import Means, Models, Sent
from fedem_lightning.algorithms.base import FederatedAlgorithm
from fedem_lightning.algorithms.e_step import EStep
from fedem_lightning.algorithms.facts import Facts
from fedem_lightning.algorithms.personal_part import PersonalPart
from fedem_lightning.algorithms.revival import Revival, Revive
from fedem_lightning.algorithms.sharing import Shared, joint_training, with_adapters
from fedem_lightning.algorithms.start import Initialization, Start
from fedem_lightning.backbones.pretrained import Adapters
from fedem_lightning.data.block import Block
from fedem_lightning.data.federation import Federation
from fedem_lightning.em import mixture_losses, mixture_weights
from fedem_lightning.errors import require
from fedem_lightning.history import Round
from fedem_lightning.models.client_store import Owner
from fedem_lightning.models.components import Backbone
from fedem_lightning.models.personal_models import OwnModels, SharedModels, broadcast, component_losses
from fedem_lightning.models.tensors import trained_parameters
from fedem_lightning.network import Transmission
from fedem_lightning.settings.ranges import Count, Positive, PositiveInt, PositiveShare
from fedem_lightning.uploads import UPLOADED, check_options, mean_by_shares, uploaded_components, with_shares

SMALLEST = 1e-6
"""Least pi by which a client's weights are divided."""


class FedEM(FederatedAlgorithm):
    """Every client's data is a mixture of the same M distributions; client t predicts with sum_m pi[t, m] h_m(x).

    With M = 1 it is FedAvg, bit for bit. Unsampled clients keep their pi.

    Args:
        backbone: see `FederatedAlgorithm`.
        n_clients: T, the unseen clients included.
        n_components: M.
        initialization, warmup_rounds, perturbation: how the components start; see `Start`.
        revive: how components that hardly any client uses start again; None: not at all. See `Revival`.
        e_step: responsibilities and mixture weights; None: the paper's.
        normalize_weights: whether a client divides its samples' weights by pi, so that a small pi makes no small steps.
        component_weights: a client's weight in the average of component m. "samples": n_t, as in the paper.
            "responsibilities": sum_i q_im, so that clients that hardly use a component hardly move it (as FLoRAL
            averages, arXiv 2410.03497); shared parameters keep n_t. Clients then send the means of q beside models.
        upload_threshold: a client uploads component m with probability min(1, pi_m / threshold), and its update counts
            as many times as that makes it rarer. None: always, as in the paper.
        shared: what the components have in common: "body", all but the last layer; or names of modules; None: nothing,
            as in the paper. A client then trains theta_0 and all phi_m together, and sends theta_0 once; see `Sharing`.
        adapters: LoRA adapters, or their rank: components share the whole network, and each has adapters of its own.
        personal: names of parameters, or of modules, of which each client keeps its own, one for all components, as
            FedPer keeps a head; "head" is the last layer. None: none. See `PersonalPart`.
        personalize_steps: E-steps and updates of pi of an unseen client. The paper has 1, which leaves pi near uniform.
        personalize_tolerance: a client stops earlier, once every weight of its pi moves by less; None: it never does.
        personalize_seen: whether seen clients are scored with a pi computed from the newest components, as unseen
            clients are. Training keeps its own pi. It helps clients outside the cohort, whose pi is old.
        options: see `FederatedAlgorithm`.

    """

    facts = Facts(
        released=(),
        mixes=True,
        keeps_state_when_scored=True,
        with_adaptive="a component's steps no longer shrink with the client's mixture weight for it",
    )
    pi: Tensor  # mixture weights [T, M]; rows sum to 1
    warmup_end: Tensor  # int64 [], the number of rounds of the warm-up; -1 until it is known
    warmup_losses: Tensor  # float64 [R], after its last rounds

    def __init__(
        self,
        backbone: Backbone,
        n_clients: int,
        n_components: PositiveInt = 3,
        initialization: Initialization = "auto",
        warmup_rounds: Count | None = None,
        perturbation: Positive = 0.1,
        revive: Revive = None,
        e_step: EStep | None = None,
        normalize_weights: bool = False,
        component_weights: Literal["samples", "responsibilities"] = "samples",
        upload_threshold: PositiveShare | None = None,
        shared: Shared = None,
        adapters: Adapters = None,
        personal: Sequence[str] | str | None = None,
        personalize_steps: PositiveInt = 20,
        personalize_tolerance: Positive | None = None,
        personalize_seen: bool = False,
        **options: Any,
    ) -> None:
        backbone, shared = with_adapters(backbone, n_components, shared, adapters)
        super().__init__(backbone, n_clients, n_components, **options)
        several = personalize_tolerance is None or personalize_steps > 1
        require(several, "personalize_tolerance: it needs personalize_steps above 1, the most steps taken")
        self.start = Start(self, initialization, warmup_rounds, perturbation)
        self.facts = replace(self.facts, personalizes_seen=personalize_seen)
        if self.start.reads_models:
            more = ("models of single clients, at which components start",)
            self.facts = replace(self.facts, released=more, needs_one_machine=self.start.needs_one_machine)
        self.personalize_steps, self.personalize_tolerance = personalize_steps, personalize_tolerance or 0.0
        self.e_step, self.normalize_weights = e_step or EStep(), normalize_weights
        self.upload_threshold = upload_threshold
        self.by_responsibilities = component_weights == "responsibilities" and n_components > 1
        if self.by_responsibilities:
            self.facts = replace(self.facts, released=(*(self.facts.released or ()), "means of q, beside models"))
        self.personal = PersonalPart(self, personal) if personal else None
        self.sharing = joint_training(self, shared, self.personal)
        self.phi_names = self.sharing.own if self.sharing else tuple(trained_parameters(self.components[0]))
        self.revival = Revival(self, revive)
        check_options(self, "shared" if shared else "personal")
        uniform = torch.full((n_clients, n_components), 1.0 / n_components)
        self.states.declare("pi", uniform, Owner.CLIENT, columns="pi_{m}")

    def initialize(self, federation: Federation) -> None:
        """The components' starting points, and those of pi."""
        self.start.begin(federation)

    def client_update(self, block: Block, round_: int) -> Sent:
        """E-step, mixture weights, local solver; models go to the server, pi, q and b_t never leave the client."""
        t, owner, n = block.clients, block.owner, self._n_sent(round_)
        own = self._own_part(round_)
        received = self._received(n, t) if own is None else own.models(self, t)  # [C, n, ...]
        losses = self._losses(block, n, received if own else None)  # l_im  [n, M]
        pi = self.pi[t] if n > 1 else torch.ones_like(self.pi[t, :1])
        self.round_metrics.add("objective", mixture_losses(pi, losses, owner))  # Eq. 6, before the round
        q, self.pi[t] = self.m_step_weights(self.pi[t], losses, block, round_)  # Eq. 8, 9  [n, M]
        if self.sharing is not None and n > 1:
            models = self.sharing.solve(received, block, round_, q)  # Eq. 10, summed over m  [C, M, ...]
        else:
            models = self.local.solve(received, block, round_, weights=q)  # Eq. 10  [C, M, ...]
        models = models if own is None else own.keep(models, t)
        sent = Sent(models, block.counts(), extras=self.extras(q, block))  # Alg. 1, line 10: weights n_t for every m
        if self.by_responsibilities:
            shares = mixture_weights(q, owner, torch.ones_like(pi))  # r_tm, the mean of q_im  [C, M]
            sent = with_shares(sent, shares, self.phi_names)
        return uploaded_components(self, sent, block, round_)

    def losses(self, block: Block) -> Tensor:
        """l(h_m(x_i), y_i) of every component in nats, in eval mode, [n, M]; with the clients' own b_t."""
        if self.personal is None:
            return super().losses(block)
        return self._losses(block, len(self.components), self.personal.models(self, block.clients))

    def _losses(self, block: Block, n: int, models: Models | None) -> Tensor:
        """The losses of the clients' models [C, n, ...]; None: of the first n components, the same for all; [n, M]."""
        if self.sharing is not None and n > 1:
            return self.sharing.losses(block, models)
        return component_losses(self.components[:n], block) if models is None else self.own_models(models).losses(block)

    def _received(self, n: int, clients: Tensor) -> Models:
        """The first n components as each of the clients [C] receives them, views [C, n, ...]."""
        if self.sharing is None or n == 1:
            return broadcast(self.components[:n], len(clients))
        return self.sharing.broadcast(len(clients))

    def _own_part(self, round_: int) -> PersonalPart | None:
        """What clients keep of their models in a round; None: nothing, as in a warm-up of one model."""
        return None if self.personal is None or self.start.one_model(round_) else self.personal

    def m_step_weights(self, pi: Tensor, losses: Tensor, block: Block, round_: int) -> tuple[Tensor, Tensor]:
        """The samples' weights in the components' losses, [n, M], and the new pi [C, M]; see `EStep`."""
        if self.start.is_warming_up(round_) or (self.sharing is not None and losses.shape[1] == 1):
            together = 1 if self.sharing is None else losses.shape[1]  # the gradient of theta_0 is a sum over m
            return torch.ones_like(losses) / together, pi  # as FedAvg: every sample counts fully
        seen, round_ = self.e_step_losses(losses, block), self.start.rounds_since(round_)
        q, pi = self.e_step(pi, seen, block.owner, round_, self.e_step.held(block, self.seed))
        return (q / pi[block.owner].clamp(min=SMALLEST) if self.normalize_weights else q), pi

    def e_step_losses(self, losses: Tensor, block: Block) -> Tensor:
        """The losses [n, M] by which the E-step weighs samples. Default: those of the M-step."""
        return losses

    def extras(self, q: Tensor, block: Block) -> Models:
        """What clients send beside their models, each [C, ...], from the weights q [n, M]. Default: nothing."""
        return {}

    def server_update(self, means: Means | None, round_: Round) -> None:
        """theta_m <- mean over the clients; one mean for all components where they are equal."""
        if means is not None:
            if self.by_responsibilities:
                means = mean_by_shares(means, broadcast(self.components, 1), self.phi_names)
            m = len(self.components)
            models = {name: rows.expand(m, *rows.shape[1:]) for name, rows in means.models.items()}
            means = means._replace(models=models, nonempty=means.nonempty.expand(m))
        super().server_update(means, round_)
        if self.sharing is not None:
            self.sharing.tie()  # the last bits of a sum may differ
        self.start.after(round_)
        self.revival.after(round_)

    def _n_sent(self, round_: int) -> int:
        """Number of components sent and trained in a round: one in a warm-up with equal components, else M."""
        all_shared = self.sharing is not None and not self.sharing.own
        return 1 if all_shared or self.start.one_model(round_) else len(self.components)

    def transmission(self, clients: Tensor) -> Transmission:
        """M models each way, or one; of shared parameters one; fewer uploads with a threshold."""
        n, own = float(self._n_sent(self.statistics.rounds)), self._own_part(self.statistics.rounds)
        if self.sharing is not None and n > 1:
            n = self.sharing.n_sent
        elif own is not None:
            n -= own.share
        return Transmission(down=n, up=self.round_metrics.means().get(UPLOADED, n))

    def unmoved(self, clients: Tensor, n_train: Tensor) -> Sent:
        """The components that are sent."""
        n, own = self._n_sent(self.statistics.rounds), self._own_part(self.statistics.rounds)
        extras = {"share": self.pi.new_zeros(len(clients), n)} if self.by_responsibilities else {}
        models = self._received(n, clients)
        models = models if own is None else {name: rows for name, rows in models.items() if name not in own.names}
        return Sent(models, n_train.clamp(min=1), extras=extras)

    def local_work(self, federation: Federation, clients: Tensor, round_: int) -> Tensor:
        """One gradient for each model that is trained; the E-step has forward passes only."""
        n = 1 if self.sharing is not None else self._n_sent(round_)  # one network with M outputs
        return super().local_work(federation, clients, round_) // self.local.gradients * n

    def personal_models(self, clients: Tensor) -> SharedModels | OwnModels:
        """Client t predicts with sum_m pi[t, m] h_m(x) (Eq. 5); tuning weighs samples as the next round would."""
        if self.personal is None:
            return SharedModels(self.components, self.pi[clients], self.tuning_weights)
        models = self.personal.models(self, clients)
        return OwnModels(self.components[0], models, self.pi[clients].to(self.parameter_dtype), self.tuning_weights)

    def tuning_weights(self, pi: Tensor, losses: Tensor, block: Block) -> Tensor:
        """The samples' weights when clients tune the components: those of the next round, [n, M]."""
        return self.m_step_weights(pi, losses, block, self.statistics.rounds)[0]

    def personalize_clients(self, federation: Federation, clients: Tensor) -> None:
        """Section 3.2: from uniform weights, one E-step (Eq. 8) and one update of pi (Eq. 9), or several; then b_t."""
        if self.personal is not None:
            self.personal.forget(clients)
        block = federation.block(clients, "train")
        beta = self.e_step.inverse_temperature(self.start.rounds_since(self.statistics.rounds))
        losses = self.e_step_losses(self.losses(block), block)
        steps, least = self.personalize_steps, self.personalize_tolerance
        uniform = torch.full_like(self.pi[clients], 1.0 / self.pi.shape[1])
        self.pi[clients] = self.e_step.repeated(uniform, losses, block.owner, beta, steps, least)
        if self.personal is not None:
            self.personal.train(self, federation, clients)
