"""More clients than samples, or more columns than a table may have, are refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedem_lightning import Digits, TableDataModule, UserError
from fedem_lightning.data.partitions import Labels, dirichlet, quantity_skew

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
}


@pytest.mark.parametrize("case", TOO_LARGE)
def test_more_clients_than_samples_are_refused(case: str) -> None:
    make, line = TOO_LARGE[case]
    with pytest.raises(UserError, match=f"^{line}"):
        make()


def test_a_header_of_a_million_columns_is_refused(tmp_path: Path) -> None:
    header = ",".join(f"c{i}" for i in range(10**6))
    (tmp_path / "a.csv").write_text(f"{header}\n" + ",".join("1" * 10**6))
    with pytest.raises(UserError, match=r"a.csv has 1000000 columns, more than 50000; dataset=npz takes any number"):
        TableDataModule(tmp_path / "a.csv", "c0", "c1")
