"""Degenerate cases and refusals of the field's baselines."""

from typing import Any

import pytest
import torch
from torch import nn

from fedem_lightning import (
    MLP,
    ClientSGD,
    Ditto,
    FedALA,
    FedAvg,
    FedBABU,
    FedBN,
    FederatedDataModule,
    FedPer,
    FedRep,
    LGFedAvg,
    Linear,
    Local,
    UserError,
)
from fedem_lightning.models.parts import normalization_tensors
from helpers import by_hand
from helpers.federations import make_data, make_model, parameters, train, train_and_test

SGD: dict[str, Any] = {"client_optimizer": ClientSGD(lr=0.3, momentum=0.9), "participation": 0.5}


def everybody(model: Any) -> dict[str, torch.Tensor]:
    return dict(model.personal_models(torch.arange(model.n_clients)).models)


def same(one: Any, other: Any) -> None:
    assert torch.equal(parameters(one.components), parameters(other.components))


@pytest.mark.parametrize("participation", [0.5, 1.0])
@pytest.mark.parametrize("state", ["restart", "keep"])
def test_ditto_without_its_penalty_is_local_and_its_shared_model_fedavgs(state: Any, participation: float) -> None:
    data = make_data()
    sgd = ClientSGD(lr=0.3, momentum=0.9, state=state)
    options: dict[str, Any] = {"client_optimizer": sgd, "participation": participation}
    ditto, alone, shared = (
        train(make_model(kind, data, **options, **own), data, 4)
        for kind, own in ((Ditto, {"penalty": 0.0}), (Local, {}), (FedAvg, {}))
    )
    torch.testing.assert_close(everybody(ditto), everybody(alone), rtol=0, atol=0)
    same(ditto, shared)


# --- FedBN ------------------------------------------------------------------------------------------------------------


class Normalized(nn.Module):
    """A normalisation layer whose name does not say so."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.third(self.second(self.first(x)).relu())


NORM = {"second.weight", "second.bias", "second.running_mean", "second.running_var", "second.num_batches_tracked"}


def test_fedbn_says_that_it_has_no_layers_to_keep(capsys: pytest.CaptureFixture[str]) -> None:
    train(make_model(FedBN, make_data()), make_data(), 1)
    assert "backbone: it has no normalisation layers, so FedBN is FedAvg\n" in capsys.readouterr().out


def normalized(data: FederatedDataModule, kind: Any = FedBN, **options: Any) -> Any:
    torch.manual_seed(0)
    return kind(Normalized(), n_clients=data.n_clients, batch_size=4, **options)


def test_normalisation_layers_are_known_by_their_types() -> None:
    assert normalization_tensors(Normalized()) == NORM
    layers = nn.Sequential(nn.GroupNorm(2, 4), nn.LayerNorm(4), nn.Conv2d(4, 4, 1), nn.InstanceNorm2d(4, affine=True))
    assert {name.split(".")[0] for name in normalization_tensors(layers)} == {"0", "1", "3"}


def test_fedbn_agrees_with_plain_torch() -> None:
    """Each client's network is a module of its own, trained by torch.optim; the rest is averaged by hand."""
    sizes = (8, 12, 4)
    data = make_data(sizes=sizes, fractions=(1.0, 0.0, 0.0))
    model = normalized(data, client_optimizer=ClientSGD(lr=0.2)).double()
    networks = []
    for _ in sizes:
        network = Normalized().double()
        network.load_state_dict(model.components[0].state_dict())
        networks.append(network)
    train(model, data, 3)
    for k in range(3):
        for t, network in enumerate(networks):
            x, y = (torch.from_numpy(part) for part in by_hand.samples(data, t))
            by_hand.by_torch(network, x, y, by_hand.batches(data, t, 4, 1, k), lr=0.2)
        shared = set(networks[0].state_dict()) - NORM
        states = [network.state_dict() for network in networks]
        mean = {name: sum(n * s[name] for n, s in zip(sizes, states, strict=True)) / sum(sizes) for name in shared}
        for network in networks:
            network.load_state_dict(mean, strict=False)
    found = everybody(model)
    for t, network in enumerate(networks):
        for name, tensor in network.state_dict().items():
            torch.testing.assert_close(found[name][t, 0], tensor, rtol=1e-9, atol=1e-12)


def test_an_unseen_client_of_fedbn_estimates_its_statistics() -> None:
    data = make_data(sizes=(20, 20, 20, 20), unseen_fraction=0.25)
    model = normalized(data, client_optimizer=ClientSGD(lr=1e-12))
    train_and_test(model, data, 2)
    t = data.federation.clients(seen=False)
    block = data.federation.block(t, "train")
    inside = model.components[0].first(block.x(torch.float64))  # the input of the normalisation layer
    means = torch.stack([part.mean(dim=0) for part in inside.split(4)])
    found = everybody(model)["second.running_mean"][t, 0]
    # the epoch of tuning then moves the running mean by its momentum, a tenth a batch
    assert (found - inside.mean(dim=0)).norm() < 0.5 * means.std(dim=0).norm()
    assert (model.clients.population == "unseen").sum() == 1


# --- the split --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [FedPer, LGFedAvg, FedRep, FedBABU, FedALA])
def test_a_network_without_a_body_is_one_line(kind: Any) -> None:
    with pytest.raises(UserError, match=r"^head: the last layer is all that trains .*: no body is left"):
        kind(Linear((4,), 3), n_clients=3)
    for head, line in (("classifier", "is in no parameter's name"), ("[", "is no regular expression")):
        with pytest.raises(UserError, match=rf"^head: '.*' {line}"):
            kind(MLP((4,), 3), n_clients=3, head=head)


@pytest.mark.parametrize("kind", [FedPer, LGFedAvg, FedRep, FedBABU])
def test_a_server_optimizer_moves_the_part_that_is_sent(kind: Any) -> None:
    data = make_data()
    half = {"server_optimizer": lambda p: torch.optim.SGD(p, lr=0.5)}
    plain, slow = (make_model(kind, data, hidden=True, **SGD, **o).double() for o in ({}, half))
    start = {name: p.detach().clone() for name, p in plain.components[0].named_parameters()}
    train(plain, data, 1), train(slow, data, 1)
    for name, p in plain.components[0].named_parameters():
        torch.testing.assert_close(slow.components[0].get_parameter(name), (start[name] + p) / 2)
