"""Clients' models on disk; evaluation of a part of the clients."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import fedem_lightning.models.client_store as client_store
from fedem_lightning import ClientSGD, FedEM, Local, UserError
from fedem_lightning.models.client_store import ClientStore
from helpers.federations import make_data, make_model, make_trainer, train, train_and_test


def test_scored_clients_stay_the_same_and_unseen_ones_are_scored_too() -> None:
    data = make_data(sizes=(10,) * 40, unseen_fraction=0.5)
    ids = []
    for _ in range(2):
        model = train(make_model(FedEM, data, scored_clients=0.25), data, 1)
        model.trainer.test(model, data, verbose=False)
        ids.append(list(model.clients.id))
        assert model.clients.population.value_counts().to_dict() == {"seen": 5, "unseen": 5}
    assert ids[0] == ids[1]


@pytest.mark.parametrize("precision", ["64-true", "32-true"])
def test_models_on_disk_give_the_same_bits(precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = make_data(sizes=(7, 12, 9), unseen_fraction=0.3)
    options = {"client_optimizer": ClientSGD(lr=0.3, momentum=0.9, state="keep"), "participation": 2}

    def trained(rounds: int, checkpoint: Path | None = None) -> Local:
        model = make_model(Local, data, **options)
        trainer = make_trainer(rounds, precision=precision)
        trainer.fit(model, data, ckpt_path=checkpoint, weights_only=True)
        trainer.save_checkpoint(tmp_path / f"{rounds}.ckpt")
        trainer.test(model, data, verbose=False)
        return model

    in_memory = trained(4)
    monkeypatch.setattr(client_store, "MEMORY_LIMIT", 0)
    straight = trained(4)
    assert straight.models.on_disk
    assert "in a temporary file of" in str(straight.models)
    trained(2)
    for other in (straight, trained(4, tmp_path / "2.ckpt")):
        for name, tensor in in_memory.state_dict().items():
            assert torch.equal(other.state_dict()[name], tensor), name


def test_a_store_costs_disk_only_where_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_store, "MEMORY_LIMIT", 0)
    store = ClientStore(10**6, {"w": torch.arange(3.0)})
    store[torch.tensor([5, 999_999])] = {"w": torch.ones(2, 3)}
    assert store[torch.tensor([5, 6, 999_999])]["w"].tolist() == [[1, 1, 1], [0, 1, 2], [1, 1, 1]]
    assert store.n_bytes == 12 * 10**6
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 10**6}))
    with pytest.raises(UserError, match=r"takes 0.0 GB, but .* set the environment variable TMPDIR"):
        ClientStore(10**6, {"w": torch.arange(3.0)})


def test_a_split_without_samples_has_no_scores() -> None:
    data = make_data(sizes=(7,) * 6, split=np.tile([0] * 5 + [2] * 2, 6))
    model = make_model(Local, data, client_optimizer=ClientSGD(lr=0.1))
    train_and_test(model, data, 1, precision="32-true")
    assert model.clients.val_loss.isna().all()
    assert model.clients.test_loss.notna().all()
