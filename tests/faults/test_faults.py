"""Faults that the simulator injects: who is faulty, what is sent, and what the results say of it."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from fedem_lightning import (
    AFL,
    FedAvg,
    FedEM,
    FederatedDataModule,
    FedPer,
    HypCluster,
    LabelFlip,
    Local,
    NoAnswer,
    Scaling,
    SendNaN,
    UserCentric,
    UserError,
)
from fedem_lightning.aggregate import Update
from fedem_lightning.aggregate.faults import Faults
from fedem_lightning.models.parts import model_bytes
from fedem_lightning.module.client_updates import rehearsed
from fedem_lightning.module.fitting import prepare
from fedem_lightning.module.round import draw_cohort
from helpers.federations import make_data, make_model, make_trainer, models_of, parameters, stored, train
from helpers.runs import run_small

SIZES = (7, 12, 9, 20, 8, 11, 10, 13, 6, 9)
EVERYBODY = torch.arange(100)


def test_the_same_share_of_clients_is_faulty_in_all_rounds() -> None:
    faults, clients = SendNaN(0.2), torch.arange(0, 200, 2)
    first = faults.faulty(clients, 0, 0)
    assert len(first) == 20
    assert (first.diff() > 0).all()
    assert torch.isin(first, clients).all()
    assert all(torch.equal(faults.faulty(clients, 0, round_), first) for round_ in (1, 9))
    assert not torch.equal(faults.faulty(clients, 1, 0), first)
    assert torch.equal(faults.ever_faulty(clients, 0, 5), first)
    assert len(SendNaN(0.0).faulty(clients, 0, 0)) == 0
    assert len(SendNaN(0.001).faulty(clients, 0, 0)) == 1


def test_others_are_faulty_in_every_round() -> None:
    faults = NoAnswer(0.1)
    drawn = [faults.faulty(EVERYBODY, 0, round_) for round_ in range(200)]
    counts = torch.bincount(torch.cat(drawn), minlength=100).double()
    assert counts.sum() == 2000
    assert counts.min() > 5  # of 20 expected
    assert torch.equal(faults.ever_faulty(EVERYBODY, 0, 3), torch.cat(drawn[:3]).unique())
    assert len(faults.ever_faulty(EVERYBODY, 0, 0)) == 0


RECEIVED = {"w": torch.ones(2, 1, 2), "mean": torch.zeros(2, 1, 1)}
MODELS = {"w": torch.tensor([[[3.0, 1.0]], [[5.0, 0.0]]]), "mean": torch.tensor([[[4.0]], [[6.0]]])}
SENT = Update(MODELS, torch.ones(2), start=RECEIVED)
EXPECTED: dict[str, tuple[Faults, list[float]]] = {
    "scaling": (Scaling(factor=10.0), [1 + 10 * 4, 1 - 10 * 1]),
    "negative": (Scaling(factor=-2.0), [1 - 2 * 4, 1 + 2 * 1]),
    "nan": (SendNaN(), [np.nan, np.nan]),
}


@pytest.mark.parametrize("kind", EXPECTED)
def test_what_a_faulty_client_sends(kind: str) -> None:
    faults, expected = EXPECTED[kind]
    found = faults.corrupted(SENT, torch.tensor([False, True]), {"w", "head"}).models
    np.testing.assert_array_equal(found["w"], [[[3.0, 1.0]], [expected]])
    assert torch.equal(found["mean"], SENT.models["mean"])  # no parameter
    assert SENT.models["w"].tolist() == [[[3.0, 1.0]], [[5.0, 0.0]]]


def test_updates_are_turned_about_what_the_client_received() -> None:
    """Not about the common components, but about HypCluster's chosen hypothesis."""
    data = make_data(sizes=SIZES)
    model = make_model(HypCluster, data, initialization="random").double()
    model.cluster[:] = torch.arange(10) % 2
    received = rehearsed(model, data.federation, torch.tensor([2, 5]), 0).start
    for c in (0, 1):
        for name, parameter in model.components[c].named_parameters():
            assert torch.equal(received[name][c, 0], parameter)


def test_nan_clients_are_left_out_and_keep_their_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training is that of the others alone; each client still has a model."""
    data, faults = make_data(sizes=SIZES), SendNaN(0.3)
    model = train(make_model(FedEM, data, faults=faults), data, 3)
    faulty = faults.faulty(torch.arange(10), 0, 0).tolist()
    entries = model.statistics.rejections.by_client
    assert [(e["client"], e["reason"], e["rounds"]) for e in entries] == [(t, "not finite", 3) for t in faulty]
    honest = torch.tensor([t for t in range(10) if t not in faulty])

    monkeypatch.setattr("fedem_lightning.module.round.draw_cohort", lambda *_: honest)
    others = train(make_model(FedEM, data), data, 3)
    torch.testing.assert_close(parameters(model.components), parameters(others.components), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(model.pi[honest], others.pi[honest], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("faults", [Scaling(0.3, factor=5.0), SendNaN(0.3)], ids=["scaling", "nan"])
def test_faults_change_only_what_clients_send(faults: Faults) -> None:
    """FedPer's heads stay with their clients."""
    data = make_data(sizes=SIZES)
    model = train(make_model(FedPer, data, hidden=True, faults=faults), data, 3)
    assert models_of(model).isfinite().all()
    assert model.statistics.rejections.total == 9 * isinstance(faults, SendNaN)


