"""What updates tell: bytes, counted by hand; and a rehearsal, which changes nothing."""

from typing import Any

import numpy as np
import pytest
import torch

from fedem_lightning import ClientSGD, Ditto, FedALA, FedAvg, FedEM, FedPer, HypCluster, Scaffold
from fedem_lightning.client_updates import rehearsed
from helpers.federations import make_data, make_model, train

BODY, HEAD = np.zeros((5, 4)).size + 5, np.zeros((3, 5)).size + 3
MODEL = BODY + HEAD
COUNTED: list[tuple[Any, dict[str, Any], int, int]] = [  # numbers that a client sends, and receives, in a round
    (FedAvg, {}, MODEL, MODEL),
    (FedPer, {}, BODY, BODY),
    (FedEM, {"n_components": 3, "initialization": "random", "shared": "body"}, BODY + 3 * HEAD, BODY + 3 * HEAD),
    (Scaffold, {}, 2 * MODEL, 2 * MODEL),  # and the control variates
    (HypCluster, {"n_components": 3, "initialization": "random"}, MODEL, 3 * MODEL),
]


@pytest.mark.parametrize(("kind", "options", "up", "down"), COUNTED)
def test_bytes_are_those_of_the_tensors_of_updates(kind: Any, options: dict[str, Any], up: int, down: int) -> None:
    data, clients, number = make_data(sizes=(9, 9, 9, 9, 9)), 3, np.float64().nbytes
    sent = train(make_model(kind, data, hidden=True, participation=clients, **options), data, 2).statistics
    assert (sent.up_bytes, sent.down_bytes) == (2 * clients * up * number, 2 * clients * down * number)
    assert sent.air_bytes == 2 * (clients * up + down) * number


@pytest.mark.parametrize("kind", [FedEM, FedALA, Ditto, HypCluster])
def test_a_rehearsal_changes_nothing(kind: Any) -> None:
    """Neither state, nor generators, metrics or work; it says what each client receives."""
    data, sgd = make_data(), ClientSGD(lr=0.1, momentum=0.9, state="keep")
    model = train(make_model(kind, data, hidden=True, client_optimizer=sgd), data, 2)
    state, metrics = {name: t.clone() for name, t in model.state_dict().items()}, model.round_metrics.means()
    drawn, work = torch.get_rng_state(), sum(int(w.sum()) for _, w in model.local.work)
    with torch.no_grad():
        update = rehearsed(model, data.federation, torch.tensor([1, 3]), 2)
    assert update is not None
    assert all(len(rows) == 2 and rows.isfinite().all() for rows in update.start.values())
    assert all(torch.equal(t, state[name]) for name, t in model.state_dict().items())
    assert model.round_metrics.means() == metrics
    assert torch.equal(torch.get_rng_state(), drawn)
    assert sum(int(w.sum()) for _, w in model.local.work) == work
