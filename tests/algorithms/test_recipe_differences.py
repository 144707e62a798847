"""What a checkpoint's recipe says of its run, beside that of the run which would go on from it."""

import functools
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from fedem_lightning import (
    ClientSGD,
    FedAvg,
    FedEM,
    FederatedAlgorithm,
    FedGMM,
    Finetune,
    Mean,
    Median,
    PerFedAvg,
    SignFlip,
    TopK,
    UserError,
)
from fedem_lightning.algorithms.checkpoints import recipe_of
from fedem_lightning.algorithms.recipe_differences import differences_line, recipe_differences
from helpers.federations import make_data, make_model, make_trainer

OTHER: dict[str, tuple[dict[str, Any], tuple[Any, Any]]] = {
    "algorithm.client_optimizer.lr": ({"client_optimizer": ClientSGD(lr=0.3)}, (0.1, 0.3)),
    "algorithm.client_optimizer.momentum": ({"client_optimizer": ClientSGD(momentum=0.9)}, (0.0, 0.9)),
    "algorithm.server_optimizer.lr": ({"server_optimizer": functools.partial(torch.optim.SGD, lr=0.5)}, (1.0, 0.5)),
    "algorithm.batch_size": ({"batch_size": 5}, (4, 5)),
    "algorithm.local_epochs": ({"local_epochs": 2}, (1, 2)),
    "algorithm.local_steps": ({"local_steps": 3}, (None, 3)),
    "algorithm.participation": ({"participation": 0.5}, (1.0, 0.5)),
    "aggregation": ({"aggregation": "median"}, ("Mean", "Median")),
    "aggregation.max_norm_ratio": ({"aggregation": Mean(2.0)}, (None, 2.0)),
    "compression": ({"compression": TopK(0.1)}, (None, "TopK")),
    "faults": ({"faults": SignFlip(0.3)}, (None, "SignFlip")),
    "seed": ({"seed": 4}, (0, 4)),
}


@pytest.mark.parametrize("key", OTHER)
def test_every_setting_that_training_depends_on_is_named(key: str) -> None:
    options, values = OTHER[key]
    data = make_data()
    before, now = recipe_of(make_model(FedAvg, data)), recipe_of(make_model(FedAvg, data, **options))
    assert recipe_differences(before, now) == {key: values}
    assert recipe_differences(now, before) == {key: values[::-1]}
    assert recipe_differences(before, before) == recipe_differences({}, now) == {}


def test_a_default_that_is_given_is_no_difference() -> None:
    data = make_data()
    given: dict[str, Any] = {"client_optimizer": ClientSGD(), "aggregation": Mean(), "local_epochs": 1, "networks": {}}
    given |= {"server_optimizer": functools.partial(torch.optim.SGD, lr=1.0), "seed": 0, "engine": "loop"}
    given |= {"adaptation": Finetune(1), "scored_clients": 2}
    before, now = recipe_of(make_model(FedAvg, data)), recipe_of(make_model(FedAvg, data, **given))
    assert recipe_differences(before, now) == recipe_differences(now, before) == {}
    same = recipe_of(make_model(FedAvg, data, aggregation="median"))
    assert recipe_differences(same, recipe_of(make_model(FedAvg, data, aggregation=Median()))) == {}


@pytest.mark.parametrize("kind", [FedEM, FedGMM, PerFedAvg])
def test_how_later_clients_are_personalised_may_differ(kind: type[FederatedAlgorithm]) -> None:
    data, scoring = make_data(), {"personalize_fraction": 0.5, "personalize_steps": 5}
    if kind is FedEM:
        scoring |= {"personalize_tolerance": 0.1, "personalize_seen": True}
    now = recipe_of(make_model(kind, data, **scoring))
    assert now["personalize_steps"] == 5
    assert recipe_differences(recipe_of(make_model(kind, data)), now) == {}


def test_a_recipe_of_a_file_is_compared_and_not_made() -> None:
    now = recipe_of(make_model(FedAvg, make_data()))
    strange = {**now, "client_optimizer": {"_target_": "os.system", "command": "false"}, "seed": [{"_target_": "a.b"}]}
    found = recipe_differences(strange, now)
    assert list(found) == ["algorithm.client_optimizer", "seed"]
    many = {f"key{n}": (1, 2) for n in range(6)}
    assert differences_line(many).endswith("key3 was 1, now it is 2; and 2 more")


def test_a_fit_in_python_goes_on_with_other_settings_after_a_warning(tmp_path: Path) -> None:
    data, path = make_data(), tmp_path / "a.ckpt"
    trainer = make_trainer(1)
    trainer.fit(make_model(FedEM, data), data)
    trainer.save_checkpoint(path)
    with pytest.warns(
        UserWarning, match=r"^ckpt_path: the fit goes on with other settings: algorithm.batch_size was 4"
    ):
        make_trainer(2).fit(make_model(FedEM, data, batch_size=3), data, ckpt_path=path, weights_only=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        make_trainer(2).fit(make_model(FedEM, data), data, ckpt_path=path, weights_only=True)
        FedEM.load_from_checkpoint(path, batch_size=3)
    with pytest.raises(UserError, match="was written by FedEM"):
        make_trainer(2).fit(make_model(FedAvg, data), data, ckpt_path=path, weights_only=True)
