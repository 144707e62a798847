"""What is read in the source of a class is what its annotations say once it is imported."""

import pkgutil
import re
from typing import Any

import pytest

from fedem_lightning.settings.check import parameters
from fedem_lightning.settings.keys import CONFIG_DIR
from fedem_lightning.settings.signatures import signature

TARGETS = sorted(
    {path for file in CONFIG_DIR.rglob("*.yaml") for path in re.findall(r"_target_: *([\w.]+)", file.read_text())}
)
SHIPPED = [path for path in TARGETS if path.startswith("fedem_lightning.")]


@pytest.mark.parametrize("path", [*SHIPPED, "pytorch_lightning.Trainer"])
def test_the_source_says_what_the_class_says(path: str) -> None:
    read, there = signature(path), parameters(pkgutil.resolve_name(path))
    assert there.known.keys() <= read.known.keys()
    assert read.open or not there.open
    for name, value in there.known.items():
        hint = read.known[name].hint
        assert hint == value.hint or "typing.Any" in str(hint), name


def test_ranges_choices_and_the_options_of_base_classes_are_read() -> None:
    read = signature("fedem_lightning.FedEM").known
    there = parameters(pkgutil.resolve_name("fedem_lightning.FedEM")).known
    for name in ("n_components", "initialization", "participation", "shared"):
        assert read[name].hint == there[name].hint is not Any
    assert not signature("fedem_lightning.FedEM").open


@pytest.mark.parametrize("path", ["mine.Net", "torch.optim.SGD", "fedem_lightning.NoSuchName", "None", ""])
def test_of_what_is_not_read_nothing_is_known(path: str) -> None:
    assert signature(path) == ({}, True)
