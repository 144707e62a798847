"""The generator of wrong inputs, its judgement, and a sample of its cases."""

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from fedem_lightning.data.__main__ import main as describe
from wrong_inputs import data, kept, settings
from wrong_inputs.case import HANG_SECONDS, Case, Outcome, faults

GOOD = Outcome(2, 1.0, "", "error: x: expected a number, got 'y'\n", [], [])
CASE = Case("settings/x", (), says="x")


@pytest.mark.fast
@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, None),
        ({"err": "warning: slow\nerror: x: no\n"}, None),
        ({"seconds": HANG_SECONDS, "code": -9}, "hang"),
        ({"err": "Traceback (most recent call last):\n", "code": 1}, "traceback"),
        ({"code": 1}, "exit 1"),
        ({"code": 0}, "accepted"),
        ({"err": "error: x\nmore\n"}, "not one line"),
        ({"err": "error: y: no\n"}, "another line"),
        ({"changed": ["results.json"]}, "changed results.json"),
        ({"left": ["outputs"]}, "left outputs"),
    ],
)
def test_what_is_held_against_a_command(change: dict[str, object], fault: str | None) -> None:
    found = faults(CASE, Outcome(**(vars(GOOD) | change)))
    assert fault in found if fault else found == []


READ = "│ clients │ 2 │\n│ seen │ 2 │\n│ samples │ 40 │\n"


@pytest.mark.fast
@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, None),
        ({"out": READ.replace("2", "1")}, "lost (1, 40) of (2, 40)"),
        ({"out": READ.replace("40", "39")}, "lost (2, 39) of (2, 40)"),
        ({"out": ""}, "lost () of (2, 40)"),
        ({"out": "", "err": "warning: a.npz: not read: z\n"}, None),
        ({"out": "", "code": 2, "err": "error: x: no\n"}, None),
    ],
)
def test_clients_and_samples_are_counted(change: dict[str, Any], fault: str | None) -> None:
    case = Case("data/x", (), refused=False, holds=(2, 40))
    read = vars(GOOD) | {"code": 0, "out": READ, "err": "", **change}
    assert faults(case, Outcome(**read)) == ([fault] if fault else [])
    silent = ["silent"] if not read["code"] and not read["err"] else []
    assert faults(Case("data/x", (), refused=False, told=True), Outcome(**read)) == silent


SOME = (
    *(
        "npz/unknown/Split",
        "npz/unknown/z",
        "npz/clients/2-62",
        "npz/array/client/big-endian",
        "csv/clients/leading-zero",
    ),
    *("csv/clients/2-64", "csv/text/mark", "csv/text/split", "parquet/clients/nul", "leaf/dangling-link"),
    *("leaf/user-twice", "leaf/user-without-samples", "hub/numbers", "hub/csv-beside", "plays/nested"),
)


@pytest.mark.parametrize("name", SOME)
def test_no_client_of_an_odd_file_is_lost(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command in this process; `run.py` meets all cases in processes of their own."""
    case = next(case for case in kept.cases() if case.name == f"data/{name}")
    assert case.prepare is not None
    case.prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    code: Any = 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        try:
            describe([*case.words])
        except SystemExit as stop:
            code = stop.code
    out, err = capsys.readouterr()
    lines = "".join(f"warning: {warning.message}\n" for warning in caught)
    assert faults(case, Outcome(code, 0.0, out, lines + err, [], [])) == []


@pytest.mark.slow
def test_settings_and_data_have_more_than_1000_different_cases() -> None:
    names = [case.name for room in (settings, data, kept) for case in room.cases()]
    assert len(names) == len(set(names)) > 1000


@pytest.mark.slow
def test_a_sample_of_wrong_inputs_is_met_well() -> None:
    script = Path(__file__).with_name("run.py")
    command = [sys.executable, str(script), "--sample", "60", "--seed", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
