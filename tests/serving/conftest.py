"""Finished runs that the tests of this folder share; no test changes them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedem_lightning import load
from helpers import serving


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all.npz, a federation, and unseen.npz and .csv with the rows of the clients that runs hold out."""
    folder, full = tmp_path_factory.mktemp("served"), serving.arrays()
    np.savez(folder / "all.npz", **full)  # type: ignore[arg-type]
    serving.finished_run(folder / "fedem", folder / "all.npz", "fedem")
    schema = load(folder / "fedem").schema
    assert schema is not None
    names = [schema.name(t) for t in range(schema.n_clients)]
    held_out = [name for name, seen in zip(names, schema.seen.tolist(), strict=True) if not seen]
    for file, chosen in (("unseen", held_out), ("seen", [name for name in names if name not in held_out])):
        part = serving.of_clients(full, chosen)
        np.savez(folder / f"{file}.npz", **part)  # type: ignore[arg-type]
        serving.as_table(part).to_csv(folder / f"{file}.csv", index=False)
    return folder


@pytest.fixture(scope="session")
def run_of(place: Path) -> Callable[[str], Path]:
    """The folder of a finished run of an algorithm, made at first use."""

    def made(algorithm: str) -> Path:
        if not (place / algorithm).exists():
            serving.finished_run(place / algorithm, place / "all.npz", algorithm)
        return place / algorithm

    return made
