"""The M components of a mixture: what they have in common, how clients train them, and what a round sends of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedem_lightning.aggregate import Models, PrivateMean
from fedem_lightning.data.federation import Block
from fedem_lightning.local.solver import LocalStep, Step
from fedem_lightning.local.training import LocalTraining
from fedem_lightning.method import Method
from fedem_lightning.models.components import model_state, within
from fedem_lightning.models.mixture_network import (
    ComponentLosses,
    MixtureNetwork,
    packed,
    tensors_of,
    unpacked,
)
from fedem_lightning.models.parts import split_body_head
from fedem_lightning.models.personal_models import broadcast
from fedem_lightning.models.tensors import call_with, trained_parameters
from fedem_lightning.settings.errors import require
from fedem_lightning.settings.recipes import anew

Shared = Literal["body"] | Sequence[str] | None
"""What components share: "body", all but the last layer; or names of modules; None: nothing."""


def tied_components(algorithm: Method, shared: Shared) -> "TiedComponents | None":
    """What an algorithm's components share; None: nothing. UserError: an option would count shared ones M times."""
    if not shared or len(algorithm.components) == 1:
        return None
    require(algorithm.compression is None, "shared: leave out compression, which shortens each component alone")
    private = isinstance(algorithm.aggregation, PrivateMean)
    require(not private, "shared: a private mean would add noise by component; use aggregation=mean")
    result = TiedComponents(algorithm.components, algorithm.local, shared)
    if result.training.momentum is not None:
        algorithm.shared_momentum = result.training.momentum
    algorithm.one_process = True
    return result


class TiedComponents:
    """Components h_m(x) = f(x; theta_0, phi_m): theta_0 is one for all, phi_m belongs to component m.

    A client trains theta_0 and all phi_m together, as one network with M outputs, and sends theta_0 once. `local` is
    the training of components that share nothing, whose settings count; for `shared` see `Shared`. UserError: a name
    is no module with parameters that train; "body", and there is no body or no head; nothing is left that differs.
    """

    def __init__(self, components: nn.ModuleList, local: LocalTraining, shared: Shared) -> None:
        self.components, self.own = components, _own(components[0], shared)  # own: names of phi's tensors
        require(bool(self.own), "shared: components would differ in nothing; that is algorithm=fedavg")
        engine = anew(local.engine_choice)  # it prepares itself for one network
        how = (local.epochs, local.steps, local.batch_size, local.seed, engine, local.statistics)
        network = MixtureNetwork(components, self.own)
        self.training = LocalTraining(network, local.n_clients, 1, local.optimizer, *how)
        self.training.work = local.work

    def received(self, clients: Tensor, n: int) -> Models:
        """theta_0 once, as views along the components, and n times phi: [C, n, ...]."""
        models = broadcast(self.components[:n], len(clients))
        return {name: rows if name in self.own else rows[:, :1].expand_as(rows) for name, rows in models.items()}

    @torch.no_grad()
    def losses(self, batch: Block, n: int) -> Tensor:
        """The losses of all n components in nats, in eval mode, [n_samples, n]; the body runs once, where it can."""
        network, task = self._on_device().network.eval(), ComponentLosses(batch.federation.task)
        tensors, dtype = tensors_of(self.components, self.own), next(self.components.parameters()).dtype
        result = [task.losses(call_with(network, tensors, piece.x(dtype)), piece.y()) for piece in batch.pieces()]
        return torch.cat(result)

    def local_sgd(self, models: Models, batch: Block, round_: int, q: Tensor, **options: Any) -> Models:
        """The M-step (Eq. 10): clients train theta_0 and all phi_m together; see `LocalTraining.sgd`.

        `models` are [C, n, ...], the weights q [n_samples, n]. Of the options `step` has no meaning.
        """
        options["step"] = Step(SharedStep, loss=ComponentLosses)
        one, n = packed(models, self.own), q.shape[1]
        return unpacked(self._on_device().sgd(one, batch, round_, q.unsqueeze(1), **options), n)

    @torch.no_grad()
    def tie(self) -> None:
        """theta_0 of every component <- that of component 0."""
        first = {name: t for name, t in model_state(self.components[0]).items() if name not in self.own}
        for component in self.components[1:]:
            component.load_state_dict(first, strict=False)

    def mean_of_shared(self, models: Models, weights: Tensor) -> Models:
        """theta_0 <- its mean; phi stays."""
        share, mixed = weights / weights.sum(), dict(models)
        for name, rows in models.items():
            if name not in self.own and rows.is_floating_point():
                mixed[name] = torch.tensordot(share.to(rows), rows, dims=1).expand_as(rows)
        return mixed

    def _on_device(self) -> LocalTraining:
        self.training.network.to(next(self.components.parameters()))
        return self.training


@dataclass(frozen=True)
class SharedStep(LocalStep):
    """A step on (1 / |I|) sum_{i in I} sum_m q_im l(f(x_i; theta_0, phi_m), y_i), over theta_0 and all phi_m together.

    It is Eq. 10 summed over the components. With q from the E-step the sum is, up to a constant, a surrogate of the
    likelihood that touches it at the current parameters; so it is a partial first-order surrogate of (theta_0, phi),
    as Alg. 3 needs it, if the losses are smooth in (theta_0, phi) together.
    """

    def mean_loss(self, losses: Tensor, weight: Tensor, size: Tensor) -> Tensor:
        """Losses and weights q [B, M], size [] -> []."""
        return (weight * losses).sum(dim=(-1, -2)) / (size * self.task.n_targets)


def _own(network: nn.Module, shared: Shared) -> tuple[str, ...]:
    """Names of the parameters that are phi: those outside of what is shared."""
    trained = trained_parameters(network)
    if shared == "body":
        return tuple(name for name in split_body_head(network, key="shared").head if name in trained)
    parts = [shared] if isinstance(shared, str) else list(shared or ())
    listed = ", ".join(dict.fromkeys(name.rpartition(".")[0] for name in trained))
    for part in parts:
        expected = f"shared: expected body, or names of modules with parameters ({listed}), got {part!r}"
        require(any(within(name, [part]) for name in trained), expected)
    return tuple(name for name in trained if not within(name, parts))
