"""The density federation, its exact minima, and what training reaches of them."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure
from numpy.testing import assert_allclose

from fedem_lightning import (
    Categorical,
    ClientSGD,
    DensityDataModule,
    Engine,
    FedAvg,
    FedEM,
    LoopEngine,
    UserError,
    VmapEngine,
)
from fedem_lightning.data.density import densities, minimum_losses
from fedem_lightning.engine.stacked import StackedBackbone
from fedem_lightning.report.__main__ import main as report
from fedem_lightning.run.results import run_results
from fedem_lightning.run.summary import print_summary
from helpers.commands import call
from helpers.federations import make_trainer, parameters, stored, train

GROUP = np.arange(100) % 4
MINIMA = {  # of one to five models, and of a model a client
    False: [(3.166, 3.166), (2.776, 2.894), (2.622, 2.669), (2.469, 2.469), (2.469, 2.469), (1.929, 1.929)],
    True: [(3.249, 3.249), (2.869, 2.971), (2.705, 2.739), (2.541, 2.541), (2.541, 2.541), (1.965, 1.965)],
}


def labels(data: DensityDataModule, client: int, split: str) -> np.ndarray:
    return data.federation.block(torch.tensor([client]), split).y().numpy()


@pytest.mark.parametrize("shifted", [False, True])
def test_distributions_are_the_papers(shifted: bool) -> None:
    data = DensityDataModule(n_clients=60, n_symbols=12, n_samples=1, test_size=0, shifted=shifted)
    expected = np.full((60, 12), 0.25 / 12)
    for k in range(60):
        expected[k, k % 4] += 0.5
        expected[k, (4 if shifted else 0) + k % 8] += 0.25
    truth = data.federation.truth
    assert_allclose(truth["distribution"], expected)
    assert truth["group"].tolist() == [0, 1, 2, 3] * 15
    assert_allclose(truth["minimum_loss"], [-sum(p * np.log(p) for p in row) for row in expected])


@pytest.mark.parametrize("shifted", [False, True])
def test_minimum_losses_are_the_exact_ones(shifted: bool) -> None:
    distribution, each_alone = densities(100, 50, shifted), np.arange(100)
    found = [minimum_losses(distribution, GROUP, q) for q in range(1, 6)]
    few = [0, 7, 45, 46, 99]  # every merge of a hundred groups would be too many
    alone = minimum_losses(distribution[few], each_alone[few], 5)
    truth = DensityDataModule(n_samples=1, test_size=1, shifted=shifted).federation.truth["minimum_loss"]
    assert_allclose(alone, truth[few].mean())
    assert_allclose([*found, [truth.mean()] * 2], MINIMA[shifted], atol=1e-3)


def test_minimum_losses_weigh_models_by_their_clients() -> None:
    rows = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
    group = np.array([0, 0, 3, 7])  # the names of groups are free

    def entropy(p: float) -> float:
        return -p * np.log(p) - (1 - p) * np.log(1 - p)

    merges = [3 * entropy(2 / 3) / 4 + np.log(2) / 4, 3 * entropy(5 / 6) / 4, 2 * entropy(1 / 4) / 4]
    assert_allclose(minimum_losses(rows, group, 2), [min(merges), max(merges)])
    assert_allclose(minimum_losses(rows, group, 3), np.log(2) / 4)


def test_the_minimum_is_no_ones_loss_but_the_means() -> None:
    """No other model of all clients is better in expectation."""
    distribution, rng = densities(100, 50), np.random.default_rng(0)
    low, _ = minimum_losses(distribution, GROUP, 1)
    for scale in (1e-3, 0.1, 1.0):
        model = distribution.mean(axis=0) * np.exp(scale * rng.normal(size=50))
        assert -(distribution @ np.log(model / model.sum())).mean() > low


def test_sizes_and_shapes() -> None:
    data = DensityDataModule(n_clients=5, n_symbols=9, n_samples=20, test_size=7)
    federation = data.federation
    assert (data.in_shape, data.n_outputs, stored(federation).x.unique().tolist()) == ((1,), 9, [1.0])
    counts = {split: s.counts().unique().tolist() for split, s in federation.splits.items()}
    assert counts == {"train": [20], "val": [6], "test": [7]}
    assert DensityDataModule(n_clients=1, n_samples=2, test_size=0).federation.splits["val"].counts().tolist() == [1]
    assert len(DensityDataModule(n_clients=2, n_val=0, test_size=0).federation.splits["val"]) == 0


def test_frequencies_are_the_distributions() -> None:
    data = DensityDataModule(n_clients=48, n_samples=20_000, n_val=20_000, test_size=20_000)
    distribution = data.federation.truth["distribution"]
    for split in ("train", "val", "test"):
        for k in (0, 5, 45, 46):
            y = labels(data, k, split)
            assert_allclose(np.bincount(y, minlength=50) / len(y), distribution[k], atol=0.015)
    drawn = [labels(data, k, split)[:100].tolist() for k in (0, 46) for split in ("train", "val", "test")]
    assert len({tuple(y) for y in drawn}) == 6  # each from a stream of its own


def test_a_clients_samples_do_not_depend_on_the_others() -> None:
    few, many = DensityDataModule(n_clients=3), DensityDataModule(n_clients=50, unseen_fraction=0.5)
    longer, other = DensityDataModule(n_clients=3, n_samples=200), DensityDataModule(n_clients=3, seed=1)
    for k in range(3):
        for split in ("train", "val", "test"):
            y = labels(few, k, split)
            assert np.array_equal(y, labels(many, k, split))
            assert np.array_equal(y, labels(longer, k, split)[: len(y)])
            assert not np.array_equal(y, labels(other, k, split))
    assert few.federation.digest() == DensityDataModule(n_clients=3).federation.digest()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_clients": 0}, "n_clients: expected "),
        ({"n_symbols": 8}, "n_symbols: expected "),
        ({"n_symbols": 9.5}, "n_symbols: expected a valid integer"),
        ({"n_samples": 0}, "^DensityDataModule.n_samples"),
        ({"n_val": -1}, "^DensityDataModule.n_val"),
        ({"test_size": -1}, "^DensityDataModule.test_size"),
        ({"shifted": 1}, "shifted: expected "),
        ({"unseen_fraction": 1.0}, "^DensityDataModule.unseen_fraction"),
        ({"seed": -1}, "^DensityDataModule.seed"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        DensityDataModule(**options)


# --- the model, and what it reaches -----------------------------------------------------------------------------------


def test_categorical_ignores_its_input_and_stacks() -> None:
    model = Categorical((1,), 9)
    outputs = model(torch.tensor([[1.0], [-3.0], [0.0]]))
    assert torch.equal(outputs, model.logits.weight.T.expand(3, 9))
    assert sum(p.numel() for p in model.parameters()) == 9
    assert StackedBackbone.of(model) is not None
    with pytest.raises(UserError, match=r"^in_shape: .* got \(2,\)"):
        Categorical((2,), 9)


def fedavg(data: DensityDataModule, engine: Engine, **options: float) -> FedAvg:
    """Gradient descent on all samples: one step a round on each client's full batch."""
    torch.manual_seed(0)
    backbone = Categorical(data.in_shape, data.n_outputs)
    optimizer = ClientSGD(lr=8.0)
    return FedAvg(
        backbone, n_clients=data.n_clients, batch_size=100, client_optimizer=optimizer, engine=engine, **options
    )


