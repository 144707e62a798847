"""The parts of an algorithm: few members, the server's step, and the state of clients."""

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import nn

from fedem_lightning import FedAvg, FederatedAlgorithm, UserError
from fedem_lightning.aggregate import Means
from fedem_lightning.local.server_step import Server
from fedem_lightning.method import Method
from fedem_lightning.models.client_store import ClientStore
from fedem_lightning.models.personal_models import broadcast
from helpers.federations import make_data, make_model, train


def test_the_base_classes_have_few_members_and_what_authors_read_is_short() -> None:
    ours = {name for kind in (FederatedAlgorithm, Method) for name in vars(kind) if name[0] != "_"}
    assert len([name for name in ours if not hasattr(pl.LightningModule, name)]) <= 40
    hooks_and_helpers = inspect.getsource(Method).split("# --- what the constructor")[0]
    assert len(hooks_and_helpers.splitlines()) <= 160


def means_of(components: nn.ModuleList, by: float, nonempty: list[bool]) -> Means:
    models = {name: t[0] + by for name, t in broadcast(components, 1).items()}
    return Means(models, torch.tensor(nonempty), torch.ones(1, dtype=torch.float64), {})


def test_a_plain_average_takes_the_mean_without_rounding() -> None:
    components = nn.ModuleList([nn.Linear(2, 1)])
    steps: list[int] = []
    plain = torch.optim.SGD(components.parameters(), lr=1.0)
    wrapped = SimpleNamespace(optimizer=plain, step=lambda: steps.append(1))
    server = Server(components, lambda p: torch.optim.SGD(p, lr=1.0), lambda: wrapped)
    means = means_of(components, 0.1, [True])
    server.take_means(means)
    assert all(torch.equal(p, means.models[name][0]) for name, p in components[0].named_parameters())
    assert steps == [1]
    with pytest.raises(UserError, match=r"^server_optimizer: its SGD leaves parameters out"):
        Server(components, lambda p: torch.optim.SGD([next(iter(p))], lr=1.0), lambda: wrapped)


class Holder(FedAvg):
    """It has a state of each kind; every client adds 1 to its own."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.pi = self.per_client(torch.full((4, 2), 0.5), column="pi_{m}")
        self.loss = self.per_client(torch.zeros(4), column=lambda rows: {"twice": 2 * rows}, held_by="both")
        self.weight = self.per_client(torch.ones(4), column="lambda", held_by="server")
        self.own = self.per_client({"v": torch.zeros(2)})
        self.register_buffer("matrix", torch.zeros(0, 3))
        self.tree = ClientStore(7, {"v": torch.zeros(2)}, "server", of_clients=False)

    def client_update(self, batch: Any, round_: int) -> Any:
        t = batch.clients
        self.pi[t], self.loss[t], self.own[t] = self.pi[t] + 1, self.loss[t] + 1, {"v": self.own[t]["v"] + 1}
        self.matrix = torch.ones(2, 3)
        return super().client_update(batch, round_)


def holder(rounds: int, **options: Any) -> Holder:
    data = make_data()
    model: Holder = make_model(Holder, data, **options)
    return train(model, data, rounds) if rounds else model


def test_state_of_clients_is_saved_and_put_back() -> None:
    """All but the server's buffers; a buffer sized by data takes its shape from the file."""
    saved, fresh = holder(2, participation=2), holder(0).double()
    fresh.load_state_dict(saved.state_dict())
    everybody = torch.arange(4)
    assert saved.own[everybody]["v"].sum() == 2 * saved.loss.sum() == 8
    assert torch.equal(fresh.own[everybody]["v"], saved.own[everybody]["v"])
    assert torch.equal(fresh.pi, saved.pi)
    assert torch.equal(fresh.matrix, torch.ones(2, 3))
    put_back, before = fresh.states.remember(torch.tensor([2])), [rows.clone() for rows in fresh.states.rows()]
    for rows in fresh.states.rows():
        rows[:] = True
    fresh.weight[2] = 7
    put_back()
    assert all(torch.equal(rows[2], old[2]) for rows, old in zip(fresh.states.rows(), before, strict=True))


def test_processes_exchange_the_state_of_clients_and_tables_have_its_columns() -> None:
    model, everybody = holder(0), torch.arange(4)
    assert len(list(model.states.rows())) == 4 + 2  # `has_frozen`, pi, loss, weight, and the two tensors of `own`
    assert len(list(model.states.rows(own=False))) == 4  # what other clients do not read waits for scores
    assert list(model.states.columns()) == ["pi_0", "pi_1", "twice", "lambda"]
    assert list(model.states.columns(with_clients=False)) == ["lambda"]
    assert model.states.stay_with_clients
    assert not holder(0).states.diverged(everybody).any()
    model.pi[1, 0], model.own[torch.tensor([3])] = torch.nan, {"v": torch.full((1, 2), torch.inf)}
    assert model.states.diverged(everybody).tolist() == [False, True, False, True]
