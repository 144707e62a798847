"""Breaks the package in one place at a time and says whether the tests notice.

    python tests/mutants/run.py [--only SUBSTRING] [--all-tests] [--jobs N] [--logs FOLDER] [--unchecked] [FILE]

The mistakes are the rows of mutants.toml. For each one a copy of the package gets that mistake, and pytest runs the
row's tests on the copy; the mutant is killed if one of them fails. Exit code 0: all are killed.
"""

import argparse
import ast
import compileall
import contextlib
import functools
import importlib
import importlib.util
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import tomllib
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
SOURCE = ROOT / "src" / "fedem_lightning"
CATALOGUE = Path(__file__).with_name("mutants.toml")
TIMEOUT = 300
"""Seconds after which a mutant's tests are ended; it then counts as one that survived."""
ALL_TIMEOUT = 3600
"""Of all tests together, on the package without a mistake."""

PRELOADED = """
    numpy pandas pyarrow.parquet pyarrow.csv scipy.optimize scipy.special scipy.sparse.csgraph scipy.io networkx
    sklearn.cluster sklearn.decomposition sklearn.metrics sklearn.datasets PIL.Image
    matplotlib.pyplot matplotlib.figure rich.console rich.progress rich.table
    torch torch.func torch.distributed torchvision.models torchmetrics pytorch_lightning pytorch_lightning.loggers
    pytorch_lightning.strategies hydra hydra.utils omegaconf pytest
"""
"""What every test needs except the package itself: imported once, before the children are forked."""


@dataclass(frozen=True)
class Mutant:
    """One mistake.

    Args:
        file: below src/fedem_lightning.
        old: a piece of one of its lines, which is there once.
        new: what stands there instead.
        tests: that must fail, as "file.py::beginning of the test's name" or "file.py".
        wrong: what is wrong with the mutant.
        within: the function or class in which `old` is there once, where the file has it several times.

    """

    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    wrong: str
    within: str = ""

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.file}: {self.wrong}"

    def found(self) -> int:
        """How often `old` is where it is looked for; it should be 1."""
        text, (first, last) = _read(SOURCE / self.file), self._span()
        return text[first:last].count(self.old)

    def text(self) -> str:
        """The file with the mistake."""
        text, (first, last) = _read(SOURCE / self.file), self._span()
        return text[:first] + text[first:last].replace(self.old, self.new) + text[last:]

    def _span(self) -> tuple[int, int]:
        """Where to look: characters from, to."""
        text = _read(SOURCE / self.file)
        if not self.within:
            return 0, len(text)
        lines, kinds = text.splitlines(keepends=True), (ast.FunctionDef, ast.ClassDef)
        nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds) and node.name == self.within]
        if len(nodes) != 1:
            return 0, 0
        first, last = nodes[0].lineno - 1, nodes[0].end_lineno
        return sum(map(len, lines[:first])), sum(map(len, lines[:last]))


def load(path: Path = CATALOGUE) -> list[Mutant]:
    """The rows of a catalogue; none where there is no such file."""
    rows = tomllib.loads(path.read_text())["mutant"] if path.exists() else []
    return [Mutant(**{**row, "tests": tuple(row["tests"])}) for row in rows]


@functools.cache
def _read(path: Path) -> str:
    return path.read_text()


@functools.cache
def _files() -> dict[str, Path]:
    """The package's tests by the name of their file, which is there once; without those of the catalogue."""
    return {path.name: path for path in sorted(TESTS.rglob("test_*.py")) if path.parent != CATALOGUE.parent}


@functools.cache
def _tests_in(path: Path) -> list[str]:
    """Names of a file's tests."""
    tree = ast.parse(_read(path))
    functions = (node.name for node in tree.body if isinstance(node, ast.FunctionDef))
    return [name for name in functions if name.startswith("test_")]


