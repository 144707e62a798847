"""Ordinary mistakes of a person at a keyboard: one line, exit code 2, no trace, nothing left behind or overwritten."""

import shlex
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest

from fedem_lightning import UserError
from helpers.commands import call, finish, start
from wrong_inputs import of_commands, of_python, of_runs
from wrong_inputs.place import TINY, furnish, snapshot

IN_PROCESSES = (
    *("algorithm=fedagv", "trainer.max_epoch=3", "--verison", "seed=abc", "run_dir=run", "ckpt_path=none.ckpt"),
    *("backbone._target_=nope.Net", "algorithm.client_optimizer.lr=1e38"),
)
COMMANDS_IN_PROCESSES = ("report none", "evaluate folder good.npz", "data download mnist data_dr=x")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder in which all of them are made; a class of the user's own lies there, too."""
    folder, made = tmp_path_factory.mktemp("place"), tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        assert call(made, patch, *TINY, "callbacks.checkpoint.every_n_rounds=1", "run_dir=run") == 0
        furnish(folder, made / "run")
        patch.syspath_prepend(folder)
        yield folder
    for name in ("mine", "wrong"):
        sys.modules.pop(name, None)


def _words(typed: str) -> list[str]:
    """With what makes a run small, before what was typed, which counts."""
    words = shlex.split(typed)
    n_flags = 2 if typed.startswith("--config") else int(typed.startswith("-"))
    flags, rest = words[:n_flags], words[n_flags:]
    own_data = any(word.startswith("dataset=") for word in words)
    tiny = [word for word in TINY if not (own_data and word.startswith("dataset"))]
    return [*flags, *tiny, *rest]


def _check(code: int, err: str, says: str, place: Path, before: object) -> None:
    lines = [line for line in err.splitlines() if not line.startswith(("job ", "Error executing job", "warning: "))]
    assert len(lines) == 1, err
    assert lines[0].startswith("error: ")
    assert says in lines[0]
    assert code == 2
    assert snapshot(place) == before


@pytest.mark.parametrize("typed", of_runs.ROWS)
def test_a_mistake_in_a_run(
    typed: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = snapshot(place)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        code = call(place, monkeypatch, *_words(typed))
    _check(code, capsys.readouterr().err, of_runs.ROWS[typed], place, before)


@pytest.mark.parametrize("typed", of_commands.ROWS)
def test_a_mistake_in_another_command(
    typed: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before, (command, *words) = snapshot(place), shlex.split(typed)
    monkeypatch.chdir(place)
    main = import_module(f"fedem_lightning.{command}" + ".__main__" * (command in ("data", "report", "evaluate"))).main
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(SystemExit) as stop:
            main(words)
    code = stop.value.code
    assert isinstance(code, int)
    _check(code, capsys.readouterr().err, of_commands.ROWS[typed], place, before)


@pytest.mark.parametrize("name", of_python.ROWS)
def test_a_mistake_in_python(name: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call_it: Callable[[], object]
    call_it, says = of_python.ROWS[name]
    before = snapshot(place)
    monkeypatch.chdir(place)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises((UserError, *of_python.LIGHTNINGS)) as caught:
            call_it()
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert snapshot(place) == before


@pytest.mark.parametrize("typed", [*IN_PROCESSES, *COMMANDS_IN_PROCESSES])
def test_a_mistake_in_a_process_of_its_own(typed: str, place: Path) -> None:
    before = snapshot(place)
    if typed in COMMANDS_IN_PROCESSES:
        command, *words = shlex.split(typed)
        code, _, err = finish(start(place, *words, module=f"fedem_lightning.{command}"))
        says = of_commands.ROWS[typed]
    else:
        code, _, err = finish(start(place, *_words(typed)))
        says = of_runs.ROWS[typed]
    _check(code, err, says, place, before)
