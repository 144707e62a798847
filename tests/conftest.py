"""Fixtures, and how many threads each process has."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

if "PYTEST_XDIST_WORKER" in os.environ:  # several processes with several threads each slow one another down
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)


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
