"""Generated data: the synthetic mixture, the density federation with its exact minima, scikit-learn's digits."""

import re
from itertools import combinations
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
    DensityDataModule,
    Digits,
    FedEM,
    FederatedDataModule,
    SyntheticMixture,
    UserError,
)
from fedem_lightning.data.generated import bayes_probability, densities, minimum_losses
from fedem_lightning.models.stacked import StackedBackbone
from fedem_lightning.report.__main__ import main as report
from fedem_lightning.run.results import run_results
from helpers.commands import call
from helpers.federations import make_trainer, stored

SPLITS = ("train", "val", "test")


def samples_of(data: FederatedDataModule, split: str, client: int) -> tuple[np.ndarray, np.ndarray]:
    block = data.federation.block(torch.tensor([client]), split)
    return block.x(torch.float32).numpy(), block.y().numpy()


@pytest.fixture(scope="module")
def mixture() -> SyntheticMixture:
    return SyntheticMixture(n_clients=200, n_components=3, dimension=20, test_size=200, seed=1)


def test_synthetic_sizes_follow_the_paper(mixture: SyntheticMixture) -> None:
    train, val, test = (mixture.federation.splits[s].counts() for s in ("train", "val", "test"))
    assert train.min() >= 50
    assert train.max() <= 1000
    # n_t = 50 + floor(LogNormal(4, 2)): the median of LogNormal(4, 2) is e^4 = 54.6
    assert 85 <= train.float().median() <= 130
    assert torch.equal(val, train // 3)
    assert (test == 200).all()


def test_synthetic_draws_follow_the_paper(mixture: SyntheticMixture) -> None:
    federation, truth = mixture.federation, mixture.federation.truth
    assert_allclose(truth["pi"].sum(axis=1), 1)
    # Dirichlet(0.4, 0.4, 0.4): mean 1/3, variance (1/3)(2/3) / (1.2 + 1)
    assert_allclose(truth["pi"].mean(axis=0), 1 / 3, atol=0.07)
    assert_allclose(truth["pi"].var(axis=0), 2 / 9 / 2.2, atol=0.025)
    x = stored(federation).x.numpy()
    assert np.abs(x).max() <= 1
    assert_allclose([x.mean(), x.var()], [0, 1 / 3], atol=0.005)
    assert np.abs(truth["theta"]).max() <= 1
    # labels: p(y = 1 | x, t) is what bayes_probability says, in every decile of it
    block = federation.block(torch.arange(200), "test")
    scores = block.x(torch.float32).numpy() @ truth["theta"].T
    pi = truth["pi"][block.owner.numpy()]
    p = np.concatenate(
        [bayes_probability(scores[pi_rows], pi[pi_rows[0]], 1.0) for pi_rows in np.split(np.arange(40000), 200)]
    )
    y = block.y().numpy()
    for low in np.arange(0, 1, 0.1):
        inside = (p >= low) & (p < low + 0.1)
        assert y[inside].mean() == pytest.approx(p[inside].mean(), abs=0.03)
    right = ((p > 0.5) == y).reshape(200, 200).mean(axis=1)
    assert_allclose(truth["bayes_accuracy"], right)


def test_bayes_probability_is_the_expectation_over_the_noise() -> None:
    rng = np.random.default_rng(0)
    scores, pi = np.array([[1.5, -2.0]]), np.array([0.3, 0.7])
    eps = rng.normal(size=(400_000, 1))
    sampled = (1 / (1 + np.exp(-(scores + eps)))).mean(axis=0) @ pi
    assert bayes_probability(scores, pi, noise=1.0)[0] == pytest.approx(sampled, abs=2e-3)
    assert bayes_probability(scores, pi, noise=0.0)[0] == pytest.approx(pi @ (1 / (1 + np.exp(-scores[0]))))


@pytest.mark.parametrize("one_hot", [False, True])
def test_no_sample_is_in_two_splits_or_twice_in_one(one_hot: bool) -> None:
    data = SyntheticMixture(n_clients=4, dimension=6, test_size=80, one_hot=one_hot)
    rows: list[set[bytes]] = []
    for t in range(4):
        found = [samples_of(data, split, t)[0] for split in SPLITS]
        assert [len(found[1]), len(found[2])] == [len(found[0]) // 3, 80]
        rows += [{x.tobytes() for x in samples} for samples in found]
        assert [len(r) for r in rows[-3:]] == [len(samples) for samples in found]
    assert not any(one & other for one, other in combinations(rows, 2))  # nor do clients share samples
    assert not one_hot or sorted(np.unique(data.federation.truth["pi"])) == [0, 1]


@pytest.mark.parametrize("one_hot", [False, True])
def test_a_client_does_not_depend_on_how_many_there_are(one_hot: bool) -> None:
    few, many = (SyntheticMixture(n_clients=t, dimension=5, test_size=20, one_hot=one_hot, seed=2) for t in (3, 7))
    np.testing.assert_array_equal(few.federation.truth["theta"], many.federation.truth["theta"])
    for name in ("pi", "bayes_accuracy"):
        np.testing.assert_array_equal(few.federation.truth[name], many.federation.truth[name][:3])
    for split in SPLITS:
        assert torch.equal(few.federation.splits[split].counts(), many.federation.splits[split].counts()[:3])
        for t in range(3):
            for one, other in zip(samples_of(few, split, t), samples_of(many, split, t), strict=True):
                np.testing.assert_array_equal(one, other)


def test_digits_are_real_images() -> None:
    data = Digits(n_clients=8, alpha=0.5, n_groups=2)
    federation = data.federation
    assert (len(stored(federation).y), data.in_shape, data.n_outputs) == (1797, (1, 8, 8), 10)
    assert stored(federation).x.max() == 255
    assert np.bincount(federation.truth["group"]).tolist() == [4, 4]
    assert min(federation.splits["train"].counts()) >= 6


GROUP = np.arange(100) % 4
MINIMA = [(3.166, 3.166), (2.776, 2.894), (2.622, 2.669), (2.469, 2.469), (2.469, 2.469), (1.929, 1.929)]
"""Of one to five models, and of a model a client."""


def test_distributions_are_the_papers() -> None:
    data = DensityDataModule(n_clients=60, n_symbols=12, n_samples=1, test_size=0)
    expected = np.full((60, 12), 0.25 / 12)
    for k in range(60):
        expected[k, k % 4] += 0.5
        expected[k, k % 8] += 0.25
    truth = data.federation.truth
    assert_allclose(truth["distribution"], expected)
    assert truth["group"].tolist() == [0, 1, 2, 3] * 15
    assert_allclose(truth["minimum_loss"], [-sum(p * np.log(p) for p in row) for row in expected])


def test_minimum_losses_are_the_exact_ones() -> None:
    distribution, each_alone = densities(100, 50), np.arange(100)
    found = [minimum_losses(distribution, GROUP, q) for q in range(1, 6)]
    few = [0, 7, 45, 46, 99]  # every merge of a hundred groups would be too many
    alone = minimum_losses(distribution[few], each_alone[few], 5)
    truth = DensityDataModule(n_samples=1, test_size=1).federation.truth["minimum_loss"]
    assert_allclose(alone, truth[few].mean())
    assert_allclose([*found, [truth.mean()] * 2], MINIMA, atol=1e-3)


def test_minimum_losses_weigh_models_by_their_clients() -> None:
    rows = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
    group = np.array([0, 0, 3, 7])  # the names of groups are free

    def entropy(p: float) -> float:
        return -p * np.log(p) - (1 - p) * np.log(1 - p)

    merges = [3 * entropy(2 / 3) / 4 + np.log(2) / 4, 3 * entropy(5 / 6) / 4, 2 * entropy(1 / 4) / 4]
    assert_allclose(minimum_losses(rows, group, 2), [min(merges), max(merges)])
    assert_allclose(minimum_losses(rows, group, 3), np.log(2) / 4)


def test_sizes_and_frequencies_are_those_of_the_distributions() -> None:
    data = DensityDataModule(n_clients=48, n_samples=20_000, test_size=20_000)
    distribution = data.federation.truth["distribution"]
    assert (data.in_shape, data.n_outputs, stored(data.federation).x.unique().tolist()) == ((1,), 50, [1.0])
    drawn = set()
    for split in SPLITS:
        for k in (0, 5, 46):
            y = samples_of(data, split, k)[1]
            assert_allclose(np.bincount(y, minlength=50) / len(y), distribution[k], atol=0.015)
            drawn.add(tuple(y[:100]))
    assert len(drawn) == 9  # each from a stream of its own
    few = DensityDataModule(n_clients=1, n_samples=20, test_size=7).federation
    assert [len(few.splits[split]) for split in SPLITS] == [20, 6, 7]


def test_a_clients_symbols_do_not_depend_on_the_others() -> None:
    few, many = DensityDataModule(n_clients=3), DensityDataModule(n_clients=50, unseen_fraction=0.5)
    longer, other = DensityDataModule(n_clients=3, n_samples=200), DensityDataModule(n_clients=3, seed=1)
    for k in range(3):
        for split in SPLITS:
            y = samples_of(few, split, k)[1]
            assert np.array_equal(y, samples_of(many, split, k)[1])
            assert np.array_equal(y, samples_of(longer, split, k)[1][: len(y)])
            assert not np.array_equal(y, samples_of(other, split, k)[1])


def test_categorical_ignores_its_input_and_stacks() -> None:
    model = Categorical((1,), 9)
    outputs = model(torch.tensor([[1.0], [-3.0], [0.0]]))
    assert torch.equal(outputs, model.logits.weight.T.expand(3, 9))
    assert StackedBackbone.of(model) is not None
    with pytest.raises(UserError, match=r"^in_shape: .* got \(2,\)"):
        Categorical((2,), 9)


def test_results_and_table_have_the_minima() -> None:
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
    assert "the least that a client's model could reach: " in " ".join(out.split())
    report([str(run), "--out", str(tmp_path / "report")])
    out += capsys.readouterr().out
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    texts = [path.read_text() for path in files if path.suffix in (".json", ".csv", ".md", ".tex", ".html")]
    texts = [re.sub("<script>.*?</script>", "", text, flags=re.DOTALL) for text in texts]  # it knows all measures
    columns = [str(name) for name in pd.read_parquet(run / "clients.parquet")]
    assert "accuracy" not in " ".join([out, *drawn, *texts, *columns, *(path.name for path in files)]).lower()
    assert "test loss, nats, weighted" in drawn
