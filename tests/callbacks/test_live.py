"""Figures of a run that has not finished."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from matplotlib.figure import Figure
from PIL import Image

from fedem_lightning import FedAvg, UserError
from fedem_lightning.callbacks import LiveFigures, progress
from fedem_lightning.run.building import build_callbacks
from fedem_lightning.run.figures import draw_rounds
from fedem_lightning.run.metrics_file import RoundCSVLogger
from helpers.commands import CONFIG_DIR, TINY, call
from helpers.federations import make_data, make_model, make_trainer


class Clock:
    """A round takes 4 seconds, drawing takes `drawing` of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, drawing: float = 0.0) -> None:
        self.now, self.drawing, self.drawn = 0.0, drawing, list[float]()
        monkeypatch.setattr("fedem_lightning.callbacks.progress.time.monotonic", lambda: self.now)

    def draw(self) -> None:
        self.drawn.append(self.now)
        self.now += self.drawing


def train(clock: Clock, rounds: int, every: int, fail_in: int = 0, **options: Any) -> None:
    class Timed(FedAvg):
        def training_step(self, *arguments: Any) -> None:
            clock.now += 4
            if self.current_epoch + 1 == fail_in:
                raise RuntimeError("failed")
            super().training_step(*arguments)

    data = make_data()
    callback = LiveFigures(10.0, clock.draw)
    trainer = make_trainer(rounds, callbacks=[callback], check_val_every_n_epoch=every, limit_val_batches=1, **options)
    trainer.fit(make_model(Timed, data), data)


def test_a_figure_is_drawn_again_after_ten_seconds_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluations come after every round, at 4, 8, 12, ... seconds."""
    train(clock := Clock(monkeypatch), rounds=10, every=1)
    assert clock.drawn == [12, 24, 36]


def test_an_evaluation_that_came_early_is_drawn_once_it_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluations come at 8, 16, 24 seconds: the first is drawn after the third round."""
    train(clock := Clock(monkeypatch), rounds=7, every=2)
    assert clock.drawn == [12, 24]


def test_drawing_takes_a_small_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 seconds of drawing at 12 are followed by 100 without."""
    train(clock := Clock(monkeypatch, drawing=2.0), rounds=30, every=1)
    assert clock.drawn == [12, 114]


def test_what_is_left_is_drawn_when_a_run_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    with pytest.raises(RuntimeError, match="failed"):
        train(clock, rounds=3, every=1, fail_in=3)
    assert clock.drawn == [12]


def test_a_figure_that_cannot_be_drawn_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    monkeypatch.setattr(clock, "draw", lambda: (_ for _ in ()).throw(OSError("No space left")))
    with pytest.warns(UserWarning, match=r"^callbacks.live: the figures were not drawn \(No space left\)"):
        train(clock, rounds=3, every=1)


def test_the_figure_shows_the_last_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """metrics.csv has the evaluation when it is drawn, and the picture is a whole one."""
    curves: list[list[float]] = []
    save = Figure.savefig

    def looked_at(figure: Figure, *arguments: Any, **options: Any) -> None:
        line = next(line for line in figure.axes[0].lines if line.get_label() == "validation samples")
        curves.append(np.asarray(line.get_xdata()).tolist())
        save(figure, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", looked_at)
    data, logger = make_data(), RoundCSVLogger(tmp_path / "metrics.csv")
    callback = LiveFigures(0.0, functools.partial(draw_rounds, tmp_path, "title"))
    monkeypatch.setattr(progress, "DRAWING_SHARE", 1e9)
    options = {"check_val_every_n_epoch": 2, "limit_val_batches": 1, "log_every_n_steps": 1}
    trainer = make_trainer(4, callbacks=[callback], logger=logger, **options)
    trainer.fit(make_model(FedAvg, data), data)
    assert curves == [[0, 2], [0, 2, 4]]
    with Image.open(tmp_path / "accuracy_by_round.png") as image:
        assert image.size == (735, 495)
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_nothing_is_drawn_before_an_evaluation(tmp_path: Path) -> None:
    draw_rounds(tmp_path, "title")
    (tmp_path / "metrics.csv").write_text("round,lr\n1,0.1\n")
    draw_rounds(tmp_path, "title")
    assert list(tmp_path.glob("*.png")) == []


def test_the_command_line_draws_in_the_runs_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[Path, str]] = []
    monkeypatch.setattr("fedem_lightning.run.building.draw_rounds", lambda folder, title: drawn.append((folder, title)))
    assert call(tmp_path, monkeypatch, *TINY, "callbacks.live.every_seconds=0", "run_dir=a") == 0
    assert drawn[0] == (tmp_path / "a", "FedEM on synthetic, seed 0")


def test_it_can_be_switched_off(tmp_path: Path) -> None:
    for overrides, number in (([], 1), (["callbacks.live=null"], 0)):
        with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
            callbacks = build_callbacks(compose("config", overrides), tmp_path)
        assert sum(isinstance(callback, LiveFigures) for callback in callbacks) == number


def test_the_period_is_a_number() -> None:
    with pytest.raises(UserError, match=r"every_seconds: expected a number at least 0, got -1"):
        LiveFigures(-1)
