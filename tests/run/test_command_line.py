"""Mistakes on the command line that are found before a run's folder is made."""

import os
from pathlib import Path

import pytest

from fedem_lightning.run.command_line import check_command_line
from fedem_lightning.settings.shipped import choices
from helpers.commands import CONFIG_DIR, call

OWN = "choices of your own need --config-dir"
ALGORITHMS = f"no such choice; there are {', '.join(choices(CONFIG_DIR)['algorithm'])}; {OWN}"
NEEDED = "it cannot be removed, the run needs it"
NO_CHOICE = f"no such choice; there are default; {OWN}"
OPTIONS = "options stand before all KEY=VALUE, or after them; see --help"
KEY = "expected KEY=VALUE, +KEY=VALUE or ~KEY"
DIGITS = 5000 * "9"
INTERPOLATION = "dataset.dimension=${nope}"
MISTAKES = {
    # what a run needs
    "~algorithm": f"algorithm: {NEEDED}",
    "~algorithm=fedem": f"algorithm: {NEEDED}",
    "~seed": f"seed: {NEEDED}",
    "-m seed=0,1 ~trainer.max_epochs": f"trainer.max_epochs: {NEEDED}",
    "~run_dir": f"run_dir: {NEEDED}",
    "~dataset._target_": f"dataset._target_: {NEEDED}",
    # choices
    "trainer=null": f"trainer=null: {NO_CHOICE}",
    "+trainer=1": f"trainer=1: {NO_CHOICE}",
    "algorithm=": f"algorithm=: {ALGORITHMS}",
    "algorithm=nosuch": f"algorithm=nosuch: {ALGORITHMS}",
    "--config-dir own method=null": f"method=null: no such choice; there are mine; {OWN}",
    # several values without -m
    "algorithm=fedem,fedavg": "algorithm: several values need -m, which makes a run of each: -m algorithm=fedem,fedavg",
    "seed=0,1": "seed: several values need -m, which makes a run of each: -m seed=0,1 (a list is seed=[0,1])",
    "seed=range(0,3)": "seed: several values need -m, which makes a run of each: -m seed=range(0,3)\n",
    # folders
    "run_dir=": "run_dir: expected the name of a folder, got an empty one",
    "-m seed=0,1 run_dir=": "run_dir: expected the name of a folder, got an empty one",
    "run_dir=a_file": "run_dir: {place}/a_file is a file, expected a folder",
    "-m seed=0,1 run_dir=a_file/b/c": "run_dir: {place}/a_file is a file, expected a folder",
    "run_dir=a/b/" + 300 * "c": "run_dir: cannot make the folder {place}/a/b/" + 300 * "c" + " (File name too long)",
    # what cannot be read
    "--versoin": "--versoin: no such option; did you mean --version?",
    "--config-dri=own": "--config-dri=own: no such option; did you mean --config-dir?",
    "--quiet": "--quiet: no such option; see --help",
    "seed=1 -m algorithm=fedavg,fedem": f"-m: {OPTIONS}",
    # what another target takes
    "backbone._target_=fedem_lightning.MLP backbone.hidden=[3]": "backbone.hidden: the configuration does not list it, "
    "so add it: +backbone.hidden=[3]",
    "backbone._target_=fedem_lightning.MLP backbone.hidd=[3]": "backbone.hidd: no such key; ",
    "--cfg jobs": "argument --cfg/-c: invalid choice: 'jobs' (choose from 'job', 'hydra', 'all')",
    "fedavg": f"fedavg: {KEY}",
    "=3": f"=3: {KEY}",
    "~=3": f"~=3: {KEY}",
    "@=3": f"@=3: {KEY}",
    "hydra=null": f"hydra=null: {KEY}",
    "seed=" + 1500 * "[": "seed=" + 400 * "[",  # cut in the middle
    f"seed={DIGITS}": "seed=999",
    os.fsdecode(b"data_dir=a\xff"): "data_dir=a?: it has bytes that are no text (UTF-8)",
    "-m seed=range(1,2,0)": "seed=range(1,2,0): the step of a range is not 0",
    # what Hydra alone would answer with the name of an error
    "--resolve": "--resolve: Hydra cannot use this (The --resolve flag can only be used in conjunction with --cfg",
    "--cfg job --package nope": "--package nope: the configuration has no such key",
    "-cd wrong -cn main": "--config-name: it lacks adaptation; begin the file with defaults: [config]",
    "-cd wrong algorithm=number": "wrong/algorithm/number.yaml: expected a file of keys with values (",
    "hydra.verbose=3": "hydra.verbose=3: Hydra cannot use this (",
    "hydra.output_subdir=/proc/nothing": "/proc/nothing: the system refuses it (No such file or directory)",
    "hydra.job.env_copy=[A]": "hydra.job.env_copy=[A]: Hydra cannot use this (KeyError 'A')",
    "-m seed=0,1 hydra.sweeper.max_batch_size=0": "-m, hydra.sweeper.max_batch_size=0: Hydra cannot use this (",
    INTERPOLATION: f"{INTERPOLATION}: Interpolation key 'nope' not found",
    "ckpt_path=" + 300 * "x": 300 * "x" + ": the system refuses it (File name too long)",
    "dataset.n_clients=[1": "dataset.n_clients=[1: Hydra cannot read this (",
}


@pytest.mark.parametrize("typed", MISTAKES)
def test_a_mistake_is_one_line_and_leaves_no_folder(
    typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a_file").touch()
    (tmp_path / "own" / "method").mkdir(parents=True)
    (tmp_path / "own" / "method" / "mine.yaml").touch()
    (tmp_path / "wrong" / "algorithm").mkdir(parents=True)
    (tmp_path / "wrong" / "algorithm" / "number.yaml").write_text("3\n")
    (tmp_path / "wrong" / "main.yaml").write_text("seed: 1\n")
    assert call(tmp_path, monkeypatch, *typed.split()) == 2
    expected = MISTAKES[typed] if typed == INTERPOLATION else MISTAKES[typed].format(place=tmp_path)
    err = capfd.readouterr().err
    assert err.startswith(f"error: {expected}")
    assert err.count("\n") == 1
    assert len(err) < 1100
    assert sorted(os.listdir(tmp_path)) == ["a_file", "own", "wrong"]


def test_hydras_mode_sweeps_without_the_option() -> None:
    """A file may set the mode, too, so only Hydra knows."""
    check_command_line(["hydra.mode=MULTIRUN", "seed=0,1"], CONFIG_DIR)


@pytest.mark.parametrize("typed", ["~callbacks.progress", "~network", "trainer={max_epochs: 3}", "run_dir=null"])
def test_what_is_no_mistake(typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The configuration is composed, and no run begins."""
    assert call(tmp_path, monkeypatch, typed, "--cfg", "job") == 0
