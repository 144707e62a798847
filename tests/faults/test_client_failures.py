"""Clients that fail on their own: exceptions, NaN, updates that are far too long; who is named, and what goes on."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from fedem_lightning import ClientSGD, FedAvg, FedEM, Local, LoopEngine, UserError
from fedem_lightning.aggregation import Sent
from fedem_lightning.algorithms.checkpoints import read_checkpoint
from fedem_lightning.callbacks import RoundCheckpoint
from fedem_lightning.data import Block
from fedem_lightning.errors import NoUpdateLeft
from fedem_lightning.rejections import LIMIT, Rejection, Rejections
from fedem_lightning.run.metrics_file import RoundCSVLogger
from helpers.federations import make_data, make_model, make_trainer, parameters, split_of, stored, train

SIZES = (7, 12, 9, 20, 8)
FAILS = pytest.mark.filterwarnings("ignore:client .* failed in round")


class Among(FedEM):
    """It fails on the clients 1 and 3, before or after its update."""

    late = False

    def client_update(self, block: Block, round_: int) -> Sent:
        wrong = bool(torch.isin(block.clients, torch.tensor([1, 3])).any())
        if wrong and not self.late:
            raise ZeroDivisionError("no\nluck")
        update = super().client_update(block, round_)
        if wrong:
            raise ZeroDivisionError("no\nluck")
        return update


def rejected(model: Any) -> list[tuple[int, str, int, int]]:
    """Client, reason, number of rounds and first round."""
    entries = model.statistics.rejections.by_client
    return [(e["client"], e["reason"], e["rounds"], e["first_round"]) for e in entries]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("block_size", [None, 2])
def test_a_client_that_raises_is_left_out_alone(
    late: bool, block_size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others end as if only they had trained; the failed ones keep pi and momentum, half-written or not."""
    data, sgd = make_data(sizes=SIZES), ClientSGD(lr=0.3, momentum=0.9, state="keep")
    options: dict[str, Any] = {"client_optimizer": sgd, "engine": LoopEngine(block_size=block_size)}
    model = make_model(Among, data, **options)
    model.late = late
    before = model.pi.clone()
    with pytest.warns(UserWarning, match=r"client 1 failed in round 1 \(ZeroDivisionError: no\); updates that fail"):
        train(model, data, 2)
    assert rejected(model) == [(1, "exception", 2, 1), (3, "exception", 2, 1)]
    assert model.statistics.rejections.by_client[0]["detail"] == "ZeroDivisionError: no"
    assert model.statistics.rejections.log == [[t, r, "exception"] for r in (1, 2) for t in (1, 3)]
    assert torch.equal(model.pi[[1, 3]].double(), before[[1, 3]].double())
    assert model.kept_momentum.written.tolist() == [True, False, True, False, True]

    monkeypatch.setattr("fedem_lightning.round.draw_cohort", lambda *_: torch.tensor([0, 2, 4]))
    others = train(make_model(FedEM, data, **options), data, 2)
    torch.testing.assert_close(parameters(model.components), parameters(others.components), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(model.pi[[0, 2, 4]], others.pi[[0, 2, 4]], rtol=1e-12, atol=1e-14)
    assert model.round_metrics.means() == pytest.approx(others.round_metrics.means(), rel=1e-12)


@pytest.mark.parametrize("error", [AttributeError("a typing error"), UserError("dataset.x: not so")])
def test_a_bug_of_a_method_or_a_mistake_of_the_users_goes_on(error: Exception) -> None:
    """All clients raise the same: it is nobody's fault but the method's, or the user's."""

    class Fails(FedAvg):
        def client_update(self, block: Block, round_: int) -> Sent:
            raise error

    data = make_data()
    with pytest.raises(type(error), match=str(error)):
        train(make_model(Fails, data), data, 1)


def test_a_block_that_fails_although_none_of_its_clients_does() -> None:
    """As where the memory is not enough for all of them."""

    class Narrow(FedAvg):
        def client_update(self, block: Block, round_: int) -> Sent:
            if len(block.clients) > 1:
                raise MemoryError("too many")
            return super().client_update(block, round_)

    data = make_data()
    with pytest.raises(MemoryError, match="too many"):
        train(make_model(Narrow, data), data, 1)


@FAILS
def test_a_method_whose_clients_send_nothing_names_them_too() -> None:
    class Loses(Local):
        def client_update(self, block: Block, round_: int) -> None:
            if 2 in block.clients.tolist():
                raise OSError
            super().client_update(block, round_)

    data = make_data(sizes=SIZES)
    stored(data.federation).x[split_of(data.federation, "train").index[:1]] = torch.nan  # of client 0
    model = train(make_model(Loses, data), data, 2)
    assert rejected(model) == [(0, "not finite", 2, 1), (2, "exception", 2, 1)]
    assert model.models.written.tolist() == [False, True, False, True, True]


def test_a_mean_that_overflows_stops_the_run() -> None:
    """Every update is finite in float32, their weighted sum is not."""
    data = make_data(sizes=(600, 600, 600))
    model = make_model(FedAvg, data, client_optimizer=ClientSGD(lr=1e37), batch_size=1000)
    with pytest.raises(UserError, match="training diverged: in round 1 the mean of the updates overflows; lower"):
        train(model, data, 2, precision="32-true")
    assert parameters(model.components).isfinite().all()


class Breaks(FedEM):
    """From the third round on all clients fail: some send NaN, the others raise."""

    raising: tuple[int, ...] = (1, 2)

    def client_update(self, block: Block, round_: int) -> Sent:
        update = super().client_update(block, round_)
        if round_ < 2:
            return update
        if any(t in self.raising for t in block.clients.tolist()):
            raise TimeoutError("gone")
        return update._replace(models={name: torch.full_like(t, torch.nan) for name, t in update.models.items()})


@FAILS
@pytest.mark.parametrize("raising", [(1, 2), ()])
def test_if_all_fail_the_last_good_state_is_saved(tmp_path: Path, raising: tuple[int, ...]) -> None:
    data, sgd = make_data(), ClientSGD(lr=0.3, momentum=0.9, state="keep")
    saving = {"callbacks": [RoundCheckpoint(10, dirpath=tmp_path)], "enable_checkpointing": True}
    model = make_model(Breaks, data, client_optimizer=sgd)
    model.raising = raising
    some = r"training stopped: in round 3 no client's update was left: 2 not finite, 2 exception \(TimeoutError: gone\)"
    none = r"training diverged: in round 3 no client's update was finite; lower algorithm.client_optimizer.lr"
    with pytest.raises(NoUpdateLeft, match=some if raising else none):
        train(model, data, 5, **saving)
    path = tmp_path / "round-000002.ckpt"
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    good = train(make_model(FedEM, data, client_optimizer=sgd), data, 2)
    saved = read_checkpoint(path)
    for name, tensor in good.state_dict().items():
        assert torch.equal(saved["state_dict"][name], tensor), name
    assert saved["statistics"]["rejections"]["by_reason"] == {}
    straight, resumed = (make_model(FedEM, data, client_optimizer=sgd) for _ in range(2))
    train(straight, data, 4)
    make_trainer(4).fit(resumed, data, ckpt_path=path, weights_only=True)
    assert resumed.statistics.rounds == 4
    assert torch.equal(parameters(resumed), parameters(straight))


@FAILS
def test_a_resumed_run_knows_what_was_rejected_before(tmp_path: Path) -> None:
    data = make_data(sizes=SIZES)
    saving = {"callbacks": [RoundCheckpoint(1, keep=9, dirpath=tmp_path)], "enable_checkpointing": True}
    train(make_model(Among, data), data, 2, **saving)
    resumed, logger = make_model(Among, data), RoundCSVLogger(tmp_path / "metrics.csv")
    trainer = make_trainer(3, logger=logger, log_every_n_steps=1)
    trainer.fit(resumed, data, ckpt_path=tmp_path / "round-000002.ckpt", weights_only=True)
    assert rejected(resumed) == [(1, "exception", 3, 1), (3, "exception", 3, 1)]
    table = pd.read_csv(tmp_path / "metrics.csv")
    assert table["rejected"].tolist() == [2]
    assert table.rejected_updates.tolist() == [6]


def test_the_record_has_an_end() -> None:
    record = Rejections()
    record.add(1, [Rejection(t, "not finite") for t in range(LIMIT + 50)], unnamed=3)
    record.add(2, [Rejection(0, "not finite"), Rejection(0, "exception", "why")])
    assert record.total == LIMIT + 55
    assert record.by_reason == {"not finite": LIMIT + 54, "exception": 1}
    assert len(record.by_client) == len(record.log) == LIMIT
    assert record.by_client[0] == {"client": 0, "reason": "not finite", "rounds": 2, "first_round": 1, "detail": ""}


class Full(FedEM):
    """A GPU that holds the models of two clients at most."""

    blocks: list[list[int]]

    def client_update(self, block: Block, round_: int) -> Sent:
        self.blocks.append(block.clients.tolist())
        if len(block.clients) > 2:
            raise torch.OutOfMemoryError("full")
        return super().client_update(block, round_)


def test_blocks_that_do_not_fit_the_memory_are_halved(capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody is rejected, the models are those of smaller blocks, and the next round begins with smaller ones."""
    data, sgd = make_data(sizes=SIZES), ClientSGD(lr=0.3, momentum=0.9, state="keep")
    options: dict[str, Any] = {"client_optimizer": sgd, "initialization": "random"}
    model = make_model(Full, data, engine=LoopEngine(memory_gb=4e-6), **options)
    model.blocks = []
    train(model, data, 2)
    expected = train(make_model(FedEM, data, engine=LoopEngine(), **options), data, 2)
    assert not rejected(model)
    torch.testing.assert_close(parameters(model.components), parameters(expected.components), rtol=1e-9, atol=1e-12)
    assert model.blocks[:4] == [[0, 1, 2, 3], [0, 1], [2, 3], [4]]
    assert model.blocks[4:] == [[0, 1], [2, 3], [4]]
    assert capsys.readouterr().out.count("out of memory: blocks of clients are halved") == 1


class TooLarge(Full):
    def client_update(self, block: Block, round_: int) -> Sent:
        raise torch.OutOfMemoryError("full")


def test_a_single_client_that_does_not_fit_ends_the_run() -> None:
    with pytest.raises(torch.OutOfMemoryError):
        train(make_model(TooLarge, make_data(sizes=SIZES)), make_data(sizes=SIZES), 1)
