"""The examples in the docstrings."""

import doctest
import importlib

import pytest

pytestmark = pytest.mark.fast

DATA = ("names", "partitions", "dealing", "table_features", "torch_data")
MODULES = (
    "aggregation.rules",
    "aggregation.base",
    "aggregation.weighted_mean",
    *(f"data.{name}" for name in DATA),
    "em",
    "topology",
)


@pytest.mark.parametrize("name", MODULES)
def test_docstrings_tell_the_truth(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"fedem_lightning.{name}"))
    assert result.attempted > 0
    assert result.failed == 0  # captured output names the examples
