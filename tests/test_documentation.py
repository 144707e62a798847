"""Python blocks, commands and examples of the documentation run, on less data and for fewer rounds.

README's run by default, the others with `-m slow`. A command that cannot run here is composed or parsed, or stands in
ELSEWHERE with the reason; one that nobody thought of fails. Other files follow whole pages: test_tutorial.py,
test_own_project.py and serving/test_page.py.
"""

import ast
import contextlib
import csv
import itertools
import re
import runpy
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import pytorch_lightning as pl
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

import fedem_lightning
import fedem_lightning.report
from fedem_lightning import FederatedDataModule, SyntheticMixture
from fedem_lightning.comparison.command import parser as options_of_compare
from fedem_lightning.data.__main__ import _parser as parser_of_data
from fedem_lightning.report.__main__ import parser as options_of_report
from fedem_lightning.run import cli
from fedem_lightning.settings.keys import choices
from helpers import runs
from helpers.commands import CONFIG_DIR
from helpers.encoders import minilm, save_encoder

ROOT = Path(__file__).parents[1]
pytestmark = [
    pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="docs/ is only in a checkout"),
    pytest.mark.filterwarnings("ignore::UserWarning"),  # few clients, short runs, a Trainer's own loggers
]

OWN_PROJECT = "docs/adding_an_algorithm.md"
FOLLOWED = {"docs/tutorial.md", "docs/serving.md", OWN_PROJECT}
DOCUMENTS = [p for p in ("README.md", "CONTRIBUTING.md") if (ROOT / p).is_file()]
DOCUMENTS += sorted({path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")} - FOLLOWED)
STARTS = re.compile(
    r"(\.venv/bin/)?(python3?|pip|pytest|pre-commit|fedem-lightning|mkdocs|nox)\s|(make|srun|git clone) |\S+\.sh "
)
SMALL = runs.SMALL["synthetic"]
SHORT = ["trainer.max_epochs=1", "trainer.check_val_every_n_epoch=1", "trainer.accelerator=cpu", "trainer.devices=1"]
PLACEHOLDERS = {
    "experiment=NAME": "experiment=recovery",
    "KEY=GRID": "algorithm.local_epochs=1",
    "NAME": "fedavg",
    "ALGORITHM": "fedavg",
    "GRID": "0.1",
    "SEEDS": "0",
}
ELSEWHERE = {  # the beginning of a command: why it is not run
    "python3 -m venv": "the environment that this runs in",
    ".venv/bin/pip install": "the environment that this runs in; its extras are checked",
    "pip install": "the same",
    "python -m pytest": "this",
    ".venv/bin/pytest": "this",
    "pytest -m slow": "this",
    ".venv/bin/pre-commit install": "writes into .git",
    ".ci/run": "runs this",
    "python main.py": "PFLlib's",
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
    fence, first, lines = None, 0, (ROOT / document).read_text().splitlines()
    body: list[str] = []
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
            number = match.string.count("\n", 0, match.start()) + 1
            yield from (Found(document, number, "bash", part) for part in separate(command))


def separate(line: str) -> list[str]:
    """The commands of a line, without its comment."""
    words = shlex.split(line, comments=True)
    parts = " ".join(shlex.quote(word) if word != "&&" else word for word in words).split(" && ")
    return [part for part in parts if part]


def parameters(found: list[Found]) -> list[Any]:
    """Those of README run by default."""
    default = ("README.md",)
    names = [f"{one}: {one.text}" if one.language == "bash" else str(one) for one in found]
    marks = [() if one.document in default else (pytest.mark.slow,) for one in found]
    return [pytest.param(one, id=name, marks=mark) for one, name, mark in zip(found, names, marks, strict=True)]


ALL_BLOCKS = [block for document in DOCUMENTS for block in blocks(document)]
PYTHON = [block for block in ALL_BLOCKS if block.language == "python"]
COMMANDS = list({found.text: found for document in reversed(DOCUMENTS) for found in commands(document)}.values())


def test_choices_that_are_named_exist() -> None:
    """`+experiment=recovery`, `algorithm=fedem,local` and the like, wherever they stand."""
    groups = "algorithm|adaptation|backbone|dataset|engine|experiment|logger|network"
    missing = []
    for document in DOCUMENTS:
        for group, names in re.findall(rf"[`+ ]({groups})=([a-z][\w,]*)", (ROOT / document).read_text()):
            own = {"my_ditto", "robust", "sensors", "fedagv"}  # the reader's, and a mistake
            known = {*choices()[group]} | own
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


@pytest.mark.parametrize("files", [["methods/costs.csv"], ["methods/scores.csv", "lab_notes/field.csv"]])
def test_every_method_has_a_row(files: list[str]) -> None:
    rows = [row for file in files for row in csv.DictReader((ROOT / "docs" / file).read_text().splitlines())]
    assert {row["method"] for row in rows} >= {p.stem for p in (CONFIG_DIR / "algorithm").glob("*.yaml")}
    pages = [ROOT / "docs" / row.get("page", "").partition("#")[0] for row in rows]
    assert [page for page in pages if not page.exists()] == []


# Python


def run_block(block: Found) -> None:
    """Executes a block; one that imports nothing of this package goes on from the text above it."""
    names: dict[str, Any] = {"__name__": "__main__"}
    if "import fedem_lightning" not in block.text and "from fedem_lightning" not in block.text:
        rng, client = np.random.default_rng(0), np.arange(24) % 4
        x = rng.integers(256, size=(24, 32, 32, 3)).astype(np.uint8)
        names |= {name: getattr(fedem_lightning, name) for name in fedem_lightning.__all__}
        names["data"] = FederatedDataModule.from_arrays(x, client // 2, client)
    exec(compile(without_network(block.text), str(block), "exec"), names)


def without_network(text: str) -> str:
    """A block with local copies of the data set and the encoder that it would download, and untrained weights."""
    text = re.sub(r"weights=\"\w+\"", "weights=None", text)
    if '"dair-ai/emotion"' not in text:
        return text
    save_encoder(Path("encoder"))
    words = {"text": ["very good", "not good", "bad"] * 40, "label": [0, 1, 2] * 40}
    pytest.importorskip("datasets").Dataset.from_dict(words).save_to_disk("emotion")
    text = text.replace("sentence-transformers/all-MiniLM-L6-v2", "./encoder")
    return text.replace("dair-ai/emotion", "./emotion")


@pytest.mark.parametrize("block", parameters(PYTHON))
def test_python_runs(block: Found, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With Trainers of one round and few clients."""
    monkeypatch.chdir(tmp_path)
    quick = {"max_epochs": 1, "accelerator": "cpu", "enable_progress_bar": False}
    few = {"n_clients": 6, "dimension": 5, "test_size": 20}
    for module, kind, fewer in ((pl, pl.Trainer, quick), (fedem_lightning, SyntheticMixture, few)):
        monkeypatch.setattr(module, kind.__name__, lambda kind=kind, fewer=fewer, **given: kind(**{**given, **fewer}))
    run_block(block)


@pytest.mark.slow
def test_the_program_of_the_readme_prints_what_stands_below_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    of_readme = [block for block in ALL_BLOCKS if block.document == "README.md"]
    for block, below in itertools.pairwise(of_readme):
        if (block.language, below.language) == ("python", "text"):
            run_block(block)
            assert set(below.text.splitlines()) <= set(capsys.readouterr().out.splitlines())


# Commands


def call(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    """The command line in this process, without rendering: half of a short run's time."""
    monkeypatch.setattr(sys, "argv", ["fedem-lightning", *arguments])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    with contextlib.suppress(SystemExit) if "--help" in arguments else contextlib.nullcontext():
        cli.main()


def write_own(block: Found, group: str, name: str, folder: Path) -> None:
    """The files conf/GROUP/NAME.yaml and NAME.py that a document describes."""
    of_document = [b for b in ALL_BLOCKS if b.document == block.document]
    (folder / "conf" / group).mkdir(parents=True, exist_ok=True)
    settings = next(b.text for b in of_document if b.language == "yaml" and f"{name}." in b.text)
    (folder / "conf" / group / f"{name}.yaml").write_text(settings)
    found = re.search(rf"\b{name}\.(\w+)", settings)
    assert found is not None
    code = next(b.text for b in of_document if re.search(rf"(class|def) {found[1]}\b", b.text))
    defined = ast.Import | ast.ImportFrom | ast.ClassDef | ast.FunctionDef
    parts: list[ast.stmt] = [n for n in ast.parse(code).body if isinstance(n, defined)]
    (folder / f"{name}.py").write_text(ast.unparse(ast.Module(parts, [])))


def check_composed(arguments: list[str]) -> None:
    """Every job of a run or a sweep can be composed and resolved, without what chooses a launcher: a plugin."""
    words = [a.partition("=") for a in arguments if a not in ("-m", "--multirun") and not a.startswith("hydra")]
    sweep = {key: [given] if re.search(r"[\[{(\"']", given) else given.split(",") for key, _, given in words}
    for job in range(max(map(len, sweep.values()), default=1)):
        with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
            config = compose("config", [f"{key}={given[job % len(given)]}" for key, given in sweep.items()])
        OmegaConf.to_container(config, resolve=True)


def run_ours(command: Found, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """README's run, and one with files of the page, on little data; others are composed: test_configs.py runs them."""
    for placeholder, value in PLACEHOLDERS.items():
        arguments = [re.sub(rf"\b{placeholder}\b", value, a) for a in arguments]
    own = next((a for a in arguments if re.match("(algorithm|dataset)=", a)), "")
    shown = {"--help", "--version", "--cfg"} & set(arguments)
    if "--config-dir" in arguments:
        group, _, name = own.partition("=")
        write_own(command, group, name, tmp_path)
        monkeypatch.syspath_prepend(tmp_path)
    elif command.document != "README.md" and not shown:
        return check_composed(arguments)
    short = [] if shown else SHORT if own.startswith("dataset=") else [*SMALL, *SHORT]
    return call(monkeypatch, [*arguments, *short])


def check_options(script: Path, options: list[str]) -> None:
    """A benchmark takes hours or a GPU: its file is there, and knows the options."""
    text = "".join(path.read_text() for path in ([script] if script.suffix == ".py" else script.glob("*.py")))
    text += (ROOT / "benchmarks" / "common.py").read_text()
    for option in (word for word in options if word.startswith("--")):
        assert re.search(rf"{option}\b", text), option


def check_extras(words: list[str]) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for word in words:
        own = re.findall(r"(?:fedem-lightning|\.)\[([\w,]+)\]", word)  # not another package's
        assert all(extra in extras for found in own for extra in found.split(",")), word


@pytest.mark.parametrize("command", parameters(COMMANDS))
def test_a_command_runs(command: Found, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = re.sub(r"^(\.venv/bin/|srun )(?=python -m fedem|fedem-lightning)", "", command.text)
    words = shlex.split(text.replace("$SLURM_SUBMIT_DIR", str(tmp_path)))
    if any(text.startswith(beginning) for beginning in ELSEWHERE):
        return check_extras(words)
    match words:
        case ["python", "-m", "fedem_lightning", *arguments] | ["fedem-lightning", *arguments]:
            return run_ours(command, arguments, tmp_path, monkeypatch)
        case ["python", "-m", "fedem_lightning.report", *arguments]:
            options_of_report().parse_args(arguments)
            return None
        case ["python", "-m", "fedem_lightning.compare", *arguments]:
            options_of_compare().parse_known_args(arguments)  # tests/comparison runs it
            return None
        case ["python", "-m", "fedem_lightning.data", *arguments]:
            parser_of_data().parse_args(arguments)
            return None
        case ["python", script, *options] if script.startswith("benchmarks"):
            return check_options(ROOT / script, options)
        case ["python", script, *_] if script.startswith("examples/"):
            assert (ROOT / script).is_file()  # run below
            return None
        case ["make", *targets]:
            assert set(targets) <= set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
            return None
    raise AssertionError(f"{command}: nothing here says how to check: {command.text}")


# Examples


def run_example(name: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    script = ROOT / "examples" / f"{name}.py"
    monkeypatch.setattr(sys, "argv", [str(script), *arguments])
    runpy.run_path(str(script), run_name="__main__")


def test_the_example_of_a_method_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_example("new_algorithm", ["--clients", "5", "--rounds", "2"], monkeypatch)
    out = capsys.readouterr().out
    assert all(text in out for text in ("FedAvg  mean", "MyDitto mean"))
    assert list(tmp_path.iterdir()) == []


def test_the_example_of_many_clients_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run_example("million_clients", ["--clients", "60", "--rounds", "3"], monkeypatch)
    assert "test accuracy of 30 new clients: " in capsys.readouterr().out


@pytest.mark.slow
def test_the_example_of_hospitals_runs(
    data_folder: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = data_folder("heart_hospitals/data.parquet")
    run_example("hospitals", [str(table), "--rounds", "2", "--seeds", "0", "--rates", "0.1"], monkeypatch)
    assert "| method | cleveland | hungarian | switzerland | va | all |" in capsys.readouterr().out


@pytest.mark.slow
def test_the_example_of_annotators_runs(
    data_folder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    minilm()
    rows = pd.read_parquet(data_folder("politeness_raters/data.parquet"))
    few = rows[rows["client"].isin(sorted(rows["client"].unique())[:10])].groupby("client").head(40)
    few.to_parquet(tmp_path / "few.parquet")
    short = ["--rounds", "2", "--seeds", "0", "--rates", "1", "--out", str(tmp_path / "run")]
    run_example("annotators", [str(tmp_path / "few.parquet"), *short], monkeypatch)
    out = capsys.readouterr().out
    assert all(f"| {name} | " in out for name in ("FedEM", "FedAvg", "FedAvg+", "Local"))
    assert re.search(r"a new rater with \d+ ratings has a model after", out)
    assert (tmp_path / "run" / "results.json").is_file()


def test_the_examples_ditto_is_the_documents() -> None:
    document = next(b.text for b in blocks(OWN_PROJECT) if "class MyDitto" in b.text)
    example = (ROOT / "examples" / "new_algorithm.py").read_text()
    for node in ast.parse(document).body:
        if isinstance(node, ast.ClassDef):
            assert (ast.get_source_segment(document, node) or "-") in example
