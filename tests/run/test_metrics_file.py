"""metrics.csv: what it holds after stops, what it costs, and what other programs make of it."""

import csv
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedem_lightning import FedAvg, UserError
from fedem_lightning.callbacks import RoundCheckpoint
from fedem_lightning.run import metrics_file
from fedem_lightning.run.metrics_file import RoundCSVLogger, SaveRow
from helpers.federations import make_data, make_model, make_trainer


def rounds(path: Path, first: int, last: int) -> None:
    """Logs rounds as Lightning does: scores of every third round first, then the round's own metrics."""
    logger = RoundCSVLogger(path)
    logger.begin(first - 1)
    for round_ in range(first, last + 1):
        if round_ % 3 == 0:
            logger.log_metrics({"val/loss": 1 / round_, "epoch": round_}, round_)
            logger.save()
        logger.log_metrics({"lr": 0.1 * round_, "a,b": float(round_)}, round_)
        logger.save()


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_row_has_what_was_logged_in_its_round(tmp_path: Path) -> None:
    rounds(tmp_path / "metrics.csv", 1, 4)
    expected = [{"round": str(r), "lr": str(0.1 * r), "a,b": str(float(r)), "val/loss": ""} for r in (1, 2, 3, 4)]
    expected[2]["val/loss"] = str(1 / 3)
    assert read(tmp_path / "metrics.csv") == expected


@pytest.mark.parametrize("ahead", [2, 3, 4, 7])
@pytest.mark.parametrize("done", [0, 1, 2, 5])
def test_a_file_that_is_ahead_of_its_checkpoint_ends_as_in_a_straight_run(
    done: int, ahead: int, tmp_path: Path
) -> None:
    """Also its columns: those of rounds that are computed again come when they came in the straight run."""
    straight, killed = tmp_path / "straight.csv", tmp_path / "killed.csv"
    rounds(straight, 1, 8)
    rounds(killed, 1, max(done, ahead))
    rounds(killed, done + 1, 8)
    assert killed.read_bytes() == straight.read_bytes()


@pytest.mark.parametrize("cut", range(1, 30))
def test_a_line_that_a_kill_has_cut_off_is_written_again(cut: int, tmp_path: Path) -> None:
    straight, killed = tmp_path / "straight.csv", tmp_path / "killed.csv"
    rounds(straight, 1, 6)
    rounds(killed, 1, 5)
    os.truncate(killed, killed.stat().st_size - cut)
    kept = len(killed.read_text().rpartition("\n")[0].splitlines()) - 1
    rounds(killed, kept + 1, 6)
    assert killed.read_bytes() == straight.read_bytes()


def test_a_rounds_cost_does_not_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written anew once all columns are known."""
    path, rewritten = tmp_path / "metrics.csv", []
    rounds(path, 1, 3)
    path.write_text("round,lr,val/loss\n" + "".join(f"{r},0.1,0.5\n" for r in range(1, 20_001)))
    file = RoundCSVLogger(path)
    file.begin(20_000)
    monkeypatch.setattr(metrics_file, "write_atomically", lambda *_: rewritten.append(True))
    start = time.perf_counter()
    for round_ in range(20_001, 20_101):
        for cells in ({"lr": 0.1}, {"lr": 0.1, "val/loss": 0.5}):
            file.log_metrics(cells, round_)
            file.save()
    assert (time.perf_counter() - start) / 100 < 0.02  # seconds a round; writing the whole file takes 0.17
    assert not rewritten
    assert read(path)[-1] == {"round": "20100", "lr": "0.1", "val/loss": "0.5"}


CHANGED: dict[str, tuple[Callable[[str], bytes], str]] = {
    "excel": (lambda t: b"\xef\xbb\xbf" + t.replace(",", ";").replace("\n", "\r\n").encode(), "first line"),
    "windows": (lambda t: t.replace("\n", "\r\n").encode(), "end as on Windows"),
    "short row": (lambda t: t.replace("2,0.2", "2").encode(), "row 3 has 3 cells, the first line 4"),
    "text": (lambda t: t.replace("2,0.2", "2,many").encode(), "row 3 has text among its numbers"),
    "order": (lambda t: t.replace("\n3,", "\n1,").encode(), "row 4 is of round 1, and follows round 2"),
    "another file": (lambda t: b"name,score\na,1\n", "first line"),
    "no text": (lambda t: b"\xff\xfe\x00" + t.encode(), "utf-8"),
}


@pytest.mark.parametrize("kind", CHANGED)
def test_a_file_that_another_program_has_changed_is_refused_and_kept(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    rounds(path, 1, 4)
    change, said = CHANGED[kind]
    path.write_bytes(change(path.read_text()))
    before = path.read_bytes()
    with pytest.raises(UserError, match=r"metrics\.csv: another program has changed it") as refusal:
        RoundCSVLogger(path).begin(2)
    assert said in str(refusal.value)
    assert path.read_bytes() == before


def test_a_file_that_changes_during_the_run_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    file = RoundCSVLogger(path)
    for round_, change in ((1, lambda: None), (2, lambda: path.write_text("something else")), (3, path.unlink)):
        change()
        file.log_metrics({"lr": round_ / 10}, round_)
        file.save()
    assert path.read_text() == "round,lr\n1,0.1\n2,0.2\n3,0.3\n"


def test_a_round_has_its_row_when_its_checkpoint_is_written(tmp_path: Path) -> None:
    """A kill between the two would lose the row for good."""
    seen: list[Any] = []

    class Look(RoundCheckpoint):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            seen.append((trainer.current_epoch + 1, read(tmp_path / "metrics.csv")[-1]))
            super().on_train_epoch_end(trainer, pl_module)

    data, logger = make_data(), RoundCSVLogger(tmp_path / "metrics.csv")
    options: dict[str, Any] = {"limit_val_batches": 1, "check_val_every_n_epoch": 2, "log_every_n_steps": 1}
    callbacks = [Look(1, dirpath=tmp_path), SaveRow()]
    trainer = make_trainer(3, logger=logger, callbacks=callbacks, enable_checkpointing=True, **options)
    trainer.fit(make_model(FedAvg, data), data)
    final = read(tmp_path / "metrics.csv")
    assert [(round_, row["seconds"], row["lr"]) for round_, row in seen] == [
        (int(row["round"]), row["seconds"], row["lr"]) for row in final[1:]
    ]