def named_tests(test: str) -> list[str]:
    """The tests that a row means, as pytest takes them; none if there is no such test."""
    file, _, name = test.partition("::")
    path = _files().get(file)
    if path is None:
        return []
    found = [known for known in _tests_in(path) if known.startswith(name.partition("[")[0])]
    if "[" in name:
        return [f"{path}::{name}"] if found else []
    return [f"{path}::{n}" for n in found] if name else [str(path)] * bool(found)


def all_named(tests: Iterable[str]) -> list[str]:
    """The same for several, each test once."""
    return list(dict.fromkeys(found for test in tests for found in named_tests(test)))


class Copy:
    """A copy of the package in which one file at a time is another."""

    def __init__(self, folder: Path) -> None:
        self.source = folder / "src"
        shutil.copytree(SOURCE, self.source / "fedem_lightning", ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "configs").symlink_to(ROOT / "configs")  # where CONFIG_DIR looks for them
        compileall.compile_dir(self.source, quiet=2)
        self._changed: str | None = None

    def become(self, mutant: Mutant | None) -> None:
        """Takes the last mistake back and makes this one."""
        if self._changed is not None:
            self._write(self._changed, (SOURCE / self._changed).read_text())
        self._changed = None if mutant is None else mutant.file
        if mutant is not None:
            self._write(mutant.file, mutant.text())

    def _write(self, file: str, text: str) -> None:
        path = self.source / "fedem_lightning" / file
        path.write_text(text)
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)  # dates alone may not tell them apart


@dataclass
class Outcome:
    """What became of a mutant."""

    status: str  # killed, survived, broken (it cannot be imported, or no test ran), timeout
    seconds: float


class Child:
    """A forked process in which pytest runs on a copy of the package."""

    def __init__(self, copy: Copy, tests: list[str], log: Path, unbroken: bool = False) -> None:
        self.copy, self.start = copy, time.monotonic()
        self.timeout = ALL_TIMEOUT if unbroken else TIMEOUT
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            code = 99
            try:
                code = _run_pytest(copy.source, tests, log, stop_at_first=not unbroken)
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(code)

    def outcome(self) -> Outcome | None:
        """None while it runs."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        seconds = time.monotonic() - self.start
        if pid == 0:
            if seconds < self.timeout:
                return None
            self.kill()
            return Outcome("timeout", seconds)
        kinds = {0: "survived", 1: "killed"}
        return Outcome(kinds.get(os.waitstatus_to_exitcode(status), "broken"), seconds)

    def kill(self) -> None:
        """Ends it, and what its tests have started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def _run_pytest(source: Path, tests: list[str], log: Path, stop_at_first: bool) -> int:
    """In the child: pytest's exit code, or 98 if another copy of the package was tested."""
    os.setsid()
    assert tests, "pytest would run all there are"
    for number in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(source))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(source), os.environ.get("PYTHONPATH")]))
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    import pytest

    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # none is needed, and looking for them takes a second
    kept = "" if all("::" in test for test in tests) else "not slow"  # a test that is named runs, though it be slow
    options = ["-o", "addopts=", "-m", kept, "-p", "no:cacheprovider", "-q", "--tb=short", "--rootdir", str(ROOT)]
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        code = int(pytest.main([*options, *["-x"] * stop_at_first, "--basetemp", f"{folder}/pytest", *tests]))
    sys.stdout.flush()
    package = sys.modules.get("fedem_lightning")
    if package is None or code > 1:
        return code or 5
    from fedem_lightning.settings.shipped import CONFIG_DIR

    tested = Path(str(package.__file__)).is_relative_to(source) and (CONFIG_DIR / "config.yaml").is_file()
    return code if tested else 98


