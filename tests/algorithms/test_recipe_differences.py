"""What a checkpoint's recipe says of its run, beside that of the run which would go on from it."""

import functools
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from fedem_lightning import ClientSGD, FedAvg, FedEM, Finetune, TopK, TrimmedMean, UserError
from fedem_lightning.module.checkpoints import recipe_difference, recipe_of
from helpers.federations import make_data, make_model, make_trainer

OTHER: dict[str, tuple[dict[str, Any], str]] = {
    "algorithm.client_optimizer.lr": ({"client_optimizer": ClientSGD(lr=0.3)}, "0.1, now it is 0.3"),
    "algorithm.server_optimizer.lr": (
        {"server_optimizer": functools.partial(torch.optim.SGD, lr=0.5)},
        "1.0, now it is 0.5",
    ),
    "algorithm.batch_size": ({"batch_size": 5}, "4, now it is 5"),
    "aggregation.trim": ({"aggregation": TrimmedMean(0.3)}, "0.2, now it is 0.3"),
    "compression._target_": ({"compression": TopK(0.1)}, "None, now it is fedem_lightning.aggregate.compression.TopK"),
    "seed": ({"seed": 4}, "0, now it is 4"),
}
BASE: dict[str, Any] = {
    "client_optimizer": ClientSGD(lr=0.1),
    "server_optimizer": functools.partial(torch.optim.SGD, lr=1.0),
    "aggregation": TrimmedMean(0.2),
}


@pytest.mark.parametrize("key", OTHER)
def test_every_setting_that_training_depends_on_is_named(key: str) -> None:
    options, values = OTHER[key]
    data = make_data()
    before, now = recipe_of(make_model(FedAvg, data, **BASE)), recipe_of(make_model(FedAvg, data, **BASE | options))
    assert recipe_difference(before, now, FedAvg) == f"{key} was {values}"
    assert recipe_difference(before, before, FedAvg) is None
    assert recipe_difference({}, now, FedAvg) is None


def test_defaults_and_what_is_only_scored_are_no_difference() -> None:
    data = make_data()
    given: dict[str, Any] = {"local_epochs": 1, "seed": 0, "engine": "loop", "adaptation": Finetune(1)}
    given |= {"scored_clients": 2, "personalize_fraction": 0.5, "personalize_steps": 5}
    before, now = recipe_of(make_model(FedEM, data)), recipe_of(make_model(FedEM, data, **given))
    assert recipe_difference(before, now, FedEM) is recipe_difference(now, before, FedEM) is None


def test_a_fit_in_python_goes_on_with_other_settings_after_a_warning(tmp_path: Path) -> None:
    data, path = make_data(), tmp_path / "a.ckpt"
    trainer = make_trainer(1)
    trainer.fit(make_model(FedEM, data), data)
    trainer.save_checkpoint(path)
    said = r"^ckpt_path: the fit goes on with other settings: algorithm.batch_size was 4"
    with pytest.warns(UserWarning, match=said):
        make_trainer(2).fit(make_model(FedEM, data, batch_size=3), data, ckpt_path=path, weights_only=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        make_trainer(2).fit(make_model(FedEM, data), data, ckpt_path=path, weights_only=True)
        FedEM.load_from_checkpoint(path, batch_size=3)
    with pytest.raises(UserError, match="was written by FedEM"):
        make_trainer(2).fit(make_model(FedAvg, data), data, ckpt_path=path, weights_only=True)
