"""Networks with another head: two heads, or prototypes of the classes."""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from os.path import commonpath
from typing import Any

import torch
from torch import Tensor, nn

from fedem_lightning.data.federation import Block
from fedem_lightning.data.samples import Inputs
from fedem_lightning.data.tasks import OfTask, known
from fedem_lightning.models.components import within
from fedem_lightning.models.em import add_by_owner
from fedem_lightning.models.parts import Around, one_sample, split_body_head
from fedem_lightning.models.personal_models import OwnModels
from fedem_lightning.models.tensors import Models, called
from fedem_lightning.settings.errors import require


class WithFeatures(Around):
    """A user's network whose features are known. A subclass defines `forward`, which takes samples as they are.

    A buffer that is None is no part of the model: its values come beside a model's tensors, under its name, with the
    leading axes of stacked learners (`by_learner`). `head`: see `find_head`.
    """

    def __init__(self, backbone: nn.Module, head: str | None = None) -> None:
        super().__init__()
        self.network = backbone
        self.head, _ = find_head(backbone, head)  # the head's name

    def outputs_and_features(self, x: Inputs) -> tuple[Tensor, Tensor]:
        """The network's outputs [n, ..., n_outputs], and the head's input z, of any shape [n, ...]."""
        return self.through(x, lambda z: z)

    def through(self, x: Inputs, change: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """The outputs [n, ..., n_outputs] where the head takes change(z) in place of z, and z."""
        seen: list[Tensor] = []

        def changed(_: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
            seen.append(given[0])
            return (change(given[0]), *given[1:])

        hook = self.network.get_submodule(self.head).register_forward_pre_hook(changed)
        try:
            outputs = called(self.network, x)
        finally:
            hook.remove()
        require(bool(seen), f"algorithm.head: the network does not call its module {self.head}")
        return outputs, seen[-1]


def with_inputs_of(network: nn.Module, layers: Iterable[nn.Module], x: Inputs) -> tuple[Tensor, list[Tensor]]:
    """The network's outputs [n, ...], and the inputs of these layers, call by call."""
    seen: list[Tensor] = []
    hooks = [layer.register_forward_pre_hook(lambda _, given: seen.append(given[0])) for layer in layers]
    try:
        return called(network, x), seen
    finally:
        for hook in hooks:
            hook.remove()


def find_head(network: nn.Module, pattern: str | None = None) -> tuple[str, nn.Module]:
    """The head of `split_body_head` as one module, and its name.

    UserError: the head is not one module, or what `split_body_head` refuses.
    """
    body, head = split_body_head(network, pattern)
    name = commonpath(name.rpartition(".")[0].replace(".", "/") for name in head).replace("/", ".")
    whole = bool(name) and not any(within(n, [name]) for n in body)
    require(whole, f"head: {', '.join(head)} are not one module, as needed here")
    return name, network.get_submodule(name)


def widths(head: nn.Module) -> tuple[int, int]:
    """The numbers of features that a head takes and of outputs that it gives; 0 and 0 if it has no linear layer."""
    layers = [layer for layer in head.modules() if isinstance(layer, nn.Linear)]
    return (layers[0].in_features, layers[-1].out_features) if layers else (0, 0)


def by_learner(tensor: Tensor, n_axes: int) -> Tensor:
    """A learner's tensor [...] of `n_axes` axes, or those of a stack [A, M, ...], as [A M, ...]; A M = 1 for one."""
    return tensor.reshape(-1, *tensor.shape[tensor.ndim - n_axes :])


def shifted(outputs: Tensor, by: Tensor) -> Tensor:
    """A learner's outputs [n, ..., Y] + by [Y]; a stack's outputs [A M n, ..., Y] + by [A, M, Y], each its own."""
    rows = by_learner(by, 1)  # [A M, Y]
    shift = rows.view(len(rows), *[1] * (outputs.ndim - 1), -1)
    return (outputs.unflatten(0, (len(rows), -1)) + shift).flatten(0, 1)


class TwoHeads(WithFeatures):
    """A network with its own head, h_G, and a personal head h_t of the same form, whose last layer starts at zero.

    Outputs: h_G(z) + h_t(z). With `log_counts` [n_outputs] they are those of both losses, one after the other:
    h_G(z) + log n_t, and h_G(z) + h_t(z) with h_G and z detached; [n, ..., 2 n_outputs].
    """

    own_part = "personal"
    log_counts: Tensor | None

    def __init__(self, backbone: nn.Module, head: str | None = None) -> None:
        super().__init__(backbone, head)
        self.personal = copy.deepcopy(find_head(backbone, head)[1])
        last = [layer for layer in self.personal.modules() if list(layer.parameters(recurse=False))][-1]
        for parameter in last.parameters(recurse=False):
            nn.init.zeros_(parameter)
        self.register_buffer("log_counts", None)

    def forward(self, x: Tensor) -> Tensor:
        """The outputs; see the class."""
        generic, z = self.outputs_and_features(x)
        if self.log_counts is None:
            return self._sum(generic, self.personal(z))
        both = self._sum(generic.detach(), self.personal(z.detach()))
        return torch.cat([shifted(generic, self.log_counts), both], dim=-1)

    def _sum(self, generic: Tensor, personal: Tensor) -> Tensor:
        fits = personal.shape[1:] == generic.shape[1:]
        require(fits, f"algorithm.head: {self.head} gives {tuple(personal.shape[1:])}, the network another shape")
        return generic + personal


@dataclass(frozen=True)
class BothLosses(OfTask):
    """The balanced softmax loss of h_G and the empirical loss of h_G + h_t."""

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The sum of both: outputs [n, ..., 2 n_outputs] -> [n]."""
        generic, both = outputs.chunk(2, dim=-1)
        return self.task.losses(generic, y) + self.task.losses(both, y)


UNKNOWN = 50.0
"""How much less likely, in nats, a class without a prototype is than the farthest class that has one."""


class PrototypeNetwork(WithFeatures):
    """A network that may predict by class prototypes C_y, points among the features.

    Outputs: those of its head. With `prototypes` [Y, d] and `known` [Y], the classes that have one, they are
    -|z - C_y|^2 up to a constant of the sample; with one output the difference of those of the classes 1 and 0. With
    `apart` (any value) they are the head's outputs and then z: [n, ..., n_outputs + d]. `shape` is Y and d, if the
    model holds prototypes.
    """

    prototypes: Tensor | None
    known: Tensor | None
    apart: Tensor | None

    def __init__(self, backbone: nn.Module, head: str | None = None, shape: Sequence[int] | None = None) -> None:
        super().__init__(backbone, head)
        like = next(backbone.parameters())
        self.register_buffer("prototypes", None if shape is None else like.new_zeros(*shape))
        self.register_buffer("known", None if shape is None else like.new_zeros(shape[0], dtype=torch.bool))
        self.register_buffer("apart", None)

    def forward(self, x: Tensor) -> Tensor:
        """The outputs; see the class."""
        outputs, z = self.outputs_and_features(x)
        z = z.flatten(outputs.ndim - 1)  # [n, ..., d]
        if self.apart is not None:
            return torch.cat([outputs, z], dim=-1)
        if self.prototypes is None or self.known is None:
            return outputs
        rows, known = by_learner(self.prototypes, 2), by_learner(self.known, 1).unsqueeze(1)  # [A M, Y, d], [A M, 1, Y]
        each = z.reshape(len(rows), -1, z.shape[-1])  # [A M, n', d]
        near = 2 * each @ rows.mT - rows.square().sum(dim=-1).unsqueeze(1)  # |z|^2 - |z - C|^2
        lowest = near.masked_fill(~known, torch.inf).amin(dim=-1, keepdim=True)
        logits = torch.where(known, near, lowest - UNKNOWN).view(*outputs.shape[:-1], -1)
        return logits if outputs.shape[-1] > 1 else logits[..., 1:] - logits[..., :1]

    def of_shape(self, shape: Sequence[int]) -> "PrototypeNetwork":
        """The same network, not a copy, with room for prototypes [Y, d]."""
        return PrototypeNetwork(self.network, self.made_with.get("head"), list(shape))


@dataclass(frozen=True)
class PulledLoss(OfTask):
    """The task's loss plus penalty |z - C_y|^2 / d; a class y without a prototype adds nothing."""

    prototypes: Tensor  # [Y, d]
    known: Tensor  # bool [Y]
    penalty: float

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Losses, summed over a sample's targets: outputs and features [n, ..., n_outputs + d], y [n, ...] -> [n]."""
        d = self.prototypes.shape[1]
        logits, z = outputs[..., :-d], outputs[..., -d:]
        label = y.long().clamp(min=0)  # a missing one has a code below 0
        distance = (z - self.prototypes[label]).square().mean(dim=-1) * (self.known[label] & known(y))  # [n, ...]
        return self.task.losses(logits, y) + self.penalty * distance.reshape(len(y), -1).sum(dim=1)


def apart(block: Block) -> Models:
    """What a block's networks need to give their features, too: [C, 1]."""
    return {"apart": torch.zeros(len(block.clients), 1, dtype=torch.bool, device=block.clients.device)}


def class_counts(block: Block, n_classes: int) -> Tensor:
    """Training labels of each class, of each of the C clients: int64 [C, Y]; a sequence counts once a known label."""
    y = block.y()
    place = owner_and_class(block.owner, y, n_classes)[known(y).flatten()]
    return torch.bincount(place, minlength=len(block.clients) * n_classes).view(-1, n_classes)


def owner_and_class(owner: Tensor, y: Tensor, n_classes: int) -> Tensor:
    """owner Y + y of every label: owner int64 [n], y [n] or [n, L] -> int64 [n] or [n L]."""
    return (owner.view(-1, *[1] * (y.ndim - 1)) * n_classes + y.long()).flatten()


def features_of(networks: OwnModels, block: Block) -> Iterator[tuple[Tensor, Tensor]]:
    """Positions of some of the block's samples, and their features z [k, ..., d]; networks `apart`."""
    for where, (outputs,) in networks.outputs(block):
        yield where, outputs[..., block.federation.task.n_outputs :].to(networks.mixture)


def features_in_order(own_models: Callable[[Models], OwnModels], models: Models, block: Block) -> Tensor:
    """z of all samples by their clients' models [C, 1, ...], in eval mode; of a sequence in one row: [n, d]."""
    mark = {name: rows[:1].expand(len(rows), -1) for name, rows in apart(block).items()}  # the same for all
    places, parts = zip(*features_of(own_models(models | mark), block), strict=True)
    return torch.cat(parts)[torch.cat(places).argsort()].flatten(1)


def class_sums(networks: OwnModels, block: Block) -> tuple[Tensor, Tensor]:
    """The sums of each client's features by class, [C, Y, d], and its numbers of labels, [C, Y]; networks `apart`."""
    task: Any = block.federation.task
    counts = class_counts(block, task.n_classes).to(networks.mixture.dtype)
    network: Any = networks.backbone.eval()
    outputs, z = network.outputs_and_features(one_sample(block.federation, network))
    sums = counts.new_zeros(counts.numel(), z.flatten(outputs.ndim - 1).shape[-1])  # [C Y, d]
    for where, z in features_of(networks, block):
        y = block.y()[where]
        place, result = owner_and_class(block.owner[where], y, task.n_classes), known(y).flatten()  # [k], or [k L]
        add_by_owner(sums, place[result], z.flatten(0, -2)[result])
    return sums.view(*counts.shape, -1), counts