def run(
    mutants: list[Mutant], folder: Path, jobs: int, all_tests: bool, logs: Path
) -> Iterator[tuple[Mutant, Outcome]]:
    """What becomes of each mutant, in the order in which they end."""
    free = [Copy(folder / str(job)) for job in range(jobs)]
    waiting, working = list(enumerate(mutants)), list[tuple[Mutant, Child]]()
    try:
        while waiting or working:
            while waiting and free:
                number, mutant = waiting.pop(0)
                copy = free.pop()
                copy.become(mutant)
                working.append((mutant, Child(copy, tests_of([mutant], all_tests), logs / f"{number:03d}.log")))
            time.sleep(0.02)
            for mutant, child in working.copy():
                if (outcome := child.outcome()) is not None:
                    working.remove((mutant, child))
                    free.append(child.copy)
                    yield mutant, outcome
    finally:
        for _, child in working:
            child.kill()


def tests_of(mutants: list[Mutant], all_tests: bool) -> list[str]:
    """What pytest is to run."""
    if all_tests:
        return [str(path) for path in _files().values()]
    return all_named(test for mutant in mutants for test in mutant.tests)


def check_unbroken(tests: list[str], folder: Path, logs: Path) -> None:
    """Ends the program unless all these tests pass on a copy without any mistake."""
    child = Child(Copy(folder / "unbroken"), tests, log := logs / "unbroken.log", unbroken=True)
    while (outcome := child.outcome()) is None:
        time.sleep(0.02)
    print(f"{len(tests)} tests on the package as it is: {outcome.seconds:.0f} s", flush=True)
    if outcome.status != "survived":
        sys.exit(f"{log.read_text()[-4000:]}\nsome of the named tests fail without any mistake in the package")


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Breaks the package in one place at a time and runs its tests.")
    parser.add_argument("--only", default="", help="mutants with this text in their file or description")
    parser.add_argument("--all-tests", action="store_true", help="run the whole default suite on each mutant")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--logs", type=Path, help="a folder for pytest's output; also writes outcomes.json into it")
    parser.add_argument("--unchecked", action="store_true", help="do not run the tests on the unbroken package first")
    parser.add_argument("catalogue", nargs="?", type=Path, default=CATALOGUE, help="default: mutants.toml")
    options = parser.parse_args()
    mutants = [mutant for mutant in load(options.catalogue) if options.only in mutant.name]
    if not mutants:
        parser.error(f"--only: no mutant has {options.only!r} in its file or description")
    for name in PRELOADED.split():
        importlib.import_module(name)
    outcomes: list[tuple[Mutant, Outcome]] = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        logs = options.logs or Path(folder)
        logs.mkdir(parents=True, exist_ok=True)
        for old in logs.glob("*.log"):
            old.unlink()
        if not options.unchecked:
            check_unbroken(tests_of(mutants, options.all_tests), Path(folder), logs)
        for mutant, outcome in run(mutants, Path(folder), options.jobs, options.all_tests, logs):
            outcomes.append((mutant, outcome))
            print(f"{outcome.status:9}{outcome.seconds:6.1f} s  {mutant.name}", flush=True)
        if options.logs is not None:
            (logs / "outcomes.json").write_text(json.dumps([_plain(*pair) for pair in outcomes], indent=1))
    lost = [(mutant, outcome) for mutant, outcome in outcomes if outcome.status != "killed"]
    seconds = sum(outcome.seconds for _, outcome in outcomes)
    print(f"\n{len(outcomes)} mutants, {len(outcomes) - len(lost)} killed, {len(lost)} not, {seconds:.0f} s")
    for mutant, outcome in lost:
        print(f"{outcome.status}: {mutant.name}\n  - {mutant.old}\n  + {mutant.new}")
        print(f"  tests: {', '.join(mutant.tests)}")
    return 1 if lost else 0


def _plain(mutant: Mutant, outcome: Outcome) -> dict[str, Any]:
    return {"mutant": mutant.name, "status": outcome.status, "seconds": round(outcome.seconds, 1)}


if __name__ == "__main__":
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"  # before they are imported: a process with several threads should not be forked
    sys.exit(main())
