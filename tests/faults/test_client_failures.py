"""Clients that fail on their own: an exception ends the run, NaN is left out; who is named."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from fedem_lightning import ClientSGD, FedAvg, FedEM, Local, LoopEngine, UserError, VmapEngine
from fedem_lightning.aggregate import Update
from fedem_lightning.data import Block
from fedem_lightning.local.solver import LocalStep
from fedem_lightning.module.checkpoints import read_checkpoint
from fedem_lightning.run.callbacks import RoundCheckpoint
from fedem_lightning.run.trackers import MetricsFile
from fedem_lightning.settings.errors import NoUpdateLeft
from fedem_lightning.state.history import LIMIT, Rejection, Rejections
from helpers.federations import make_data, make_model, make_trainer, parameters, split_of, spoil, stored, train

SIZES = (7, 12, 9, 20, 8)


class Raises(FedEM):
    """Client 1 raises in the second round, after its update."""

    def client_update(self, block: Block, round_: int) -> Update:
        update = super().client_update(block, round_)
        if round_ == 1 and 1 in block.clients.tolist():
            raise ZeroDivisionError("no\nluck")
        return update


class Among(FedEM):
    """The clients 1 and 3 send NaN."""

    def client_update(self, block: Block, round_: int) -> Update:
        update, wrong = super().client_update(block, round_), torch.isin(block.clients, torch.tensor([1, 3]))
        for rows in update.models.values():
            rows[wrong] = torch.nan
        return update


def rejected(model: Any) -> list[tuple[int, str, int, int]]:
    """Client, reason, number of rounds and first round."""
    entries = model.statistics.rejections.by_client
    return [(e["client"], e["reason"], e["rounds"], e["first_round"]) for e in entries]


WHO = [(LoopEngine(block_size=1), "client 1"), (LoopEngine(), "one of the clients 0 to 4")]


@pytest.mark.parametrize(("engine", "who"), [*WHO, (VmapEngine(block_size=2), "one of the clients 0 to 1")])
def test_a_client_that_raises_ends_the_run(engine: Any, who: str, tmp_path: Path) -> None:
    """In one line, with the state from before the round in the checkpoint."""
    data, sgd = make_data(sizes=SIZES), ClientSGD(lr=0.3, momentum=0.9, state="keep")
    saving = {"callbacks": [RoundCheckpoint(10, dirpath=tmp_path)], "enable_checkpointing": True}
    model = make_model(Raises, data, client_optimizer=sgd, engine=engine)
    with pytest.raises(UserError) as error:
        train(model, data, 3, **saving)
    assert str(error.value) == f"{who} failed in the update of round 2: ZeroDivisionError: no"
    assert isinstance(error.value.__cause__, ZeroDivisionError)
    good = train(make_model(FedEM, data, client_optimizer=sgd, engine=engine), data, 1)
    for path in tmp_path.iterdir():  # if there is one
        saved = read_checkpoint(path)["state_dict"]
        assert all(torch.equal(saved[name], tensor) for name, tensor in good.state_dict().items())


def test_the_loop_names_the_client_whose_step_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although it has many clients in a block."""
    data, objective = make_data(sizes=SIZES), LocalStep.objective
    first = float(stored(data.federation).x[split_of(data.federation, "train").index[7]].sum())
    client = int(data.federation.block(torch.arange(5), "train").owner[7])

    def fails(self: Any, params: Any, buffers: Any, x: torch.Tensor, *rest: Any) -> Any:
        if (x.sum(dim=1) - first).abs().min() < 1e-9:
            raise ArithmeticError("why")
        return objective(self, params, buffers, x, *rest)

    monkeypatch.setattr(LocalStep, "objective", fails)
    with pytest.raises(UserError, match=rf"^client {client} failed in the update of round 1: ArithmeticError: why$"):
        train(make_model(FedAvg, data, engine=LoopEngine()), data, 1)


