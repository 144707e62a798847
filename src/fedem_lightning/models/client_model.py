"""One client's model as a plain module, and the models of many clients."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedem_lightning.data.samples import Inputs
from fedem_lightning.data.schema import Schema
from fedem_lightning.models.components import model_state
from fedem_lightning.models.personal_models import OwnModels, PersonalModels, SharedModels, mixed
from fedem_lightning.models.tensors import Models, each_called, share_frozen
from fedem_lightning.settings.errors import UserError


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

        Rows are a DataFrame, a dictionary of one row, or a list of such; other columns, such as clients, are ignored.
        UserError: the samples have another form.
        """
        samples: Any = self.schema.samples_of(self.schema.x_of(x)).to(self.weights.device)
        everything = torch.arange(len(samples.y), device=self.weights.device)
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
