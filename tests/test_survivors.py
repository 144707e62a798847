"""Small expectations by hand, each of which a mutant of `tests/mutants` asked for: no other test noticed it."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.distributed as dist
from hydra.utils import instantiate

from fedem_lightning import ClientSGD, FedAvg, Finetune, Local, LoopEngine, UserCentric
from fedem_lightning.aggregate import Update, WeightedMean
from fedem_lightning.data.splits import SPLITS, Splitting
from fedem_lightning.evaluate.adapt.base import selection_losses
from fedem_lightning.evaluate.component_diagnostics import component_health
from fedem_lightning.methods.streams import gradients
from fedem_lightning.report import find_runs
from fedem_lightning.report.columns import run_values
from fedem_lightning.run.building import build_model
from fedem_lightning.run.results import finite
from fedem_lightning.state.processes import Processes
from helpers.by_hand import gradient, losses, samples, vector
from helpers.commands import composed
from helpers.federations import make_data, make_model, make_trainer, parameters, stored, train
from helpers.runs import make_run, sums

EVERYBODY = torch.arange(4)

# --- methods ----------------------------------------------------------------------------------------------------------


def test_the_servers_momentum_counts_at_rate_1() -> None:
    """v_1 = theta_0 - mean_1, so theta_1 = mean_1; then theta_2 = theta_1 - (0.9 v_1 + theta_1 - mean_2)."""
    data, sgd = make_data(), ClientSGD(lr=0.3)
    start = parameters(make_model(FedAvg, data).double().components)
    first, second = (
        parameters(train(make_model(FedAvg, data, client_optimizer=sgd), data, rounds).components) for rounds in (1, 2)
    )
    model = make_model(
        FedAvg, data, client_optimizer=sgd, server_optimizer=lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.9)
    )
    expected = second - 0.9 * (start - first)
    torch.testing.assert_close(parameters(train(model, data, 2).components), expected, rtol=1e-12, atol=1e-14)


def test_tuning_on_the_side_leaves_kept_momentum_alone() -> None:
    data, sgd = make_data(), ClientSGD(lr=0.2, momentum=0.9, state="keep")
    plain = train(make_model(FedAvg, data, client_optimizer=sgd), data, 3)
    tuned = train(make_model(FedAvg, data, client_optimizer=sgd, adaptation=Finetune(1)), data, 3, limit_val_batches=1)
    assert torch.equal(parameters(tuned.components), parameters(plain.components))
    assert torch.equal(parameters(tuned.kept_momentum), parameters(plain.kept_momentum))


def test_a_model_that_is_infinite_enters_no_mean() -> None:
    mean = WeightedMean()
    mean.add(Update({"w": torch.tensor([[[1.0, 2.0]], [[torch.inf, 2.0]], [[3.0, 6.0]]])}, torch.tensor([3, 5, 1]), {}))
    found = mean.compute()
    assert found is not None
    assert found.models["w"].tolist() == [[1.5, 3.0]]


def test_the_parts_of_a_clients_samples_are_drawn_at_random() -> None:
    """A client whose samples are sorted by label: parts cut in this order would differ far more."""
    data = make_data(sizes=(90,), fractions=(1.0, 0.0, 0.0))
    samples = stored(data.federation)
    order = samples.y.argsort()
    samples.x, samples.y = samples.x[order], samples.y[order]
    block = data.federation.block(torch.tensor([0]), "train")
    x, y = block.x(torch.float64).numpy(), block.y().numpy()
    noises = []
    for seed in (0, 1):
        model = make_model(UserCentric, data, seed=seed).double()
        model.statistics.plan(1)
        nothing = {name: 0 * row for name, row in model.gradients[block.clients].items()}
        noises.append(float(gradients(model, block, 3, nothing)[1]))
    theta = vector(model.components[0])
    each = np.stack([gradient(theta, x[i : i + 1], y[i : i + 1]) for i in range(90)])  # [n, D]
    in_order = np.mean([((part.mean(axis=0) - each.mean(axis=0)) ** 2).sum() for part in np.split(each, 3)])
    assert noises[0] != noises[1]
    assert max(noises) < in_order / 3


def test_lambda_is_judged_by_the_mean_loss_on_validation_samples() -> None:
    data = make_data(sizes=(20, 25, 30, 15))
    model = make_model(FedAvg, data).double()
    served = model.personal_models(EVERYBODY)
    found = selection_losses(served, data.federation.block(EVERYBODY, "train"))
    theta = vector(model.components[0])
    for t in range(4):
        assert float(found[t]) == pytest.approx(losses(theta, *samples(data, t, "val")).mean(), rel=1e-12)


# --- data -------------------------------------------------------------------------------------------------------------


def test_rounding_takes_no_sample_away() -> None:
    """0.29 * 100 is 28.999999999999996 in floating point."""
    codes = Splitting(fractions=(0.42, 0.29, 0.29)).split(np.zeros(100, dtype=int))
    assert np.bincount(codes).tolist() == [42, 29, 29]


def test_true_groups_are_part_of_the_digest() -> None:
    data, digests = make_data(), set()
    for group in ([0, 0, 1, 1], [0, 1, 0, 1]):
        data.federation.truth["group"] = np.array(group)
        digests.add(data.federation.digest())
    assert len(digests) == 2


# --- results ----------------------------------------------------------------------------------------------------------


def test_scores_of_clients_do_not_depend_on_the_blocks() -> None:
    data, tables = make_data(sizes=(20, 25, 30)), []
    for block_size in (1, None):
        model = make_model(Local, data, engine=LoopEngine(block_size), client_optimizer=ClientSGD(lr=0.3))
        trainer = make_trainer(1)
        trainer.fit(model, data)
        trainer.test(model, data, verbose=False)
        tables.append(model.clients)
    pd.testing.assert_frame_equal(tables[0], tables[1])


def test_twins_are_near_relative_to_the_longer_one() -> None:
    pi = np.full((3, 2), 0.5)
    assert component_health(pi, np.array([[1.0, 0.0], [1.052, 0.0]]))["twins"] == [[0, 1]]  # 0.052 < 0.05 * 1.052
    assert component_health(pi, np.array([[1.0, 0.0], [1.054, 0.0]]))["twins"] == []


def test_results_are_json_even_if_they_are_infinite() -> None:
    assert finite({"a": [float("inf"), float("nan"), 1.5]}) == {"a": [None, None, 1.5]}


def test_unseen_clients_have_a_mean_of_their_own(tmp_path: Path) -> None:
    """The sums of a made-up run: the mean lies 2 % above the weighted score."""
    make_run(tmp_path / "run", 0.7, unseen={split: {"accuracy": sums(0.5), "loss": sums(1.0)} for split in SPLITS})
    scores = run_values(find_runs([tmp_path])[0][0])
    assert [scores[key] for key in ("weighted", "mean", "unseen", "unseen_mean")] == pytest.approx([70, 72, 50, 52])


# --- processes and runs ----------------------------------------------------------------------------------------------


def test_what_two_processes_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process is played: it has ten times this one's numbers, and 7 in the rows of its clients."""

    def all_reduce(tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM) -> None:
        tensor.copy_({dist.ReduceOp.SUM: 11 * tensor, dist.ReduceOp.MAX: 10 * tensor}[op])

    def broadcast(rows: torch.Tensor, src: int) -> None:
        rows.copy_(rows if src == 0 else torch.full_like(rows, 7))

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    monkeypatch.setattr(dist, "broadcast", broadcast)
    first = Processes(rank=0, size=2)
    tensors = [torch.tensor([1.0, 2.0]), torch.tensor([[3]]), torch.tensor(4.0)]
    first.sum(tensors)
    assert [tensor.tolist() for tensor in tensors] == [[11, 22], [[33]], 44]
    first.maximum(tensors[:1])
    assert tensors[0].tolist() == [110, 220]
    kept = torch.arange(4.0)
    first.exchange_rows([kept], [torch.tensor([0, 2]), torch.tensor([1, 3])])
    assert kept.tolist() == [0, 7, 2, 7]


def test_a_method_has_the_runs_seed() -> None:
    sizes = ["dataset.n_clients=3", "dataset.dimension=2", "dataset.test_size=3"]
    models = []
    for seed in (4, 5):
        config = composed(*sizes, f"seed={seed}")
        models.append(build_model(config, instantiate(config.dataset)))
        assert models[-1].seed == seed
    assert not torch.equal(parameters(models[0].components[1]), parameters(models[1].components[1]))
