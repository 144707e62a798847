"""The generator of wrong inputs, its judgement, and a sample of its cases."""

import subprocess
import sys
from pathlib import Path

import pytest

from wrong_inputs import data, settings
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


@pytest.mark.slow
def test_settings_and_data_have_more_than_1000_different_cases() -> None:
    names = [case.name for room in (settings, data) for case in room.cases()]
    assert len(names) == len(set(names)) > 1000


@pytest.mark.slow
def test_a_sample_of_wrong_inputs_is_met_well() -> None:
    script = Path(__file__).with_name("run.py")
    command = [sys.executable, str(script), "--sample", "60", "--seed", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