def test_clients_that_do_not_answer_count_as_such() -> None:
    data, faults = make_data(sizes=SIZES), NoAnswer(0.4)
    model, plain = (make_model(FedAvg, data, faults=f, participation=5) for f in (faults, None))
    trainer = make_trainer(4)
    trainer.fit(model, data)
    train(plain, data, 4)
    silent = 0
    for round_ in range(4):
        cohort = draw_cohort(plain, data.federation, round_)
        silent += int(torch.isin(cohort, faults.faulty(torch.arange(10), 0, round_)).sum())
    assert model.statistics.rejections.by_reason == {"no answer": silent}
    size = model_bytes(model.components[0])
    assert model.statistics.down_bytes == plain.statistics.down_bytes == 4 * 5 * size
    assert model.statistics.up_bytes == (4 * 5 - silent) * size


def test_one_client_always_answers() -> None:
    data = make_data()
    model = train(make_model(FedAvg, data, faults=NoAnswer(0.99, every_round=False)), data, 2)
    assert model.statistics.rejections.by_reason == {"no answer": 6}
    assert model.statistics.rounds == 2


def test_flipped_labels_are_those_of_another_federation() -> None:
    """In the training samples of faulty clients alone; in every part of the training, such as special rounds."""
    x, client = np.random.default_rng(0).normal(size=(120, 4)), np.arange(120) % 10
    y = x[:, :3].argmax(axis=1)
    split = np.arange(120) // 10 % 3
    faults = LabelFlip(0.3)
    faulty = np.isin(client, faults.faulty(torch.arange(10), 0, 0).numpy())
    other = np.where(faulty & (split == 0), 2 - y, y)
    for kind, options in ((FedAvg, {}), (Local, {}), (UserCentric, {"similarity": "cosine", "label_adjusted": True})):
        data, flipped = (FederatedDataModule.from_arrays(x, labels, client, split=split) for labels in (y, other))
        attacked = train(make_model(kind, data, faults=faults, **options), data, 2)
        expected = train(make_model(kind, flipped, **options), flipped, 2)
        torch.testing.assert_close(models_of(attacked), models_of(expected), rtol=1e-9, atol=1e-12)
        assert not torch.equal(models_of(attacked), models_of(train(make_model(kind, data, **options), data, 2)))
        assert stored(data.federation).y.tolist() == y.tolist()


def test_faults_that_have_no_effect_are_refused() -> None:
    data = make_data()
    with pytest.raises(UserError, match=r"faults: Local has no server .* so Scaling changes nothing"):
        prepare(make_model(Local, data, faults=Scaling()), data.federation)
    with pytest.raises(UserError, match="faults: AFL needs every client in every round, but some do not answer"):
        prepare(make_model(AFL, data, faults=NoAnswer()), data.federation)
    real = FederatedDataModule.from_arrays(np.ones((8, 2)), np.arange(8.0), np.arange(8) % 2, task="regression")
    with pytest.raises(UserError, match="faults: label_flip needs a classification, the data is a Regression"):
        prepare(make_model(FedAvg, real, faults=LabelFlip()), real.federation)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of three rounds, in which two of four clients send NaN."""
    folder = tmp_path_factory.mktemp("run")
    run_small(folder / "nan", folder, "faults=send_nan", "faults.share=0.5", "aggregation=median")
    return folder / "nan"


def test_what_a_run_says_of_its_faults(run: Path) -> None:
    results = json.loads((run / "results.json").read_text())
    clients = pd.read_parquet(run / "clients.parquet")
    faulty = np.flatnonzero(clients.faulty).tolist()
    assert len(faulty) == 2
    entry = {"reason": "not finite", "rounds": 2, "first_round": 1, "detail": ""}
    named = [{"client": t, "name": clients.id[t], **entry} for t in faulty]
    assert results["faults"]["counts"] == {"not finite": 4}
    assert sorted(results["faults"]["clients"], key=lambda e: e["client"]) == named
    assert results["rejected_updates"] == 4
    honest = clients[~clients.faulty]
    expected = np.average(honest.test_accuracy, weights=honest.n_train)
    assert results["honest"]["test"]["accuracy"]["weighted"] == pytest.approx(expected)
    assert results["honest"]["n_clients"] == 2
    assert pd.read_csv(run / "metrics.csv").rejected.dropna().tolist() == [2, 2]
