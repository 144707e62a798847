"""Generalisation bounds: terms by hand and by brute force, and a callback that watches without touching anything."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from scipy.optimize import minimize_scalar

from fedem_lightning import AFL, ClientSGD, FedAvg, FedEM, FederatedDataModule, HypCluster, Local, UserError
from fedem_lightning.callbacks import BoundsDiagnostics, RoundCheckpoint
from fedem_lightning.evaluation.bounds import (
    cluster_term,
    discrepancies,
    global_term,
    interpolation_term,
    local_term,
    skewness,
    suggest,
)
from fedem_lightning.run.results import run_results
from helpers.federations import make_data, make_model, make_trainer, parameters
from helpers.runs import run_small

SIZES = (9, 14, 30, 25, 40)
ONCE = {"limit_val_batches": 1, "num_sanity_val_steps": 0}


def test_skewness_of_a_worked_example() -> None:
    sizes = np.array([10, 30])
    assert skewness(sizes) == pytest.approx(0.25 / (1 / 4) + 0.25 / (3 / 4))
    assert skewness(sizes, np.array([1.0, 3.0])) == pytest.approx(1)
    assert skewness(sizes, np.array([0.0, 2.0])) == pytest.approx(4 / 3)


def test_discrepancies_of_a_worked_example() -> None:
    losses, sizes = np.array([[1.0, 2.0, 4.0], [0.0, 0.0, 3.0]]), np.array([2, 1, 1])
    # the pool's losses are 8/4 and 3/4; those of the last two clients together 6/2 and 3/2
    assert discrepancies(losses, sizes).tolist() == [1.0, 0.75, 2.25]
    assert discrepancies(losses, sizes, np.array([7, 2, 2])).tolist() == [0.0, 1.5, 1.5]
    assert discrepancies(losses[:0], sizes).tolist() == [0.0, 0.0, 0.0]


def test_terms_of_a_worked_example() -> None:
    assert local_term(np.array([40, 10]), 10).tolist() == [0.5, 1.0]
    assert global_term(1000, 10, np.array([0.0, 0.3])) == pytest.approx([0.1, 0.4])
    # ln(40 e) = 1 + 3.6888795, times 10 * 2 / 400; ln 4 = 1.3862944, times 4 / 400
    expected = 0.23444397**0.5 + 0.013862944**0.5
    assert cluster_term(400, 4, 2, 10, np.array([0.0, 0.1])) == pytest.approx([expected, expected + 0.1])
    assert cluster_term(400, 4, 2, 800, np.zeros(1)) == pytest.approx(2 + 0.013862944**0.5)


def test_the_best_interpolation_is_the_one_a_search_finds() -> None:
    rng = np.random.default_rng(0)
    sizes, discrepancy = rng.integers(1, 400, size=60), rng.uniform(0, 1, size=60) * rng.integers(0, 2, size=60)
    n, d = 3000, 12
    term, share = interpolation_term(sizes, n, d, discrepancy)
    for k in range(60):

        def bound(x: float, k: int = k) -> float:
            return np.hypot(x / sizes[k] ** 0.5, (1 - x) / n**0.5) * d**0.5 + (1 - x) * discrepancy[k]

        found = minimize_scalar(bound, bounds=(0, 1), method="bounded", options={"xatol": 1e-9})
        assert term[k] == pytest.approx(found.fun, rel=1e-6)
        assert share[k] == pytest.approx(found.x, abs=1e-4)
    assert np.all(term <= np.minimum(local_term(sizes, d), global_term(n, d, discrepancy)) + 1e-12)
    assert (share == 1).any()
    assert (share[discrepancy > 0] < 1).any()


def suggested(sizes: list[int], discrepancy: list[float], to_cluster: list[float] | None = None) -> list[str]:
    """With d = 4, 100 clients, 10^4 samples and two clusters."""
    n_k, disc, n = np.array(sizes), np.array(discrepancy), 10_000
    interpolation, share = interpolation_term(n_k, n, 4, disc)
    terms = {"local": local_term(n_k, 4), "global": global_term(n, 4, disc), "interpolate": interpolation}
    if to_cluster is not None:
        terms["cluster"] = cluster_term(n, 100, 2, 4, np.array(to_cluster))
    return suggest(terms, share).tolist()


def test_what_is_suggested_to_whom() -> None:
    assert suggested([100], [0.0]) == ["global"]  # nothing sets the client apart: lambda = 1 / 101
    assert suggested([4000], [0.9]) == ["local"]  # sqrt(4 / 4000) = 0.03
    assert suggested([100], [0.15]) == ["interpolate"]  # 0.2 alone, 0.02 + 0.15 with all
    # sqrt(8 / 10^4 ln(2500 e)) + sqrt(100 ln 4 / 10^4) = 0.084 + 0.118, against 0.4 alone and 0.52 with all
    assert suggested([25], [0.5], [0.0]) == ["cluster"]
    assert suggested([25], [0.5], [0.45]) == ["local"]  # lambda = 1
    assert suggested([25, 100], [0.0, 0.0], [0.0, 0.0]) == ["global", "global"]


class Watch(pl.Callback):
    """Remembers every model at every evaluation."""

    def __init__(self) -> None:
        self.models: list[dict[str, torch.Tensor]] = []

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        self.models += [{k: v.clone() for k, v in c.state_dict().items()} for c in pl_module.components]

    on_test_end = on_validation_end


def check_diagnostics(model: Any, data: Any, watch: Watch) -> None:
    """The discrepancies, from the models that were there and the samples of each client."""
    federation = data.federation
    trained = federation.clients().tolist()
    each = []
    for weights in watch.models:
        blocks = [federation.block(torch.tensor([t]), "train") for t in trained]
        each.append([F.cross_entropy(linear(weights, b.x(torch.float64)), b.y(), reduction="none") for b in blocks])
    losses = np.array([[v.mean().item() for v in row] for row in each])  # [H, T]
    pool = np.array([torch.cat(row).mean().item() for row in each])
    expected = np.abs(losses - pool[:, None]).max(axis=0)
    table = model.clients.set_index("id")
    seen = table.population == "seen"
    np.testing.assert_allclose(table.discrepancy[[str(t) for t in trained]], expected, rtol=1e-9)
    assert table.discrepancy[~seen].isna().all()
    assert table.suggestion[~seen].isna().all()
    found = model.diagnostics["bounds"]
    assert found["models"] == len(watch.models)
    assert found["discrepancy"]["largest"] == pytest.approx(expected.max())
    assert found["discrepancy"]["median"] == pytest.approx(np.median(expected))
    assert sum(found["suggestions"].values()) == len(trained)
    assert (
        pd.Series(found["suggestions"]).loc[lambda n: n > 0].to_dict()
        == table.suggestion[seen].value_counts().to_dict()
    )


def linear(weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return x @ weights["linear.weight"].T + weights["linear.bias"]


@pytest.mark.parametrize(("kind", "options"), [(FedEM, {}), (HypCluster, {"n_components": 2}), (AFL, {}), (Local, {})])
def test_a_run_is_watched_and_not_touched(kind: type, options: dict[str, Any]) -> None:
    sgd = ClientSGD(lr=0.3)
    data = make_data(SIZES, unseen_fraction=0.4)
    plain, model = (make_model(kind, data, client_optimizer=sgd, **options) for _ in range(2))
    watch, bounds = Watch(), BoundsDiagnostics(dimension=2)
    for algorithm, callbacks in ((plain, []), (model, [watch, bounds])):
        trainer = make_trainer(3, check_val_every_n_epoch=2, callbacks=callbacks, **ONCE)
        trainer.fit(algorithm, data)
        trainer.test(algorithm, data, verbose=False)
    assert torch.equal(parameters(plain), parameters(model))
    assert len(watch.models) == 2 * len(model.components)  # after round 2, and at the test
    check_diagnostics(model, data, watch)
    results = run_results(model, data.federation)
    assert results["bounds"] == model.diagnostics["bounds"]
    assert results["bounds"]["dimension"] == 2
    assert "bounds" not in run_results(plain, data.federation)
    sizes = data.federation.splits["train"].counts(data.federation.clients()).numpy()
    weights: Any = model.weights if kind is AFL else None
    if kind is not AFL:
        assert results["bounds"]["skewness"] == pytest.approx(sizes.mean() * (1 / sizes).mean())
    else:
        assert results["bounds"]["skewness"] == pytest.approx(
            sum(float(weights[t]) ** 2 * sizes.sum() / n for t, n in zip(data.federation.clients(), sizes, strict=True))
        )


def test_clusters_count_where_they_are_known() -> None:
    client = np.repeat(np.arange(5), SIZES)
    x = np.random.default_rng(0).normal(size=(len(client), 4))
    y = (x.argmax(axis=1) + client % 2) % 3  # two rules
    data, callback = FederatedDataModule.from_arrays(x, y, client), BoundsDiagnostics()
    model = make_model(HypCluster, data, initialization="farthest", client_optimizer=ClientSGD(lr=0.3))
    trainer = make_trainer(2, callbacks=[callback], **ONCE)
    trainer.fit(model, data)
    trainer.test(model, data, verbose=False)
    losses = callback.state_dict()["losses"].numpy()  # [3 evaluations x 2, T]
    n_k, q = np.array([int(f) for f in model.clients.n_train]), model.clients.cluster.to_numpy()
    assert set(q) == {0, 1}
    apart = np.zeros(5)
    for cluster in (0, 1):
        mine = q == cluster
        apart[mine] = np.abs(losses[:, mine] - np.average(losses[:, mine], axis=1, weights=n_k[mine])[:, None]).max(0)
    found, n = model.diagnostics["bounds"], n_k.sum()
    assert (len(losses), found["dimension"]) == (6, 3 * 4 + 3)
    shared = (15 * 2 / n * np.log(np.e * n / 15)) ** 0.5 + (5 * np.log(4) / n) ** 0.5
    assert found["terms"]["cluster"] == pytest.approx(shared + np.median(apart))
    assert list(found["suggestions"]) == ["local", "global", "interpolate", "cluster"]


def test_a_resumed_run_remembers_what_it_saw(tmp_path: Path) -> None:
    data = make_data(SIZES)
    found = []
    for parts in ((4,), (2, 4)):
        folder = tmp_path / str(len(parts))
        for rounds in parts:
            model = make_model(FedAvg, data, client_optimizer=ClientSGD(lr=0.5))
            callbacks = [BoundsDiagnostics(), RoundCheckpoint(2, dirpath=folder)]
            trainer = make_trainer(rounds, callbacks=callbacks, enable_checkpointing=True, **ONCE)
            before = sorted(folder.glob("*.ckpt"))
            trainer.fit(model, data, ckpt_path=before[-1] if before else None, weights_only=True)
        trainer.test(model, data, verbose=False)
        found.append((parameters(model), model.diagnostics["bounds"], model.clients.discrepancy.tolist()))
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1:] == found[1][1:]
    assert found[0][1]["models"] == 5


def test_models_that_diverged_and_sanity_checks_do_not_count() -> None:
    data = make_data(SIZES)
    model = make_model(FedAvg, data)
    callback = BoundsDiagnostics()
    trainer = make_trainer(1, limit_val_batches=1, num_sanity_val_steps=1, callbacks=[callback])
    trainer.fit(model, data)
    before = callback.state_dict()["losses"]
    assert before.shape == (1, 5)
    with torch.no_grad():
        model.components[0].linear.weight.fill_(1e308)  # finite, but no loss is
    trainer.test(model, data, verbose=False)
    assert model.diagnostics["bounds"]["models"] == 1
    assert np.isfinite(model.clients.discrepancy).all()


def test_a_dimension_is_a_number_above_0() -> None:
    with pytest.raises(UserError, match=r"dimension: expected a number above 0"):
        BoundsDiagnostics(dimension=0)


def test_from_the_command_line(tmp_path: Path) -> None:
    run_small(tmp_path / "run", tmp_path, "callbacks=bounds", "callbacks.bounds.dimension=3")
    bounds = json.loads((tmp_path / "run" / "results.json").read_text())["bounds"]
    assert bounds["dimension"] == 3
    assert sum(bounds["suggestions"].values()) == 4
    assert pd.read_parquet(tmp_path / "run" / "clients.parquet").suggestion.notna().all()
    assert (tmp_path / "run" / "checkpoints").is_dir()  # the default callbacks are there as well
