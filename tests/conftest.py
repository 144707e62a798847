"""Fixtures, and what each process of the tests spares: threads, and looks for garbage among what stays."""

import functools
import gc
import os
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import torch

if "PYTEST_XDIST_WORKER" in os.environ:  # several processes with several threads each slow one another down
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)


def pytest_collection_finish() -> None:
    """What has been imported stays: each `gc.collect()` of a run would look through it for 0.2 seconds."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Lets Python clean up at its end as usual; else some libraries print what they think has leaked."""
    gc.unfreeze()


@pytest.fixture(autouse=True, scope="session")
def _installed_packages_are_read_once() -> Iterator[None]:
    """Each Trainer asks all of them for callbacks, which takes most of the time in which it is made."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("lightning_fabric.utilities.registry.entry_points", functools.cache(entry_points))
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
