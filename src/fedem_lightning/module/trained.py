"""A trained model: clients by name, and new clients that get a model from their samples."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedem_lightning.data.federation import Federation
from fedem_lightning.data.samples import n_rows
from fedem_lightning.evaluate.scores import models_scored
from fedem_lightning.method import Method
from fedem_lightning.models.personal_models import (
    ClientModel,
    ClientModels,
    PersonalModels,
    SharedModels,
    client_model,
    concatenated,
)
from fedem_lightning.module.growth import federation_of, grown
from fedem_lightning.settings.check import check_arguments
from fedem_lightning.settings.errors import UserError, require


class TrainedModel:
    """The models of the clients of an algorithm that has been trained, or loaded; UserError: it has not."""

    def __init__(self, algorithm: Method) -> None:
        if algorithm.schema is None:
            raise UserError("the model has not been trained: it knows no clients; fit or load it first")
        self.algorithm, self.schema = algorithm, algorithm.schema
        self._guest: Method | None = None  # a copy with room for one more client

    @torch.no_grad()
    def client(self, name: str) -> ClientModel:
        """The model of a client that trained, a copy.

        UserError: no such client trained; or clients adapt their models to samples, which the model does not keep; or
        Flower's clients keep their models.
        """
        t = self.schema.trained(name)
        return client_model(self._known(torch.tensor([t])), self.schema, self.schema.name(t))

    @torch.no_grad()
    def clients_models(self) -> ClientModels:
        """The models of all clients that trained; UserError as for `client`."""
        t = torch.nonzero(self.schema.seen).squeeze(1)
        names = tuple(self.schema.name(i) for i in t.tolist())
        return ClientModels(names, self._known(t), self.schema)

    def _known(self, clients: Tensor) -> PersonalModels:
        """The models of clients [C] that trained, if they are here and need no samples."""
        algorithm = self.algorithm
        own = type(algorithm).personal_models is not Method.personal_models
        theirs = own and (algorithm.states.stay_with_clients or algorithm.personalizes_seen)
        require(
            not (algorithm.is_deployed and (theirs or algorithm.adaptation is not None)),
            "Flower's clients keep their own models: use a client's file (`model` of its --node-config), where it is",
        )
        adapts = f"client: with adaptation={type(algorithm.adaptation).__name__.lower()} clients tune their models"
        kept = algorithm.adaptation is None
        require(kept, f"{adapts} on samples, which the model does not keep; use personalize(x, y, name=...)")
        return algorithm.personal_models(clients.to(algorithm.device))

    def personalize(self, x: Any, y: Any = None, name: str | int = "new client") -> ClientModel:
        """The model that a new client gets from its samples; UserError: they have another form than in training.

        A client that trained keeps its state; its samples only tune the model, if there is an adaptation.

        Args:
            x: samples as in training: arrays, uint8 images, or a table with the training table's columns, [n, ...].
            y: labels [n]: whole numbers, or the classes' names; real targets in a regression. n may be 0. None: they
                are not known, which some methods refuse.
            name: the client's name.

        """
        check_arguments("", TrainedModel.personalize, {"name": name})
        x = self.schema.x_of(x)
        n = n_rows(x)
        labels = None if y is None else self.schema.labels(y)
        if labels is not None:
            require(len(labels) == n, f"y: expected {n} labels, one for each sample, got {len(labels)}")
        everything = np.zeros(n, dtype=np.int64)
        models = self.personalize_many(self.schema.samples_of(x, labels), everything, everything, (str(name),))
        return models.model(str(name))

    def personalize_many(
        self, samples: Any, client: np.ndarray, split: np.ndarray, names: tuple[str, ...]
    ) -> ClientModels:
        """The models that K clients with these names get from their training samples; see `personalize`.

        The n samples have the form of training (`Schema.samples_of`), a client, int64 [n] in 0..K-1, and a split, 0
        train, 1 val, 2 test, [n]; only training samples (and validation, where a method selects by it) are used.
        """
        algorithm, schema = self.algorithm, self.schema
        clients: list[int] = []
        new: list[str] = []
        for name in names:
            place = schema.place(name)
            free = place is None or not schema.seen[place] or algorithm.adaptation is not None
            require(free, f"client: {name} took part in training and has its model; give the new client another name")
            clients.append(schema.n_clients + len(new) if place is None else place)
            new += [name] if place is None else []
        t = torch.tensor(clients, dtype=torch.int64)
        federation = federation_of(schema, samples, t[client], torch.from_numpy(split), tuple(new))
        if len(new) == 1:  # making this copy takes longer than using it, so it is kept
            other = self._guest = self._guest or grown(algorithm, 1)
        else:
            other = grown(algorithm, len(new))
        personal = personalized(other, federation.to(algorithm.device), t.to(algorithm.device))
        return ClientModels(names, personal, schema)


@torch.no_grad()
def personalized(algorithm: Method, federation: Federation, clients: Tensor) -> PersonalModels:
    """The models that clients have after they are personalised, and adapt."""
    algorithm.prepare(federation)
    if algorithm.adaptation is not None:
        algorithm.adaptation.check(algorithm.components[0], federation)
    unseen = clients[~federation.seen[clients]]
    algorithm.states.forget_momentum(unseen)
    if len(unseen):
        algorithm.personalize_clients(federation, unseen)
    everyone = torch.arange(len(clients), device=clients.device)
    parts = [personal for _, personal in models_scored(algorithm, federation, clients, everyone)]
    algorithm.local.work.clear()  # no round counts it, and a server personalises for days
    own = [personal for personal in parts if not isinstance(personal, SharedModels)]
    return concatenated(own) if own else parts[0]
