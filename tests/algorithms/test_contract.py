"""The contract of an algorithm: one page, client state declared once, old names refused."""

from typing import Any

import pytest
import pytorch_lightning as pl
import torch

from fedem_lightning import ClientSGD, DFedEM, FedAvg, FedEM, FederatedAlgorithm, FedGMM, HypCluster, UserError
from fedem_lightning.aggregation import Sent
from fedem_lightning.algorithms.facts import known_pi
from fedem_lightning.data import Block
from fedem_lightning.models.client_store import Owner
from fedem_lightning.run.results import _n_served_models
from helpers.federations import make_data, make_model, make_trainer, train


class Keeps(FedAvg):
    """FedAvg whose clients keep a few numbers."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.states.declare("visits", torch.zeros(self.n_clients), Owner.CLIENT, columns="visits")
        self.states.declare("pairs", torch.zeros(self.n_clients, 2), Owner.CLIENT, columns=("first", "second"))
        self.states.declare("shares", torch.ones(self.n_clients, 3), Owner.CLIENT, columns="share_{m}")
        self.states.declare("team", torch.arange(self.n_clients) % 2, Owner.CLIENT, groups=True)
        self.states.declare("total", torch.zeros(0), Owner.SERVER)

    def client_update(self, block: Any, round_: int) -> Any:
        self.visits[block.clients] += 1
        self.total = torch.full((4,), 7.0)
        return super().client_update(block, round_)


def test_the_base_class_has_few_members() -> None:
    ours = [name for name in vars(FederatedAlgorithm) if not name.startswith("_")]
    members = [name for name in ours if not hasattr(pl.LightningModule, name)]
    assert len(members) <= 26


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
    assert model.states.groups_of(torch.tensor([1, 2, 3])).tolist() == [1, 0, 1]
    assert {name for name in ("visits", "pairs", "shares", "team", "total") if name in model.state_dict()} == {
        "visits",
        "pairs",
        "shares",
        "team",
        "total",
    }
    states = list(model.states.rows())
    assert [state is model.get_buffer(name) for state, name in zip(states[1:], ("visits", "pairs"), strict=False)] == [
        True
    ] * 2
    assert not any(state is model.total for state in states)  # the server's


def test_how_many_models_serve_all_clients() -> None:
    data = make_data()
    assert _n_served_models(make_model(FedAvg, data)) == 1
    assert _n_served_models(make_model(HypCluster, data, n_components=2)) == 2
    assert _n_served_models(make_model(FedEM, data)) is None


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


@pytest.mark.parametrize("kind", [FedEM, HypCluster, DFedEM, FedGMM])
def test_methods_that_mix_have_weights_of_their_components(kind: Any) -> None:
    data = make_data()
    model = train(make_model(kind, data, n_components=2), data, 1)
    assert known_pi(model).shape == (4, 2)
    torch.testing.assert_close(known_pi(model).sum(dim=1), torch.ones(4).to(known_pi(model)))
    assert known_pi(make_model(FedAvg, data)) is None