def test_engines_agree_on_it() -> None:
    data = DensityDataModule(n_clients=12, test_size=0)
    loop, vmap = (parameters(train(fedavg(data, engine), data, 3)) for engine in (LoopEngine(), VmapEngine()))
    assert_allclose(loop, vmap, rtol=1e-9)


@pytest.mark.parametrize("engine", [LoopEngine(), VmapEngine()], ids=["loop", "vmap"])
def test_one_model_comes_near_its_minimum(engine: Engine) -> None:
    data = DensityDataModule(unseen_fraction=0.2)
    model, trainer = fedavg(data, engine), make_trainer(20)
    trainer.fit(model, data)
    seen = data.federation.seen.numpy()
    distribution = data.federation.truth["distribution"][seen]
    network: Any = model.components[0]
    log_p = network.logits.weight.detach().squeeze(1).log_softmax(0).numpy()
    (low, _), loss = minimum_losses(distribution, GROUP[seen], 1), -(distribution @ log_p).mean()
    assert low < loss < low + 0.02
    trainer.test(model, data, verbose=False)
    results = run_results(model, data.federation)
    assert results["test"]["loss"]["weighted"] == pytest.approx(loss, abs=0.02)
    assert results["data"]["minimum_loss_by_models"]["1"] == [low, low]


