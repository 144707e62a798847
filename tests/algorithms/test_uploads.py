"""A rehearsal of an update changes nothing."""

from typing import Any

import pytest
import torch

from fedem_lightning import ClientSGD, Ditto, FedALA, FedEM, HypCluster
from fedem_lightning.module.client_updates import rehearsed
from helpers.federations import make_data, make_model, train


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
