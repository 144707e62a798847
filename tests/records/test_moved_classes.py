"""Files of before name classes and functions by the modules in which they were; modules have been merged since."""

import functools
from pathlib import Path
from typing import Any

import pytest
import torch

from fedem_lightning import MLP, EStep, FedEM, ResNet18, Topology, UserError, load
from fedem_lightning.models.parts import WithFeatures
from fedem_lightning.records.recipes import recipe
from fedem_lightning.records.remaking import ROOMS, find, make, renewed
from fedem_lightning.tasks import Classification
from helpers.federations import make_data, make_model, make_trainer, train

MOVED = [
    ("fedem_lightning.backbones.old.MLP", MLP),  # the module is gone
    ("fedem_lightning.backbones.linear.MLP", MLP),  # it no longer defines the name
    ("fedem_lightning.backbones.old.ResNet18", ResNet18),  # a function
    ("fedem_lightning.algorithms.old.FedEM", FedEM),
    ("fedem_lightning.algorithms.old.EStep", EStep),  # in no room's `__init__`
    ("fedem_lightning.models.old.WithFeatures", WithFeatures),  # nor in the package's
    ("fedem_lightning.models.old.deeper.WithFeatures", WithFeatures),
    ("fedem_lightning.topology.old.Topology", Topology),  # a room that is a module
    ("fedem_lightning.engine.old.Classification", Classification),  # in another room
]
NEVER = [
    "fedem_lightning.backbones.old.Nobody",
    "fedem_lightning.backbones.old.load",
    "fedem_lightning.backbones.old.__init__",
    "fedem_lightning.models.old.torch.load",
    "fedem_lightning.models.old.users_network",
    "fedem_lightning.models.old.Federation",
    "fedem_lightning.old.MLP",
    "fedem_lightning.run.old.MLP",
    "fedem_lightning.backbones.\0.MLP2",
    "old.MLP",
]


@pytest.mark.parametrize(("path", "now"), MOVED)
def test_a_path_of_before_means_what_has_moved(path: str, now: Any) -> None:
    assert find(path) is now


@pytest.mark.parametrize("path", NEVER)
def test_a_path_of_nothing_recorded_is_refused_in_one_line(path: str) -> None:
    with pytest.raises(UserError, match=r"^backbone: the file wants to call [^\n]*, which is no[^\n]* part of[^\n]*$"):
        find(path, key="backbone")
    with pytest.raises(UserError):
        find(path, rooms=(*ROOMS, "fedem_lightning.data"))


def test_a_recipe_of_before_is_that_of_today() -> None:
    net = {"_target_": "fedem_lightning.backbones.old.MLP", "in_shape": [4], "n_outputs": 3, "hidden": []}
    others = ["fedem_lightning.backbones.old.MLP", {"_target_": "mine.Net"}, {"_target_": "fedem_lightning.old.MLP"}]
    now = net | {"_target_": f"{MLP.__module__}.MLP"}
    assert renewed({"networks": [net, *others], "seed": 3}) == {"networks": [now, *others], "seed": 3}
    assert recipe(make(net)) == recipe(make(now)) == now
    partial = make({**net, "_partial_": True})
    assert isinstance(partial, functools.partial)
    assert partial.func is MLP


def test_a_checkpoint_of_before_is_loaded_and_resumed(tmp_path: Path) -> None:
    """With other modules in each path; a fit that goes on from it warns of other settings, and would here."""
    data, file = make_data(), tmp_path / "old.ckpt"
    trained = train(make_model(FedEM, data, n_components=2), data, 1)
    trained.trainer.save_checkpoint(file)
    content = torch.load(file, weights_only=True)
    content["recipe"] = of_before(content["recipe"])
    torch.save(content, file)
    assert "fedem_lightning.algorithms.old.FedEM" in str(content["recipe"])
    again = load(file)
    assert type(again) is FedEM
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), trained.parameters(), strict=True))
    resumed = make_model(FedEM, data, n_components=2)
    make_trainer(2).fit(resumed, data, ckpt_path=file)
    assert resumed.statistics.rounds == 2


def of_before(value: Any) -> Any:
    """A recipe as it would be had every class been in a module `old` of its room."""
    if isinstance(value, list):
        return [of_before(part) for part in value]
    if not isinstance(value, dict):
        return value
    found = {name: of_before(part) for name, part in value.items()}
    if str(found.get("_target_")).startswith("fedem_lightning."):
        _, room, *_, name = found["_target_"].split(".")
        found["_target_"] = f"fedem_lightning.{room}.old.{name}"
    return found
