"""docs/adding_an_algorithm.md, followed by a user in a folder of its own."""

import importlib
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.commands import call
from helpers.paths import ROOT

DOCUMENT = ROOT / "docs" / "adding_an_algorithm.md"
FILES = ("my_ditto.py", "test_my_ditto.py", "my_held_head.py", "test_my_held_head.py")
pytestmark = pytest.mark.skipif(not DOCUMENT.is_file(), reason="docs/ is only in a checkout")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", DOCUMENT.read_text(), re.S | re.M)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "conf" / "algorithm").mkdir(parents=True)
    (settings,) = blocks("yaml")
    for name, text in [*zip(FILES, blocks("python"), strict=True), ("conf/algorithm/my_ditto.yaml", settings)]:
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in FILES:
        sys.modules.pop(name.removesuffix(".py"), None)


def commands() -> list[list[str]]:
    """The arguments of the document's calls of the package."""
    lines = [shlex.split(line) for line in re.sub(r"\\\n\s*", "", blocks("bash")[0]).splitlines()]
    return [line[3:] for line in lines if line[:3] == ["python", "-m", "fedem_lightning"]]


def test_the_rate_of_a_method_from_outside(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its own file says it, also beside an experiment, and the command line changes it."""
    own, with_experiment = (arguments for arguments in commands() if "-m" not in arguments)
    for arguments, lr, batch_size in ((own, 0.3, 128), (with_experiment, 0.1, 8), (with_experiment[:-1], 0.3, 8)):
        assert call(project, monkeypatch, *arguments, "--cfg", "job", "--resolve", "--package", "algorithm") == 0
        shown = capsys.readouterr().out
        assert f"  lr: {lr}\n" in shown
        assert f"batch_size: {batch_size}\n" in shown


@pytest.mark.filterwarnings("ignore::UserWarning")  # Lightning's, of a Trainer whose loggers a user left alone
@pytest.mark.parametrize(("file", "n_tests"), [("test_my_ditto", 3), ("test_my_held_head", 1)])
def test_the_checks_of_a_method_from_outside(file: str, n_tests: int, project: Path) -> None:
    checks = importlib.import_module(file)
    names = [name for name in dir(checks) if name.startswith("test_")]
    assert len(names) == n_tests
    for name in names:
        getattr(checks, name)()
