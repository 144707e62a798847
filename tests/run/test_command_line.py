"""Mistakes on the command line that are found before a run's folder is made."""

import os
from pathlib import Path

import pytest

from fedem_lightning.run.usage import choices
from helpers.commands import CONFIG_DIR, call

OWN = "choices of your own need --config-dir"
ALGORITHMS = f"no such choice; there are {', '.join(choices(CONFIG_DIR)['algorithm'])}; {OWN}"
NEEDED = "it cannot be removed, the run needs it"
NO_CHOICE = f"no such choice; there are default; {OWN}"
OPTIONS = "options such as -m stand before all KEY=VALUE, or after them"
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
    # folders
    "run_dir=": "run_dir: expected the name of a folder, got an empty one",
    "-m seed=0,1 run_dir=": "run_dir: expected the name of a folder, got an empty one",
    "run_dir=a_file": "run_dir: {place}/a_file is a file, expected a folder",
    "-m seed=0,1 run_dir=a_file/b/c": "run_dir: {place}/a_file is a file, expected a folder",
    "run_dir=a/b/" + 300 * "c": "run_dir: cannot make the folder {place}/a/b/" + 300 * "c" + " (File name too long)",
    # what cannot be read
    "--versoin": "--versoin: no such option; did you mean --version?",
    "--config-dri=own": "--config-dri: no such option; did you mean --config-dir?",
    "--quiet": "--quiet: no such option; see --help",
    "seed=1 -m algorithm=fedavg,fedem": f"algorithm=fedavg,fedem: {OPTIONS}",
    "--cfg jobs": "argument --cfg/-c: invalid choice: 'jobs' (choose from 'job', 'hydra', 'all')",
    "fedavg": "fedavg: expected KEY=VALUE, +KEY=VALUE or ~KEY",
    "dataset.n_clients=[1": "dataset.n_clients=[1: Hydra cannot read this; close brackets and quotes, and put special "
    "characters in quotes (https://hydra.cc/docs/1.3/advanced/override_grammar/basic)",
}


@pytest.mark.parametrize("typed", MISTAKES)
def test_a_mistake_is_one_line_and_leaves_no_folder(
    typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a_file").touch()
    (tmp_path / "own" / "method").mkdir(parents=True)
    (tmp_path / "own" / "method" / "mine.yaml").touch()
    assert call(tmp_path, monkeypatch, *typed.split()) == 2
    assert capfd.readouterr().err == f"error: {MISTAKES[typed].format(place=tmp_path)}\n"
    assert sorted(os.listdir(tmp_path)) == ["a_file", "own"]


@pytest.mark.parametrize("typed", ["~callbacks.progress", "~network", "trainer={max_epochs: 3}", "run_dir=null"])
def test_what_is_no_mistake(typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The configuration is composed, and no run begins."""
    assert call(tmp_path, monkeypatch, typed, "--cfg", "job") == 0
