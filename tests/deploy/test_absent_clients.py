"""Clients that give no scores: the means are those of the others, and the run goes on."""

import json
import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint

from fedem_lightning import ClientSGD, FedEM
from fedem_lightning.deploy.server import RemoteDataModule
from fedem_lightning.deploy.wire import Parcel
from fedem_lightning.run.results import run_results, save_results
from fedem_lightning.run.summary import print_summary
from helpers.federations import make_data, make_model, make_trainer
from helpers.remote import ByteLink, nodes_of

SIZES = (12, 20, 9, 15)


class SomeScores(ByteLink):
    """A link over which some clients give no scores after some rounds; each round is (round, clients)."""

    absent: dict[int, Collection[int]] = {}

    def ask(self, requests: Any) -> Any:
        facts = next(iter(requests.values())).facts
        self.silent = set(self.absent.get(facts["round"], ())) if facts["kind"] == "score" else set()
        return super().ask(requests)


def federation(folder: Path, absent: dict[int, Collection[int]]) -> tuple[Any, RemoteDataModule, SomeScores]:
    link = SomeScores(nodes_of(make_data(sizes=SIZES), folder))
    data = RemoteDataModule(link, len(SIZES))
    link.absent = absent
    model = make_model(FedEM, data, client_optimizer=ClientSGD(lr=0.3))
    model.remote = data.remote
    return model, data, link


def fitted_and_tested(model: Any, data: RemoteDataModule, rounds: int, **options: Any) -> Any:
    trainer = make_trainer(rounds, **options)
    trainer.fit(model, data)
    return trainer.test(model, data, verbose=False)


def evaluated(folder: Path, absent: dict[int, Collection[int]], rounds: int = 2, **options: Any) -> Any:
    model, data, _ = federation(folder, absent)
    fitted_and_tested(model, data, rounds, limit_val_batches=1, num_sanity_val_steps=0, **options)
    return model


def test_means_are_those_of_the_clients_that_gave_scores(tmp_path: Path) -> None:
    whole = evaluated(tmp_path / "whole", {})
    line = r"evaluation after round 2: 1 of 4 clients gave no scores and is left out of the means: 1 \(no answer\)"
    with pytest.warns(UserWarning, match=f"^{line}$"):
        model = evaluated(tmp_path / "part", {2: [1]})
    assert model.curves[1].keys() == whole.curves[1].keys()
    assert model.curves[1]["val/loss"] == whole.curves[1]["val/loss"]
    assert (model.curves[1]["scored_clients"], model.curves[2]["scored_clients"]) == (4, 3)
    there = whole.clients.drop(index=1)
    for split in ("train", "val", "test"):
        for measure in ("accuracy", "loss"):
            expected = np.average(there[f"{split}_{measure}"], weights=there.n_train)
            assert model.curves[2][f"{split}/{measure}"] == pytest.approx(expected)
    missing = model.clients.loc[1]
    assert missing.id == "1"
    assert missing.drop(["id", "population"]).isna().all()
    pd.testing.assert_frame_equal(model.clients.drop(index=1), there, check_dtype=False)


def test_results_have_the_number_of_scored_clients(tmp_path: Path) -> None:
    model, data, _ = federation(tmp_path, {1: [3]})
    with pytest.warns(UserWarning, match="1 of 4 clients gave no scores"):
        fitted_and_tested(model, data, 1)
    results = run_results(model, data.federation)
    assert (results["n_clients"], results["n_scored_clients"]) == (4, 3)
    assert all(math.isfinite(value) for sums in results["test"].values() for value in sums.values())
    assert results["not_finite"] == {"train": 0, "val": 0, "test": 0, "clients": []}
    save_results(tmp_path, results, model.clients, {})
    assert "null" not in json.dumps(json.loads((tmp_path / "results.json").read_text())["val"])
    assert pd.read_parquet(tmp_path / "clients.parquet").n_train.isna().tolist() == [False, False, False, True]


def test_without_any_scores_the_run_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    everybody = range(len(SIZES))
    watching = [ModelCheckpoint(tmp_path / "best", monitor="val/loss"), EarlyStopping("val/loss", patience=9)]
    options: dict[str, Any] = {"limit_val_batches": 1, "num_sanity_val_steps": 0, "enable_checkpointing": True}
    model, data, _ = federation(tmp_path, {2: everybody, 3: everybody})
    line = r"evaluation after round {}: none of 4 clients gave scores, so there are no means: 0 \(no answer\), 1"
    with (
        pytest.warns(UserWarning, match=line.format(2)),
        pytest.warns(UserWarning, match=line.format(3)),
    ):
        tested = fitted_and_tested(model, data, 3, callbacks=watching, **options)
    assert tested == [{}]
    assert "val/loss" in model.curves[1]
    assert "val/loss" not in model.curves[2]
    assert model.curves[2]["scored_clients"] == 0
    results = run_results(model, data.federation)
    assert results["n_scored_clients"] == 0
    assert results["train"] == results["val"] == results["test"] == {}
    names = {"algorithm": "fedem", "dataset": "clients", "backbone": "linear", "seed": 0, "adaptation": "none"}
    results["seconds"]["total"] = 1.0
    print_summary(results | names)
    assert "nan" not in capsys.readouterr().out


def test_scores_that_are_wrong_are_no_scores(tmp_path: Path) -> None:
    model, data, link = federation(tmp_path, {})
    answer = link.nodes[2].answer

    def boastful(request: Parcel) -> Parcel:
        reply = answer(request)
        if request.facts["kind"] == "score":
            reply.facts["measures"]["val"]["accuracy"] = 7.0
        return reply

    link.nodes[2].answer = boastful  # type: ignore[method-assign]
    why = r"2 \(invalid reply: measures.val.accuracy: expected a number from -0.001 to 1.001, got 7.0\)"
    with pytest.warns(UserWarning, match=f"1 of 4 clients gave no scores and is left out of the means: {why}$"):
        fitted_and_tested(model, data, 1)
    assert model.clients.n_train.isna().tolist() == [False, False, True, False]


def test_a_sample_of_scored_clients_is_another_thing_than_absence(tmp_path: Path) -> None:
    link = ByteLink(nodes_of(make_data(sizes=SIZES), tmp_path))
    data = RemoteDataModule(link, len(SIZES))
    model = make_model(FedEM, data, scored_clients=2)
    model.remote = data.remote
    fitted_and_tested(model, data, 1, limit_val_batches=1, num_sanity_val_steps=0)
    assert len(model.clients) == 2
    assert model.curves[1]["scored_clients"] == 2
    assert model.clients.n_train.dtype == np.int64
