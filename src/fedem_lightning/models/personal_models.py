"""Personal models, with which clients predict: one object for training, scoring and adaptations; a module of each.

Clients either share the components and have their own mixture weights (`SharedModels`), or have their own models
(`OwnModels`). Both predict by Eq. 5 of the FedEM paper.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedem_lightning.data.federation import Block
from fedem_lightning.data.samples import Inputs, n_rows
from fedem_lightning.data.schema import Schema
from fedem_lightning.data.tasks import Task
from fedem_lightning.models.client_outputs import Part, client_outputs
from fedem_lightning.models.components import model_state, stacked_state
from fedem_lightning.models.em import add_by_owner
from fedem_lightning.models.tensors import Models, each_called, share_frozen
from fedem_lightning.settings.errors import UserError

SampleWeights = Callable[[Tensor, Tensor, Block], Tensor]
"""Function (mixture [C, M], losses [n, M], block) -> weights of the block's samples in each model's loss, [n, M]."""


@dataclass(frozen=True)
class SharedModels:
    """Components that C clients share, and each client's mixture weights."""

    components: nn.ModuleList  # the M components
    mixture: Tensor  # [C, M]; rows sum to 1
    weigh: SampleWeights | None = None  # the samples when clients tune their models; None: all have weight 1

    @property
    def models(self) -> Models:
        """The components for each client: views [C, M, ...]."""
        return broadcast(self.components, len(self.mixture))

    def predict(self, block: Block) -> Tensor:
        """Predictions by Eq. 5: sum_m pi[t, m] h_m(x), h from `Task.predict`, [n, ...]; the block has these clients."""
        return mixed(block.federation.task, component_outputs(self.components, block), self.mixture[block.owner])

    def losses(self, block: Block) -> Tensor:
        """The losses l(h_m(x_i), y_i) in nats, [n, M]."""
        return component_losses(self.components, block)


class OwnModels(NamedTuple):
    """Own models of C clients, M each, and their mixture weights."""

    backbone: nn.Module  # network whose parameters and buffers the models replace
    models: Models  # [C, M, ...]
    mixture: Tensor  # [C, M]; rows sum to 1
    weigh: SampleWeights | None = None  # see `SharedModels`
    columns: dict[str, Tensor] = {}  # those of an adaptation, for the clients' table, each [C]

    @torch.no_grad()
    def predict(self, block: Block) -> Tensor:
        """Predictions by Eq. 5 with own models: sum_m pi[t, m] h_{t,m}(x), [n, ...]; the block has these clients."""
        task, result = block.federation.task, torch.empty(0)
        for where, outputs in self.outputs(block):
            some = mixed(task, outputs, self.mixture[block.owner[where]])  # [k, ...]
            result = result if len(result) else some.new_empty(len(block.index), *some.shape[1:])
            result[where] = some
        return result

    @torch.no_grad()
    def losses(self, block: Block) -> Tensor:
        """The losses l(h_{t,m}(x_i), y_i) in nats, [n, M]."""
        y, task = block.y(), block.federation.task
        result = self.mixture.new_zeros(self.mixture.shape[1], len(y))
        for where, outputs in self.outputs(block):
            result[:, where] = torch.stack([task.losses(output, y[where]) for output in outputs]).to(result)
        return result.T

    def outputs(self, block: Block) -> Iterator[Part]:
        """The models' outputs in eval mode, for some of the samples at a time."""
        return client_outputs(self.backbone, self.models, block)


PersonalModels = SharedModels | OwnModels


def sample_weights(models: PersonalModels, block: Block) -> Tensor | None:
    """Weights of the samples in each model's loss when clients tune their models, [n, M]; None: 1."""
    return None if models.weigh is None else models.weigh(models.mixture, models.losses(block), block)


def mixed(task: Task, outputs: Sequence[Tensor], pi: Tensor) -> Tensor:
    """The prediction of M networks by Eq. 5: outputs M x [n, ...], pi [M] or [n, M] -> [n, ...]."""
    predictions = [task.predict(output) for output in outputs]
    if len(predictions) == 1:
        return predictions[0]
    return task.mix(torch.stack(predictions), pi.expand(predictions[0].shape[0], -1))


def concatenated(parts: Sequence[OwnModels]) -> OwnModels:
    """The models of several blocks' clients, one block after the other.

    Where clients keep samples in their models, the tensors' axes differ: zeros make them as long as the longest.
    """
    if len(parts) == 1:
        return parts[0]._replace(columns={})
    models = {}
    for name in parts[0].models:
        rows = [part.models[name] for part in parts]
        shape = [max(lengths) for lengths in zip(*(r.shape[1:] for r in rows), strict=True)]
        models[name] = rows[0].new_zeros(sum(map(len, rows)), *shape)
        for part, own in zip(models[name].split([len(r) for r in rows]), rows, strict=True):
            part[tuple(slice(n) for n in own.shape)] = own
    return OwnModels(parts[0].backbone, models, torch.cat([part.mixture for part in parts]))


