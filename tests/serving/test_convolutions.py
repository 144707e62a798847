"""Convolutional runs: the order of weights in memory decides the last bits, so all that scores must have the same."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fedem_lightning import CNN, FedAvg, load
from fedem_lightning.evaluate.__main__ import main as evaluate
from fedem_lightning.models.components import arrange, arranged
from fedem_lightning.personalize import main as personalize
from helpers import serving

RUNS = {"fedem": "lenet", "fedavg_plus": "cnn"}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all.npz, gray images, and the runs on it, by algorithm."""
    folder, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    full = serving.arrays()
    shown = 60 * full["y"][:, None, None] + rng.integers(0, 120, size=(len(full["y"]), 12, 12))
    np.savez(folder / "all.npz", **{**full, "x": shown.astype(np.uint8)})  # type: ignore[arg-type]
    for algorithm, backbone in RUNS.items():
        serving.finished_run(folder / algorithm, folder / "all.npz", algorithm, f"backbone={backbone}")
    return folder


@pytest.mark.parametrize("algorithm", RUNS)
def test_unseen_clients_have_the_scores_of_their_run(algorithm: str, images: Path, tmp_path: Path) -> None:
    """Also from the file of their models."""
    run, out = images / algorithm, tmp_path / "clients.safetensors"
    schema = load(run).schema
    assert schema is not None
    unseen = [schema.name(t) for t in range(schema.n_clients) if not schema.seen[t]]
    with np.load(images / "all.npz") as file:
        np.savez(tmp_path / "unseen.npz", **serving.of_clients(dict(file), unseen))  # type: ignore[arg-type]
    personalize([str(run), str(tmp_path / "unseen.npz"), "--out", str(out)])
    evaluate([str(out), str(tmp_path / "unseen.npz"), "--out", str(tmp_path / "scores")])
    scores = json.loads((tmp_path / "scores" / "evaluation.json").read_text())["scores"]
    assert scores == json.loads((run / "results.json").read_text())["unseen"]["test"]


def test_other_devices_get_torchs_own_order() -> None:
    """Also of a single channel, whose strides torch would leave as they are."""
    model = FedAvg(CNN(3, (1, 12, 12)), n_clients=2)
    first = model.components[0].get_parameter("features.0.weight")
    assert first.stride() == (9, 1, 3, 1)
    values = first.detach().clone()
    assert arranged(first, torch.device("cpu")) is first
    arrange(model, torch.device("cuda"))
    assert first.stride() == (9, 9, 3, 1)
    assert torch.equal(first, values)
