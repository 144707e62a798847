"""The head is the layer that computes the outputs: networks with equal modules, made in another order, are equal."""

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedem_lightning import (
    FEROMA,
    KNN,
    ClientSGD,
    FedALA,
    FedAS,
    FedAvg,
    FedBABU,
    FedDBE,
    FedEM,
    FederatedAlgorithm,
    FedPAC,
    FedPer,
    FedProto,
    FedRep,
    FedRoD,
    LGFedAvg,
    UserError,
)
from fedem_lightning.models.parts import computed_last, split_body_head
from fedem_lightning.run.callbacks import RoundCheckpoint
from helpers.federations import make_data, make_trainer

LAYERS = ("body", "classifier")


class Ordered(nn.Module):
    """A body and a classifier, whose values do not depend on which is made first."""

    body: Any
    classifier: Any

    def __init__(self, order: tuple[str, ...] = LAYERS) -> None:
        super().__init__()
        made = {"body": nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)), "classifier": nn.Linear(6, 3)}
        for name in order:
            self.add_module(name, made[name])

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.body(x).relu_())


class LastFirst(Ordered):
    def __init__(self) -> None:
        super().__init__(LAYERS[::-1])


SHARED: dict[str, Any] = {"shared": "body", "n_components": 2, "initialization": "random"}
CASES: list[tuple[type[FederatedAlgorithm], dict[str, Any]]] = [
    *(
        (kind, {})
        for kind in (FedPer, FedRep, LGFedAvg, FedBABU, FedRoD, FedProto, FedALA, FedDBE, FedAS, FedPAC, FEROMA)
    ),
    (FedEM, SHARED),
    (FedAvg, {"adaptation": KNN(lambdas=(0.7,))}),
]


def run(network: Callable[[], nn.Module], kind: Any, options: dict[str, Any], rounds: int = 2, **trainer: Any) -> Any:
    """A model after some rounds and a test, in float64."""
    torch.manual_seed(0)
    data = make_data(unseen_fraction=0.25)
    model = kind(network, data.n_clients, batch_size=5, client_optimizer=ClientSGD(lr=0.3), **options)
    made = make_trainer(rounds, **trainer)
    made.fit(model, data)
    made.test(model, data, verbose=False)
    return model


@pytest.mark.parametrize(("kind", "options"), CASES, ids=lambda value: getattr(value, "__name__", ""))
def test_the_order_in_which_layers_are_made_changes_nothing(kind: Any, options: dict[str, Any]) -> None:
    one, other = (run(network, kind, options) for network in (Ordered, LastFirst))
    for column in one.clients.select_dtypes("number"):
        np.testing.assert_allclose(other.clients[column], one.clients[column], rtol=1e-9, err_msg=column)
    assert one.statistics.up_bytes == other.statistics.up_bytes
    assert set(one.own_parameters) == set(other.own_parameters)


def test_checkpoints_know_the_head(tmp_path: Path) -> None:
    """A file needs no data to say which part is whose; a run goes on from it."""
    saving: dict[str, Any] = {"callbacks": [RoundCheckpoint(1, keep=9, dirpath=tmp_path)], "enable_checkpointing": True}
    for kind, options in CASES[0], CASES[4], CASES[7]:
        model = run(LastFirst, kind, options, **saving)
        loaded = kind.load_from_checkpoint(tmp_path / "round-000002.ckpt", trust=[__name__])
        x = torch.ones(3, 4, dtype=torch.float64)
        assert np.array_equal(loaded.client("0").predict(x), model.client("0").predict(x))
        assert np.array_equal(loaded.personalize(x, [0, 1, 2]).predict(x), model.personalize(x, [0, 1, 2]).predict(x))


def test_what_each_client_has_of_its_own_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    model = run(LastFirst, FedPer, {}, rounds=1)
    assert model.own_parameters == ("classifier.weight", "classifier.bias")
    assert "each client's own: classifier; averaged: body.0, body.1" in capsys.readouterr().out.splitlines()
    assert run(LastFirst, FedAvg, {}, rounds=1).own_parameters == ()
    assert "own" not in capsys.readouterr().out


class Summed(Ordered):
    """Two heads, or a product with a parameter at the end."""

    other: Any

    def __init__(self, bare: bool = False) -> None:
        super().__init__()
        self.bare, self.other = bare, nn.Parameter(torch.ones(6, 3)) if bare else nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = self.body(x)
        return z @ self.other if self.bare else self.classifier(z) + self.other(z)


def test_outputs_that_come_from_no_single_layer_need_a_name() -> None:
    for network, told in (
        (lambda: Summed(), "come from classifier, other, not from one layer"),
        (lambda: Summed(bare=True), "come from body.1, other, not from one layer"),
    ):
        with pytest.raises(UserError, match=rf"^head: the network's outputs {told}; name the head by a pattern"):
            run(network, FedPer, {})
        with pytest.raises(UserError, match=rf"^shared: .* {told}; name"):
            run(network, FedEM, SHARED)
        assert run(network, FedPer, {"head": "other"}).own_parameters[0].startswith("other")


def test_a_forward_pass_finds_the_layer_and_leaves_the_network_as_it_was() -> None:
    """Functions of one layer's outputs are no layer; a frozen one, or an unused one, is not the head."""
    first = nn.Linear(4, 6)
    tail = [nn.Dropout(0.5), nn.Softmax(1), nn.Flatten()]
    frozen = nn.Linear(3, 3).requires_grad_(False)
    layers = OrderedDict(
        norm=nn.BatchNorm1d(6),
        act=nn.ReLU(inplace=True),
        fc=nn.utils.parametrizations.weight_norm(nn.Linear(6, 3)),
        frozen=frozen,
        tail=nn.Sequential(*tail),
    )
    network = nn.Sequential(OrderedDict(first=first, **layers))
    network.add_module("unused", nn.Identity())
    network.train()
    state, drawn = {k: t.clone() for k, t in network.state_dict().items()}, torch.get_rng_state()
    assert computed_last(network, torch.randn(2, 4, generator=torch.Generator())) == "fc"
    assert network.training
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(torch.equal(t, state[k]) for k, t in network.state_dict().items())
    assert len(split_body_head(network, x=torch.ones(2, 4)).head) == 3  # g, v and the bias
    norm = [f"norm.{name}" for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")]
    assert split_body_head(network, "norm").head == tuple(norm)


def test_an_older_model_of_another_order_is_refused_in_one_line() -> None:
    """Its constructor took the layer made last: to go on would mix two models."""
    model = run(LastFirst, FedPer, {})
    model.made_with.pop("head")
    trainer, data = make_trainer(3), make_data(unseen_fraction=0.25)
    with pytest.raises(UserError, match=r"^head: the outputs come from classifier.weight, .*\^classifier"):
        trainer.test(model, data, verbose=False)
