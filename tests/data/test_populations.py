"""Populations that are computed, not stored; clients' models on disk; evaluation of a part of the clients."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedem_lightning.models.client_store as client_store
from fedem_lightning import ClientSGD, FedEM, Local, MixturePopulation, UserError
from fedem_lightning.data.population import NumberedNames
from fedem_lightning.models.client_store import ClientStore
from helpers.federations import make_data, make_model, make_trainer, train


def test_a_sample_depends_on_its_position_alone() -> None:
    samples = MixturePopulation(n_clients=10, dimension=7).federation.samples  # it does not know how many there are
    index = torch.tensor([[3, 49_999_999_999], [2**32 + 3, 17]])
    x, y = samples.features(index, torch.float32), samples.labels(index)
    assert x.shape == (2, 2, 7)
    assert x.abs().max() <= 1
    for place in ((0, 0), (0, 1), (1, 0), (1, 1)):
        alone = index[place].view(1)
        assert torch.equal(samples.features(alone, torch.float32)[0], x[place])
        assert samples.labels(alone)[0] == y[place]
    assert not torch.equal(x[0, 0], x[1, 0])  # positions that differ by 2^32


def test_the_population_is_the_stated_mixture() -> None:
    data = MixturePopulation(n_clients=4000, dimension=5, samples=(30, 0, 0), alpha=0.4, noise=0.0)
    samples: Any = data.federation.samples
    pi = samples.mixture_weights(torch.arange(4000)).double()
    torch.testing.assert_close(pi.sum(dim=1), torch.ones(4000, dtype=torch.float64), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(pi.mean(dim=0), np.full(3, 1 / 3), atol=0.02)
    # Dirichlet: var = (1/M) (1 - 1/M) / (M alpha + 1)
    np.testing.assert_allclose(pi.var(dim=0), np.full(3, (1 / 3) * (2 / 3) / 2.2), rtol=0.05)
    block = data.federation.block(torch.arange(4000), "train")
    assert block.counts().tolist() == [30] * 4000
    x, y = block.x(torch.float64), block.y()
    np.testing.assert_allclose(x.mean(dim=0), np.zeros(5), atol=0.01)
    np.testing.assert_allclose(x.var(dim=0), np.full(5, 1 / 3), rtol=0.02)
    p = (torch.sigmoid(x @ samples.theta.double().T) * pi[block.owner]).sum(dim=1)  # p(y = 1 | x, t)
    for low in (0.2, 0.4, 0.6):  # calibrated
        chosen = (p >= low) & (p < low + 0.2)
        assert float(y[chosen].double().mean()) == pytest.approx(float(p[chosen].mean()), abs=0.01)


def test_fedem_trains_on_a_cohort_and_scores_a_part() -> None:
    data = MixturePopulation(n_clients=100_000, dimension=5)
    model = make_model(FedEM, data, participation=50, scored_clients=20, client_optimizer=ClientSGD(lr=0.5))
    trainer = make_trainer(2, precision="32-true", limit_val_batches=1, num_sanity_val_steps=0)
    trainer.fit(model, data)
    trainer.test(model, data, verbose=False)
    assert len(model.clients) == 20
    assert model.clients.test_loss.notna().all()
    moved = (model.pi != model.pi[0, 0]).any(dim=1)
    assert 50 <= int(moved.sum()) <= 100  # two cohorts of 50


def test_scored_clients_stay_the_same_and_unseen_ones_are_scored_too() -> None:
    data = make_data(sizes=(10,) * 40, unseen_fraction=0.5)
    ids = []
    for _ in range(2):
        model = train(make_model(FedEM, data, scored_clients=0.25), data, 1)
        model.trainer.test(model, data, verbose=False)
        ids.append(list(model.clients.id))
        assert model.clients.population.value_counts().to_dict() == {"seen": 5, "unseen": 5}
    assert ids[0] == ids[1]


@pytest.mark.parametrize("options", [{"samples": (0, 1, 1)}, {"samples": (1, 1)}, {"n_clients": 0}, {"alpha": 0}])
def test_wrong_options_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=rf"^MixturePopulation\.{next(iter(options))}"):
        MixturePopulation(**options)


def test_numbers_name_clients() -> None:
    names = NumberedNames(10**12)
    assert (len(names), names[7], names[-1], names[2:4]) == (10**12, "7", "999999999999", ["2", "3"])


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
    store.write(torch.tensor([5, 999_999]), {"w": torch.ones(2, 3)})
    assert store.read(torch.tensor([5, 6, 999_999]))["w"].tolist() == [[1, 1, 1], [0, 1, 2], [1, 1, 1]]
    assert store.n_bytes == 12 * 10**6
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 10**6}))
    with pytest.raises(UserError, match=r"takes 0.0 GB, but .* set the environment variable TMPDIR"):
        ClientStore(10**6, {"w": torch.arange(3.0)})


def test_a_split_without_samples_has_no_scores() -> None:
    data = MixturePopulation(n_clients=6, dimension=3, samples=(5, 0, 2))
    model = make_model(Local, data, client_optimizer=ClientSGD(lr=0.1))
    trainer = make_trainer(1, precision="32-true")
    trainer.fit(model, data)
    trainer.test(model, data, verbose=False)
    assert model.clients.val_loss.isna().all()
    assert model.clients.test_loss.notna().all()
