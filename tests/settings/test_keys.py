"""The table of the configuration's keys, and the titles of methods."""

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from fedem_lightning import UserError
from fedem_lightning.records.configs import flatten
from fedem_lightning.report.collect import find_runs
from fedem_lightning.report.groups import group_runs
from fedem_lightning.run.gate import check_configuration
from fedem_lightning.run.run_folder import begin_folder, check_run_folder
from fedem_lightning.settings.keys import BY_NAME, KEYS, handed_by_run
from fedem_lightning.settings.shipped import choices, implied_adaptation, method_title, shipped, variant
from helpers.commands import CONFIG_DIR, TINY, call
from helpers.runs import make_run


def composed(*words: str) -> DictConfig:
    with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
        return compose("config", list(words))


def test_every_key_of_the_configuration_has_a_row() -> None:
    assert len(BY_NAME) == len(KEYS)
    missing = {str(key) for key in composed()} - BY_NAME.keys()
    assert not missing
    own = [key.name for key in KEYS if key.kind == "own"]
    assert [group for group in choices(CONFIG_DIR) if group in own] == []


def test_every_row_is_a_key_that_there_is() -> None:
    known = flatten(OmegaConf.to_container(composed("network=devices", "dataset=digits", "adaptation=dapper")))
    known |= flatten(OmegaConf.to_container(composed("dataset=cifar10")))
    parts = {name.rpartition(".")[0] for name in known} | {str(key) for key in composed()} | choices(CONFIG_DIR).keys()
    lightnings = {f"trainer.{name}" for name in inspect.signature(pl.Trainer).parameters}
    unknown = {key.name for key in KEYS} - known.keys() - parts - lightnings - {"hydra"}
    assert not unknown


def test_what_the_run_hands_over_cannot_be_set() -> None:
    config = composed()
    OmegaConf.update(config, "algorithm.seed", 1, force_add=True)
    check_configuration(config)  # left to check_added, as for every target
    assert "seed" in handed_by_run("algorithm")
    assert handed_by_run("algorithm.client_optimizer") == handed_by_run("dataset") == ()


@pytest.mark.parametrize("group", ["one", "optional", "named"])
def test_groups_of_the_table_are_groups(group: str) -> None:
    assert {key.name for key in KEYS if key.kind == group} <= choices(CONFIG_DIR).keys()


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
    assert variant("adaptation", "interpolate", {"adaptation.objective": "mixture"}) == "mapper"
    assert variant("adaptation", "interpolate", {"adaptation.objective": "own"}) == "interpolate"
    assert variant("adaptation", "finetune", {"adaptation.objective": "mixture"}) == "finetune"
    assert variant("adaptation", "none", {}) == "none"


def test_a_title_is_text() -> None:
    config = composed("algorithm.title=Mine")
    check_configuration(config)
    config.algorithm.title = None
    check_configuration(config)
    config.algorithm.title = 3
    with pytest.raises(UserError, match=r"^algorithm\.title: expected text or null, got 3$"):
        check_configuration(config)


@pytest.mark.parametrize("title", ["FedEM", None, "Another"])
def test_a_title_is_no_difference_between_the_parts_of_a_run(title: str | None, tmp_path: Path) -> None:
    """Runs of before had none."""
    tree: dict[str, Any] = {"ckpt_path": "auto", "algorithm": {"_target_": "fedem_lightning.FedEM"}, "trainer": {}}
    begin_folder(tmp_path, OmegaConf.create(tree), [])
    now = OmegaConf.create({**tree, "algorithm": {**tree["algorithm"], "title": title}})
    check_run_folder(tmp_path, now)


def test_runs_with_and_without_a_title_are_repetitions(tmp_path: Path) -> None:
    make_run(tmp_path / "before", algorithm="fedem", seed=0)
    make_run(tmp_path / "now", algorithm="fedem", seed=1, config={"algorithm.title": "FedEM"})
    (setting,), _ = group_runs(find_runs([tmp_path])[0])
    assert [len(group.runs) for group in setting.groups] == [2]
    assert {group.label: group.name for group in setting.groups} == {"fedem": "FedEM"}


def test_a_report_has_the_title_of_a_method_from_elsewhere(tmp_path: Path) -> None:
    make_run(tmp_path / "a", algorithm="mine", config={"algorithm.title": "My\nOwn"})
    make_run(tmp_path / "b", algorithm="other", config={"algorithm.title": "FedEM"})
    (setting,), _ = group_runs(find_runs([tmp_path])[0])
    assert {group.label: group.name for group in setting.groups} == {"mine": "My Own", "other": "other"}


def test_a_run_is_drawn_under_its_title_and_its_method_never_sees_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[str] = []

    def note(*arguments: Any) -> list[Path]:
        drawn.append(arguments[-1])
        return []

    monkeypatch.setattr("fedem_lightning.run.results.draw_figures", note)
    assert call(tmp_path, monkeypatch, *TINY, "trainer.max_epochs=1", "algorithm.title=Mine", "run_dir=run") == 0
    assert drawn == ["Mine"]
    assert "algorithm:\n" in (tmp_path / "run" / ".hydra" / "config.yaml").read_text()
    assert json.loads((tmp_path / "run" / "results.json").read_text())["algorithm"] == "fedem"
