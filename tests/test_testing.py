"""The checks for methods of one's own: they pass for the package's methods, and find each mistake."""

from typing import Any

import pytest
import torch

from fedem_lightning import AFL, FedAvg, FedEM, FedPer, Linear, Local, PFedMe, UserError, check_algorithm
from fedem_lightning.aggregate import Update
from fedem_lightning.models.client_store import ClientStore

ALL = ["check_training", "check_engines", "check_order", "check_state", "check_resume"]
ALL += ["check_sampling", "check_unseen"]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (FedEM, {}),
        (PFedMe, {"penalty": 2.0, "outer_lr": 0.2}),
        (FedPer, {}),  # it needs a body and a head
    ],
)
def test_methods_of_the_package_pass(kind: Any, options: dict[str, Any]) -> None:
    assert check_algorithm(kind, **options) == ALL


def test_the_backbone_is_the_one_given() -> None:
    with pytest.raises(UserError, match=r"^head: the last layer is all that trains"):
        check_algorithm(FedPer, backbone=Linear((4,), 2))


def test_what_a_method_is_not_defined_for_is_left_out() -> None:
    assert check_algorithm(AFL, samples_clients=False) == [name for name in ALL if name != "check_sampling"]


class Frozen(FedAvg):
    def client_update(self, block: Any, round_: int) -> Update:
        w = self.received(block.clients)
        return Update(w, block.counts(), start=w)


class Twice(FedAvg):
    def server_update(self, means: Any, round_: Any) -> None:
        super().server_update(means, round_)
        self.server.step()


class Unsaved(FedAvg):
    """Keeps personal models in an attribute that no checkpoint has."""

    own: ClientStore

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.__dict__["own"] = self.per_client(self.components).double()

    def client_update(self, block: Any, round_: int) -> Update:
        w = self.received(block.clients)
        models = self.local_sgd(w, block, round_)
        self.own[block.clients] = models
        return Update(models, block.counts(), start=w)

    def personal_models(self, clients: Any) -> Any:
        return self.own_models(self.own[clients])


class Numbered(FedAvg):
    def client_update(self, block: Any, round_: int) -> Update:
        w = self.received(block.clients)
        return Update(self.local_sgd(w, block, round_), block.clients + 1, start=w)


class Engined(FedAvg):
    def client_update(self, block: Any, round_: int) -> Update:
        sent = super().client_update(block, round_)
        return sent._replace(
            weights=sent.weights + (self.local.engine.name == "vmap") * torch.arange(len(block.clients))
        )


class Meddling(Local):
    def client_update(self, block: Any, round_: int) -> None:
        super().client_update(block, round_)
        everybody = block.federation.clients()
        models = self.models[everybody]
        self.models[everybody] = {name: rows + 1 for name, rows in models.items()}


class Accumulating(Local):
    def personalize_clients(self, federation: Any, clients: Any) -> None:
        for block in self.local.blocks(federation, clients):
            self.client_update(block, 0)


class Touching(Local):
    def personalize_clients(self, federation: Any, clients: Any) -> None:
        super().personalize_clients(federation, clients)
        seen = federation.clients()
        self.models[seen] = {name: rows + 1 for name, rows in self.models[seen].items()}


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Frozen, "Frozen: a round does not change what clients predict with"),
        (Twice, "Twice: server_update calls server.step 2 times in a round, expected once"),
        (Unsaved, "Unsaved: state is lost in a checkpoint"),
        (Numbered, "Numbered: the result depends on the clients' order"),
        (Engined, "Engined: the engines loop and vmap differ"),
        (Meddling, "Meddling: a client outside the cohort changes its state"),
        (Accumulating, "Accumulating: personalize_clients goes on from the last test"),
        (Touching, "Touching: unseen clients change the models of seen ones"),
    ],
)
def test_mistakes_are_found(kind: Any, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_algorithm(kind)