def test_a_mistake_of_the_users_keeps_its_own_line() -> None:
    class Fails(FedAvg):
        def client_update(self, block: Block, round_: int) -> Update:
            raise UserError("dataset.x: not so")

    with pytest.raises(UserError, match=r"^dataset\.x: not so$"):
        train(make_model(Fails, make_data()), make_data(), 1)


def test_a_method_whose_clients_send_nothing_names_them_too() -> None:
    data = make_data(sizes=SIZES)
    spoil(data, torch.nan)  # of client 0
    model = train(make_model(Local, data), data, 2)
    assert rejected(model) == [(0, "not finite", 2, 1)]
    assert model.models.written.tolist() == [False, True, True, True, True]


def test_a_mean_that_overflows_stops_the_run() -> None:
    """Every update is finite in float32, their weighted sum is not."""
    data = make_data(sizes=(600, 600, 600))
    model = make_model(FedAvg, data, client_optimizer=ClientSGD(lr=1e37), batch_size=1000)
    with pytest.raises(UserError, match="training diverged: in round 1 the mean of the updates overflows; lower"):
        train(model, data, 2, precision="32-true")
    assert parameters(model.components).isfinite().all()


class Breaks(FedEM):
    """From the third round on all clients send NaN."""

    def client_update(self, block: Block, round_: int) -> Update:
        update = super().client_update(block, round_)
        if round_ < 2:
            return update
        return update._replace(models={name: torch.full_like(t, torch.nan) for name, t in update.models.items()})


def test_if_all_fail_the_last_good_state_is_saved(tmp_path: Path) -> None:
    data, sgd = make_data(), ClientSGD(lr=0.3, momentum=0.9, state="keep")
    saving = {"callbacks": [RoundCheckpoint(10, dirpath=tmp_path)], "enable_checkpointing": True}
    model = make_model(Breaks, data, client_optimizer=sgd)
    none = r"training diverged: in round 3 no client's update was finite; lower algorithm.client_optimizer.lr"
    with pytest.raises(NoUpdateLeft, match=none):
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


def test_a_resumed_run_knows_what_was_rejected_before(tmp_path: Path) -> None:
    data = make_data(sizes=SIZES)
    saving = {"callbacks": [RoundCheckpoint(1, keep=9, dirpath=tmp_path)], "enable_checkpointing": True}
    train(make_model(Among, data), data, 2, **saving)
    resumed, rows = make_model(Among, data), MetricsFile(tmp_path / "metrics.csv")
    trainer = make_trainer(3, callbacks=[rows])
    trainer.fit(resumed, data, ckpt_path=tmp_path / "round-000002.ckpt", weights_only=True)
    assert rejected(resumed) == [(1, "not finite", 3, 1), (3, "not finite", 3, 1)]
    table = pd.read_csv(tmp_path / "metrics.csv")
    assert table["rejected"].tolist() == [2, 2, 2]
    assert table.rejected_updates.tolist() == [2, 4, 6]


def test_the_record_has_an_end() -> None:
    record = Rejections()
    record.add(1, [Rejection(t, "not finite") for t in range(LIMIT + 50)])
    record.add(2, [Rejection(0, "not finite"), Rejection(0, "exception", "why")])
    assert record.total == LIMIT + 52
    assert record.by_reason == {"not finite": LIMIT + 51, "exception": 1}
    assert len(record.by_client) == LIMIT
    assert record.by_client[0] == {"client": 0, "reason": "not finite", "rounds": 2, "first_round": 1, "detail": ""}


class Full(FedEM):
    """A GPU that holds the models of two clients at most."""

    blocks: list[list[int]]

    def client_update(self, block: Block, round_: int) -> Update:
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
    def client_update(self, block: Block, round_: int) -> Update:
        raise torch.OutOfMemoryError("full")


def test_a_single_client_that_does_not_fit_ends_the_run() -> None:
    with pytest.raises(UserError, match=r"^client 0 failed in the update of round 1: OutOfMemoryError: full$"):
        train(make_model(TooLarge, make_data(sizes=SIZES)), make_data(sizes=SIZES), 1)
