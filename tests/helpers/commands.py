"""The command line as a user calls it, in a process of its own or in this one."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from fedem_lightning.run.cli import main
from fedem_lightning.settings import keys

CONFIG_DIR = keys.CONFIG_DIR
"""Whoever imports it from here has the command line's resolvers, too, without which nothing can be composed."""
TINY = [
    "dataset.n_clients=8",
    "dataset.dimension=6",
    "dataset.test_size=30",
    "trainer.max_epochs=4",
    "trainer.check_val_every_n_epoch=2",
]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


def environment(place: Path) -> dict[str, str]:
    """For a process that also imports modules of the folder `place`."""
    path = os.pathsep.join(filter(None, (str(place), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"}


def composed(*words: str) -> DictConfig:
    with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
        return compose("config", list(words))


def start(folder: Path, *arguments: str, module: str = "fedem_lightning", **environment: str) -> subprocess.Popen[str]:
    """Starts `python -m fedem_lightning ...` in `folder`."""
    command = [sys.executable, "-W", "error::UserWarning:fedem_lightning", "-m", module, *arguments]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "HYDRA_FULL_ERROR": "0", **environment}
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    return subprocess.Popen(command, cwd=folder, env=variables, text=True, **pipes)


def finish(process: subprocess.Popen[str], timeout: float = 200) -> tuple[int, str, str]:
    """Its exit code, and what it printed to stdout and to stderr."""
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err


def call(folder: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str, **environment: str) -> int:
    """The exit code of the command line, called in this process, which spares the seconds that a new one needs."""
    monkeypatch.chdir(folder)
    for name, value in {"HYDRA_FULL_ERROR": "0", **environment}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["fedem-lightning", *arguments])
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0
