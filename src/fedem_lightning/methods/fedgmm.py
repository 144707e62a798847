"""FedGMM: FedEM with a joint mixture over inputs and labels, for clients whose inputs differ.

Wu, Zhang, Yu, Liu, Gu, Zhou, Chen, Cheng: "Personalized Federated Learning under Mixture of Distributions", ICML 2023,
arXiv 2305.01068.
"""

from typing import Any

import torch
from torch import Tensor

from fedem_lightning.aggregate import Means, Update
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.data.tasks import Task
from fedem_lightning.models.components import Backbone, model_state
from fedem_lightning.models.em import mixture_losses, mixture_weights, responsibilities
from fedem_lightning.models.gaussians import (
    GatedMixture,
    first_gaussians,
    fitted,
    log_densities,
    moments_about,
)
from fedem_lightning.models.personal_models import OwnModels
from fedem_lightning.module.algorithm import FederatedAlgorithm
from fedem_lightning.settings.errors import require
from fedem_lightning.settings.ranges import Positive, PositiveInt
from fedem_lightning.state.history import Round


class FedGMM(FederatedAlgorithm):
    """p_t(x, y) = sum over m1, m2 of pi_t(m1, m2) N(x; mu_m1, Sigma_m1) p_m2(y | x); pi_t is the client's own.

    Clients share the Gaussians and the components; client t serves sum over m2 of p(m2 | x, t) h_m2(x). With one
    Gaussian it is FedEM. The Gaussians start at training samples drawn at random, with the variances of all of them.

    Args:
        n_components: M2, the components h.
        n_gaussians: M1; their covariances are diagonal.
        regularization: is added to the variances.
        personalize_steps: E-steps and updates of pi of an unseen client, as `FedEM`'s.

    """

    one_process = True  # its Gaussians start at training samples
    joint: Tensor  # pi_t(m1, m2), [T, M1 M2]; rows sum to 1
    means: Tensor  # mu, [M1, d]
    covariances: Tensor  # Sigma, the diagonals [M1, d]

    def __init__(
        self,
        backbone: Backbone,
        n_clients: int,
        n_components: PositiveInt = 3,
        n_gaussians: PositiveInt = 3,
        regularization: Positive = 1e-3,
        personalize_steps: PositiveInt = 20,
        **options: Any,
    ) -> None:
        super().__init__(backbone, n_clients, n_components, **options)
        self.n_gaussians, self.regularization, self.personalize_steps = n_gaussians, regularization, personalize_steps
        self.task: Task | None = None
        uniform = torch.full((n_clients, n_gaussians * n_components), 1 / (n_gaussians * n_components))
        self.joint = self.per_client(uniform, column=self._columns)
        self.register_buffer("means", torch.zeros(0, 0))
        self.register_buffer("covariances", torch.zeros(0, 0))

    @property
    def pi(self) -> Tensor:
        """Each client's weights of the components, [T, M2]."""
        return self.joint.view(-1, self.n_gaussians, len(self.components)).sum(dim=1)

    def prepare(self, data: Federation) -> None:
        """Refuses texts, and adaptations that train; the Gaussians get their sizes."""
        none = torch.zeros(0, dtype=torch.int64, device=data.device)
        x = data.samples.features(none, self.parameter_dtype)
        density = isinstance(x, Tensor) and x.is_floating_point()
        require(density, "algorithm: FedGMM needs inputs with a density, the data has texts or whole numbers")
        fits = self.adaptation is None or not self.adaptation.tunes
        require(fits, "adaptation: FedGMM's clients weigh models by input; expected none, or one that does not train")
        self.task = data.task
        if not self.means.numel():
            with torch.inference_mode(False), torch.no_grad():
                self.initialize(data)

    def initialize(self, data: Federation) -> None:
        """The Gaussians' starting points, from the training samples of seen clients."""
        super().initialize(data)
        means, variances = first_gaussians(data, self.n_gaussians, self.seed)
        self.means = means.to(self.joint)
        self.covariances = (variances.clamp(min=0) + self.regularization).to(self.joint).repeat(self.n_gaussians, 1)

    def client_update(self, batch: Block, round_: int) -> Update:
        """E-step over pairs of a Gaussian and a component, pi, moments and local solver; pi and q stay with it."""
        t, owner = batch.clients, batch.owner
        z, pairs = self._pairs(batch)  # x_i [n, d], and -log N(x_i) + l(h_m2(x_i), y_i)  [n, M1 M2]
        self.measure("objective", mixture_losses(self.joint[t], pairs, owner))
        q = responsibilities(self.joint[t], pairs, owner)
        self.joint[t] = mixture_weights(q, owner, self.joint[t])
        q = q.view(-1, self.n_gaussians, len(self.components))
        theta = self.received(t)  # [C, M2, ...]
        models = self.local_sgd(theta, batch, round_, q.sum(dim=1))
        means, covariances = (g.expand(len(t), *g.shape) for g in (self.means, self.covariances))
        moments = moments_about(self.means, z, q.sum(dim=2), batch)
        received = theta | {"means": means, "covariances": covariances}
        return Update(models, batch.counts(), start=theta, extras=moments, receives=received)

    def _pairs(self, batch: Block) -> tuple[Tensor, Tensor]:
        z = torch.cat([piece.vectors(self.parameter_dtype) for piece in batch.pieces()])
        log_n = log_densities(z, self.means, self.covariances.rsqrt())  # [n, M1]
        labelled = batch.federation.samples.labelled
        losses = self.losses(batch) if labelled else log_n.new_zeros(len(z), len(self.components))  # p_t(x) alone
        return z, (losses.unsqueeze(1) - log_n.unsqueeze(2)).flatten(1)

    def server_update(self, means: Means | None, round_: Round) -> None:
        """mu and Sigma in closed form from the clients' moments about the old mu; the components as in FedEM."""
        if means is not None:
            old = (self.means, self.covariances)
            self.means, self.covariances = fitted(*old, means.extras, self.regularization)
        super().server_update(means, round_)

    def personal_models(self, clients: Tensor) -> OwnModels:
        """Client t predicts with sum over m2 of p(m2 | x, t) h_m2(x)."""
        task = self.task if self.schema is None else self.schema.task
        network = GatedMixture(list(self.components), task)
        network.take(means=self.means, white=self.covariances.rsqrt())
        models = {name: t.expand(len(clients), 1, *t.shape) for name, t in model_state(network).items()}
        models["joint"] = self.joint[clients].view(-1, 1, self.n_gaussians, len(self.components))
        return OwnModels(network, models, self.joint.new_ones(len(clients), 1))

    def personalize_clients(self, data: Federation, clients: Tensor) -> None:
        """E-steps and updates of pi alone, from uniform weights; without labels from the mean of the seen clients."""
        batch, joint = data.block(clients, "train"), torch.full_like(self.joint[clients], 1 / self.joint.shape[1])
        if not data.samples.labelled:
            joint = self.joint[data.clients()].mean(dim=0).expand_as(joint)
        if len(batch.index):
            pairs = self._pairs(batch)[1]
            for _ in range(self.personalize_steps):
                joint = mixture_weights(responsibilities(joint, pairs, batch.owner), batch.owner, joint)
        self.joint[clients] = joint

    def _columns(self, joint: Tensor) -> dict[str, Tensor]:
        """The weights of the components, as FedEM has them, and of the Gaussians."""
        rows = joint.view(-1, self.n_gaussians, len(self.components))
        components = {f"pi_{m}": column for m, column in enumerate(rows.sum(dim=1).T)}
        return components | {f"gaussian_{m}": column for m, column in enumerate(rows.sum(dim=2).T)}
