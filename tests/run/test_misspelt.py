"""A misspelt override is answered with the nearest name, in one line."""

from pathlib import Path

import pytest

from fedem_lightning.data.__main__ import main as data_main
from fedem_lightning.run.command_line import nearest_keys
from fedem_lightning.settings.shipped import choices
from helpers.commands import CONFIG_DIR, call

EPOCHS = "trainer.max_epoch: no such key; did you mean trainer.max_epochs?"
RATE = "did you mean algorithm.client_optimizer.lr or algorithm.server_optimizer.lr?"
LISTED = "the configuration does not list it, so add it:"
DEFAULT = "the configuration has no default for this group, so add it:"
ANSWERS = {
    # keys
    "trainer.max_epoch=3": EPOCHS,
    "+trainer.max_epoch=3": EPOCHS,
    "++trainer.max_epoch=3": EPOCHS,
    "~trainer.max_epoch": EPOCHS,
    "-m trainer.max_epoch=3,4": EPOCHS,
    "-m +trainer.max_epoch=3,4": EPOCHS,
    "trainr.max_epoch=3": "trainr.max_epoch: no such key; did you mean trainer.max_epochs?",
    "algorithm.learning_rate=0.1": f"algorithm.learning_rate: no such key; {RATE}",
    "lr=0.1": f"lr: no such key; {RATE}",
    "batchsize=3": "batchsize: no such key; did you mean algorithm.batch_size or local_training.batch_size?",
    "algorithm.n_component=2": "algorithm.n_component: no such key; did you mean algorithm.n_components?",
    "algorithm=fedavg algorithm.n_component=2": "algorithm.n_component: no such key; --cfg job shows those there are",
    "-m algorithm=fedem,fedavg algorithm.n_component=2": "did you mean algorithm.n_components?",
    "bckbone=mlp": "bckbone: no such key; did you mean backbone?",
    "+seeed=3": "seeed: no such key; did you mean dataset.seed or seed?",
    "+trainr.max_epochs=3": "trainr.max_epochs: no such key; did you mean trainer.max_epochs?",
    "+local_training.batchsize=3": "did you mean local_training.batch_size?",
    "+algorithm.viscosity=2": "algorithm.viscosity: no such key; --cfg job shows those there are",
    "+algorithm.client_optimizer.dampening=0.5": "algorithm.client_optimizer.dampening: no such key;",
    "hydra.sweepr.dir=x": "hydra.sweepr.dir: no such key; did you mean hydra.run.dir or hydra.sweep.dir?",
    # keys that a target takes, and those that the run itself gives it
    "trainer.benchmark=true": f"trainer.benchmark: {LISTED} +trainer.benchmark=true",
    "algorithm.server_optimizer.momentum=0.9": f"{LISTED} +algorithm.server_optimizer.momentum=0.9",
    "logger=wandb logger.wandb.entity=me": f"{LISTED} +logger.wandb.entity=me",
    "trainer.benchmark=yes": "trainer.benchmark: expected true, false or null, got 'yes'",
    # what would be refused is not advised
    "trainer.gradient_clip_val=1": "trainer.gradient_clip_val: the Trainer does not see the gradients",
    "trainer.limit_train_batches=0.5": "trainer.limit_train_batches: an epoch is a round",
    "algorithm.server_optimizer.momentum=-1": "the optimiser refuses lr=1.0, momentum=-1",
    # Hydra removes no key that is null
    "~trainer.profiler": "it is null already, which Hydra cannot remove; leave ~trainer.profiler out",
    "algorithm.seed=3": "algorithm.seed: no such key; did you mean dataset.seed or seed?",
    "+algorithm.seed=3": "algorithm.seed: no such key; did you mean dataset.seed or seed?",
    "+trainer.logger=false": "trainer.logger: no such key; did you mean logger?",
    # choices
    "algorithm=fedagv": "algorithm=fedagv: no such choice; did you mean fedavg?",
    "-m algorithm=fedagv,fedem": "algorithm=fedagv: no such choice; did you mean fedavg?",
    "algorithm=base": f"algorithm=base: no such choice; there are {', '.join(choices(CONFIG_DIR)['algorithm'])}",
    "+experiment=digts": "experiment=digts: no such choice; did you mean digits?",
    "experiment=digts": "experiment=digts: no such choice; did you mean +experiment=digits?",
    "experiment=digits": f"experiment: {DEFAULT} +experiment=digits",
    "dataset/augmentation=crop_flip": f"dataset/augmentation: {DEFAULT} +dataset/augmentation=crop_flip",
    "+exprmnt=digits": "exprmnt: no such key; did you mean +experiment?",
    "+viscosity=2": "viscosity: no such key; --cfg job shows those there are",
    "RUN=3": "RUN: no such key; --cfg job shows those there are",
    "protocol=fedem": "protocol: no such key; --cfg job shows those there are",
}


