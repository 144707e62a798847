"""What user-centric aggregation leaves of the groups that it finds."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedem_lightning import ClientSGD
from helpers.commands import TINY, call

SGD = ClientSGD(lr=0.3)


def test_a_resumed_run_has_the_matrix_of_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = [*TINY, "algorithm=user_centric", "algorithm.n_streams=2"]
    options += ["dataset.one_hot=true", "dataset.unseen_fraction=0.25", "run_dir=run"]
    kept = []
    for more in (["trainer.max_epochs=2"], ["ckpt_path=auto"]):
        assert call(tmp_path, monkeypatch, *options, *more) == 0
        with np.load(tmp_path / "run" / "coefficients.npz") as found:
            kept.append(dict(found))
    first, second = kept
    assert first.keys() == second.keys() == {"w", "id", "stream", "true_group"}
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert first["w"].shape == (6, 6)
    np.testing.assert_allclose(first["w"].sum(axis=1), 1, rtol=1e-6)
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["rounds"] == 4
    assert results["user_centric"]["streams"] == 2  # found before the first run stopped
