"""What is loaded before anything is run, what --help says, and what Ctrl-C does meanwhile."""

import ast
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import fedem_lightning.module.algorithm
from fedem_lightning.settings.keys import choices
from fedem_lightning.settings.startup import is_worker_rank
from helpers.commands import TINY, call
from helpers.paths import ROOT
from helpers.processes import runs

HEAVY = ["torch", "pytorch_lightning", "torchmetrics", "torchvision", "numpy", "pandas", "matplotlib", "scipy"]
HEAVY += ["sklearn", "networkx", "pyarrow", "PIL", "wandb", "pydantic"]
SHOW_LOADED = """
import json, runpy, sys
module, *sys.argv[1:] = sys.argv[1:]
try:
    runpy.run_module(module, run_name="__main__", alter_sys=True)
except SystemExit:
    pass
print(json.dumps(sorted(sys.modules)))
"""
LIBRARIES = ["torch", "pytorch_lightning", "torchmetrics", "torchvision", "numpy", "pandas", "scipy", "sklearn"]
QUICK = {
    "import": ["fedem_lightning.settings.startup"],
    "help": ["fedem_lightning", "--help"],
    "version": ["fedem_lightning", "--version"],
    "completion": ["fedem_lightning", "-sc", "query=bash"],
    "configuration": ["fedem_lightning", "algorithm=fedavg", "--cfg", "job"],
    "info": ["fedem_lightning", "--info", "defaults"],
    "misspelt choice": ["fedem_lightning", "algorithm=fedagv"],
    "misspelt part": ["fedem_lightning", "trainr.max_epochs=3"],
    "report": ["fedem_lightning.report", "--help"],
    "data": ["fedem_lightning.data", "--help"],
}


@pytest.mark.parametrize("name", QUICK)
def test_what_is_answered_at_once_loads_nothing_that_takes_seconds(name: str, tmp_path: Path) -> None:
    environment = {**os.environ, "COMP_LINE": "fedem-lightning trainer.max"}
    command = [sys.executable, "-c", SHOW_LOADED, *QUICK[name]]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stdout.splitlines()[-1])
    assert "fedem_lightning" in loaded
    assert [module for module in HEAVY if module in loaded] == []


