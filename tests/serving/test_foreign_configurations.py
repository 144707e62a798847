"""The configuration of a run from elsewhere: no command resolves it with this machine's environment, or hangs."""

import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from fedem_lightning import UserError
from fedem_lightning.evaluate import main as evaluate
from fedem_lightning.export import main as export
from fedem_lightning.run.run_folder import check_run_folder
from helpers.serving import refused

SECRET = "hf-12345"


@pytest.fixture
def foreign(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a finished run, on a machine with a secret in its environment."""
    monkeypatch.setenv("S", SECRET)
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(place / "fedem", tmp_path / "run")


def rewrite(run: Path, key: str, value: str) -> None:
    """Gives a key of the configuration's first part of that name another value."""
    path = run / ".hydra" / "config.yaml"
    text, n = re.subn(rf"^(  {key}:).*$", lambda found: f"{found[1]} {value}", path.read_text(), count=1, flags=re.M)
    assert n == 1
    path.write_text(text)


@pytest.mark.parametrize("value", ["${oc.env:S}", "'a ${oc.env:S}'", "${first:null,${oc.env:S}}"])
def test_a_card_has_no_value_of_the_environment(value: str, foreign: Path) -> None:
    rewrite(foreign, "warmup_rounds", value)
    export(["run", "--client", "clinic 1", "--format", "safetensors", "--out", "out"])
    card = (foreign.parent / "out" / "README.md").read_text()
    assert SECRET not in card
    assert "oc.env" not in card
    assert "| `algorithm.n_components` | 3 |" in card


def test_a_card_does_not_wait_for_a_small_file_that_grows(foreign: Path) -> None:
    lines = ["a0: &a0 [x, x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12))]
    with (foreign / ".hydra" / "config.yaml").open("a") as file:
        file.write("\n".join(["", *lines, ""]))
    start = time.perf_counter()
    export(["run", "--client", "clinic 1", "--format", "safetensors", "--out", "out"])
    assert time.perf_counter() - start < 10


@pytest.mark.parametrize("value", ["${oc.env:S}", "a${oc.env:S}", "${oc.decode:${oc.env:S}}", "${oc.env:NOT_THERE}"])
def test_an_evaluation_names_the_key_that_asks_the_environment(
    value: str, foreign: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewrite(foreign, "unseen_fraction", value)
    line = refused(evaluate, capsys, "run")
    assert "dataset.unseen_fraction is ${oc.env:S}" in line or f"dataset.unseen_fraction is {value}" in line
    assert SECRET not in line


def test_a_run_that_differs_is_refused_without_the_value_of_a_variable(foreign: Path) -> None:
    config: Any = OmegaConf.load(foreign / ".hydra" / "config.yaml")
    rewrite(foreign, "unseen_fraction", "${oc.env:S}")
    config.ckpt_path = "auto"
    with pytest.raises(UserError, match=r"dataset.unseen_fraction: the run in .* had \$\{oc.env:S\}, now it is 0.25"):
        check_run_folder(foreign, config)
