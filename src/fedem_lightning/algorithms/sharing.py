"""Components that share parameters: which ones, how clients train them together, and what a round sends."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from fedem_lightning.aggregation import Models, PrivateMean
from fedem_lightning.algorithms.local_training import LocalTraining
from fedem_lightning.backbones.pretrained import Adapters, LoRA, adapted, has_adapters
from fedem_lightning.data.block import Block
from fedem_lightning.errors import require
from fedem_lightning.local_solver import LocalStep
from fedem_lightning.models.components import Backbone, copied, model_state, within
from fedem_lightning.models.mixture_network import ComponentLosses, MixtureNetwork, packed, tensors_of, unpacked
from fedem_lightning.models.parts import share_of_bytes, split_body_head
from fedem_lightning.models.personal_models import OwnModels
from fedem_lightning.models.tensors import call_with, trained_parameters
from fedem_lightning.tasks import Task

if TYPE_CHECKING:
    from fedem_lightning.algorithms.base import FederatedAlgorithm
    from fedem_lightning.algorithms.personal_part import PersonalPart

Shared = Literal["body"] | Sequence[str] | None
"""What components share: "body", all but the last layer; or names of modules; None: nothing."""

SHARING = "shares parameters among components (algorithm.shared=null does not)"
"""Why such a mixture does not run under Flower, see `Facts.needs_one_machine`."""


def with_adapters(backbone: Backbone, n_components: int, shared: Shared, adapters: Adapters) -> tuple[Backbone, Shared]:
    """The backbone with adapters beside its layers, and what components then share; without adapters as it was.

    The network of a checkpoint has them already. Adapters of a rank have scale 1, as FLoRAL's: the network trains with
    them, at one rate.

    Raises:
        UserError: something else is shared, too.

    """
    if adapters is None or n_components == 1:
        return backbone, shared
    require(shared is None, "adapters: all else is shared, so leave out shared")
    how = adapters if isinstance(adapters, LoRA) else LoRA(adapters, scale=1.0)

    def made() -> nn.Module:
        network = copied(backbone) if isinstance(backbone, nn.Module) else backbone()
        return network if has_adapters(network) else adapted(network, how)

    return made, "all but adapters"


def joint_training(
    algorithm: "FederatedAlgorithm", shared: Shared, personal: "PersonalPart | None" = None
) -> "JointTraining | None":
    """The training of components that share parameters, whose momentum the algorithm keeps; None: they share nothing.

    Raises:
        UserError: an option would count shared parameters once for every component; see `Sharing`.

    """
    if not (shared or personal) or len(algorithm.components) == 1:
        return None
    key = "shared" if shared else "personal"
    require(algorithm.compression is None, f"{key}: leave out compression, which shortens each component alone")
    private = isinstance(algorithm.aggregation, PrivateMean) and algorithm.facts.sends_updates
    require(not private, f"{key}: a private mean would add noise by component; use aggregation=mean")
    found = JointTraining(algorithm.components, shared, algorithm.local, personal.names if personal else ())
    if found.training is not None and found.training.momentum is not None:
        algorithm.shared_momentum = found.training.momentum
    algorithm.facts, algorithm.local.gradients = replace(algorithm.facts, needs_one_machine=SHARING), 1
    return found


class Sharing:
    """Components h_m(x) = f(x; theta_0, phi_m): theta_0 is one for all, phi_m belongs to component m.

    Args:
        components: the M networks; `tie` gives them component 0's theta_0.
        shared: see `Shared`; "all but adapters" with `adapted` networks.
        personal: names of parameters of which each client has its own, one for all components; see `PersonalPart`.

    Raises:
        UserError: a name is no module with parameters that train; "body", and the network has no body or no head;
            with personal parameters nothing is left that differs among components.

    """

    def __init__(self, components: nn.ModuleList, shared: Shared, personal: Sequence[str] = ()) -> None:
        self.components, self.n_components = components, len(components)
        self.own = tuple(name for name in _own(components[0], shared) if name not in personal)  # names of phi's tensors
        apart = bool(self.own) or not personal
        require(apart, "personal: components would differ in nothing; share less, or use algorithm=fedper")
        self.share = share_of_bytes(components[0], self.own)  # phi's share of a model's bytes
        self.kept = share_of_bytes(components[0], personal)

    @property
    def n_sent(self) -> float:
        """Number of models that a client receives and sends: theta_0 once and M times phi; a fraction."""
        return 1 - self.kept + (self.n_components - 1) * self.share

    def broadcast(self, n_clients: int) -> Models:
        """The components as each of C clients receives them, [C, M, ...]; theta_0 is a view of component 0's."""
        tensors = tensors_of(self.components, self.own).items()
        return unpacked({name: t.expand(n_clients, 1, *t.shape) for name, t in tensors}, self.n_components)

    @torch.no_grad()
    def tie(self) -> None:
        """theta_0 of every component <- that of component 0."""
        first = {name: t for name, t in model_state(self.components[0]).items() if name not in self.own}
        for component in self.components[1:]:
            component.load_state_dict(first, strict=False)

    def mean_of_shared(self, models: Models, weights: Tensor) -> Models:
        """The same models [M, ...], where theta_0 is their mean with weights [M] that are not all zero."""
        share = weights / weights.sum()
        mixed = dict(models)
        for name, rows in models.items():
            if name not in self.own and rows.is_floating_point():
                mean = torch.tensordot(share.to(rows), rows, dims=1)  # [...]
                mixed[name] = mean.expand_as(rows)
        return mixed


