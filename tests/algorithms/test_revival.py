"""Dead components of FedEM start again: at the clients that are served worst, or as a part of the strongest one."""

from typing import Any

import numpy as np
import pytest
import torch

from fedem_lightning import ClientSGD, FedEM
from fedem_lightning.algorithms.revival import EPOCHS, REST
from fedem_lightning.em import mixture_losses
from fedem_lightning.history import Round
from fedem_lightning.models.personal_models import client_means
from helpers.federations import make_data, make_model, parameters, train

SIZES = (9, 12, 8, 15, 10, 11, 7, 9, 13, 10, 8, 12)


def with_a_dead_one(revive: str, **options: Any) -> tuple[Any, Any]:
    """A trained mixture, in which component 1 has hardly any weight, and its data."""
    data = make_data(sizes=SIZES)
    given: dict[str, Any] = {"n_components": 3, "initialization": "random", "client_optimizer": ClientSGD(lr=0.2)}
    model = train(make_model(FedEM, data, revive=revive, **{**given, **options}), data, 1)
    model.pi[:] = torch.tensor([0.598, 0.002, 0.4], dtype=model.pi.dtype)
    return model, data


def revived(model: Any, data: Any, number: int = 50) -> None:
    clients = data.federation.clients()
    model.revival.after(Round(number, data.federation, clients))


def test_a_split_divides_the_strongest_component_by_clients(capsys: pytest.CaptureFixture[str]) -> None:
    model, data = with_a_dead_one("split")
    model.pi[:6] = torch.tensor([0.7, 0.0, 0.3], dtype=model.pi.dtype)
    before = model.pi.clone()
    revived(model, data)
    assert torch.equal(parameters(model.components[1]), parameters(model.components[0]))
    torch.testing.assert_close(model.pi.sum(dim=1), before.sum(dim=1))
    torch.testing.assert_close(model.pi[:, 2], before[:, 2])
    shares = model.pi[:, 1] / model.pi[:, :2].sum(dim=1)
    assert 0 < shares.min() < 0.4
    assert 0.6 < shares.max() < 1
    assert (
        "round 51: hardly any client used component 1; it starts again as a part of component 0"
        in capsys.readouterr().out
    )
    assert model.diagnostics["revived"] == [{"round": 51, "component": 1}]


@pytest.mark.parametrize("shared", [None, "body"])
def test_a_restart_begins_at_the_clients_that_are_served_worst(shared: Any) -> None:
    model, data = with_a_dead_one("worst", hidden=True, shared=shared)
    federation, clients = data.federation, data.federation.clients()
    block = federation.block(clients, "train")
    losses = client_means(mixture_losses(model.pi, model.losses(block), block.owner).unsqueeze(1), block).squeeze(1)
    worst = losses.argmax().view(1)  # a tenth of twelve clients is one
    start = {name: tensor[:, :1] for name, tensor in model.broadcast(worst).items()}
    one = federation.block(worst, "train")
    trained = model.local.solve(start, one, 0, epochs=EPOCHS, momentum=None)
    bytes_before, special = model.statistics.up_bytes, model.statistics.special_rounds
    body = dict(model.components[1].named_parameters())["layers.0.weight"].detach().clone()
    revived(model, data)
    found = dict(model.components[1].named_parameters())
    torch.testing.assert_close(found["layers.2.weight"], trained["layers.2.weight"][0, 0], rtol=1e-9, atol=1e-12)
    expected = body if shared else trained["layers.0.weight"][0, 0]
    torch.testing.assert_close(found["layers.0.weight"], expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(model.pi[0].numpy(), [0.598 * 2 / 3, 0.002 * 2 / 3 + 1 / 3, 0.4 * 2 / 3], rtol=1e-6)
    assert model.statistics.special_rounds == special + 1
    assert model.statistics.up_bytes == bytes_before + model.message_bytes


def test_a_component_rests_before_it_starts_again() -> None:
    model, data = with_a_dead_one("split")
    revived(model, data, 50)
    for number, again in ((51, False), (50 + REST - 1, False), (50 + REST, True)):
        model.pi[:] = torch.tensor([0.6, 0.0, 0.4], dtype=model.pi.dtype)
        revived(model, data, number)
        assert (model.pi[0, 1] > 0) == again


def test_living_components_stay_and_a_run_goes_through() -> None:
    """In a run whose components live, nothing changes, not even a bit."""
    data = make_data(sizes=SIZES)
    options: dict[str, Any] = {"n_components": 2, "initialization": "random"}
    plain = train(make_model(FedEM, data, **options), data, 3)
    model = train(make_model(FedEM, data, revive="worst", **options), data, 3)
    assert "revived" not in model.diagnostics
    assert torch.equal(parameters(plain.components), parameters(model.components))
    assert model.facts.needs_one_machine.startswith("reads clients' mixture weights")