def broadcast(components: nn.ModuleList, n_clients: int) -> Models:
    """The components as each of C clients receives them: views [C, M, ...]."""
    return {name: tensor.expand(n_clients, *tensor.shape) for name, tensor in stacked_state(components).items()}


@torch.no_grad()
def component_outputs(components: nn.ModuleList, block: Block) -> list[Tensor]:
    """Every component's outputs for the block's samples, in eval mode: M x [n, n_outputs]."""
    return each_called(components.eval(), block.x(next(components.parameters()).dtype))


def component_losses(components: nn.ModuleList, block: Block) -> Tensor:
    """The losses l(h_m(x_i), y_i) of every component in nats, in eval mode: [n, M]."""
    task, pieces = block.federation.task, []
    for piece in block.pieces():
        y = piece.y()
        outputs = component_outputs(components, piece)
        pieces.append(torch.stack([task.losses(output, y) for output in outputs]))  # [M, piece]
    return torch.cat(pieces, dim=1).T


def client_means(values: Tensor, block: Block) -> Tensor:
    """The mean of `values` over each client's samples, [n, M] -> [C, M]; 0 for clients without samples."""
    sums = values.new_zeros(len(block.clients), values.shape[1])
    return add_by_owner(sums, block.owner, values) / block.counts().clamp(min=1).unsqueeze(1)


class ClientModel(nn.Module):
    """What one client predicts with: sum_m pi_m h_m(x), Eq. 5 of the FedEM paper. It holds copies, in eval mode.

    `networks` are the h_m, `weights` pi, [M], which sum to 1; `schema` has the form of the samples, and the task.
    """

    weights: Tensor

    def __init__(self, networks: Sequence[nn.Module], weights: Tensor, schema: Schema, name: str) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks).requires_grad_(False)
        self.register_buffer("weights", weights.detach().clone())
        self.schema, self.name = schema, name
        self.eval()

    def forward(self, x: Inputs) -> Tensor:
        """Probabilities of the classes [n, Y], for texts [n, L, Y], or means of y [n, k].

        x are samples as the networks take them, [n, *in_shape]; several tensors as a dictionary.
        """
        task = self.schema.task
        return task.answer(mixed(task, each_called(self.networks, x), self.weights))

    @torch.no_grad()
    def predict(self, x: Any) -> np.ndarray:
        """The same as `forward`, from samples as in training: arrays, uint8 images, or rows of a table.

        Rows are a DataFrame, or a dictionary of one row; other columns, such as clients, are ignored.
        UserError: the samples have another form.
        """
        samples: Any = self.schema.samples_of(self.schema.x_of(x)).to(self.weights.device)
        everything = torch.arange(n_rows(samples.x), device=self.weights.device)
        return self(samples.features(everything, self.weights.dtype)).cpu().numpy()


@dataclass
class ClientModels:
    """The models of K clients: shared components with their weights, or models of their own."""

    names: tuple[str, ...]  # of the clients, [K]
    personal: PersonalModels  # of all clients at once
    schema: Schema  # form of the samples, and the task

    def __post_init__(self) -> None:
        self._places = {name: k for k, name in enumerate(self.names)}

    def place(self, name: str) -> int | None:
        """The index of a client; None if it is not among them."""
        return self._places.get(str(name))

    def of(self, rows: Tensor) -> PersonalModels:
        """The models of some of the clients (int64 [C]), which predict for blocks of these clients."""
        mixture = self.personal.mixture[rows]
        if isinstance(self.personal, SharedModels):
            return SharedModels(self.personal.components, mixture)
        return OwnModels(self.personal.backbone, {n: t[rows] for n, t in self.personal.models.items()}, mixture)

    def model(self, name: str) -> ClientModel:
        """One client's model; UserError for a name that is not among them."""
        row = self.place(name)
        if row is None:
            some = ", ".join(self.names[:3])
            raise UserError(f"client: {name} is none of the {len(self.names)} clients ({some}, ...)")
        return client_model(self.of(torch.tensor([row])), self.schema, self.names[row])


def client_model(personal: PersonalModels, schema: Schema, name: str) -> ClientModel:
    """The module of a single client's personal models."""
    if isinstance(personal, SharedModels):
        networks = list(copy.deepcopy(personal.components))  # together: they go on sharing frozen tensors
    else:
        states = [{n: t[0, m] for n, t in personal.models.items()} for m in range(personal.mixture.shape[1])]
        networks = [with_state(personal.backbone, state) for state in states]
        for network in networks[1:]:
            share_frozen(network, networks[0])
    return ClientModel(networks, personal.mixture[0], schema, name)


def with_state(network: nn.Module, state: Models) -> nn.Module:
    """A copy of a network with other parameters and buffers; frozen tensors stay."""
    own = copy.deepcopy(network)
    assert state.keys() == model_state(own).keys()
    own.load_state_dict(state, strict=False)
    return own
