"""What keeps a comparison of methods fair: nobody sees more data, trains longer or counts less than the others."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fedem_lightning import (
    APFL,
    L2SGD,
    MOCHA,
    ClientSGD,
    Clustered,
    FedAvg,
    FedEM,
    FederatedAlgorithm,
    HypCluster,
    Interpolate,
    Local,
    LoopEngine,
    Mapper,
    PFedMe,
    ShiftedExponentialNetwork,
    UserCentric,
)
from fedem_lightning.data.federation import Block
from fedem_lightning.local.solver import LocalStep
from fedem_lightning.models.parts import model_bytes
from fedem_lightning.module.client_updates import work_of
from fedem_lightning.module.round import draw_cohort
from fedem_lightning.run.callbacks import RoundCheckpoint
from helpers.federations import make_data, make_model, make_trainer, train

# --- Local ------------------------------------------------------------------------------------------------------------


class Counted(Local):
    def client_update(self, block: Block, round_: int) -> None:
        vars(self).setdefault("rounds", []).extend((t, round_) for t in block.clients.tolist())
        super().client_update(block, round_)


@pytest.mark.parametrize("participation", [1.0, 0.25])
def test_an_unseen_local_client_trains_as_often_as_a_seen_one(participation: float, tmp_path: Path) -> None:
    """Before and after a resume."""
    data = make_data(sizes=(6,) * 10, unseen_fraction=0.2)
    options: dict[str, Any] = {"participation": participation}
    trainer = make_trainer(12, callbacks=[RoundCheckpoint(1, keep=99, dirpath=tmp_path)], enable_checkpointing=True)
    straight, resumed = (make_model(Counted, data, **options) for _ in range(2))
    trainer.fit(straight, data)
    mean = len(straight.rounds) / 8  # over the clients that train
    assert (mean == 12) == (participation == 1)
    second = make_trainer(12)
    second.fit(resumed, data, ckpt_path=tmp_path / "round-000007.ckpt", weights_only=True)
    for model, tester in ((straight, trainer), (resumed, second)):
        model.rounds.clear()
        tester.test(model, data, verbose=False)
        for t in data.federation.clients(seen=False).tolist():
            rounds = [round_ for client, round_ in model.rounds if client == t]
            assert len(rounds) == len(set(rounds)) == round(mean)
            assert rounds == [int(i * 12 / len(rounds)) for i in range(len(rounds))]  # over the whole run


# --- simulated time and messages --------------------------------------------------------------------------------------

RELIABLE = {"reliable": ShiftedExponentialNetwork(rho=4, t_min=1, mu=None)}


@pytest.mark.parametrize(("label_adjusted", "gradients"), [(False, 1), (True, 3)])
@pytest.mark.parametrize("cohort", [2, 10])
def test_a_special_round_costs_the_same_whatever_the_cohort(cohort: int, label_adjusted: bool, gradients: int) -> None:
    """10 clients: all hear a model, compute (1), and send gradients (4 each) at once; then rounds with two streams.

    A stream that nobody of the cohort receives is not sent.
    """
    data = make_data(sizes=(12,) * 10)
    options = {"n_streams": 2, "participation": cohort, "label_adjusted": label_adjusted}
    model = make_model(UserCentric, data, **options)
    model.networks = RELIABLE
    train(model, data, 3)
    sent, size = model.statistics, model_bytes(model.components[0])
    assert len(model.weights) == 2
    streams = sum(len(model.stream[draw_cohort(model, data.federation, r)].unique()) for r in range(3))
    assert cohort == 2 or streams == 6
    assert sent.times == {"reliable": 3 * (1 + 4) + streams + (1 + 4 * gradients + 1)}
    assert sent.up_bytes == (3 * cohort + 10 * gradients) * size
    assert sent.down_bytes == (3 * cohort + 10) * size
    assert sent.air_bytes == (3 * cohort + streams + (10 * gradients + 1)) * size


WORK: list[tuple[type[FederatedAlgorithm], dict[str, Any]]] = [
    (FedAvg, {"local_epochs": 2}),
    (FedAvg, {"local_steps": 5}),
    (FedEM, {"local_epochs": 1.25}),
    (FedEM, {"local_epochs": 2, "initialization": "shared"}),
    (APFL, {"local_steps": 3}),
    (PFedMe, {"inner_steps": 3, "local_epochs": 2}),
    (HypCluster, {"n_components": 3, "initialization": "random"}),
    (Mapper, {"local_epochs": 2, "adaptation": Interpolate(lambdas=(0.0, 0.2, 0.7), epochs=3)}),
    (L2SGD, {"probability": 0.2}),
]


@pytest.mark.parametrize(("kind", "options"), WORK)
def test_work_is_every_gradient_that_is_taken(
    kind: type[FederatedAlgorithm], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop takes the gradients of a learner's batches one after the other, so they can be counted."""
    taken, objective = [], LocalStep.objective

    def counting(self: LocalStep, params: Any, buffers: Any, x: torch.Tensor, *rest: Any) -> Any:
        taken.append(len(x))
        return objective(self, params, buffers, x, *rest)

    monkeypatch.setattr(LocalStep, "objective", counting)
    data = make_data(sizes=(8, 16, 4), fractions=(1.0, 0.0, 0.0))  # batches of 4
    model = make_model(kind, data, engine=LoopEngine(), client_optimizer=ClientSGD(lr=0.1), **options)
    train(model, data, 1)
    work = work_of(model.local.work, torch.arange(3))
    assert work.sum() == sum(taken) == model.statistics.gradients > 0
    per_sample = work / torch.tensor([8, 16, 4]) if "local_steps" not in options and kind is not L2SGD else work
    assert len(per_sample.unique()) == 1


