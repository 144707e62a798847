"""Fixtures for all tests, and settings that make test processes faster: one thread each, less garbage collection."""

import functools
import gc
import os
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import torch
import yaml

if "PYTEST_XDIST_WORKER" in os.environ:  # several processes with several threads each slow one another down
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)


def pytest_collection_finish() -> None:
    """Takes imported modules out of garbage collection: each `gc.collect()` of a run would search them for 0.2 s."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Undoes the freeze: else some libraries report leaks when Python ends."""
    gc.unfreeze()


@pytest.fixture(autouse=True, scope="session")
def _files_are_read_faster() -> Iterator[None]:
    """Caches the list of installed packages, which every Trainer searches (40 ms); YAML is read by libyaml (45 ms)."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("lightning_fabric.utilities.registry.entry_points", functools.cache(entry_points))
        patched.setattr(yaml, "SafeLoader", getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        yield


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def data_folder() -> Callable[[str], Path]:
    """Finds real data under the folder that FEDEM_LIGHTNING_TEST_DATA names; skips the test where there is none."""

    def find(name: str) -> Path:
        root = os.environ.get("FEDEM_LIGHTNING_TEST_DATA")
        if not root:
            pytest.skip("FEDEM_LIGHTNING_TEST_DATA is not set: no real data here")
        path = Path(root) / name
        if not path.exists():
            pytest.skip(f"FEDEM_LIGHTNING_TEST_DATA has no {name}")
        return path

    return find
