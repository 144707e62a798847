"""What would be larger than the memory, or take a day, is refused before it is made."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedem_lightning import (
    MLP,
    Digits,
    FedEM,
    FedFOMO,
    TableDataModule,
    Topology,
    UserError,
)
from fedem_lightning.data.partitions import Labels, dirichlet, quantity_skew
from fedem_lightning.models.components import make_components

LABELS = Labels(np.arange(100) % 3)
TOO_LARGE: dict[str, tuple[Callable[[], Any], str]] = {
    "digits, 1e9 clients": (lambda: Digits(n_clients=10**9), "n_clients: 1797 samples are too few for 1000000000"),
    "dirichlet, more clients than samples": (
        lambda: dirichlet(LABELS, 0, 10**9, 1.0, min_samples=0),
        "n_clients: 100 samples are too few for 1000000000",
    ),
    "skew, more clients than samples": (
        lambda: quantity_skew(LABELS, 0, 10**9, 1.0, min_samples=0),
        "n_clients: 100 samples are too few for 1000000000",
    ),
    "1e12 components": (
        lambda: make_components(torch.nn.Linear(3, 2), 10**12, 0),
        "n_components: 1000000000000 copies of the network would take 3.2e.04 GB",
    ),
    "1e12 clients of a model": (lambda: FedEM(MLP((3,), 2), n_clients=10**12), "n_clients: 1000000000000 rows of 3"),
    "pairs of 1e6 clients": (lambda: FedFOMO(MLP((3,), 2), n_clients=10**6), "n_clients: a number for each pair"),
    "a graph of 1e6 clients": (
        lambda: Topology("ring").adjacency(10**6, 0, 0),
        "dataset.n_clients: a graph of 1000000",
    ),
}


@pytest.mark.parametrize("case", TOO_LARGE)
def test_what_is_too_large_is_refused_at_once(case: str) -> None:
    make, line = TOO_LARGE[case]
    start = time.perf_counter()
    with pytest.raises(UserError, match=f"^{line}"):
        make()
    assert time.perf_counter() - start < 5


def test_a_header_of_a_million_columns_is_refused(tmp_path: Path) -> None:
    header = ",".join(f"c{i}" for i in range(10**6))
    (tmp_path / "a.csv").write_text(f"{header}\n" + ",".join("1" * 10**6))
    with pytest.raises(UserError, match=r"a.csv has 1000000 columns, more than 50000; dataset=npz takes any number"):
        TableDataModule(tmp_path / "a.csv", "c0", "c1")
