"""Checkpoints hold the rows of the clients that took part, and runs go on from them with the same bits."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fedem_lightning import ClientSGD, Ditto, FedPer
from fedem_lightning.models import client_store
from fedem_lightning.module.checkpoints import read_checkpoint
from fedem_lightning.run.callbacks import MappedCheckpoints, RoundCheckpoint
from helpers.federations import make_data, make_model, make_trainer

T = 40


def run(kind: Any, folder: Path, rounds: int, ckpt: Path | None = None) -> Any:
    """A run with two clients of forty in a round, whose momentum stays with them."""
    data = make_data(sizes=(3,) * T)
    options: dict[str, Any] = {"participation": 2, "client_optimizer": ClientSGD(0.1, momentum=0.9, state="keep")}
    model = make_model(kind, data, hidden=True, **options)
    keep: dict[str, Any] = {"callbacks": [RoundCheckpoint(1, dirpath=folder)], "plugins": [MappedCheckpoints()]}
    make_trainer(rounds, enable_checkpointing=True, **keep).fit(model, data, ckpt_path=ckpt, weights_only=True)
    return model


def rows_of(model: Any) -> dict[str, torch.Tensor]:
    clients = torch.arange(T)
    stores = {f"{name}.{key}": rows for name, s in model.states.stores().items() for key, rows in s[clients].items()}
    return stores | {name: store.written for name, store in model.states.stores().items()}


@pytest.mark.parametrize("limit", [10**9, 0], ids=["memory", "disk"])
@pytest.mark.parametrize("kind", [Ditto, FedPer])
def test_a_checkpoint_holds_the_rows_that_were_written(
    kind: Any, limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_memory = run(kind, tmp_path / "m", 5)
    monkeypatch.setattr(client_store, "MEMORY_LIMIT", limit)
    straight = run(kind, tmp_path / "a", 5)
    assert straight.own.on_disk == (limit == 0)
    first = run(kind, tmp_path / "b", 3)
    path = tmp_path / "b" / "round-000003.ckpt"
    saved = read_checkpoint(path)["state_dict"]
    taken = int(first.own.written.sum())
    assert 2 <= taken <= 6
    assert len(saved["own.rows_0"]) == taken
    assert len(saved["own.written"]) == T
    resumed = run(kind, tmp_path / "c", 5, path)
    pairs = ((resumed, straight), (in_memory, straight), (kind.load_from_checkpoint(path), first))
    for found, expected in pairs:
        torch.testing.assert_close(rows_of(found), rows_of(expected), rtol=0, atol=0)
