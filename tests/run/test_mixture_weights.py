"""mixture_weights.npz: mixture weights over the rounds, current to the last evaluation."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from scipy.stats import entropy

from fedem_lightning import FedAvg, FedEM
from fedem_lightning.callbacks.mixture_weights import _MOST_ROUNDS, SaveMixtureWeights, add_thinned
from helpers.federations import make_data, make_model, make_trainer


class Watched(pl.Callback):
    """Keeps pi after every evaluation, and what the file says then."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.pi: list[np.ndarray] = []
        self.rounds: list[list[int]] = []

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.sanity_checking:
            self.pi.append(pl_module.pi.clone().numpy())  # type: ignore[operator]
            self.rounds.append(read(self.path)["round"].tolist())


def read(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file}


def fit(model: Any, data: Any, path: Path, rounds: int, every: int = 1, ckpt_path: Path | None = None) -> Watched:
    watched = Watched(path)
    options: dict[str, Any] = {"limit_val_batches": 1, "check_val_every_n_epoch": every}
    trainer = make_trainer(rounds, callbacks=[SaveMixtureWeights(path), watched], **options)
    trainer.fit(model, data, ckpt_path=ckpt_path, weights_only=True)
    if rounds == 3:
        trainer.save_checkpoint(path.with_name("three.ckpt"))
    return watched


def test_the_file_has_pi_its_mean_and_its_entropy_of_every_evaluation(tmp_path: Path) -> None:
    data = make_data((9, 20, 14, 30, 25), unseen_fraction=0.4)
    path = tmp_path / "mixture_weights.npz"
    watched = fit(make_model(FedEM, data), data, path, rounds=5, every=2)
    found, seen = read(path), data.federation.seen.numpy()
    assert watched.rounds == [[2], [2, 4]]  # it is there while the run goes on
    assert found["id"].tolist() == [name for name, s in zip(data.federation.names, seen, strict=True) if s]
    pi = np.stack(watched.pi)[:, seen]
    np.testing.assert_allclose(found["pi"], pi, rtol=1e-6)
    np.testing.assert_allclose(found["mean"], pi.mean(axis=1), rtol=1e-6)
    np.testing.assert_allclose(found["entropy"], entropy(pi, axis=2).mean(axis=1), rtol=1e-6)
    assert {name: array.dtype.kind for name, array in found.items()} == {
        **{"round": "i", "id": "U"},
        **dict.fromkeys(("pi", "mean", "entropy"), "f"),
    }
    assert found["pi"].dtype == found["mean"].dtype == found["entropy"].dtype == np.float32


def test_a_resumed_run_goes_on_with_the_file(tmp_path: Path) -> None:
    """Rounds after the checkpoint are computed again; a file that is damaged is begun anew."""
    data = make_data()
    whole, path = tmp_path / "whole.npz", tmp_path / "part.npz"
    fit(make_model(FedEM, data), data, whole, rounds=6)
    fit(make_model(FedEM, data), data, path, rounds=3)
    checkpoint = tmp_path / "three.ckpt"
    fit(make_model(FedEM, data), data, path, rounds=5, ckpt_path=checkpoint)
    assert read(path)["round"].tolist() == [1, 2, 3, 4, 5]
    fit(make_model(FedEM, data), data, path, rounds=6, ckpt_path=checkpoint)  # the file is two rounds ahead
    for name, array in read(whole).items():
        np.testing.assert_array_equal(read(path)[name], array)
    fit(make_model(FedEM, data), data, path, rounds=4, ckpt_path=checkpoint)
    assert read(path)["round"].tolist() == [1, 2, 3, 4]
    path.write_bytes(path.read_bytes()[:100])
    fit(make_model(FedEM, data), data, path, rounds=6, ckpt_path=checkpoint)
    assert read(path)["round"].tolist() == [4, 5, 6]
    fit(make_model(FedEM, data), data, path, rounds=2)  # a run from the beginning takes nothing from the file
    assert read(path)["round"].tolist() == [1, 2]


def test_of_many_clients_some_are_shown_at_even_distances(tmp_path: Path) -> None:
    data = make_data((5,) * 450)
    path = tmp_path / "mixture_weights.npz"
    [pi] = fit(make_model(FedEM, data), data, path, rounds=1).pi
    found = read(path)
    shown = found["id"].astype(int)
    assert len(shown) == 200
    assert (shown[0], shown[-1]) == (0, 449)
    assert set(np.diff(shown)) == {2, 3}
    np.testing.assert_allclose(found["pi"][0], pi[shown], rtol=1e-6)
    np.testing.assert_allclose(found["mean"][0], pi.mean(axis=0), rtol=1e-5)  # over all of them
    np.testing.assert_allclose(found["entropy"][0], entropy(pi, axis=1).mean(), rtol=1e-5)


class OnesOwn(FedAvg):
    """A method of one's own with mixture weights."""

    facts = replace(FedAvg.facts, mixes=True)

    @property
    def pi(self) -> torch.Tensor:
        return torch.full((self.n_clients, 2), 0.5)


def test_an_algorithm_is_asked_for_pi(tmp_path: Path) -> None:
    data = make_data()
    make_trainer(1, callbacks=[SaveMixtureWeights(tmp_path / "none.npz")], limit_val_batches=1).fit(
        make_model(FedAvg, data), data
    )
    assert not (tmp_path / "none.npz").exists()
    fit(make_model(OnesOwn, data), data, tmp_path / "own.npz", rounds=1)
    found = read(tmp_path / "own.npz")
    assert found["pi"].tolist() == [[[0.5, 0.5]] * 4]
    np.testing.assert_allclose(found["entropy"], np.log(2), rtol=1e-6)


def test_rounds_are_thinned_out_evenly_and_the_last_is_there() -> None:
    for first, every in ((1, 1), (5, 5)):
        rows: list[Any] = []
        for number in range(first, first + 1000 * every, every):
            add_thinned(rows, SimpleNamespace(round=number))
            rounds = [row.round for row in rows]
            assert rounds[0] == first
            assert rounds[-1] == number
            assert len(rounds) <= _MOST_ROUNDS
            *between, last = np.diff(rounds).tolist() or [1]
            assert len(set(between)) <= 1
            assert not between or last <= between[0]
        assert len(rounds) > _MOST_ROUNDS / 2 - 1
