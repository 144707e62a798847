"""FLoRAL: one shared network, a few low-rank adapters beside each layer, and every client's own router that mixes them.

Almansoori, Horváth, Takáč: "Collaborative and Efficient Personalization with Mixtures of Adaptors", 2024, arXiv
2410.03497.
"""

from typing import Any, Literal

import torch
from torch import Tensor

from fedem_lightning.aggregate import Means, Models, Update
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.local.solver import Gradient, Learner, LocalStep, Step
from fedem_lightning.methods.partial_averaging import PartialAveraging
from fedem_lightning.models.components import Backbone
from fedem_lightning.models.parts import wrapped
from fedem_lightning.models.routed_adapters import ROUTER, RoutedAdapters
from fedem_lightning.models.tensors import along
from fedem_lightning.settings.errors import require
from fedem_lightning.settings.ranges import Positive, PositiveInt, Rank
from fedem_lightning.state.history import Round

EPSILON = 1e-5
"""What is added to the diagonal of the preconditioners, so that they have an inverse while B is zero."""

CERTAIN = 30.0
"""A router's logit, where the others are 0, at which its adapter alone counts."""


class FLoRAL(PartialAveraging):
    """Client t predicts with layers W + alpha sum_m p_tm B_m A_m, p_t = softmax(r_t); it keeps its router r_t.

    Clients train the network, all adapters and r_t together. An unseen client trains r_t alone, from even weights.

    Args:
        n_components: M, the number of adapters of each layer.
        rank: of the adapters; below 1: an adapter's share of its layer's parameters, and at least rank 1.
        alpha: scale of the adapters.
        component_weights: a client's weight in the average of adapter m. "router": n_t p_tm, for which clients send p_t
            beside models. "samples": n_t, as in the average of the network.

    """

    pi: Tensor  # the adapters' weights p [T, M]; rows sum to 1

    def __init__(
        self,
        backbone: Backbone,
        n_clients: int,
        n_components: PositiveInt = 3,
        rank: Rank = 0.01,
        alpha: Positive = 1.0,
        component_weights: Literal["router", "samples"] = "router",
        **options: Any,
    ) -> None:
        network = wrapped(backbone, lambda own: RoutedAdapters(own, n_components, rank, alpha))
        super().__init__(network, n_clients, n_components=1, **options)
        self.by_router = component_weights == "router"
        plain = self.aggregation.is_plain and self.compression is None and self.faults is None
        needs = "component_weights=router: it needs aggregation=mean without a limit, no compression and no faults"
        require(plain or not self.by_router, f"{needs}; use component_weights=samples")
        self.private_ok = not self.by_router  # means of the routers' weights are sent beside models
        self.keep([ROUTER])
        self.adapters: list[str] = self.components[0].adapters  # type: ignore[assignment]
        self.pi = self.per_client(torch.full((n_clients, n_components), 1 / n_components), column="pi_{m}")

    def local_step(self, batch: Block) -> Step:
        """A step on network, adapters and router together."""
        return Step(FLoRALStep)

    def keep_and_send(self, batch: Block, trained: Models) -> Update:
        """The network and the adapters, or p_tm times adapter m, and p_t: the server takes means over n_t of both."""
        update, p = super().keep_and_send(batch, trained), trained[ROUTER].squeeze(1).softmax(dim=1)  # [C, M]
        self.pi[batch.clients] = p.to(self.pi)
        if not self.by_router:
            return update
        adapters = {name: update.models[name] for name in self.adapters}  # [C, 1, M, ...]
        weighed = {name: rows * along(p.unsqueeze(1).to(rows), rows) for name, rows in adapters.items()}
        return update._replace(models=update.models | weighed, extras={"share": p})

    def server_update(self, means: Means | None, round_: Round) -> None:
        """Adapter m <- sum_t n_t p_tm adapter_tm / sum_t n_t p_tm; the rest of the network <- its mean over n_t."""
        if means is not None and self.by_router:
            p = means.extras["share"]  # [1, M]
            rows = {name: means.models[name] for name in self.adapters}  # [1, M, ...]
            adapters = {name: mean / along(p.to(mean), mean) for name, mean in rows.items()}
            means = means._replace(models=means.models | adapters, extras={})
        super().server_update(means, round_)

    def evaluation_components(self, data: Federation) -> Models:
        """Model m is the network with adapter m alone, [M, ...]."""
        m, network = self.pi.shape[1], super().evaluation_components(data)  # [1, ...]
        models = {name: rows.expand(m, *rows.shape[1:]) for name, rows in network.items()}
        return models | {ROUTER: CERTAIN * torch.eye(m).to(models[ROUTER])}


class FLoRALStep(LocalStep):
    """A local step in which the adapters' gradients are preconditioned."""

    def advance(self, learner: Learner, gradient: Gradient) -> None:
        """theta <- theta - lr g, with the g of A and B preconditioned."""
        params = learner["params"]
        result = dict(zip(params, gradient(learner), strict=True))
        for a in [name for name in params if name.startswith("a.")]:
            b = f"b.{a[2:]}"  # of the same layer
            result[a], result[b] = preconditioned(params[a], params[b], result[a], result[b])
        self.optimizer.descend(learner, list(result.values()), self.lr)


def preconditioned(a: Tensor, b: Tensor, of_a: Tensor, of_b: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients (B^T B + epsilon)^-1 G_A and G_B (A A^T + epsilon)^-1 of linear layers.

    Those of convolutions are divided by the norms of these products.
    A is [..., r, i, w], B [..., o, r, h].
    """
    if a.shape[-1] > 1 or b.shape[-1] > 1:  # a convolution
        gram_b = torch.einsum("...orh,...osh->...rsh", b, b).flatten(-3).norm(dim=-1)
        gram_a = torch.einsum("...riw,...siw->...rsw", a, a).flatten(-3).norm(dim=-1)
        return of_a / (gram_b[..., None, None, None] + EPSILON), of_b / (gram_a[..., None, None, None] + EPSILON)
    a, b, of_a, of_b = a.squeeze(-1), b.squeeze(-1), of_a.squeeze(-1), of_b.squeeze(-1)
    some = EPSILON * torch.eye(a.shape[-2]).to(a)
    of_a = torch.linalg.solve(b.mT @ b + some, of_a)  # [..., r, i]
    of_b = torch.linalg.solve(a @ a.mT + some, of_b.mT).mT  # [..., o, r]
    return of_a.unsqueeze(-1), of_b.unsqueeze(-1)
