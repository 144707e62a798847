import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from fedem_lightning import ClientSGD, FedAvg, FedEM
from fedem_lightning.run.callbacks import RoundCheckpoint, RoundProgress
from fedem_lightning.run.summary import print_summary
from fedem_lightning.run.trackers import MetricsFile
from helpers.federations import make_data, make_model, make_trainer


def test_checkpoints_come_on_time_and_the_newest_stay(tmp_path: Path) -> None:
    data = make_data()
    callback = RoundCheckpoint(every_n_rounds=3, keep=2, dirpath=tmp_path)
    make_trainer(8, callbacks=[callback], enable_checkpointing=True).fit(make_model(FedAvg, data), data)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["round-000006.ckpt", "round-000008.ckpt"]


def test_mixture_weights_are_logged_with_every_evaluation(tmp_path: Path) -> None:
    """Means over the clients that train; the entropy is the mean of the clients' entropies."""
    data = make_data(sizes=(30,) * 6, unseen_fraction=1 / 3)
    weights: list[np.ndarray] = []

    class Look(FedEM):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            super().validation_step(batch, batch_idx)
            if not self.trainer.sanity_checking:
                weights.append(self.pi[batch.seen].double().numpy().copy())

    model = make_model(Look, data, n_components=2, client_optimizer=ClientSGD(lr=0.5))
    callbacks = [MetricsFile(tmp_path / "metrics.csv")]
    trainer = make_trainer(4, callbacks=callbacks, check_val_every_n_epoch=2, limit_val_batches=1, log_every_n_steps=1)
    trainer.fit(model, data)
    table = pd.read_csv(tmp_path / "metrics.csv")
    evaluated = table.dropna(subset=["pi/entropy"])
    assert evaluated["round"].tolist() == [0, 2, 4]
    assert evaluated["pi/mean_0"].iloc[0] == 0.5  # even weights before the first round
    evaluated = evaluated.iloc[1:]
    for (_, row), pi in zip(evaluated.iterrows(), weights, strict=True):
        assert [row["pi/mean_0"], row["pi/mean_1"]] == pytest.approx(pi.mean(axis=0).tolist(), abs=1e-6)
        assert row["pi/entropy"] == pytest.approx(float(-(pi * np.log(pi)).sum(axis=1).mean()), abs=1e-6)
    assert not any("pi/" in name for name in trainer.validate(model, data, verbose=False)[0])


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_shows_rounds_rate_and_accuracy(terminal: bool) -> None:
    screen = io.StringIO()
    bar = RoundProgress(file=screen, force_terminal=terminal, width=120)
    data = make_data()
    trainer = make_trainer(4, callbacks=[bar], enable_progress_bar=True, limit_val_batches=1)
    model = make_model(FedEM, data, client_optimizer=ClientSGD(lr=0.1))
    trainer.fit(model, data)
    text = screen.getvalue()
    assert re.search(r"val accuracy:? \d+\.\d %,? test accuracy", text)
    if terminal:
        assert all(part in text for part in ("rounds", "4/4", "it/s"))
    else:
        assert text.splitlines()[3].startswith("round 4/4: val accuracy ")


def test_the_summary_of_a_run_without_scores() -> None:
    """No evaluation during training, no test samples."""
    results = {
        **{"algorithm": "fedavg", "dataset": "npz", "backbone": "cnn", "seed": 0, "rounds": 0},
        **{"n_clients": 1, "n_scored_clients": 1, "train": {}, "val": {}, "test": {}, "unseen": None},
        **{"reference": {}, "recovery": {"group_accuracy": 0.5}, "engine": {"name": "loop"}},
        "seconds": {"training": 0.0, "per_round": None, "total": 1.0},
        "communication": {"up_bytes": 0, "down_bytes": 0},
    }
    screen = io.StringIO()
    print_summary(results, Console(file=screen, width=200))
    assert "no round" in screen.getvalue()
    assert "clients in their true group 50.0%" in screen.getvalue()


def test_a_resumed_run_has_the_rows_of_its_checkpoint_and_no_others(tmp_path: Path) -> None:
    """A run of 5 rounds, killed after its checkpoint of round 2: metrics.csv ends as that of a straight run."""
    data, files = make_data(), [tmp_path / "straight.csv", tmp_path / "killed.csv"]
    options: dict[str, Any] = {"limit_val_batches": 1, "check_val_every_n_epoch": 2}
    for path in files:
        callbacks = [MetricsFile(path), RoundCheckpoint(2, keep=9, dirpath=tmp_path)]
        make_trainer(5, callbacks=callbacks, enable_checkpointing=True, **options).fit(make_model(FedAvg, data), data)
    for rounds in (5, 2):
        trainer = make_trainer(rounds, callbacks=[MetricsFile(files[1])], **options)
        trainer.fit(make_model(FedAvg, data), data, ckpt_path=tmp_path / "round-000002.ckpt", weights_only=True)
        a, b = (pd.read_csv(path).drop(columns=["seconds", "training_seconds"]) for path in files)
        pd.testing.assert_frame_equal(b, a[: rounds + 1])
