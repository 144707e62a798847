"""Folders of runs: made up, or left by small real ones; and what is in them."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf, open_dict

from fedem_lightning.run.execute import run
from helpers.commands import CONFIG_DIR


def sums(value: float | None) -> dict[str, float | None]:
    """One value for all clients, in fractions; the other sums follow it at a distance."""
    away = {"weighted": 0.0, "pooled": 0.01, "mean": 0.02, "bottom_decile": -0.1, "worst": -0.2}
    return {name: None if value is None else value + distance for name, distance in away.items()}


def make_run(
    folder: Path,
    test: float | None = 0.7,
    algorithm: str = "fedavg",
    seed: int = 0,
    dataset: str = "synthetic",
    measure: str = "accuracy",
    megabytes: float = 4.0,
    pi: list[list[float]] | None = None,
    config: dict[str, Any] | None = None,
    times: dict[str, float] | None = None,
    **more: Any,
) -> Path:
    """A run's folder as docs/results.md describes it: 2 clients, 4 rounds evaluated every second one."""
    (folder / ".hydra").mkdir(parents=True)
    tree: dict[str, Any] = {
        "seed": seed,
        "data_dir": "/somewhere",
        "run_dir": str(folder),
        "algorithm": {"participation": 1.0, "client_optimizer": {"lr": 0.1}},
        "dataset": {"unseen_fraction": 0.0, "seed": "${seed}"},
        "trainer": {"max_epochs": 4, "devices": 1},
    }
    for key, value in (config or {}).items():
        branch, leaf = tree, key.split(".")
        for part in leaf[:-1]:
            branch = branch.setdefault(part, {})
        branch[leaf[-1]] = value
    OmegaConf.save(OmegaConf.create(tree), folder / ".hydra" / "config.yaml")
    scores = {measure: sums(test), "loss": sums(1.0)}
    results = {
        "algorithm": algorithm,
        "dataset": dataset,
        "backbone": "linear",
        "seed": seed,
        "rounds": 4,
        "n_clients": 2,
        "train": {measure: sums(0.9), "loss": sums(0.5)},
        "test": scores,
        "unseen": None,
        "recovery": {},
        "seconds": {"per_round": 0.5},
        "communication": {"up_bytes": megabytes * 5e5, "down_bytes": megabytes * 5e5},
        "environment": {"date": "2025-01-01T00:00:00+00:00"},
        **more,
    }
    (folder / "results.json").write_text(json.dumps(results))
    first = 0.5 if test is None else test - 0.1
    curve: dict[str, Any] = {
        f"test/{measure}": [None, first, None, test],
        f"test/{measure}_bottom_decile": [None, 0.3, None, 0.4],
    }
    half = megabytes / 2 * np.arange(1, 5) / 4
    if times is not None:  # of the whole run, by network
        curve |= {f"time_{name}": total * np.arange(1, 5) / 4 for name, total in times.items()}
        curve |= {"air_megabytes": half}
    pd.DataFrame({"round": [1, 2, 3, 4], "up_megabytes": half, "down_megabytes": half, **curve}).to_csv(
        folder / "metrics.csv", index=False
    )
    clients = pd.DataFrame({"id": ["a", "b"], "population": "seen", f"test_{measure}": [0.6, 0.8]})
    if pi is not None:
        clients[[f"pi_{m}" for m in range(len(pi[0]))]] = pi
    clients.to_parquet(folder / "clients.parquet", index=False)
    return folder


SMALL = {  # what makes each data set small
    "synthetic": ["dataset.n_clients=4", "dataset.dimension=5", "dataset.test_size=9"],
    "density": ["dataset.n_clients=6", "dataset.n_samples=20", "dataset.test_size=30"],
    "digits": ["dataset.n_clients=5"],
    "npz": ["dataset.path={files}/arrays.npz"],
    "torch": ["dataset.data._target_=helpers.federations.torch_clients"],
    "hub": ["dataset.path={files}/texts.parquet", "dataset.label=y", "dataset.client=user"],
    "folder": ["dataset.path={files}/shops"],
    "pfllib": ["dataset.path={files}/pfllib"],
    "table": ["dataset.path={files}/table.csv", "dataset.label=y", "dataset.client=hospital"],
    "femnist": ["dataset.path={files}/images.npz", "dataset.n_clients=3"],
    **{
        name: [
            f"dataset.path={{files}}/{file}.npz",
            "dataset.n_clients=3",
            "dataset.min_samples=5",
            "dataset.sample_fraction=1.0",
        ]
        for name, file in {"emnist": "images", "mnist": "images", "cifar10": "colour", "cifar100": "colour"}.items()
    },
    "shakespeare": [
        "dataset.path={files}/text.npz",
        "dataset.n_clients=null",
        "dataset.window=9",
        "dataset.stride=9",
    ],
}


def composed_small(files: Path, *overrides: str) -> tuple[DictConfig, dict[str, str]]:
    """Composes as the command line does, for two rounds of a small data set; with the choices by group."""
    rounds = ["trainer.max_epochs=2", "trainer.check_val_every_n_epoch=1", "trainer.accelerator=cpu"]
    with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
        config = compose("config", [*overrides, *rounds], return_hydra_config=True)
    chosen = config.hydra.runtime.choices
    choices = {group: str(chosen[group]) for group in ("algorithm", "adaptation", "dataset", "backbone")}
    small = [argument.format(files=files) for argument in SMALL[choices["dataset"]]]
    if re.search("(covariate|concept)_shift|dial_", str(overrides)) and "shift" in config.dataset:
        small.append("dataset.n_groups=3")  # of as many clients
    given = {override.split("=")[0] for override in overrides}
    with open_dict(config):
        del config.hydra
    # not composed anew with these: that would take as long again
    config.merge_with_dotlist([argument for argument in small if argument.split("=")[0] not in given])
    return config, choices


def run_small(folder: Path, files: Path, *overrides: str) -> dict[str, Any]:
    config, choices = composed_small(files, *overrides)
    return run(config, folder, choices, [])


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def figures(folder: Path) -> dict[str, Any]:
    """What is in results.json and does not depend on the machine, or on how often the run was begun."""
    results = json.loads((folder / "results.json").read_text())
    return {k: v for k, v in results.items() if k not in ("seconds", "environment", "peak_memory_bytes", "command")}
