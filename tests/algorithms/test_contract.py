"""The contract of an algorithm: one page, client state declared once, old names refused."""

from typing import Any

import numpy as np
import pytest
import torch

from fedem_lightning import ClientSGD, FedAvg, FedEM, HypCluster, UserError
from fedem_lightning.aggregation import Sent
from fedem_lightning.algorithms.checks import RENAMED
from fedem_lightning.algorithms.contract import Contract
from fedem_lightning.data import Block
from helpers.federations import make_data, make_model, make_trainer, train


class Keeps(FedAvg):
    """FedAvg whose clients keep a few numbers."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.add_client_state("visits", torch.zeros(self.n_clients), columns="visits")
        self.add_client_state("pairs", torch.zeros(self.n_clients, 2), columns=("first", "second"))
        self.add_client_state("shares", torch.ones(self.n_clients, 3), columns="share_{m}")
        self.add_client_state("team", torch.arange(self.n_clients) % 2, groups=True)
        self.add_state("total", torch.zeros(0))

    def client_update(self, block: Any, round_: int) -> Any:
        self.visits[block.clients] += 1
        self.total = torch.full((4,), 7.0)
        return super().client_update(block, round_)


def test_the_contract_stays_on_a_page() -> None:
    hooks = [name for name in vars(Contract) if not name.startswith("_")]
    assert len(hooks) == 20


def test_client_state_follows_from_its_declaration() -> None:
    data = make_data()
    model = train(make_model(Keeps, data, participation=2), data, 3)
    trainer = make_trainer(0)
    trainer.test(model, data, verbose=False)
    table = model.clients
    assert table.visits.sum() == 6
    assert [name for name in table if name in ("first", "second", "share_0", "share_1", "share_2", "team")] == [
        "first",
        "second",
        "share_0",
        "share_1",
        "share_2",
    ]
    assert model.groups_of(torch.tensor([1, 2, 3])).tolist() == [1, 0, 1]
    assert {name for name in ("visits", "pairs", "shares", "team", "total") if name in model.state_dict()} == {
        "visits",
        "pairs",
        "shares",
        "team",
        "total",
    }
    states = list(model.client_state())
    assert [state is model.get_buffer(name) for state, name in zip(states, ("visits", "pairs"), strict=False)] == [
        True
    ] * 2
    assert not any(state is model.total for state in states)  # the server's


def test_an_empty_tensor_takes_its_size_from_a_checkpoint() -> None:
    data = make_data()
    trained = train(make_model(Keeps, data), data, 1)
    fresh = make_model(Keeps, data)
    fresh.load_state_dict(trained.state_dict())
    assert fresh.total.tolist() == [7.0] * 4


@pytest.mark.parametrize("name", RENAMED)
def test_a_hook_of_an_older_version_is_refused(name: str) -> None:
    data = make_data()
    old = type("Old", (FedAvg,), {name: None, "__module__": "mine"})
    with pytest.raises(UserError, match=f"Old defines {name}, which is now {RENAMED[name]}: see CHANGELOG.md"):
        make_model(old, data)


def test_how_many_models_serve_all_clients() -> None:
    data = make_data()
    assert make_model(FedAvg, data).n_served_models == 1
    assert make_model(HypCluster, data, n_components=2).n_served_models == 2
    assert make_model(FedEM, data).n_served_models is None


def test_mixture_weights_are_columns() -> None:
    data = make_data()
    columns = make_model(FedEM, data, n_components=2).client_columns()
    assert list(columns) == ["pi_0", "pi_1"]
    assert np.all(columns["pi_0"] == 0.5)


class Doubting(FedAvg):
    """Every client rejects what it keeps beside the model that it sends."""

    def client_update(self, block: Block, round_: int) -> Sent:
        self.round_metrics.rejected += len(block.clients)
        return super().client_update(block, round_)


def test_a_run_in_which_all_clients_reject_twice_diverges_too() -> None:
    data = make_data()
    data.federation.samples.x[:] = 1e300
    with pytest.raises(UserError, match="training diverged: in round 1 no client's update was finite"):
        train(make_model(Doubting, data, client_optimizer=ClientSGD(lr=1e200)), data, 1)