class JointTraining(Sharing):
    """The M-step over theta_0 and all phi_m together: a client trains one network with M outputs.

    Args:
        components, shared, personal: see `Sharing`.
        local: the training of components that share nothing, whose settings count.

    """

    def __init__(
        self, components: nn.ModuleList, shared: Shared, local: LocalTraining, personal: Sequence[str] = ()
    ) -> None:
        super().__init__(components, shared, personal)
        self.local = local
        self.training: LocalTraining | None = None  # of one network with M outputs; None: everything is shared
        if self.own:
            engine = copy.copy(local.engine_choice)  # it prepares itself for one network
            how = (local.epochs, local.steps, local.batch_size, local.seed, engine, local.statistics)
            network = MixtureNetwork(components, self.own)
            self.training = LocalTraining(network, local.n_clients, 1, local.optimizer, *how)

    @torch.no_grad()
    def losses(self, block: Block, models: Models | None = None) -> Tensor:
        """The losses l(f(x_i; theta_0, phi_m), y_i) in nats, in eval mode, [n, M]; see `component_losses`.

        Args:
            block: C clients and their n samples.
            models: each client's components [C, M, ...]; None: the same for all.

        """
        network, task = self._training().network, ComponentLosses(block.federation.task)
        if models is not None:
            each = OwnModels(network, packed(models, self.own), torch.ones(len(block.clients), 1)).outputs(block)
            found = [task.losses(outputs, y) for _, (outputs,), y in each]
            return torch.cat(found) if found else torch.zeros(0, self.n_components, device=block.clients.device)
        tensors = tensors_of(self.components, self.own)
        dtype, network = next(self.components.parameters()).dtype, network.eval()
        found = [task.losses(call_with(network, tensors, piece.x(dtype)), piece.y()) for piece in block.pieces()]
        return torch.cat(found)

    def solve(self, models: Models, block: Block, round_: int, q: Tensor, only: Sequence[str] | None = None) -> Models:
        """The M-step of the block's C clients over theta_0 and all phi_m together; see `MixtureStep`.

        Args:
            models: where clients start, [C, M, ...]; theta_0 is that of component 0.
            block: the clients and their samples.
            round_: number of the round, from 0.
            q: weights of the samples in the components' losses, [n, M].
            only: names of the shared or personal parameters that train; None: all parameters.

        Returns:
            The components' tensors [C, M, ...]; theta_0 is the same for all.

        """
        training = self._training()
        training.observer = self.local.observer
        options: dict[str, Any] = {"step": training.step(block, round_, MixtureStep)}
        if only is not None:
            options["only"] = [f"network.{name}" for name in only]
        trained = training.solve(packed(models, self.own), block, round_, q.unsqueeze(1), **options)
        return unpacked(trained, self.n_components)

    def _training(self) -> LocalTraining:
        """The training of the network with M outputs, on the components' device; there is one unless all is shared."""
        assert self.training is not None
        self.training.network.to(next(self.components.parameters()))
        return self.training


@dataclass(frozen=True)
class MixtureStep(LocalStep):
    """A step on (1 / |I|) sum_{i in I} sum_m q_im l(f(x_i; theta_0, phi_m), y_i), over theta_0 and all phi_m together.

    It is Eq. 10 summed over the components. With q from the E-step the sum is, up to a constant, a surrogate of the
    likelihood that touches it at the current parameters; so it is a partial first-order surrogate of (theta_0, phi),
    as Alg. 3 needs it, if the losses are smooth in (theta_0, phi) together.
    """

    @classmethod
    def loss_of(cls, task: Task) -> Any:
        """The losses of all components."""
        return ComponentLosses(super().loss_of(task))

    def mean_loss(self, losses: Tensor, weight: Tensor, size: Tensor) -> Tensor:
        """Losses and weights q [B, M], size [] -> []."""
        return (weight * losses).sum(dim=(-1, -2)) / (size * self.task.n_targets)


def _own(network: nn.Module, shared: Shared) -> tuple[str, ...]:
    """Names of the parameters that are phi: those outside of what is shared."""
    trained = trained_parameters(network)
    if shared == "all but adapters":
        return tuple(name for name in trained if "lora_" in name)
    if shared == "body":
        return tuple(name for name in split_body_head(network, key="shared").head if name in trained)
    parts = [shared] if isinstance(shared, str) else list(shared or ())
    named = trained_in(network, parts, "shared: expected body, or names of modules with parameters")
    return tuple(name for name in trained if name not in named)


def trained_in(network: nn.Module, parts: Sequence[str], expected: str) -> list[str]:
    """Names of the trained parameters of these modules, or of these parameters; UserError if a part has none."""
    trained = trained_parameters(network)
    for part in parts:
        listed = ", ".join(dict.fromkeys(name.rpartition(".")[0] for name in trained))
        require(any(within(name, [part]) for name in trained), f"{expected} ({listed}), got {part!r}")
    return [name for name in trained if within(name, parts)]
