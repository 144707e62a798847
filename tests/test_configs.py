"""Every shipped configuration is composed and run for two rounds."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra import compose, initialize_config_dir

from fedem_lightning.cli import CONFIG_DIR
from fedem_lightning.run import run

GROUPS = (
    "algorithm",
    "dataset",
    "dataset/augmentation",
    "backbone",
    "engine",
    "trainer",
    "logger",
    "callbacks",
    "experiment",
)
NOT_ALONE = {"algorithm/base"}
SMALL = {
    "synthetic": ["dataset.n_clients=4", "dataset.dimension=5", "dataset.test_size=9"],
    "digits": ["dataset.n_clients=5"],
    "npz": ["dataset.path={npz}"],
}
OPTIONS = sorted(
    option
    for group in GROUPS
    for path in (CONFIG_DIR / group).glob("*.yaml")
    if (option := f"{group}/{path.stem}") not in NOT_ALONE
)


def run_small(folder: Path, npz: Path, *overrides: str) -> dict[str, Any]:
    """Composes as the command line does, shrinks the data set and runs two rounds."""
    with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
        chosen = compose("config", list(overrides), return_hydra_config=True).hydra.runtime.choices
        small = [argument.format(npz=npz) for argument in SMALL[chosen["dataset"]]]
        rounds = ["trainer.max_epochs=2", "trainer.check_val_every_n_epoch=1", "trainer.accelerator=cpu"]
        config = compose("config", [*overrides, *small, *rounds])
    choices = {group: str(chosen[group]) for group in ("algorithm", "dataset", "backbone")}
    return run(config, folder, choices, [])


@pytest.fixture
def npz(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    x = rng.integers(256, size=(60, 28, 28)).astype(np.uint8)
    np.savez(tmp_path / "images.npz", x=x, y=np.arange(60) % 4, client=np.arange(60) % 3)
    return tmp_path / "images.npz"


@pytest.mark.parametrize("option", OPTIONS)
def test_option_runs(option: str, tmp_path: Path, npz: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    group, name = option.split("/")
    overrides = [f"{'+' if group == 'experiment' else ''}{group}={name}"]
    if name.startswith("cnn"):
        overrides.append("dataset=npz")
    results = run_small(tmp_path / "run", npz, *overrides)
    assert results["rounds"] == 2
    assert 0 <= results["test"]["accuracy"]["weighted"] <= 1
    assert (tmp_path / "run" / "results.json").exists()
    if group in ("algorithm", "dataset", "backbone"):
        assert results[group] == name


def test_an_experiment_names_its_command() -> None:
    for path in (CONFIG_DIR / "experiment").glob("*.yaml"):
        first = path.read_text().splitlines()
        assert first[0] == "# @package _global_"
        assert any(f"+experiment={path.stem}" in line and "python -m fedem_lightning" in line for line in first[:4])


def test_a_users_own_backbone_is_one_target_away(tmp_path: Path, npz: Path) -> None:
    overrides = [
        "~backbone",
        "+backbone._target_=torch.nn.Linear",
        "+backbone.in_features=5",
        "+backbone.out_features=1",
    ]
    with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
        config = compose("config", [*overrides, *SMALL["synthetic"], "trainer.max_epochs=1"])
    results = run(config, tmp_path / "run", {"algorithm": "fedem", "dataset": "synthetic", "backbone": "own"}, [])
    assert results["rounds"] == 1
