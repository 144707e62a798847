"""Breaks the package in one place at a time and says whether the tests notice.

    python tests/mutants/run.py [--only SUBSTRING] [--jobs N] [--unchecked]

The mistakes are the rows of mutants.toml. For each one a copy of the package gets that mistake, and pytest runs the
row's tests on the copy; the mutant is killed if one of them fails. Exit code 0: all are killed, but 3 % at most.
"""

import argparse
import ast
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
SOURCE = ROOT / "src" / "fedem_lightning"
CATALOGUE = Path(__file__).with_name("mutants.toml")
TIMEOUT = 300
"""Seconds after which a mutant's tests are ended; it then counts as one that survived."""


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


def outcome(mutant: Mutant | None, tests: list[str], folder: Path) -> tuple[str, str]:
    """What pytest makes of a copy of the package with this mistake (None: without any), and its output.

    Returns:
        "killed", "survived", "timeout", or "broken": it cannot be imported, or no test ran.

    """
    source = folder / "src"
    shutil.copytree(SOURCE, source / "fedem_lightning", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "configs").symlink_to(ROOT / "configs")  # where CONFIG_DIR looks for them
    if mutant is not None:
        (source / "fedem_lightning" / mutant.file).write_text(mutant.text())
    kept = "" if all("::" in test for test in tests) else "not slow"  # a test that is named runs, though it be slow
    options = ["-o", "addopts=", "-m", kept, "-p", "no:cacheprovider", "-q", "--tb=short", "--rootdir", str(ROOT)]
    options += ["--basetemp", str(folder / "pytest"), *["-x"] * (mutant is not None)]
    paths = os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", *options, *tests]
    pipe, both = subprocess.PIPE, subprocess.STDOUT
    process = subprocess.Popen(command, stdout=pipe, stderr=both, text=True, env=environment, process_group=0)
    try:
        said = process.communicate(timeout=TIMEOUT if mutant else None)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return "timeout", ""
    shutil.rmtree(folder)
    return {0: "survived", 1: "killed"}.get(process.returncode, "broken"), said


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Breaks the package in one place at a time and runs its tests.")
    parser.add_argument("--only", default="", help="mutants with this text in their file or description")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--unchecked", action="store_true", help="do not run the tests on the unbroken package first")
    options = parser.parse_args()
    mutants = [mutant for mutant in load() if options.only in mutant.name]
    if not mutants:
        parser.error(f"--only: no mutant has {options.only!r} in its file or description")
    with tempfile.TemporaryDirectory(prefix="mutants-") as name, ThreadPoolExecutor(options.jobs) as pool:
        folder = Path(name)
        if not options.unchecked:
            status, said = outcome(None, all_named(test for m in mutants for test in m.tests), folder / "unbroken")
            if status != "survived":
                sys.exit(f"{said[-4000:]}\nsome of the named tests fail without any mistake in the package")

        def judged(number: int) -> str:
            mutant = mutants[number]
            status, _ = outcome(mutant, all_named(mutant.tests), folder / str(number))
            print(f"{status:9} {mutant.name}", flush=True)
            return status

        found = list(pool.map(judged, range(len(mutants))))
    lost = [(mutant, status) for mutant, status in zip(mutants, found, strict=True) if status != "killed"]
    print(f"\n{len(mutants)} mutants, {len(mutants) - len(lost)} killed, {len(lost)} not")
    for mutant, status in lost:
        print(f"{status}: {mutant.name}\n  - {mutant.old}\n  + {mutant.new}\n  tests: {', '.join(mutant.tests)}")
    return int(len(lost) > 0.03 * len(mutants))


if __name__ == "__main__":
    sys.exit(main())
