"""The lists of keys fit the configuration; what methods are called; the gate of a configuration."""

from typing import Any

import pytest
from omegaconf import OmegaConf
from torch import nn

from fedem_lightning import UserError
from fedem_lightning.run import gate
from fedem_lightning.run.gate import check_configuration, own_targets
from fedem_lightning.settings import keys
from fedem_lightning.settings.keys import (
    SAME,
    choices,
    flatten,
    fold,
    implied_adaptation,
    method_title,
    nearest,
    shipped,
)
from helpers.commands import composed


def test_every_key_of_the_configuration_is_known_and_every_known_one_is_there() -> None:
    config = composed("dataset=digits")
    assert {*map(str, config), "case", "cases"} == {*gate._OWN, *keys.GROUPS}
    assert {*keys.NEEDED, *keys.NAMED, *keys.HANDED} < {*keys.GROUPS}
    known = {*flatten(OmegaConf.to_container(config)), *map(str, config), "hydra"}
    told = {*keys.MAY_CHANGE, *keys.OF_SETTING, *keys.WITHOUT_EFFECT}
    assert {key for key in told if not key.startswith(("trainer.", "dataset."))} <= known


def test_every_method_has_a_title_of_its_own() -> None:
    titles = [tree.get("title") for tree in shipped("algorithm").values()]
    assert all(isinstance(title, str) and title for title in titles)
    assert len(set(titles)) == len(titles)


def test_titles_and_what_names_imply() -> None:
    assert method_title("qffl") == "q-FFL"
    assert method_title("fedavg+finetune") == "FedAvg + finetune"
    assert method_title("mine") == "mine"
    assert method_title("mine+knn", "My Own") == "My Own + knn"
    assert method_title("mine", "FedEM") == "mine"  # of a file that builds on FedEM's
    assert implied_adaptation("fedavg_plus") == "finetune"
    assert implied_adaptation("fedavg") is implied_adaptation("mine") is None


class Mine:
    """Data of somebody's own, that are none."""


def net(n_outputs: int) -> nn.Module:
    return nn.Linear(2, n_outputs)


def test_classes_of_the_users_own_get_the_keys_that_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [f"backbone._target_={__name__}.net", "backbone.in_shape=[4]"]
    config = composed("backbone=mlp", *words)
    assert own_targets(config, words) == {"backbone": "net"}
    assert config.backbone.keys() == {"_target_", "in_shape", "n_outputs"}  # typed, so the check names it
    with pytest.raises(UserError, match=r"^backbone\.in_shape: net takes no such argument"):
        check_configuration(config)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            {"algorithm": {"client_optimizer": {"lr": -1}}},
            r"algorithm\.client_optimizer\.lr: expected a number",
        ),
        ({"engine": {"memory_gb": 0}}, r"engine\.memory_gb: expected a number greater than 0, got 0"),
        ({"algorithm": {"seed": 3}}, r"algorithm\.seed: FedEM takes no such argument"),
        ({"learning_rates": {"fedavg": float("inf")}}, r"learning_rates\.fedavg: expected a finite number, got inf"),
        ({"dataset": {"_target_": f"{__name__}.Mine"}}, r"dataset\.\w+: Mine takes no such argument"),
        ({"algorithm": {"title": 3, "rounds": 2}}, r"algorithm\.rounds: FedEM takes no such argument"),
        ({"rate": 3}, "rate: nothing reads this key"),
        ({"callbacks": {"a": 3}}, "callbacks: expected a valid dictionary, got "),
        ({"network": {"a": {}}}, r"network\.a\._target_: expected MODULE\.NAME of a class or a function, got null"),
    ],
)
def test_a_wrong_configuration_is_one_line_before_data_are_read(change: dict[str, Any], line: str) -> None:
    config = OmegaConf.merge(OmegaConf.create(OmegaConf.to_container(composed(), resolve=False)), change)
    with pytest.raises(UserError, match=f"^{line}"):
        check_configuration(config)  # type: ignore[arg-type]


def test_keys_of_the_users_own_are_for_interpolations_to_read() -> None:
    check_configuration(composed("+rate=0.1", "algorithm.client_optimizer.lr=${rate}"))


@pytest.mark.parametrize("group", ["adaptation", "aggregation", "faults", "compression", "engine", "network"])
def test_every_choice_of_a_cheap_group_passes(group: str) -> None:
    for choice in choices()[group]:
        if (group, choice) not in {("network", "devices"), ("adaptation", "dapper")}:  # they need files
            check_configuration(composed(f"{group}={choice}"))


@pytest.mark.parametrize("means", sorted({*SAME.values()}))
def test_what_the_table_says_can_be_written(means: str) -> None:
    assert composed(f"algorithm={means}".split()[0], *means.split()[1:]).algorithm.title


def test_the_tables_have_folded_names_that_are_none_of_ours() -> None:
    ours = {fold(name) for name in choices()["algorithm"]}
    assert all(name == fold(name) for name in SAME)
    assert not SAME.keys() & ours


def test_the_nearest_name() -> None:
    names = ["fedem", "pfedme", "fedper", "fedrep", "lg_fedavg"]
    typed = ["fedme", "pFedMe", "FedPer", "LG-FedAvg", "fedpre", "nothing"]
    assert [nearest(name, names) for name in typed] == ["fedem", "pfedme", "fedper", "lg_fedavg", "fedper", None]
