"""What is loaded before anything is run, what --help says, and what Ctrl-C does meanwhile."""

import ast
import json
import os
import signal
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import fedem_lightning.algorithms
from fedem_lightning.settings.shipped import choices
from fedem_lightning.startup.process import PARENT, loading
from helpers.commands import CONFIG_DIR, TINY, call
from helpers.paths import ROOT

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
QUICK = {
    "import": ["fedem_lightning.startup.process"],
    "help": ["fedem_lightning", "--help"],
    "version": ["fedem_lightning", "--version"],
    "completion": ["fedem_lightning", "-sc", "query=bash"],
    "configuration": ["fedem_lightning", "algorithm=fedavg", "--cfg", "job"],
    "info": ["fedem_lightning", "--info", "defaults"],
    "misspelt choice": ["fedem_lightning", "algorithm=fedagv"],
    "misspelt part": ["fedem_lightning", "trainr.max_epochs=3"],
    "report": ["fedem_lightning.report", "--help"],
    "report without a folder": ["fedem_lightning.report"],
    "data": ["fedem_lightning.data", "list"],
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
    with pytest.raises(AttributeError, match="FedSGD"):
        _ = module.FedSGD


def test_the_package_exports_every_algorithm() -> None:
    assert set(fedem_lightning.algorithms.__all__) <= set(fedem_lightning.__all__)


def test_help_says_how_to_use_this_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for option in ("--help", "-h"):
        assert call(tmp_path, monkeypatch, "algorithm=fedavg", option) == 0
        said = capsys.readouterr().out
        assert said.startswith("Personalised federated learning")
        words = set(said.replace(",", " ").split())
        for group, names in choices(CONFIG_DIR).items():
            assert group in words or f"+{group}" in words
            assert set(names) <= words
        assert not {"base", "algorithm_base", "protocol", "fedem_protocol"} & words
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


def test_hydras_help_and_our_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(tmp_path, monkeypatch, "--hydra-help") == 0
    assert "See https://hydra.cc" in capsys.readouterr().out
    assert call(tmp_path, monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"fedem-lightning {fedem_lightning.__version__}\n"


@pytest.mark.parametrize(("typed", "hidden"), [("algorithm=", "base"), ("", "protocol"), ("+", "protocol")])
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
    ("module", "number", "at", "rank"),
    [
        ("fedem_lightning", signal.SIGINT, "hydra", 0),
        ("fedem_lightning", signal.SIGTERM, "hydra", 1),
        ("fedem_lightning", signal.SIGINT, "omegaconf._impl", 0),  # while Hydra composes
        ("fedem_lightning", signal.SIGTERM, "omegaconf._impl", 0),
        ("fedem_lightning", signal.SIGINT, "omegaconf._impl", 1),
        ("fedem_lightning", signal.SIGINT, "torch", 0),
        ("fedem_lightning", signal.SIGTERM, "torch", 0),
        ("fedem_lightning.report", signal.SIGINT, "pandas", 0),
        ("fedem_lightning.data", signal.SIGINT, "hydra", 0),
    ],
)
def test_a_stop_before_the_run_ends_in_one_line(module: str, number: int, at: str, rank: int, tmp_path: Path) -> None:
    """Another process of the run leaves it to the first one to say so, and fails, so that the first one hears of it."""
    arguments = {"fedem_lightning.report": [str(tmp_path)], "fedem_lightning.data": ["list"]}.get(module, [])
    command = [sys.executable, "-c", INTERRUPTED, module, str(int(number)), at, *arguments]
    environment = {**os.environ, "LOCAL_RANK": str(rank), PARENT: str(os.getpid())}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)
    when = "the configuration was composed" if at == "omegaconf._impl" else "Python packages were loading"
    expected = (1, "" if rank else f"stopped while {when}; nothing has been done\n")
    assert (done.returncode, done.stderr) == expected
    assert list(tmp_path.iterdir()) == []


def test_signals_are_ignored_once_the_command_has_done_its_work(tmp_path: Path) -> None:
    """PyTorch takes seconds to be left; the exit code is that of the work."""
    code = """
import atexit, os, runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
atexit.register(lambda: [os.kill(os.getpid(), number) for number in (signal.SIGINT, signal.SIGTERM)])
runpy.run_module("fedem_lightning", run_name="__main__", alter_sys=True)
"""
    for arguments, expected in ((["--cfg", "job"], 0), (["algorithm=fedagv"], 2)):
        command = [sys.executable, "-c", code, *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
        assert done.returncode == expected, done.stderr
        assert done.stderr.count("\n") == (1 if expected else 0)


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_a_signal_counts_where_a_package_catches_everything(number: str) -> None:
    code = f"""
import os, signal
from fedem_lightning.startup.process import clean_up_at_a_stop, loading
signal.signal(signal.SIGINT, signal.default_int_handler)
clean_up_at_a_stop(lambda: print("cleaned"))
with loading():
    try:
        os.kill(os.getpid(), signal.{number})
    except BaseException:
        pass
print("went on")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (1, "cleaned\n")
    assert done.stderr == "stopped while Python packages were loading; nothing has been done\n"


def test_ctrl_c_is_as_before_once_packages_are_loaded() -> None:
    inherited = signal.getsignal(signal.SIGINT)
    try:
        for handler, ours in ((signal.default_int_handler, True), (signal.SIG_IGN, False)):  # the latter under nohup
            signal.signal(signal.SIGINT, handler)
            with loading():
                assert (signal.getsignal(signal.SIGINT) is not handler) == ours
            assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, inherited)


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


def test_a_warning_is_one_line_after_lightning_has_loaded() -> None:
    """Lightning puts a format of its own in place of the command's."""
    code = """
import warnings
from fedem_lightning.run.commands import one_line_for_mistakes
from fedem_lightning.startup.process import PARENT
from fedem_lightning.startup.process import loading
with one_line_for_mistakes():
    with loading():
        from fedem_lightning.serving import predicting
    warnings.warn_explicit("of a column", UserWarning, predicting.__file__, 1)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr == "warning: of a column\n"
