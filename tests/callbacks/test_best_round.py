"""The model of the best validation round is kept, and training stops once validation shows no gain."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fedem_lightning import ClientSGD, Ditto, FedAvg, FedEM, PrivateMean
from fedem_lightning.evaluate.convergence import whole_run
from fedem_lightning.module.checkpoints import read_checkpoint
from fedem_lightning.run.callbacks import BestRound, RoundCheckpoint
from helpers.federations import make_data, make_model, make_trainer, parameters


def _fit(kind: Any, rounds: int, callback: BestRound, tmp_path: Path, **options: Any) -> Any:
    data = make_data()
    model = make_model(kind, data, **options)
    more = [RoundCheckpoint(every_n_rounds=2, dirpath=tmp_path)]
    trainer = make_trainer(
        rounds, callbacks=[callback, *more], enable_checkpointing=True, limit_val_batches=1, check_val_every_n_epoch=1
    )
    trainer.fit(model, data)
    return model, trainer, data


@pytest.mark.parametrize("kind", [FedEM, FedAvg, Ditto])
def test_the_model_is_that_of_the_best_round(kind: Any, tmp_path: Path) -> None:
    """Of a run whose rate is so high that the last round is not the best one."""
    options = {"client_optimizer": ClientSGD(lr=3.0), "batch_size": 4}
    model, trainer, data = _fit(kind, 8, BestRound(None, tmp_path), tmp_path, **options)
    val = {r: row["val/accuracy"] for r, row in model.curves.items() if r}
    best = max(val, key=lambda r: (val[r], -r))
    assert best < 8
    assert model.diagnostics["scored_round"] == best
    assert whole_run(model)[0].rounds == 8
    assert max(whole_run(model)[1]) == 8
    assert model.statistics.rounds == best  # so that what is drawn to score it is what its checkpoint would draw
    (scores,) = trainer.validate(model, data, verbose=False)
    assert scores["val/accuracy"] == pytest.approx(val[best], abs=1e-6)
    until, _, _ = _fit(kind, best, BestRound(None, tmp_path / "other"), tmp_path / "other", **options)
    for name, tensor in until.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name]), name


def test_the_file_of_an_earlier_training_is_not_taken(tmp_path: Path) -> None:
    """In Python the folder is the same for all trainings; the file's round says whose it is."""
    _fit(FedAvg, 3, BestRound(None, tmp_path), tmp_path, client_optimizer=ClientSGD(lr=0.1))
    data = make_data()
    model = make_model(FedAvg, data, client_optimizer=ClientSGD(lr=0.1))
    callback = BestRound(None, tmp_path)
    options = {"enable_checkpointing": True, "default_root_dir": tmp_path}
    trainer = make_trainer(2, callbacks=[callback], **options)  # without evaluations
    trainer.fit(model, data)
    last = parameters(model).clone()
    callback.best = 1 if len(read_checkpoint(tmp_path / "best.ckpt")["statistics"]["round_seconds"]) != 1 else 2
    callback.on_fit_end(trainer, model)
    assert torch.equal(parameters(model), last)


def test_training_stops_once_validation_shows_no_gain(tmp_path: Path) -> None:
    callback = BestRound(5, tmp_path)
    model, trainer, _ = _fit(FedAvg, 200, callback, tmp_path, client_optimizer=ClientSGD(lr=0.5))
    assert callback.stopped == trainer.current_epoch == whole_run(model)[0].rounds < 200
    since = callback.since(trainer.current_epoch)
    assert since <= trainer.current_epoch - 5
    assert model.diagnostics["scored_round"] <= trainer.current_epoch


def test_a_training_that_still_gains_goes_on(tmp_path: Path) -> None:
    callback = BestRound(2, tmp_path)
    _fit(FedAvg, 12, callback, tmp_path, client_optimizer=ClientSGD(lr=0.01))
    assert callback.stopped is None


def test_a_private_mean_takes_the_last_round(tmp_path: Path) -> None:
    callback = BestRound(1, tmp_path)
    aggregation = PrivateMean(noise_multiplier=0.0, clip=1.0)
    model, _, _ = _fit(FedAvg, 8, callback, tmp_path, aggregation=aggregation, client_optimizer=ClientSGD(lr=3.0))
    assert callback.best is None
    assert callback.stopped is None
    assert "scored_round" not in model.diagnostics
    assert not (tmp_path / "best.ckpt").exists()
