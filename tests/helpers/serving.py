"""Small finished runs on a federation of its own file, and the commands that use them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from helpers import runs

CLIENTS = 12
FEATURES = [f"f{i}" for i in range(4)]


def arrays(clients: int = CLIENTS, n: int = 24, seed: int = 0) -> dict[str, np.ndarray]:
    """A federation of three hidden groups, with names of clients and splits."""
    rng = np.random.default_rng(seed)
    client = np.repeat(np.arange(clients), n)
    x = rng.normal(size=(len(client), len(FEATURES))).astype(np.float32)
    theta = rng.normal(size=(3, len(FEATURES), 3))
    y = (x[:, :, None] * theta[client % 3]).sum(axis=1).argmax(axis=1)
    names = np.array([f"clinic {t}" for t in range(clients)])
    split = np.tile([0, 0, 0, 0, 2, 2, 1, 0], len(client) // 8)
    return {"x": x, "y": y, "client": client, "names": names, "split": split}


def of_clients(full: dict[str, np.ndarray], names: list[str]) -> dict[str, np.ndarray]:
    owner = full["names"][full["client"]]
    rows = np.isin(owner, names)
    return {name: full[name][rows] for name in ("x", "y", "split")} | {"client": owner[rows]}


def as_table(part: dict[str, np.ndarray]) -> pd.DataFrame:
    columns = {name: part["x"][:, i] for i, name in enumerate(FEATURES)}
    words = np.array(["train", "val", "test"])[part["split"]]
    return pd.DataFrame({"client": part["client"], **columns, "y": part["y"], "split": words})


def finished_run(folder: Path, data: Path, algorithm: str, *overrides: str) -> dict[str, Any]:
    """A run of a few rounds on an .npz file; a quarter of the clients is unseen. Returns its results."""
    chosen = [f"algorithm={algorithm}", "dataset=npz", f"dataset.path={data}", "dataset.unseen_fraction=0.25"]
    return runs.run_small(folder, data.parent, *chosen, *overrides)


def refused(main: Callable[[list[str]], None], capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """The one line of a command that refuses its arguments with exit code 2."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    assert stop.value.code == 2
    assert err.count("\n") == 1, err
    assert err.startswith("error: ")
    assert out == ""
    return err.removeprefix("error: ").strip()
