"""FedEM: federated expectation-maximisation over a mixture of M component models.

Marfoq, Neglia, Bellet, Kameni, Vidal: "Federated Multi-Task Learning under a Mixture of Distributions", NeurIPS 2021,
arXiv 2108.10252. Algorithms 1 and 2; equation numbers are the paper's.
"""

from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from fedem_lightning.aggregation import Means, Sent
from fedem_lightning.algorithms.base import FederatedAlgorithm
from fedem_lightning.algorithms.e_step import EStep
from fedem_lightning.algorithms.facts import Facts
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
from fedem_lightning.models.personal_models import SharedModels, broadcast, component_losses
from fedem_lightning.models.tensors import trained_parameters
from fedem_lightning.network import Transmission
from fedem_lightning.settings.ranges import Count, Positive, PositiveInt, PositiveShare
from fedem_lightning.uploads import check_uploads, chosen_uploads, mean_by_shares, upload_some, with_shares

UPLOADED = "uploaded_components"
"""Column of metrics.csv: components that a client uploads, on average."""

SMALLEST = 1e-6
"""Least pi by which a client's weights are divided."""


class FedEM(FederatedAlgorithm):
    """Every client's data is a mixture of the same M distributions; client t predicts with sum_m pi[t, m] h_m(x).

    With M = 1 it is FedAvg, bit for bit. Unsampled clients keep their pi.

    Args:
        backbone: see `FederatedAlgorithm`.
        n_clients: T, the unseen clients included.
        n_components: M.
        initialization: "clusters": one model in a warm-up, then each component is the mean of the models of similar
            clients, which trained longer from there. "auto": "clusters", but "random" where clients are processes of
            their own or the aggregation is more than a mean. "random": each from its own seed, pi uniform, as in the
            paper; the same as "shared" if all are copies of one network. "farthest": models of single clients, each of
            which has a high loss under the others'. "shared": equal components and a random pi for every client, so
            that components differ by clients, not by labels. "perturbed": equal components with noise. See `Start`.
        warmup_rounds: initial rounds in which every component trains on all samples (q = 1) and pi does not change.
            With "random" it is FedAvg M times; otherwise the components are FedAvg's one model, which is sent and
            trained once. None: with "clusters" until the loss of the validation samples (without them: of the training
            samples) hardly falls, at most a fifth of the rounds; else 0, as in the paper.
        perturbation: standard deviation of the noise of "perturbed", as a multiple of that of each tensor's values.
        e_step: responsibilities and mixture weights; None: the paper's.
        normalize_weights: whether a client divides the weights of its samples by its pi, component by component: then a
            component with a small pi does not take smaller steps.
        component_weights: a client's weight in the average of component m. "samples": n_t, as in the paper.
            "responsibilities": sum_i q_im, so that clients that hardly use a component hardly move it (as FLoRAL
            averages, arXiv 2410.03497); shared parameters keep n_t. Clients then send the means of q beside models.
        upload_threshold: a client uploads component m with probability min(1, pi_m / threshold), and its update counts
            as many times as that makes it rarer (`uploads.py`). None: always, as in the paper.
        shared: what the components have in common: "body", all but the last layer; or names of modules; None: nothing,
            as in the paper. A client then trains theta_0 and all phi_m together, and sends theta_0 once
            (`JointTraining`). With everything shared it is FedAvg, bit for bit.
        adapters: LoRA adapters, or their rank: components share the whole network, and each has adapters of its own.
        personalize_steps: E-steps and updates of pi of an unseen client. The paper has 1, after which pi is still close
            to the uniform weights.
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
        e_step: EStep | None = None,
        normalize_weights: bool = False,
        component_weights: Literal["samples", "responsibilities"] = "samples",
        upload_threshold: PositiveShare | None = None,
        shared: Shared = None,
        adapters: Adapters = None,
        personalize_steps: PositiveInt = 1,
        personalize_tolerance: Positive | None = None,
        personalize_seen: bool = False,
        **options: Any,
    ) -> None:
        if adapters is not None and n_components > 1:
            require(shared is None, "adapters: all else is shared, so leave out shared")
            backbone, shared = with_adapters(backbone, adapters), "all but adapters"
        super().__init__(backbone, n_clients, n_components, **options)
        require(
            personalize_tolerance is None or personalize_steps > 1,
            "personalize_tolerance: it needs personalize_steps above 1, the most steps taken",
        )
        self.start = Start(self, initialization, warmup_rounds, perturbation)
        self.facts = replace(self.facts, personalizes_seen=personalize_seen)
        if self.start.reads_models:
            more = ("models of single clients, at which components start",)
            self.facts = replace(self.facts, released=more, needs_one_machine=self.start.needs_one_machine)
        self.personalize_steps = personalize_steps
        self.personalize_tolerance = personalize_tolerance or 0.0
        self.e_step, self.normalize_weights = e_step or EStep(), normalize_weights
        self.upload_threshold = upload_threshold
        self.by_responsibilities = component_weights == "responsibilities" and n_components > 1
        check_uploads(self)
        if self.by_responsibilities:
            self.facts = replace(self.facts, released=(*(self.facts.released or ()), "means of q, beside models"))
        self.sharing = joint_training(self, shared)
        if self.sharing is not None:
            alone = "shared: leave out {}, which treats each component alone"
            require(upload_threshold is None, alone.format("upload_threshold"))
            require(not normalize_weights, alone.format("normalize_weights"))
            require(initialization != "farthest", alone.format("initialization=farthest"))
        self.states.declare(
            "pi", torch.full((n_clients, n_components), 1.0 / n_components), Owner.CLIENT, columns="pi_{m}"
        )

    def initialize(self, federation: Federation) -> None:
        """The components' starting points, and those of pi."""
        if self.sharing is not None:
            self.sharing.tie()
        self.start.begin(federation)

    def client_update(self, block: Block, round_: int) -> Sent:
        """E-step, mixture weights, local solver; the models go to the server, pi and q never leave the client."""
        t, owner, received = block.clients, block.owner, self.components[: self._n_sent(round_)]
        together = self.sharing if len(received) > 1 else None
        losses = component_losses(received, block) if together is None else together.losses(block)  # l_im  [n, M]
        pi = self.pi[t] if len(received) > 1 else torch.ones_like(self.pi[t, :1])
        self.round_metrics.add("objective", mixture_losses(pi, losses, owner))  # Eq. 6, before the round
        q, self.pi[t] = self.m_step_weights(self.pi[t], losses, owner, round_)  # Eq. 8, 9  [n, M]
        if together is not None:
            models = together.solve(block, round_, q)  # Eq. 10, summed over m  [C, M, ...]
        else:
            models = self.local.solve(broadcast(received, len(t)), block, round_, weights=q)  # Eq. 10  [C, M, ...]
        sent = Sent(models, block.counts())  # Alg. 1, line 10: weights n_t for every component
        if self.by_responsibilities:
            shares = mixture_weights(q, owner, torch.ones_like(pi))  # r_tm, the mean of q_im  [C, M]
            sent = with_shares(sent, shares, self._own_parameters())
        if self.upload_threshold is None or self.start.is_warming_up(round_):
            return sent
        return self._upload_some(sent, self.upload_threshold, block, round_)

    def m_step_weights(self, pi: Tensor, losses: Tensor, owner: Tensor, round_: int) -> tuple[Tensor, Tensor]:
        """The samples' weights in the components' losses, [n, M], and the new pi [C, M]; see `EStep`."""
        if self.start.is_warming_up(round_) or (self.sharing is not None and losses.shape[1] == 1):
            together = 1 if self.sharing is None else losses.shape[1]  # the gradient of theta_0 is a sum over m
            return torch.ones_like(losses) / together, pi  # as FedAvg: every sample counts fully
        q, pi = self.e_step(pi, losses, owner, self.start.rounds_since(round_))
        return (q / pi[owner].clamp(min=SMALLEST) if self.normalize_weights else q), pi

    def _own_parameters(self) -> tuple[str, ...]:
        """Names of the trained parameters that belong to a component alone."""
        return tuple(trained_parameters(self.components[0])) if self.sharing is None else self.sharing.own

    def _upload_some(self, sent: Sent, threshold: float, block: Block, round_: int) -> Sent:
        """Components with a pi below the threshold are rarely uploaded."""
        p = (self.pi[block.clients] / threshold).clamp(max=1.0)  # [C, M]
        sends = chosen_uploads(p, self.seed, round_, block.keys)
        self.round_metrics.add(UPLOADED, sends.sum(dim=1))
        received = broadcast(self.components, len(block.clients))
        return upload_some(sent, received, p, sends, self.params_of(sent.models))

    def server_update(self, means: Means | None, round_: Round) -> None:
        """theta_m <- mean over the clients; one mean for all components where they are equal."""
        if means is not None:
            if self.by_responsibilities:
                means = mean_by_shares(means, broadcast(self.components, 1), self._own_parameters())
            m = len(self.components)
            models = {name: rows.expand(m, *rows.shape[1:]) for name, rows in means.models.items()}
            means = means._replace(models=models, nonempty=means.nonempty.expand(m))
        super().server_update(means, round_)
        if self.sharing is not None:
            self.sharing.tie()  # the last bits of a sum may differ
        self.start.after(round_)

    def _n_sent(self, round_: int) -> int:
        """Number of components sent and trained in a round: one in a warm-up with equal components, else M."""
        all_shared = self.sharing is not None and not self.sharing.own
        return 1 if all_shared or self.start.one_model(round_) else len(self.components)

    def transmission(self, clients: Tensor) -> Transmission:
        """M models each way, or one; of shared parameters one; fewer uploads with a threshold."""
        n = float(self._n_sent(self.statistics.rounds))
        if self.sharing is not None and n > 1:
            n = self.sharing.n_sent
        return Transmission(down=n, up=self.round_metrics.means().get(UPLOADED, n))

    def unmoved(self, clients: Tensor, n_train: Tensor) -> Sent:
        """The components that are sent."""
        sent = self.components[: self._n_sent(self.statistics.rounds)]
        extras = {"share": self.pi.new_zeros(len(clients), len(sent))} if self.by_responsibilities else {}
        return Sent(broadcast(sent, len(clients)), n_train.clamp(min=1), extras=extras)

    def local_work(self, federation: Federation, clients: Tensor, round_: int) -> Tensor:
        """One gradient for each model that is trained; the E-step has forward passes only."""
        n = 1 if self.sharing is not None else self._n_sent(round_)  # one network with M outputs
        return super().local_work(federation, clients, round_) // len(self.components) * n

    def personal_models(self, clients: Tensor) -> SharedModels:
        """Client t predicts with sum_m pi[t, m] h_m(x) (Eq. 5); tuning weighs samples as the next round would."""
        return SharedModels(self.components, self.pi[clients], self.tuning_weights)

    def tuning_weights(self, pi: Tensor, losses: Tensor, owner: Tensor) -> Tensor:
        """The samples' weights when clients tune the components: those of the next round, [n, M]."""
        return self.m_step_weights(pi, losses, owner, self.statistics.rounds)[0]

    def personalize_clients(self, federation: Federation, clients: Tensor) -> None:
        """Section 3.2: from uniform weights, one E-step (Eq. 8) and one update of pi (Eq. 9), or several of both."""
        pi = torch.full_like(self.pi[clients], 1.0 / self.pi.shape[1])
        block = federation.block(clients, "train")
        losses = self.losses(block)  # the components stay as they are  [n, M]
        beta = self.e_step.inverse_temperature(self.start.rounds_since(self.statistics.rounds))
        moving = torch.ones(len(clients), dtype=torch.bool, device=pi.device)
        for _ in range(self.personalize_steps):
            q = self.e_step.responsibilities(pi, losses, block.owner, beta)
            new = self.e_step.mixture_weights(q, block.owner, pi)
            change = (new - pi).abs().amax(dim=1)  # [C]
            pi = torch.where(moving.unsqueeze(1), new, pi)  # each client stops on its own
            moving &= change >= self.personalize_tolerance
        self.pi[clients] = pi