@pytest.mark.parametrize("typed", ANSWERS)
def test_the_nearest_name_is_said(
    typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What a sweep prints besides is Hydra's. A run that is let through stops at something else, and at once."""
    assert call(tmp_path, monkeypatch, *typed.split(), "run_dir=run", "trainer.max_epochs=-1") == 2
    lines = capfd.readouterr().err.splitlines()
    if "-m" not in typed:
        assert len(lines) == 1
    assert lines[-1].startswith("error: ")
    assert ANSWERS[typed] in lines[-1]


def test_keys_are_no_choice_of_a_group_without_a_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(tmp_path, monkeypatch, "+experiment={a: 1}") == 2
    assert capsys.readouterr().err.startswith("error: experiment={'a': 1}: no such choice; there are ")


def test_the_users_own_folder_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own" / "algorithm").mkdir(parents=True)
    (tmp_path / "own" / "algorithm" / "mine.yaml").write_text(
        "defaults: [/algorithm_base@_here_, _self_]\n_target_: mine.Ditto\nstrength: 0.1\n"
    )
    own = ["--config-dir", "own"]
    assert call(tmp_path, monkeypatch, *own, "algorithm=minne") == 2
    assert capsys.readouterr().err == "error: algorithm=minne: no such choice; did you mean mine?\n"
    assert call(tmp_path, monkeypatch, *own, "algorithm=mine", "algorithm.strengthh=1") == 2
    assert capsys.readouterr().err.endswith("did you mean algorithm.strength?\n")


def test_a_key_of_the_users_own_may_be_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run then stops at something else."""
    added = [
        "+learning_rates.mine=0.1",
        "+rate=0.1",
        "algorithm.client_optimizer.lr=${rate}",
        "+trainer.benchmark=false",
        "+callbacks.mine._target_=my.Own",
    ]
    assert call(tmp_path, monkeypatch, *added, "trainer.max_epochs=-1") == 2
    assert "trainer.max_epochs: expected a whole number" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["list"], ["download", "mnist"], ["describe", "digits"]])
def test_the_commands_for_data_say_it_too(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        data_main([*command, "data_dr=/x"])
    assert capsys.readouterr().err == "error: data_dr: no such key; did you mean data_dir?\n"


def test_a_name_elsewhere_comes_before_one_that_is_spelt_alike() -> None:
    keys = ["a", "a.rate", "a._rate_", "b", "b.lr", "c.rates"]
    assert nearest_keys("b.rate", keys) == ["a.rate"]
    assert nearest_keys("b.learning_rate", keys) == ["b.lr"]
    assert nearest_keys("b.lrr", keys) == ["b.lr"]
    assert nearest_keys("b.rat", keys) == []
    assert nearest_keys("ratess", keys) == ["c.rates"]


def test_a_file_that_the_package_hides_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own, name = tmp_path / "own" / "algorithm", "fedavg.yaml"
    own.mkdir(parents=True)
    (own / name).write_text("_target_: mine.FedAvg\n")
    said = f"error: {own / name}: the package has algorithm/{name} too, and would use that; give yours another name\n"
    assert call(tmp_path, monkeypatch, "--config-dir", "own", "algorithm=fedavg") == 2
    assert capsys.readouterr().err == said
    (own / name).write_bytes((CONFIG_DIR / "algorithm" / name).read_bytes())
    assert call(tmp_path, monkeypatch, "--config-dir", "own", "dataset=npz", "dataset.path=absent.npz") == 2
    assert "absent.npz" in capsys.readouterr().err
