"""The parts of an algorithm: few members, the server's step, and declared states."""

from types import SimpleNamespace

import pytest
import pytorch_lightning as pl
import torch
from torch import nn

from fedem_lightning import FederatedAlgorithm, UserError
from fedem_lightning.aggregation import Means
from fedem_lightning.algorithms.server_step import Server
from fedem_lightning.models.client_store import ClientStore, Owner
from fedem_lightning.models.personal_models import broadcast
from fedem_lightning.states import States


def test_the_base_class_has_few_members() -> None:
    ours = [name for name in vars(FederatedAlgorithm) if not name.startswith("_")]
    members = [name for name in ours if not hasattr(pl.LightningModule, name)]
    assert len(members) <= 26


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


class Holder(nn.Module):
    """A module with a state of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.states = States(self)
        self.states.declare("pi", torch.full((3, 2), 0.5), Owner.CLIENT, columns="pi_{m}")
        self.states.declare("loss", torch.zeros(3), Owner.REPORTED, columns=lambda rows: {"twice": 2 * rows})
        self.states.declare("weight", torch.ones(3), Owner.SERVER, columns="lambda")
        self.states.declare("matrix", torch.zeros(0, 3), Owner.SERVER, client_axis=1)
        self.states.declare("secret", torch.zeros(()), Owner.SERVER_ONLY)
        self.own = ClientStore(3, {"v": torch.zeros(2)})
        self.tree = ClientStore(7, {"v": torch.zeros(2)}, Owner.SERVER_ONLY, of_clients=False)


def test_what_is_exchanged_and_restored_follows_from_the_owner() -> None:
    holder = Holder()
    assert [len(rows) for rows in holder.states.rows()] == [3] * 5  # pi, loss, weight, and the store's two tensors
    put_back = holder.states.remember(torch.tensor([2]))
    for rows in holder.states.rows():
        rows[:] = True
    put_back()
    assert all(not rows[2].any() or rows[2].eq(0.5).all() or rows is holder.weight for rows in holder.states.rows())
    assert holder.own.written.tolist() == [True, True, False]
    assert holder.states.stay_with_clients


def test_columns_follow_from_the_declaration() -> None:
    holder = Holder()
    assert list(holder.states.columns()) == ["pi_0", "pi_1", "twice", "lambda"]
    assert list(holder.states.columns(with_clients=False)) == ["lambda"]


def test_a_state_sized_by_data_takes_its_shape_from_a_file() -> None:
    saved, fresh = Holder(), Holder()
    saved.matrix = torch.ones(2, 3)
    fresh.load_state_dict(saved.state_dict())
    assert torch.equal(fresh.get_buffer("matrix"), torch.ones(2, 3))


def test_every_tensor_of_a_store_has_the_stores_owner() -> None:
    states = Holder().states.all()
    assert {name: (states[name].owner, states[name].client_axis) for name in ("own.rows_0", "tree.written")} == {
        "own.rows_0": (Owner.CLIENT, 0),
        "tree.written": (Owner.SERVER_ONLY, None),
    }
    assert states["matrix"].client_axis == 1
