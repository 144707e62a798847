"""The catalogue of mistakes fits the package; the slow test makes them all and sees whether the tests notice."""

import subprocess
import sys

import pytest

from mutants.run import CATALOGUE, SOURCE, load, named_tests

MUTANTS = load()


def test_there_are_enough_of_them_and_each_one_once() -> None:
    assert len(MUTANTS) >= 100
    places = [(mutant.file, mutant.within, mutant.old, mutant.new) for mutant in MUTANTS]
    assert len(set(places)) == len(places)


def test_every_mutant_changes_one_place_of_one_line() -> None:
    for mutant in MUTANTS:
        assert (SOURCE / mutant.file).is_file(), mutant.name
        assert mutant.found() == 1, f"{mutant.name}: {mutant.old!r} is there {mutant.found()} times"
        assert mutant.old != mutant.new, mutant.name
        assert "\n" not in mutant.old + mutant.new, mutant.name
        assert mutant.wrong, mutant.name


def test_every_named_test_exists() -> None:
    missing = {test for mutant in MUTANTS for test in mutant.tests if not named_tests(test)}
    assert not missing
    assert all(mutant.tests for mutant in MUTANTS)


@pytest.mark.slow
def test_the_tests_notice_the_mistakes() -> None:
    done = subprocess.run([sys.executable, str(CATALOGUE.with_name("run.py"))], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
