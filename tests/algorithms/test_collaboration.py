"""The groups that methods find, and what user-centric aggregation leaves of them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from fedem_lightning import ClientSGD, Clustered, FedAvg, FederatedAlgorithm, HypCluster, Oracle, UserCentric
from fedem_lightning.evaluate.component_diagnostics import group_scores
from fedem_lightning.run.results import run_results
from helpers.commands import TINY, call
from helpers.federations import grouped, make_model, train_and_test

SGD = ClientSGD(lr=0.3)


def test_the_adjusted_rand_index_by_hand() -> None:
    """Of 15 pairs 4 are together in both, 6 and 7 in each; by chance 6 * 7 / 15 = 2.8, at most (6 + 7) / 2."""
    true, found = np.array([0, 0, 0, 1, 1, 1]), np.array([5, 5, 2, 2, 2, 2])
    scores = group_scores(found, true)
    assert scores == {"adjusted_rand_index": pytest.approx((4 - 2.8) / (6.5 - 2.8)), "groups_found": 2}
    assert group_scores(1 - true, true) == {"adjusted_rand_index": 1.0, "groups_found": 2}
    assert group_scores(np.zeros(6, int), true) == {"adjusted_rand_index": 0.0, "groups_found": 1}
    assert group_scores(np.arange(6), true) == {}


@pytest.mark.parametrize(
    ("kind", "options", "groups"),
    [
        (Oracle, {}, 2),
        (Clustered, {}, 1),  # not split yet
        (Clustered, {"eps1": 1e9, "eps2": 0.0, "min_rounds": 3}, 2),
        (HypCluster, {"n_components": 3}, None),
        (UserCentric, {"n_streams": 2}, 2),
        (UserCentric, {}, 0),  # each client is alone
        (HypCluster, {"n_components": 1}, 0),
        (FedAvg, {}, 0),
    ],
)
def test_groups_are_measured_where_a_method_forms_any(
    kind: type[FederatedAlgorithm], options: dict[str, Any], groups: int | None
) -> None:
    """Those clients are a group that serve the same model. `groups`: how many; 0: none; None: as training has it."""
    data = grouped(8, n=120, unseen_fraction=0.25)
    model = make_model(kind, data, client_optimizer=SGD, batch_size=20, **options)
    train_and_test(model, data, 4)
    recovery = run_results(model, data.federation)["recovery"]
    if groups == 0:
        assert recovery.keys().isdisjoint({"adjusted_rand_index", "groups_found"})
        return
    seen = data.federation.clients()
    models = torch.cat([rows.flatten(2) for rows in model.personal_models(seen).models.values()], dim=2)  # [C, M, D]
    own = torch.einsum("cm,cmd->cd", model.personal_models(seen).mixture, models)
    _, found = np.unique(own.numpy(), axis=0, return_inverse=True)
    assert recovery["groups_found"] == len(set(found.tolist())) == (groups or recovery["groups_found"])
    assert recovery["adjusted_rand_index"] == pytest.approx(adjusted_rand_score(seen.numpy() % 2, found))
    assert groups != 2 or recovery["adjusted_rand_index"] == 1.0


def test_a_resumed_run_has_the_matrix_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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
    assert results["recovery"].keys() == {"adjusted_rand_index", "groups_found"}
    assert results["user_centric"]["streams"] == 2  # found before the first run stopped
    assert "adjusted Rand index" in capsys.readouterr().out