WRONG = {
    "misspelt key": ["fedem_lightning", "algoritm=fedem"],
    "misspelt choice": ["fedem_lightning", "algorithm=fedme"],
    "misspelt rate": ["fedem_lightning", "learning_rates.fedm=1"],
    "no text": ["fedem_lightning", "algorithm.n_components=three"],
    "in a sweep": ["fedem_lightning", "-m", "algorithm.n_components=three,four"],
    "tuning": ["fedem_lightning", "-m", "+tune=learning_rate", "algoritm=fedem"],
    "Trainer": ["fedem_lightning", "trainer.max_epochs=x"],
    "no such option of the Trainer": ["fedem_lightning", "+trainer.max_epoch=3"],
    "the run's own": ["fedem_lightning", "scores=x"],
    "range": ["fedem_lightning", "faults=dropout", "faults.share=2"],
    "added key": ["fedem_lightning", "+algorithm.momentm=0.9"],
    "compare, key": ["fedem_lightning.compare", "+experiment=digits", "algoritm=fedem"],
    "compare, value": ["fedem_lightning.compare", "+experiment=digits", "trainer.max_epochs=x"],
    "compare, method": ["fedem_lightning.compare", "+experiment=digits", "--methods", "fedme"],
    "data": ["fedem_lightning.data", "download", "mnist", "data_dr=x"],
    "report": ["fedem_lightning.report", "--ou", "x"],
    **{name: [f"fedem_lightning.{name}", "--ot", "x"] for name in ("personalize", "predict", "evaluate", "export")},
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_refused_before_pytorch_is_loaded(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SHOW_LOADED, *WRONG[name]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.stderr.splitlines()[-1].startswith("error: ")
    assert len(done.stderr.splitlines()) == 1 or name == "in a sweep"  # a line for each job
    loaded = json.loads(done.stdout.splitlines()[-1])
    assert [module for module in LIBRARIES if module in loaded] == []
    assert list(tmp_path.iterdir()) == []


def test_a_report_loads_no_pytorch(tmp_path: Path) -> None:
    """PyTorch and Lightning take longer to load than a small report takes to draw."""
    command = [sys.executable, "-c", SHOW_LOADED, "fedem_lightning.report", "nowhere"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert {"pandas", "fedem_lightning.report.command"} <= loaded
    assert {"torch", "pytorch_lightning", "torchmetrics", "torchvision"}.isdisjoint(loaded)


@pytest.mark.parametrize("package", ["fedem_lightning", "fedem_lightning.data", "fedem_lightning.report"])
def test_a_lazy_package_has_what_its_stub_says(package: str) -> None:
    module = import_module(package)
    stub = ast.parse(Path(str(module.__file__)).with_suffix(".pyi").read_text()).body
    assert sorted(ast.literal_eval(next(n.value for n in stub if isinstance(n, ast.Assign)))) == module.__all__
    assert all(getattr(module, name) is not None for name in module.__all__)
    with pytest.raises(AttributeError, match="NoSuchName"):
        _ = module.NoSuchName


def test_help_says_how_to_use_this_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for option in ("--help", "-h"):
        assert call(tmp_path, monkeypatch, "algorithm=fedavg", option) == 0
        said = capsys.readouterr().out
        assert said.startswith("Personalised federated learning")
        words = set(said.replace(",", " ").split())
        for group, names in choices().items():
            assert group in words or f"+{group}" in words
            assert set(names) <= words
        assert not {"base", "algorithm_base", "fedem_protocol"} & words
        assert "algorithm [fedem]" in said
        assert said.count("  python -m fedem_lightning") >= 10
        assert str(ROOT / "docs") in said
        assert max(len(line) for line in said.splitlines() if "Documentation" not in line) <= 120


def test_the_examples_of_the_help_compose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call(tmp_path, monkeypatch, "--help")
    examples = [line.strip() for line in capsys.readouterr().out.splitlines() if line.startswith("  python -m")]
    for example in examples:
        words = example.partition("  ")[0].split()[2:]
        if words[0] == "fedem_lightning" and "-m" not in words:
            arguments = [word for word in words[1:] if word not in ("--cfg", "job")]
            assert call(tmp_path, monkeypatch, *arguments, "--cfg", "job") == 0, example
            assert "_target_: pytorch_lightning.Trainer" in capsys.readouterr().out


def test_our_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(tmp_path, monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"fedem-lightning {fedem_lightning.__version__}\n"


@pytest.mark.parametrize(("typed", "hidden"), [("algorithm=", "base"), ("", "_protocol"), ("+", "_protocol")])
def test_completion_offers_choices_only(
    typed: str, hidden: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = {"COMP_LINE": f"fedem-lightning {typed}"}
    assert call(tmp_path, monkeypatch, "-sc", "query=bash", **line) == 0
    offered = capsys.readouterr().out
    assert ("algorithm=fedem" if typed == "algorithm=" else "experiment=") in offered
    assert hidden not in offered


INTERRUPTED = """
import os, runpy, signal, sys
module, number, at, *sys.argv[1:] = sys.argv[1:]
signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever this process inherited, as under nohup

class Interrupt:
    def find_spec(name, path=None, target=None):
        if name == at:
            os.kill(os.getpid(), int(number))

sys.meta_path.insert(0, Interrupt)
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    ("module", "number", "at"),
    [
        ("fedem_lightning", signal.SIGTERM, "omegaconf._impl"),  # while Hydra composes
        ("fedem_lightning", signal.SIGINT, "torch"),
        ("fedem_lightning.report", signal.SIGINT, "pandas"),
    ],
)
def test_a_stop_before_the_run_ends_in_one_line(module: str, number: int, at: str, tmp_path: Path) -> None:
    arguments = [str(tmp_path)] if module.endswith("report") else []
    command = [sys.executable, "-c", INTERRUPTED, module, str(int(number)), at, *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (1, "stopped\n")
    assert list(tmp_path.iterdir()) == []


ORPHAN = """
import os, subprocess, sys, time
child = "from fedem_lightning.settings.startup import end_with_the_first as e; e(); print(1, flush=True)"
child += "; import time; time.sleep(600)"
process = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE)
process.stdout.readline()
print(process.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the system does not say there that a parent has ended")
def test_a_process_ends_with_the_one_that_started_it() -> None:
    with subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        child = int(first.stdout.readline())
        assert runs(child)
        first.kill()
    deadline = time.monotonic() + 60
    while runs(child):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("variables", "another"),
    [
        ({}, False),
        ({"LOCAL_RANK": "1"}, True),
        ({"SLURM_PROCID": "3"}, True),
    ],
)
def test_which_process_is_the_first(variables: dict[str, str], another: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert is_worker_rank() == another


def test_a_run_under_salloc_waits_for_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = {"SLURM_JOB_ID": "17", "SLURM_JOB_NAME": "mine", "SLURM_NTASKS": "4", "SLURM_NNODES": "2"}
    assert call(tmp_path, monkeypatch, *TINY, "run_dir=run", "trainer.accelerator=cpu", **slurm) == 0


def test_one_run_for_several_processes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second of two processes of torchrun, without trainer.devices=2: both would write the same files."""
    monkeypatch.setattr("fedem_lightning.run.execute._PATIENCE", 0)
    for name in ("TORCHELASTIC_RUN_ID", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK"):
        monkeypatch.setenv(name, {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2", "GROUP_RANK": "0"}.get(name, "1"))
    assert call(tmp_path, monkeypatch, *TINY, "run_dir=run", "trainer.accelerator=cpu") == 2


AT_ONCE = """
import sys
from hydra.experimental.callback import Callback


class Mine(Callback):
    def on_run_start(self, config, **options):
        print("found, before PyTorch is loaded:", "torch" not in sys.modules)
        sys.exit(3)
"""


def test_the_console_script_finds_modules_in_the_working_directory(tmp_path: Path) -> None:
    """Such a module ends the command before packages are loaded that take seconds."""
    module, _, function = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"][
        "fedem-lightning"
    ].partition(":")
    script = tmp_path / "bin" / "fedem-lightning"
    script.parent.mkdir()
    script.write_text(f"import sys\nfrom {module} import {function}\nsys.exit({function}())\n")
    work = tmp_path / "work"
    work.mkdir()
    (work / "mine.py").write_text(AT_ONCE)
    command = [sys.executable, str(script), *TINY, "+hydra.callbacks.mine._target_=mine.Mine", "run_dir=run"]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stdout, done.stderr) == (3, "found, before PyTorch is loaded: True\n", "")
