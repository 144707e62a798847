"""Scores of each client's model on the samples of all clients, against a loop over clients in NumPy."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fedem_lightning import FedAvg, FedEM, Linear, Local
from fedem_lightning.evaluate.global_scores import balanced_samples
from helpers.commands import call
from helpers.federations import make_data, make_trainer, train


def test_each_client_has_equally_many_of_the_samples() -> None:
    federation = make_data(sizes=(100, 20, 20, 10)).federation
    index = balanced_samples(federation, 400, seed=0)
    assert len(index) == 400
    test = federation.splits["test"]
    owner = {int(p): t for t in range(4) for p in test.index[test.offsets[t] : test.offsets[t + 1]]}
    assert np.bincount([owner[int(p)] for p in index]).tolist() == [100] * 4
    assert torch.equal(index, balanced_samples(federation, 400, seed=0))


@pytest.mark.parametrize("kind", [Local, FedAvg, FedEM])
def test_scores_are_those_of_each_model_on_the_same_samples(kind: type) -> None:
    data = make_data(sizes=(60, 40, 40, 30))
    options = {"n_components": 2} if kind is FedEM else {}
    model = train(kind(lambda: Linear((4,), 3), 4, **options), data, 2)
    model.global_samples = 200
    make_trainer(0).test(model, data, verbose=False)
    index = balanced_samples(data.federation, 200, model.seed)
    x, y = data.federation.samples.features(index, torch.float64), data.federation.samples.labels(index)
    for t in range(4):
        personal = model.personal_models(torch.tensor([t]))
        w, b = (personal.models[f"linear.{name}"][0].detach().numpy() for name in ("weight", "bias"))  # [M, ...]
        logits = np.einsum("nd,mkd->mnk", x.numpy(), w) + b[:, None]
        p = np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)  # [M, n, k]
        right = np.einsum("m,mnk->nk", personal.mixture[0].detach().numpy(), p).argmax(axis=1) == y.numpy()
        assert model.clients["global_accuracy"][t] == pytest.approx(right.mean(), abs=1e-12)
    if kind is FedAvg:
        assert model.clients["global_accuracy"].nunique() == 1


def test_a_run_says_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["algorithm=local", "dataset.n_clients=5", "trainer.max_epochs=2", "run_dir=run", "scores=global"]
    assert call(tmp_path, monkeypatch, *words) == 0
    everywhere = json.loads((tmp_path / "run" / "results.json").read_text())["global"]["accuracy"]
    assert everywhere["worst"] <= everywhere["median"]
    assert "of the clients' models on all clients' samples: mean" in capsys.readouterr().out
