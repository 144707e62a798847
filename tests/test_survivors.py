"""Tests that mutants asked for."""


def test_nothing() -> None:
    assert True
