"""The examples in the docstrings."""

import doctest
import importlib
from pathlib import Path

import pytest

import fedem_lightning

pytestmark = pytest.mark.fast

PACKAGE = Path(fedem_lightning.__file__).parent
MODULES = sorted(
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    for path in PACKAGE.rglob("*.py")
    if ">>>" in path.read_text()
)


@pytest.mark.parametrize("name", MODULES)
def test_docstrings_tell_the_truth(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"fedem_lightning.{name}"))
    assert result.attempted > 0
    assert result.failed == 0  # captured output names the examples
