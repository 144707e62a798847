"""Clients' models on disk; evaluation of a part of the clients."""

import shutil

import numpy as np
import pytest
import torch

import fedem_lightning.models.client_store as client_store
from fedem_lightning import ClientSGD, FedEM, Local, UserError
from fedem_lightning.models.client_store import ClientStore
from helpers.federations import make_data, make_model, train, train_and_test


def test_scored_clients_stay_the_same_and_unseen_ones_are_scored_too() -> None:
    data = make_data(sizes=(10,) * 40, unseen_fraction=0.5)
    ids = []
    for _ in range(2):
        model = train(make_model(FedEM, data, scored_clients=0.25), data, 1)
        model.trainer.test(model, data, verbose=False)
        ids.append(list(model.clients.id))
        assert model.clients.population.value_counts().to_dict() == {"seen": 5, "unseen": 5}
    assert ids[0] == ids[1]


def test_a_store_costs_disk_only_where_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_store, "MEMORY_LIMIT", 0)
    store = ClientStore(10**6, {"w": torch.arange(3.0)})
    store[torch.tensor([5, 999_999])] = {"w": torch.ones(2, 3)}
    assert store[torch.tensor([5, 6, 999_999])]["w"].tolist() == [[1, 1, 1], [0, 1, 2], [1, 1, 1]]
    assert store.n_bytes == 12 * 10**6
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 10**6}))
    with pytest.raises(UserError, match=r"takes 0.0 GB, but .* set TMPDIR"):
        ClientStore(10**6, {"w": torch.arange(3.0)})


def test_a_split_without_samples_has_no_scores() -> None:
    data = make_data(sizes=(7,) * 6, split=np.tile([0] * 5 + [2] * 2, 6))
    model = make_model(Local, data, client_optimizer=ClientSGD(lr=0.1))
    train_and_test(model, data, 1, precision="32-true")
    assert model.clients.val_loss.isna().all()
    assert model.clients.test_loss.notna().all()