def test_work_of_coordinate_steps() -> None:
    data = make_data(sizes=(8, 17, 4), n_classes=2, task="binary", fractions=(1.0, 0.0, 0.0))
    model = train(make_model(MOCHA, data), data, 1)
    assert work_of(model.local.work, torch.arange(3)).tolist() == [4, 8, 2]


@pytest.mark.parametrize(("participation", "exchanges"), [(4, 1), (3, 4)])
def test_l2sgd_sends_nothing_where_the_mean_has_not_changed(
    participation: int, exchanges: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With J = 0 the coin has not turned; but the mean over another cohort is another one."""
    steps = [0, 3, 0, 0]
    monkeypatch.setattr(L2SGD, "local_steps_of", lambda self, federation, round_: steps[round_])
    data = make_data()
    model = make_model(L2SGD, data, participation=participation)
    model.networks = RELIABLE
    train(model, data, 4)
    sent, size = model.statistics, model_bytes(model.components[0])
    assert sent.up_bytes == sent.down_bytes == exchanges * participation * size
    assert sent.times == {"reliable": 1 + exchanges * (4 + 1)}  # who takes no step computes no time


# --- options ----------------------------------------------------------------------------------------------------------


def test_thresholds_of_clustered_by_the_rule_of_thumb() -> None:
    """eps1 is a tenth of the longest mean update so far, eps2 four times that: both hold in round 4 only."""
    data = make_data()
    model = make_model(Clustered, data, eps1="auto", eps2="auto", min_rounds=1)
    theta = {name: rows[0] for name, rows in model.nodes[torch.tensor([0])].items()}
    members, root = torch.arange(4), torch.tensor(0)
    model.updates[members] = {n: torch.randn(4, *r.shape) for n, r in theta.items()}
    parted = []
    for round_, (a, b) in enumerate([(1.0, 9.0), (2.0, 9.0), (0.3, 9.0), (0.19, 0.7), (0.19, 0.9)]):
        model.update_norms[:] = b
        moved = {name: rows + (a if "bias" in name else 0) / 3**0.5 for name, rows in theta.items()}
        parted.append(model._bipartition(root, members, moved, round_) is not None)
    assert parted == [False, False, False, False, True]


def test_a_run_that_cannot_split_says_so() -> None:
    data = make_data()
    with pytest.warns(UserWarning, match=r"Clustered cannot split, so it is FedAvg \(min_rounds=20 of 1 rounds"):
        train(make_model(Clustered, data), data, 1)