def test_results_and_table_have_the_minima(capsys: pytest.CaptureFixture[str]) -> None:
    data = DensityDataModule(n_clients=10, n_samples=30, test_size=20, unseen_fraction=0.2)
    torch.manual_seed(0)
    model = FedEM(lambda: Categorical(data.in_shape, data.n_outputs), n_clients=10, n_components=4)
    trainer = make_trainer(1)
    trainer.fit(model, data)
    trainer.test(model, data, verbose=False)
    results, minimum = run_results(model, data.federation), data.federation.truth["minimum_loss"]
    seen = data.federation.seen.numpy()
    assert_allclose(model.clients.true_minimum_loss, minimum)
    reference = results["reference"]
    assert set(reference) == {f"minimum_loss{end}" for end in ("", "_pooled", "_mean", "_bottom_decile", "_worst")}
    assert_allclose(reference["minimum_loss"], minimum[seen].mean())
    assert reference["minimum_loss_worst"] == minimum[seen].max()
    bounds = results["data"]["minimum_loss_by_models"]
    assert list(bounds) == ["1", "2", "3", "4"]
    assert bounds["2"] == list(minimum_losses(data.federation.truth["distribution"][seen], GROUP[:10][seen], 2))
    results["seconds"]["total"] = 1.0
    print_summary({**results, "algorithm": "fedem", "dataset": "density", "backbone": "categorical", "seed": 0})
    assert f"the least that a client's model could reach: {reference['minimum_loss']:.3f}" in " ".join(
        capsys.readouterr().out.split()
    )


def test_a_run_shows_losses_in_nats_and_nowhere_an_accuracy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No label can be told from a sample: an accuracy may fall while the model gets better."""
    drawn, draw = list[str](), Figure.savefig

    def see(figure: Figure, *arguments: Any, **options: Any) -> None:
        drawn.extend(text for axes in figure.axes for text in (axes.get_xlabel(), axes.get_ylabel()))
        draw(figure, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", see)
    small = ["dataset.n_clients=6", "dataset.unseen_fraction=0.2", "dataset.test_size=30", "trainer.max_epochs=2"]
    chosen = ["dataset=density", "backbone=categorical", "trainer.check_val_every_n_epoch=1", "run_dir=run", *small]
    assert call(tmp_path, monkeypatch, "algorithm=fedavg", *chosen) == 0
    run = tmp_path / "run"
    out = capsys.readouterr().out
    assert "round 2/2: val loss " in out
    assert "loss, nats" in out
    report([str(run), "--out", str(tmp_path / "report")])
    out += capsys.readouterr().out
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    texts = [path.read_text() for path in files if path.suffix in (".json", ".csv", ".md", ".tex", ".html")]
    texts = [re.sub("<script>.*?</script>", "", text, flags=re.DOTALL) for text in texts]  # it knows all measures
    columns = [str(name) for name in pd.read_parquet(run / "clients.parquet")]
    assert "accuracy" not in " ".join([out, *drawn, *texts, *columns, *(path.name for path in files)]).lower()
    assert {"loss_by_round.png", "loss_over_clients.png"} <= {path.name for path in files}
    assert "loss, nats, seen clients, weighted" in drawn
