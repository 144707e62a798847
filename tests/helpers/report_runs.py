"""Folders of runs whose clients and test samples are known one by one."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedem_lightning.evaluate.summaries import summarize_table
from fedem_lightning.report import Group, Run, find_runs, group_runs
from fedem_lightning.report.__main__ import main
from fedem_lightning.report.finished_run import read_run
from fedem_lightning.report.scores_table import Table, scores_table
from helpers.runs import make_run


def make_sampled_run(
    folder: Path,
    samples: Sequence[Any],
    algorithm: str = "fedavg",
    seed: int = 0,
    names: Sequence[str] | None = None,
    keep_samples: bool = True,
    **more: Any,
) -> Path:
    """A run whose clients are all seen.

    Args:
        folder, algorithm, seed, more: see `make_run`.
        samples: for each client whether each test sample is predicted well (bool), or its squared error (float).
        names: names of the clients; default: "0", "1", ...
        keep_samples: whether test_samples.npz is written.

    """
    arrays = [np.asarray(client) for client in samples]
    measure = "accuracy" if arrays[0].dtype == bool else "mse"
    more.setdefault("federation_digest", f"digest {seed}")
    make_run(folder, 0.7, algorithm, seed, measure=measure, **more)
    table = pd.DataFrame({"id": list(names or map(str, range(len(arrays)))), "population": "seen"})
    table["n_train"] = range(10, 10 + len(arrays))
    table["n_test"] = [len(client) for client in arrays]
    table[f"test_{measure}"] = [client.mean() if len(client) else np.nan for client in arrays]
    table.to_parquet(folder / "clients.parquet", index=False)
    results = json.loads((folder / "results.json").read_text())
    results["test"][measure] = summarize_table(table, "test")[measure]
    (folder / "results.json").write_text(json.dumps(results))
    if keep_samples:
        values = np.concatenate(arrays)
        values = values if values.dtype == bool else values.astype(np.float32)
        np.savez(folder / "test_samples.npz", n=[len(client) for client in arrays], values=values, measure=measure)
    return folder


def tables_in(folder: Path) -> list[Table]:
    return [scores_table(setting) for setting in group_runs(find_runs([folder])[0])[0]]


def group_of(*folders: Path) -> Group:
    runs: list[Run] = [read_run(folder) for folder in folders]
    return Group(runs[0].algorithm, runs[0].algorithm, runs)


def report(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[str, str, int]:
    code = 0
    try:
        main([str(a) for a in arguments])
    except SystemExit as stop:
        code = int(stop.code or 0)
    out, err = capsys.readouterr()
    return out, err, code
