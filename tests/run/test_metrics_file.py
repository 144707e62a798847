"""metrics.csv: what it holds after stops and kills, and what other programs make of it."""

import csv
import os
from pathlib import Path
from typing import Any

import pytest

from fedem_lightning import FedAvg, UserError
from fedem_lightning.run.callbacks import RoundCheckpoint
from fedem_lightning.run.metrics_file import RoundCSVLogger, SaveRow
from helpers.federations import make_data, make_model, make_trainer


def rounds(path: Path, first: int, last: int) -> None:
    """Logs rounds as Lightning does: scores of every third round first, then the round's own metrics."""
    logger = RoundCSVLogger(path)
    logger.begin(first - 1)
    for round_ in range(first, last + 1):
        if round_ % 3 == 0:
            logger.log_metrics({"val/loss": 1 / round_, "epoch": round_}, round_)
        logger.log_metrics({"lr": 0.1 * round_, "a,b": float(round_)}, round_)
        logger.write()


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_row_has_what_was_logged_in_its_round(tmp_path: Path) -> None:
    rounds(tmp_path / "metrics.csv", 1, 4)
    expected = [{"round": str(r), "lr": str(0.1 * r), "a,b": str(float(r)), "val/loss": ""} for r in (1, 2, 3, 4)]
    expected[2]["val/loss"] = str(1 / 3)
    assert read(tmp_path / "metrics.csv") == expected


@pytest.mark.parametrize(("done", "ahead"), [(0, 4), (2, 3), (5, 5), (5, 7)])
def test_a_file_that_is_ahead_of_its_checkpoint_ends_as_in_a_straight_run(
    done: int, ahead: int, tmp_path: Path
) -> None:
    """Also its columns: those of rounds that are computed again come when they came in the straight run."""
    straight, killed = tmp_path / "straight.csv", tmp_path / "killed.csv"
    rounds(straight, 1, 8)
    rounds(killed, 1, ahead)
    rounds(killed, done + 1, 8)
    assert killed.read_bytes() == straight.read_bytes()


@pytest.mark.parametrize("cut", [1, 9, 29])
def test_a_line_that_a_kill_has_cut_off_is_written_again(cut: int, tmp_path: Path) -> None:
    straight, killed = tmp_path / "straight.csv", tmp_path / "killed.csv"
    rounds(straight, 1, 6)
    rounds(killed, 1, 5)
    os.truncate(killed, killed.stat().st_size - cut)
    kept = len(killed.read_text().rpartition("\n")[0].splitlines()) - 1
    rounds(killed, kept + 1, 6)
    assert killed.read_bytes() == straight.read_bytes()


@pytest.mark.parametrize("old", ["2,0.2", ","])
def test_a_file_that_another_program_has_changed_is_refused_and_kept(old: str, tmp_path: Path) -> None:
    """A row of another length; and what some spreadsheets make of commas."""
    path = tmp_path / "metrics.csv"
    rounds(path, 1, 4)
    path.write_text(path.read_text().replace(old, "2" if old != "," else ";"))
    before = path.read_bytes()
    with pytest.raises(UserError, match=r"metrics\.csv: unreadable, or another program has changed it .*; put back"):
        RoundCSVLogger(path).begin(2)
    assert path.read_bytes() == before


def test_a_round_has_its_row_when_its_checkpoint_is_written(tmp_path: Path) -> None:
    """A kill between the two would lose the row for good."""
    seen: list[Any] = []

    class Look(RoundCheckpoint):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            seen.append(read(tmp_path / "metrics.csv")[-1])
            super().on_train_epoch_end(trainer, pl_module)

    data, logger = make_data(), RoundCSVLogger(tmp_path / "metrics.csv")
    options: dict[str, Any] = {"limit_val_batches": 1, "check_val_every_n_epoch": 2, "log_every_n_steps": 1}
    callbacks = [Look(1, dirpath=tmp_path), SaveRow()]
    trainer = make_trainer(3, logger=logger, callbacks=callbacks, enable_checkpointing=True, **options)
    trainer.fit(make_model(FedAvg, data), data)
    final = read(tmp_path / "metrics.csv")[1:]  # without round 0
    assert [(row["round"], row["seconds"], row["lr"]) for row in seen] == [
        (row["round"], row["seconds"], row["lr"]) for row in final
    ]
