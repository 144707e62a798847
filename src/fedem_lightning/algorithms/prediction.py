"""Part of every algorithm: predictions and losses of its models."""

from typing import NoReturn

import torch
from torch import Tensor

from fedem_lightning.aggregation import Models
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.errors import UserError, require
from fedem_lightning.models.frozen import trained_parameters
from fedem_lightning.models.personal_models import (
    OwnModels,
    SharedModels,
    broadcast,
    client_means,
    component_losses,
)
from fedem_lightning.protocol import Algorithm

_WHO_PREDICTS = "every client has its own model; use model.client(NAME).predict(x), or model.personalize(x, y)"


class Prediction:
    """Predictions and losses of components and of personal models."""

    def forward(self, *_: object, **__: object) -> NoReturn:
        """Refuses `model(x)`: which model predicts depends on the client.

        Raises:
            UserError: it says which model to call.

        """
        raise UserError(f"model(x): {_WHO_PREDICTS}")

    def to_onnx(self, *_: object, **__: object) -> NoReturn:
        """Refuses Lightning's exports, which would call `forward`.

        Raises:
            UserError: it says what exports a client's model.

        """
        raise UserError(f"to_onnx, to_torchscript: {_WHO_PREDICTS}; fedem_lightning.export writes files of it")

    to_torchscript = to_tensorrt = to_onnx

    def predict(self: Algorithm, block: Block) -> Tensor:
        """The clients' personal predictions (FedEM, Eq. 5), as `Task.predict` gives them, [n, ...]."""
        require(isinstance(block, Block), f"predict: expected a block of samples of clients; {_WHO_PREDICTS}")
        return self.personal_models(block.clients).predict(block)

    def own_models(self: Algorithm, models: Models, mixture: Tensor | None = None) -> OwnModels:
        """Personal models that C clients do not share: models [C, M, ...], mixture [C, M] (None: equal weights)."""
        if mixture is None:
            some = next(iter(models.values()))
            mixture = some.new_full(some.shape[:2], 1 / some.shape[1], dtype=self.parameter_dtype)
        return OwnModels(self.components[0], models, mixture)

    def shares_models(self: Algorithm) -> bool:
        """Whether clients predict with shared components, each with its own mixture of them."""
        first = torch.zeros(1, dtype=torch.int64, device=self.device)
        return isinstance(self.personal_models(first), SharedModels)

    @property
    def n_served_models(self: Algorithm) -> int | None:
        """Number of models of which each client predicts with one; None: clients mix models, or have their own."""
        return 1 if not self.is_adapted and len(self.components) == 1 and self.shares_models() else None

    def losses(self: Algorithm, block: Block) -> Tensor:
        """l(h_m(x_i), y_i) of every component in nats, in eval mode: [n, M]."""
        return component_losses(self.components, block)

    def mean_losses(self: Algorithm, block: Block) -> Tensor:
        """The mean loss of each client's samples under every component, in eval mode, [C, M]; 0 without samples."""
        return client_means(self.losses(block).to(self.parameter_dtype), block)

    def broadcast(self: Algorithm, clients: Tensor) -> Models:
        """The shared components as each of the clients [C] receives them: views [C, M, ...]."""
        return broadcast(self.components, len(clients))

    def evaluation_components(self: Algorithm, federation: Federation) -> Models:
        """The evaluation components: the M models that diagnostics look at, [M, ...]. Default: the components."""
        return {name: rows[0] for name, rows in broadcast(self.components, 1).items()}

    def params_of(self: Algorithm, models: Models) -> Models:
        """The parameters of `models` that train, without buffers."""
        return {name: models[name] for name in trained_parameters(self.components[0])}
