"""Every shipped configuration is composed; one or two of each group run for two rounds, all of them with `-m slow`."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedem_lightning.run.gate import check_configuration
from fedem_lightning.settings.keys import choices
from helpers.commands import CONFIG_DIR, composed
from helpers.encoders import save_encoder, save_texts
from helpers.folders import save_images
from helpers.kill_resume import NEED_A_BODY
from helpers.pfllib import save_pfllib
from helpers.runs import composed_small, run_small

GROUPS = (
    "adaptation",
    "algorithm",
    "dataset",
    "backbone",
    "engine",
    "network",
    "aggregation",
    "compression",
    "faults",
    "logger",
    "privacy",
    "experiment",
)
FITTING = {  # a data set for an algorithm or a backbone that does not run on the default one
    "agnostic": "npz",
    "categorical": "density",
    "cnn": "npz",
    "cnn_reference": "npz",
    "l2sgd": "npz",  # its steps are drawn, also where no rates bring local_steps=null
    "lenet": "npz",
    "oracle": "density",
    "mobilenet_v2": "cifar10",
    "resnet18": "cifar10",
    "lstm": "shakespeare",
    "timm": "cifar10",
    "transformer": "hub",
}
BY_DEFAULT = {  # one or two of each group; tests of each part have the others
    "adaptation/finetune",
    "aggregation/median",
    "algorithm/fedem",
    "algorithm/l2sgd",
    "algorithm/user_centric",
    "backbone/mlp",
    "compression/top_k",
    "dataset/digits",
    "dataset/npz",
    "engine/loop",
    "experiment/femnist_mlp",
    "experiment/recovery",
    "faults/dropout",
    "network/figure3",
    "privacy/central",
}
OPTIONS = sorted(f"{group}/{name}" for group in GROUPS for name in choices()[group])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """30 images of each kind, also as other libraries' folders, a table of 30 rows, and a text of three roles."""
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    images = rng.integers(256, size=(30, 28, 28)).astype(np.uint8)
    labels: dict[str, Any] = {"y": np.arange(30) % 4, "client": np.arange(30) % 3}
    np.savez(folder / "images.npz", x=images, names=np.array(["f2100_1", "f0123_4", "f2599_0"]), **labels)
    np.savez(folder / "arrays.npz", x=images, domain=np.arange(30) % 2, **labels)
    save_pfllib(folder / "pfllib", images / 255, labels["y"], labels["client"], np.arange(30) < 20)
    save_images(folder / "shops", {"north": ["cat", "dog"], "south": ["dog"]}, n=9, pixels=28)
    colour = rng.integers(256, size=(30, 32, 32, 3)).astype(np.uint8)
    np.savez(folder / "colour.npz", x=colour, y=np.arange(30) % 4, coarse=np.arange(30) % 2)
    text = np.frombuffer(b"To be. Or not to be? That is. " * 6, dtype=np.uint8)
    names = np.array(["HAMLET", "GHOST", "CLAUDIUS"])
    hospitals = [f"{'nsw'[i % 3]},{i},{'fm'[i % 2]},{i % 5 // 2}" for i in range(30)]
    (folder / "table.csv").write_text("\n".join(["hospital,age,sex,y", *hospitals]))
    save_encoder(folder / "encoder")
    save_texts(folder / "texts.parquet")
    np.savez(folder / "text.npz", text=text, client=np.arange(180) // 60, client_names=names)
    return folder


def overrides_for(option: str, files: Path) -> list[str]:
    """What composes the option, with data or a backbone that fit it."""
    group, name = option.rsplit("/", 1)
    overrides = [f"{'+' if group in ('experiment', 'privacy') else ''}{group}={name}"]
    if group in ("algorithm", "backbone") and name in FITTING:
        overrides.append(f"dataset={FITTING[name]}")
    if group == "algorithm" and name in NEED_A_BODY:
        overrides.append("backbone=mlp")
    if name == "transformer":
        overrides += [f"backbone.body.pretrained_model_name_or_path={files}/encoder", "dataset.text=words"]
    if name == "timm":
        overrides += ["backbone.body.model_name=resnet10t", "backbone.body.pretrained=false"]
    if name in ("mobilenet_v2", "resnet18"):  # three components: experiment/cifar10
        overrides.append("algorithm=fedavg")
    if name in ("floral_mnist", "floral_cifar10"):  # four groups, and three clients
        overrides.append("dataset.n_groups=2")
    if name == "three_approaches_emnist":  # 20 clients a round
        overrides.append("algorithm.participation=1.0")
    if name == "shakespeare" and group == "dataset":
        overrides.append("backbone=lstm")
    return overrides


@pytest.mark.parametrize("option", OPTIONS)
def test_option_is_composed(option: str, files: Path) -> None:
    """Every class of it is there and takes its keys."""
    config, _ = composed_small(files, *overrides_for(option, files))
    check_configuration(config)


RUN = [name if name in BY_DEFAULT else pytest.param(name, marks=pytest.mark.slow) for name in OPTIONS]


@pytest.mark.parametrize("option", RUN)
def test_option_runs(option: str, tmp_path: Path, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    group, name = option.rsplit("/", 1)
    results = run_small(tmp_path / "run", files, *overrides_for(option, files))
    assert results["rounds"] == 2
    score = "loss" if results["dataset"] == "density" else "accuracy"
    assert 0 <= results["test"][score]["weighted"] <= (1 if score == "accuracy" else 10)
    figure3 = ["wireless", "reliable", "balanced"]
    networks = {"none": [], "figure3": figure3}.get(name, [name])
    timed = figure3 if option.startswith("experiment/user_centric") else []
    assert list(results["communication"]["time"]) == (networks if group == "network" else timed)
    if group in ("algorithm", "adaptation", "dataset", "backbone"):
        assert results[group] == {"npz": "arrays"}.get(name, name)  # a file of one's own has its name


def test_fidelity_picks_the_settings() -> None:
    paper, reference = (composed("+experiment=femnist", f"fidelity={name}") for name in ("paper", "reference"))
    assert (paper.backbone._target_, reference.backbone._target_) == (
        "fedem_lightning.CNN",
        "fedem_lightning.ReferenceCNN",
    )
    assert (paper.algorithm.client_optimizer.lr, reference.algorithm.client_optimizer.lr) == (0.1, 0.03)
    schedules = paper.algorithm.client_optimizer.schedule, reference.algorithm.client_optimizer.schedule
    assert schedules == ("constant", "multistep")


def test_an_experiment_names_its_command() -> None:
    for path in (CONFIG_DIR / "experiment").glob("*.yaml"):
        first = path.read_text().splitlines()
        assert first[0] == "# @package _global_"
        assert any(f"+experiment={path.stem}" in line and "python -m fedem_lightning" in line for line in first[:8])


def test_one_client_is_a_federation_too(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "one.npz", x=rng.normal(size=(20, 3)), y=np.arange(20) % 2, client=np.zeros(20, int))
    results = run_small(tmp_path / "run", tmp_path, "dataset=npz", f"dataset.path={tmp_path}/one.npz")
    assert results["n_clients"] == 1
