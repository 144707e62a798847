"""Every Python block, every command and every example of the documentation runs, on less data and for fewer rounds.

A command that cannot run here is composed or parsed, or stands in ELSEWHERE with the reason. One that nobody thought of
fails. docs/adding_an_algorithm.md, which is a project of its own, is followed in test_own_project.py.
"""

import ast
import contextlib
import csv
import importlib
import itertools
import os
import re
import runpy
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import pytorch_lightning as pl
import torchvision
import yaml
from hydra import compose, initialize_config_dir
from matplotlib.figure import Figure
from omegaconf import DictConfig, OmegaConf

import fedem_lightning
import fedem_lightning.data
import fedem_lightning.report
from fedem_lightning import FederatedDataModule, SyntheticMixture
from fedem_lightning.data.__main__ import main as data_command
from fedem_lightning.export import main as export_command
from fedem_lightning.report.__main__ import main as report_command
from fedem_lightning.run import cli
from fedem_lightning.serving import exporting
from helpers import runs
from helpers.encoders import minilm, save_encoder

ROOT = Path(__file__).parents[1]
pytestmark = [
    pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="docs/ is only in a checkout"),
    pytest.mark.filterwarnings("ignore::UserWarning"),  # few clients, short runs, a Trainer's own loggers
]

OWN_PROJECT = "docs/adding_an_algorithm.md"
FOLLOWED = {"docs/tutorial.md", "docs/serving.md"}  # from top to bottom, in test_tutorial.py and serving/test_page.py
DOCUMENTS = [p for p in ("README.md", "CONTRIBUTING.md") if (ROOT / p).is_file()]
DOCUMENTS += sorted({path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")} - FOLLOWED)
LANGUAGES = {"", "bash", "csv", "python", "text", "toml", "yaml"}
STARTS = re.compile(
    r"(\.venv/bin/)?(python3?|pip|pytest|pre-commit|fedem-lightning|mkdocs|nox)\s|(make|srun|git clone) |\S+\.sh "
)

GENERATED = ("synthetic", "population", "density", "digits")
SMALL = {name: runs.SMALL[name] for name in GENERATED} | {"npz": [], "table": []}
"""What shortens a run, by data set; one that is not here needs files, and is only composed."""
SHORT = ["trainer.max_epochs=1", "trainer.check_val_every_n_epoch=1", "trainer.accelerator=cpu", "trainer.devices=1"]
PLACEHOLDERS = {
    "experiment=NAME": "experiment=table2",
    "KEY=GRID": "algorithm.local_epochs=1",
    "NAME": "fedavg",
    "ALGORITHM": "fedavg",
    "GRID": "0.1",
    "SEEDS": "0",
}
ELSEWHERE = {  # the beginning of a command: why it is not run
    "python3 -m venv": "the environment that this runs in",
    ".venv/bin/pip install": "the environment that this runs in; its extras are checked",
    "pip install hydra-": "a launcher of Hydra's, which few need",
    "python -m pytest": "this",
    ".venv/bin/pytest": "this",
    "pytest -m slow": "takes hours",
    ".venv/bin/pre-commit install": "writes into .git",
    ".ci/run": "runs this",
    "git clone ": "the clone that this runs in",
    "cd fedem-lightning": "the clone that this runs in",
}


class Found(NamedTuple):
    """A block of code, or the words of a command, and where it stands."""

    document: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


def blocks(document: str) -> Iterator[Found]:
    """The fenced blocks of a document; indented ones are found with the commands."""
    fence, lines = None, (ROOT / document).read_text().splitlines()
    for number, line in enumerate(lines, 1):
        mark = re.match(r"(\s*)```(\S*)\s*$", line)
        if mark and fence is None:
            fence, first, body = mark, number, []
        elif mark and fence is not None and not mark[2]:
            yield Found(document, first, fence[2], "\n".join(row[len(fence[1]) :] for row in body) + "\n")
            fence = None
        elif fence is not None:
            body.append(line)
    assert fence is None, f"{document}: a block is not closed"


def commands(document: str) -> Iterator[Found]:
    """The commands of a document: all in bash blocks, and what looks like one anywhere else."""
    lines = (ROOT / document).read_text().splitlines()
    for block in blocks(document):
        if block.language == "bash":
            for line in re.sub(r"\\\n\s*", "", block.text).splitlines():
                yield from (block._replace(text=part) for part in separate(line))
        end = block.line + block.text.count("\n") + 1
        lines[block.line - 1 : end] = [""] * (end - block.line + 1)
    for match in re.finditer(r"^ +(\S(?:[^\n\\]|\\\n|\\.)*)|`([^`]+)`", "\n".join(lines), re.M):
        command = re.sub(r"\s+", " ", re.sub(r"\\\n\s*", "", match[1] or match[2]))
        if STARTS.match(command + " "):
            line = match.string.count("\n", 0, match.start()) + 1
            yield from (Found(document, line, "bash", part) for part in separate(command))


def separate(line: str) -> list[str]:
    """The commands of a line, without its comment."""
    words = shlex.split(line, comments=True)
    parts = " ".join(shlex.quote(word) if word != "&&" else word for word in words).split(" && ")
    return [part for part in parts if part]


def unique(found: Iterator[Found]) -> list[Found]:
    first: dict[str, Found] = {}
    for one in found:
        first.setdefault(one.text, one)
    return list(first.values())


ALL_BLOCKS = [block for document in DOCUMENTS for block in blocks(document)]
PYTHON = [block for block in ALL_BLOCKS if block.language == "python" and block.document != OWN_PROJECT]
COMMANDS = unique(command for document in DOCUMENTS for command in commands(document))


def test_blocks_are_of_known_languages() -> None:
    assert [f"{block} {block.language}" for block in ALL_BLOCKS if block.language not in LANGUAGES] == []


def test_choices_that_are_named_exist() -> None:
    """`+experiment=table2`, `algorithm=fedem,local` and the like, wherever they stand."""
    groups = (
        "algorithm",
        "adaptation",
        "backbone",
        "callbacks",
        "dataset",
        "engine",
        "experiment",
        "logger",
        "network",
    )
    missing = []
    for document in DOCUMENTS:
        for group, names in re.findall(rf"[`+ ]({groups})=([a-z][\w,]*)", (ROOT / document).read_text()):
            own = {"my_ditto", "robust", "sensors"}  # the reader's
            known = {path.stem for path in (cli.CONFIG_DIR / group).glob("*.yaml")} | own
            missing += [f"{document}: {group}={name}" for name in names.strip(",").split(",") if name not in known]
    assert missing == []


def test_pages_and_files_that_the_code_names_exist() -> None:
    """`docs/lab_notes/tuning.md` in a comment of a configuration, and the like."""
    named = [
        (p, n)
        for d in ("benchmarks", "configs", "examples", "src")
        for p in (ROOT / d).rglob("*")
        if p.is_file()
        for n in re.findall(r"\bdocs/[\w/.-]+\.(?:csv|md|png)\b", p.read_text(errors="ignore"))
    ]
    assert [f"{path.relative_to(ROOT)}: {name}" for path, name in named if not (ROOT / name).is_file()] == []


def test_every_method_has_a_row_of_results() -> None:
    table = (ROOT / "docs" / "reproduction.md").read_text().split("## The score of every method")[1]
    rows = re.findall(r"^\| \[`(\w+)`\]\(methods/\1\.md\) \|", table, re.M)
    assert sorted(rows) == sorted(path.stem for path in (ROOT / "configs" / "algorithm").glob("*.yaml"))


def test_the_tables_of_results_are_the_files() -> None:
    """reproduction/baselines.md and real_data.md show the accuracies of lab_notes/scores.csv."""
    with (ROOT / "docs" / "lab_notes" / "scores.csv").open(newline="") as file:
        scores = {(row["experiment"], row["method"]): row for row in csv.DictReader(file)}
    baselines = [
        "synthetic",
        "concept_shift",
        "label_shift",
        "cifar10_dirichlet01",
        "cifar10_dirichlet05",
        "femnist_mlp",
    ]
    real = ["femnist_lenet", "emnist_lenet", "cifar10_lenet", "cifar100_lenet", "shakespeare_small"]
    pages = {"baselines": [*(f"baselines_{name}" for name in baselines), "femnist_lenet"], "real_data": real}
    for page, experiments in pages.items():
        table = (ROOT / "docs" / "reproduction" / f"{page}.md").read_text().split("\n| method")[1].split("\n\n")[0]
        for row in table.splitlines()[2:]:
            method, *cells = [cell.strip().replace("**", "") for cell in row.strip("|").split("|")]
            for experiment, cell in zip(experiments, cells, strict=True):
                score = scores.get((experiment, method.partition(" (")[0]))
                if cell and not method.startswith("FedEM, the other rate"):
                    assert cell.startswith(f"{score['accuracy']} ± {score['accuracy_sd']}")
                    assert "(" not in cell or cell.endswith(f"({score['paper_accuracy']})")


# Python


def run_block(block: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    """Executes a block; one that imports nothing of this package goes on from the text above it."""
    names: dict[str, Any] = {"__name__": "__main__"}
    if "import fedem_lightning" not in block.text and "from fedem_lightning" not in block.text:
        rng, client = np.random.default_rng(0), np.arange(24) % 4
        x = rng.integers(256, size=(24, 32, 32, 3)).astype(np.uint8)
        names |= {name: getattr(fedem_lightning, name) for name in fedem_lightning.__all__}
        names["data"] = FederatedDataModule.from_arrays(x, client // 2, client)
        for network in ("mobilenet_v2", "resnet18"):  # weights come from the network
            made = getattr(torchvision.models, network)
            monkeypatch.setattr(torchvision.models, network, lambda weights=None, made=made: made())
    if block.document == "docs/gallery.md" and "plot = " not in block.text:
        names["plot"] = shown_plots()
    if found := re.search(r"report.load\(\"([^\"]*)\"\)", block.text):
        for name in ("fedem", "fedavg"):
            runs.make_run(Path(found[1]) / name, 0.7, name)
        if ".sweep(" in block.text:  # which needs a key that runs vary
            runs.make_run(Path(found[1]) / "other", 0.6, "fedem", config={"algorithm.client_optimizer.lr": 0.3})
    exec(compile(without_network(block.text), str(block), "exec"), names)


def without_network(text: str) -> str:
    """A block that reads the Hub, with local copies of its data set and of its encoder."""
    if '"dair-ai/emotion"' not in text:
        return text
    save_encoder(Path("encoder"))
    words = {"text": ["very good", "not good", "bad"] * 40, "label": [0, 1, 2] * 40}
    pytest.importorskip("datasets").Dataset.from_dict(words).save_to_disk("emotion")
    text = text.replace("sentence-transformers/all-MiniLM-L6-v2", "./encoder")
    return text.replace("dair-ai/emotion", "./emotion")


def shown_plots() -> Any:
    """What the gallery draws: a run of each method that it names."""
    for name, pi in (("fedem", [[0.2, 0.8], [0.7, 0.3]]), ("local", None)):
        runs.make_run(Path("runs") / name, 0.7, name, pi=pi)
    return fedem_lightning.report.load("runs").plot


def shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainers of one round, few clients."""
    quick = {"max_epochs": 1, "accelerator": "cpu", "enable_progress_bar": False}
    few = {"n_clients": 6, "dimension": 5, "test_size": 20}
    for module, kind, fewer in ((pl, pl.Trainer, quick), (fedem_lightning, SyntheticMixture, few)):
        monkeypatch.setattr(module, kind.__name__, lambda kind=kind, fewer=fewer, **given: kind(**{**given, **fewer}))


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python_runs(block: Found, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shortened(monkeypatch)
    run_block(block, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python_prints_what_it_says(
    block: Found, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As long as it stands there. `print(...)  # 0.656` promises the number, to the digits given."""
    monkeypatch.chdir(tmp_path)
    run_block(block, monkeypatch)
    printed = capsys.readouterr().out.splitlines()
    for value in re.findall(r"^print\(.*\)  # (-?\d+\.\d+)$", block.text, re.M):
        digits = len(value.partition(".")[2])
        numbers = [line for line in printed if re.fullmatch(r"-?\d+\.\d+(e-?\d+)?", line)]
        assert value in [f"{float(number):.{digits}f}" for number in numbers]
    end = block.line + block.text.count("\n") + 1
    for output in (b for b in ALL_BLOCKS if b.document == block.document == "README.md" and b.language == "text"):
        assert 0 < output.line - end <= 2, "the output of the README's program stands below it"
        assert set(output.text.splitlines()) <= set(printed)


# Commands


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What commands read: small images, tables of samples and of devices, two finished runs."""
    folder, rng = tmp_path_factory.mktemp("files"), np.random.default_rng(0)
    labels = {"y": np.arange(30) % 4, "client": np.arange(30) % 3}
    np.savez(folder / "mine.npz", x=rng.integers(256, size=(30, 28, 28)).astype(np.uint8), **labels)
    np.savez(folder / "cifar10.npz", x=rng.integers(256, size=(30, 32, 32, 3)).astype(np.uint8), **labels)
    for name, document in (("devices", "docs/communication.md"), ("mine", "docs/data.md")):
        text = next(b.text for b in ALL_BLOCKS if b.language == "csv" and b.document == document)
        (folder / f"{name}.csv").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        sweep = ["-m", "algorithm.n_components=1,2", "network=wireless", "run_dir=finished"]
        call(patch, [*sweep, *SMALL["synthetic"], *SHORT])
    return folder


@pytest.fixture
def here(files: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of a command."""
    monkeypatch.chdir(files)
    monkeypatch.setenv("SLURM_SUBMIT_DIR", str(files))
    return files


NUMBERS = itertools.count()


def call(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    """The command line in this process, without rendering and garbage collection: half of a short run's time."""
    shown = {"--help", "--version", "--cfg", "-sc"} & set(arguments)
    if not shown and not any(a.startswith("run_dir=") for a in arguments):
        arguments = [*arguments, f"run_dir=run-{next(NUMBERS)}"]  # two runs may begin within a second
    monkeypatch.setattr(sys, "argv", ["fedem-lightning", *arguments])
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **options: Path(path).touch())
    monkeypatch.setattr(cli.gc, "collect", lambda: 0)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    with contextlib.suppress(SystemExit) if "--help" in arguments else contextlib.nullcontext():
        cli.main()


def values(argument: str) -> tuple[str, list[str]]:
    """The key of an override and the values it sweeps over."""
    key, _, given = argument.partition("=")
    return key, [given] if re.search(r"[\[{(\"']", given) else given.split(",")


def filled_in(arguments: list[str]) -> list[str]:
    for placeholder, value in PLACEHOLDERS.items():
        arguments = [re.sub(rf"\b{placeholder}\b", value, a) for a in arguments]
    return arguments


def composed(overrides: list[str]) -> DictConfig:
    with initialize_config_dir(str(cli.CONFIG_DIR), version_base="1.3"):
        return compose("config", overrides, return_hydra_config=True)


DONE: set[tuple[str, ...]] = set()  # runs and reports that are alike once they are shortened


def swept(arguments: list[str]) -> dict[str, list[str]]:
    """The values of every key, without flags and what chooses a launcher: a plugin."""
    overrides = [a for a in arguments if a not in ("-m", "--multirun") and not a.startswith("hydra")]
    return dict(values(a) for a in overrides)


def checked_config(sweep: dict[str, list[str]], job: int = 0) -> DictConfig:
    """Composes a job with one value of every key, and resolves it."""
    config = composed([f"{key}={given[job % len(given)]}" for key, given in sweep.items()])
    OmegaConf.to_container(OmegaConf.masked_copy(config, [k for k in config if k != "hydra"]), resolve=True)
    return config


def train(folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    """Runs a round on little data. Sweeps, and what needs files, are composed only, with every value."""
    monkeypatch.chdir(folder)
    if {"--help", "--version", "--cfg"} & set(arguments):
        return call(monkeypatch, arguments)
    if "--config-dir" in arguments:
        own_data = any(a.startswith("dataset=") for a in arguments)
        return call(monkeypatch, [*arguments, *([] if own_data else SMALL["synthetic"]), *SHORT])
    sweep = swept(arguments)
    if "-m" in arguments:
        for job in range(max(map(len, sweep.values()))):
            checked_config(sweep, job)
        return None
    dataset = sweep.get("dataset", ["synthetic"])[0]
    if dataset not in SMALL or not {"+experiment", "logger"}.isdisjoint(sweep):
        dataset = checked_config(sweep).hydra.runtime.choices.dataset
    if dataset not in SMALL or "logger" in sweep:  # test_configs.py runs that
        return None
    short = [a for a in [*SMALL[dataset], *SHORT] if a.startswith("trainer.") or a.partition("=")[0] not in sweep]
    kept = [a for a in arguments if a.partition("=")[0] not in {a.partition("=")[0] for a in short}]
    if tuple(kept) not in DONE:
        call(monkeypatch, [*kept, *short])
    return DONE.add(tuple(kept))


def write_own(block: Found, group: str, name: str, folder: Path) -> None:
    """The files conf/GROUP/NAME.yaml and NAME.py that a document describes."""
    of_document = [b for b in ALL_BLOCKS if b.document == block.document]
    (folder / "conf" / group).mkdir(parents=True, exist_ok=True)
    settings = next(b.text for b in of_document if b.language == "yaml" and f"{name}." in b.text)
    (folder / "conf" / group / f"{name}.yaml").write_text(settings)
    kind = re.search(rf"\b{name}\.(\w+)", settings)[1]
    code = next(b.text for b in of_document if b.language == "python" and re.search(rf"(class|def) {kind}\b", b.text))
    defined = ast.Import | ast.ImportFrom | ast.ClassDef | ast.FunctionDef
    parts = [n for n in ast.parse(code).body if isinstance(n, defined)]
    (folder / f"{name}.py").write_text(ast.unparse(ast.Module(parts, [])))


def run_export(files: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    """Exports the models of a finished run; nothing is uploaded."""
    monkeypatch.setattr(exporting, "push", lambda *given: "")
    export_command([str(next((files / "finished").glob("*/checkpoints")).parent), *arguments])


def check_options(words: list[str]) -> None:
    """A benchmark takes hours or a GPU: its file is there, and knows the options."""
    script = ROOT / words[0]
    sources = [script] if script.suffix == ".py" else [*script.parent.glob(f"{script.stem}*"), *script.glob("*.py")]
    text = "".join(path.read_text() for path in sources if path.is_file())
    for option in (word for word in words[1:] if word.startswith("--")):
        assert re.search(rf"{option}\b", text), option


def check_extras(words: list[str]) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for word in words:
        for extra in re.findall(r"\[(\w+)\]", word):
            assert extra in extras, word


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: f"{c}: {c.text}")
def test_a_command_runs(command: Found, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = re.sub(r"^(\.venv/bin/|srun )(?=python -m fedem|python bench|python exam|fedem-lightning)", "", command.text)
    text = text.replace("$SLURM_SUBMIT_DIR", str(here))
    words = shlex.split(text)
    if any(text.startswith(beginning) for beginning in ELSEWHERE):
        return check_extras(words)
    match words:
        case ["python", "-m", "fedem_lightning", "--config-dir", "conf", *_] if command.document == OWN_PROJECT:
            return None  # test_own_project.py
        case ["python", "-m", "fedem_lightning", *arguments] | ["fedem-lightning", *arguments]:
            arguments = filled_in(arguments)
            if command.document.startswith("docs/methods/") and "--config-dir" not in arguments:  # see test_configs.py
                checked_config(swept(arguments))
                return None
            if "--config-dir" in arguments:
                group, _, name = next(a for a in arguments if re.match("(algorithm|dataset)=", a)).partition("=")
                write_own(command, group, name, here)
                monkeypatch.syspath_prepend(here)
            for earlier in re.findall(r"ckpt_path=(\w+)/", text):  # the run that this one goes on from
                first = next(c for c in COMMANDS if c.document == command.document and f"run_dir={earlier}" in c.text)
                train(here, monkeypatch, shlex.split(first.text)[3:])
            arguments = [re.sub(r"round-\d+", "round-000001", a) for a in arguments]
            return train(here, monkeypatch, arguments)
        case ["python", "-m", "fedem_lightning.report", *arguments]:
            arguments = [str(here / "finished") if re.match(r"(DIR|FOLDER)\b|runs/", a) else a for a in arguments]
            again = "--out" in arguments and "--force" not in arguments  # two documents write the same folder
            if (drawn := tuple(sorted({*arguments, "--force"} if again else arguments))) not in DONE:
                report_command([*arguments, *(["--force"] if again else [])])
            return DONE.add(drawn)
        case ["python", "-m", "fedem_lightning.export", _, *arguments]:
            return run_export(here, monkeypatch, arguments)
        case ["python", "-m", "fedem_lightning.data", "convert", name, _, out]:
            return data_command(["convert", name, "mine.npz", out])
        case ["python", "-m", "fedem_lightning.data", "describe", "cifar10", *arguments]:
            monkeypatch.setattr(Figure, "savefig", lambda figure, path, **options: Path(path).touch())
            (here / "cifar10.png").unlink(missing_ok=True)  # two documents draw it; a run draws over no file
            small = ["dataset.path=cifar10.npz", "dataset.n_clients=2", "dataset.min_samples=1"]
            return data_command(["describe", "cifar10", *arguments, *small])
        case ["python", "-m", "fedem_lightning.data", "list" | "describe", *_]:
            return data_command(words[3:])
        case ["python", "-m", "fedem_lightning.data", "download", *_]:
            return data_command([*words[3:], f"data_dir={here}"])  # where it already lies
        case ["python", "-m", "fedem_lightning.data"]:
            return None  # a mention
        case ["python", script, *_] if script.startswith("benchmarks"):
            return check_options(words[1:])
        case ["python", script, *_] if script.startswith("examples/"):
            assert (ROOT / script).is_file()  # run below
            return None
        case ["make", *targets]:
            known = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
            assert set(targets) <= set(known)
            return None
        case ["pip", "install", *packages] if all("fedem-lightning[" in p or p in ("-e", ".[peers]") for p in packages):
            return check_extras(packages)
    raise AssertionError(f"{command}: nothing here says how to check: {command.text}")


SWEEPS = [c for c in COMMANDS if " -m fedem_lightning -m " in c.text and c.document != OWN_PROJECT]


@pytest.mark.slow
@pytest.mark.parametrize("command", SWEEPS, ids=lambda c: f"{c}: {c.text}")
def test_a_sweep_runs(command: Found, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all values, a round each; also those that an experiment sweeps over."""
    sweep = swept(filled_in(shlex.split(command.text)[3:]))
    config = checked_config(sweep)
    dataset = config.hydra.runtime.choices.dataset
    if dataset not in SMALL:
        pytest.skip(f"{dataset} needs a file")
    sweep |= {
        key: str(given).split(",") for key, given in (config.hydra.sweeper.params or {}).items() if key not in sweep
    }
    small = [a for a in SMALL[dataset] if a.partition("=")[0] not in sweep]
    call(monkeypatch, ["-m", *(f"{key}={','.join(given)}" for key, given in sweep.items()), *small, *SHORT])


# Examples


def test_the_example_of_a_method_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = ROOT / "examples" / "new_algorithm.py"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(script), "--clients", "5", "--rounds", "2"])
    runpy.run_path(str(script), run_name="__main__")
    out = capsys.readouterr().out
    assert all(text in out for text in ("FedAvg  mean", "MyDitto mean"))
    assert list(tmp_path.iterdir()) == []


def run_example(name: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    script = ROOT / "examples" / f"{name}.py"
    monkeypatch.setattr(sys, "argv", [str(script), *arguments])
    runpy.run_path(str(script), run_name="__main__")


def table_of(name: str) -> Path:
    """A real table, where it lies beside the checkout."""
    folder = os.environ.get("FEDEM_LIGHTNING_TEST_DATA")
    if folder is None:
        pytest.skip("FEDEM_LIGHTNING_TEST_DATA names no folder with real data")
    return Path(folder) / name / "data.parquet"


def test_the_example_of_hospitals_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    short = ["--rounds", "2", "--seeds", "0", "--rates", "0.1"]
    run_example("hospitals", [str(table_of("heart_hospitals")), *short], monkeypatch)
    assert "| method | cleveland | hungarian | switzerland | va | all |" in capsys.readouterr().out


@pytest.mark.slow
def test_the_example_of_annotators_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    minilm()
    rows = pd.read_parquet(table_of("politeness_raters"))
    few = rows[rows["client"].isin(sorted(rows["client"].unique())[:10])].groupby("client").head(40)
    few.to_parquet(tmp_path / "few.parquet")
    short = ["--rounds", "2", "--seeds", "0", "--rates", "1", "--out", str(tmp_path / "run")]
    run_example("annotators", [str(tmp_path / "few.parquet"), *short], monkeypatch)
    out = capsys.readouterr().out
    assert all(f"| {name} | " in out for name in ("FedEM", "FedAvg", "FedAvg+", "Local"))
    assert re.search(r"a new rater with \d+ ratings: the encoder reads them in", out)
    assert (tmp_path / "run" / "results.json").is_file()


def test_every_example_is_run() -> None:
    found = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))
    assert found == ["annotators", "hospitals", "new_algorithm"]  # others: test_notebooks.py


def test_the_examples_ditto_is_the_documents() -> None:
    document = next(b.text for b in ALL_BLOCKS if b.document == OWN_PROJECT and "class MyDitto" in b.text)
    example = (ROOT / "examples" / "new_algorithm.py").read_text()
    for node in ast.parse(document).body:
        if isinstance(node, ast.ClassDef):
            assert ast.get_source_segment(document, node) in example


# The site


@pytest.fixture
def site_code(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The modules that make and check the site."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    names = ("method_pages", "api_pages", "check_site")
    return SimpleNamespace(**{name: importlib.import_module(name) for name in names})


def test_every_method_is_in_one_family_and_has_a_page(site_code: SimpleNamespace) -> None:
    listed = [name for names in site_code.method_pages.families().values() for name in names]
    assert sorted(listed) == site_code.method_pages.methods()
    assert "Other methods" not in site_code.method_pages.families()
    assert set(listed) <= {path.stem for path in (ROOT / "docs" / "methods").glob("*.md")}


def test_a_methods_page_has_its_settings_scores_cost_and_class(
    site_code: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {
        "RESULTS": "| [`pfedme`](methods/pfedme.md) | [synthetic](reproduction/fedem.md) | 70.0 | 69.2 |\n",
        "SCORES": "experiment,method,accuracy,accuracy_sd\nmine,pFedMe,69.4,1.0\nmine,Local,66.3,1.2\nx,Ditto,1,2\n",
    }.items():
        (tmp_path / name).write_text(text)
        monkeypatch.setattr(site_code.method_pages, name, tmp_path / name)
    page = site_code.method_pages.completed("pfedme", "# pFedMe\n")
    assert "| `inner_steps` | `5` | towards the proximal point, for each batch |" in page
    assert "| `penalty` | `1.0` | lambda (the paper: 15); chosen anew for some data sets; in Python 15.0 |" in page
    assert "| [synthetic](../reproduction/fedem.md) | 70.0 | 69.2 |" in page
    assert "| pFedMe | FedAvg | Local |" in page
    assert "| `mine` | 69.4 ± 1.0 | - | 66.3 ± 1.2 |" in page
    assert "`x`" not in page
    assert "| theta_t | 1 / 1 | one local update |" in page
    assert "::: fedem_lightning.PFedMe" in page
    assert "[`FedAvg`](fedavg.md#in-python)" in site_code.method_pages.completed("fedavg_plus", "")


def test_a_new_method_needs_no_page(
    site_code: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages, configs = site_code.method_pages, tmp_path / "configs"
    shutil.copytree(cli.CONFIG_DIR, configs)
    text = "defaults:\n  - /algorithm_base@_here_\n  - _self_\n\ntitle: Mine\n_target_: fedem_lightning.Ditto\n"
    text = "# Mine (Authors, arXiv 1234.56789): what it does.\n" + text + "penalty: 2.0 # lambda\n"
    (configs / "algorithm" / "mine.yaml").write_text(text)
    known = {path.stem: yaml.safe_load(path.read_text()) for path in (configs / "algorithm").glob("*.yaml")}
    monkeypatch.setattr(pages, "CONFIG_DIR", configs)
    monkeypatch.setattr(pages, "shipped", lambda group: known)
    assert pages.families()["Other methods"] == ["mine"]
    assert "[Mine](mine.md): Mine (Authors, [arXiv 1234.56789]" in pages.with_others("# Methods\n")
    page = pages.completed("mine", pages.new_page("mine"))
    assert page.startswith("# Mine\n")
    assert "| `penalty` | `2.0` | lambda; in Python 0.1 |" in page


def test_every_public_name_is_on_one_page(site_code: SimpleNamespace) -> None:
    pages = site_code.method_pages
    classes = {f"fedem_lightning.{pages.class_of(name)}" for name in pages.methods()}
    texts = [*site_code.api_pages.pages(classes).values(), *map("\n".join, map(pages.class_section, pages.methods()))]
    listed = re.findall(r"^::: (\S+)$", "\n".join(texts), re.M)
    public = {f"fedem_lightning.{name}" for name in fedem_lightning.__all__}
    for package in (fedem_lightning.data, fedem_lightning.report):
        names = {n for n in package.__all__ if getattr(package, n) is not getattr(fedem_lightning, n, None)}
        public |= {f"{package.__name__}.{name}" for name in names}
    assert sorted(listed) == sorted(public)


def test_faults_of_a_built_site_are_found(site_code: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "picture.png").touch()
    fine = '<h1 id="top-of-it">A</h1><img src="picture.png"><a href="b.html#there">b</a><a href="https://x.org/y">x</a>'
    (tmp_path / "a.html").write_text(f"{fine}<pre><code>{'x' * 88}\n</code></pre>")
    (tmp_path / "b.html").write_text('<a id="there"></a><a href="a.html">a</a>')
    assert list(site_code.check_site.faults(tmp_path)) == []
    faulty = '<img src="none.png"><a href="c.html">c</a><a href="a.html#nowhere">a</a><a href="#nor-here">b</a>'
    (tmp_path / "b.html").write_text(f'<a id="there"></a>{faulty}<pre><code>{"x" * 89}\n</code></pre>')
    found = [fault.partition(": ")[2] for fault in site_code.check_site.faults(tmp_path)]
    assert found[:2] == ["none.png: no such file", "c.html: no such file"]
    assert found[2:4] == ["a.html#nowhere: no such anchor", "#nor-here: no such anchor"]
    assert found[4].startswith("89 columns of code: xxx")


# What CI runs

IN_A_CHECKOUT = pytest.mark.skipif(not (ROOT / ".ci").is_dir(), reason=".ci/ is only in a checkout")


@IN_A_CHECKOUT
def test_make_lints_as_ci_does() -> None:
    made = re.findall(r"^\t(.*)", (ROOT / "Makefile").read_text().replace("$(BIN)", ".venv/bin/"), re.M)
    lint = re.search(r"^lint\(\) \{\n(.*?)^\}", (ROOT / ".ci" / "run").read_text(), re.S | re.M)[1]
    for line in lint.splitlines():
        assert line.partition(" #")[0].strip() in [command.replace("$$", "$") for command in made]


@IN_A_CHECKOUT
def test_the_hosted_workflow_makes_every_target() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]["check"]
    steps = [step["run"] for step in workflow["steps"] if "run" in step]
    assert steps[0].startswith("python3 -m venv .venv && .venv/bin/pip install -q -e")
    targets = re.search(r"^\.PHONY: (.*)", (ROOT / "Makefile").read_text(), re.M)[1].split()
    assert sorted(steps[1:]) == sorted(f"make {target}" for target in targets)
    supported = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    versions = workflow["strategy"]["matrix"]["python"]
    assert {f"Programming Language :: Python :: {version}" for version in versions} <= set(supported)
