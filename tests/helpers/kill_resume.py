"""Runs that can be killed and continued, and the comparison of every file with that of a run that nobody killed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import yaml

from fedem_lightning.settings.keys import shipped
from fedem_lightning.settings.signatures import signature

TIMED = {"seconds", "environment", "peak_memory_bytes", "command"}
"""What depends on the machine, or on how often a run was begun: keys of results.json."""
TIMED_STATISTICS = {"round_seconds", "training_seconds", "seconds_before"}
TIMED_COLUMNS = ["seconds", "training_seconds"]
RUN = [
    *("trainer.max_epochs=8", "trainer.check_val_every_n_epoch=3", "trainer.accelerator=cpu"),
    *("trainer.enable_progress_bar=false", "callbacks.checkpoint.every_n_rounds=2"),
    *("local_training.state=keep", "run_dir=run"),
]
NPZ = ["dataset=npz", "dataset.path=../data.npz", "dataset.unseen_fraction=0.25"]
DENSITY = ["dataset=density", "dataset.n_clients=8", "dataset.n_samples=20", "dataset.test_size=30"]
NEED_A_BODY = {name for name, tree in shipped("algorithm").items() if "head" in signature(tree["_target_"]).known}
"""Methods that need a body and a head."""
OPTIONS = {
    "clustered": ["algorithm.min_rounds=2", "algorithm.eps1=1e9", "algorithm.eps2=0"],  # so that it splits
    "mocha": ["dataset.task=binary", "dataset.unseen_fraction=0"],
    **{key: ["backbone=mlp"] for key in NEED_A_BODY},
}
PRIVATE = ["aggregation=private", "aggregation.clip=0.5", "aggregation.delta=0.01", "algorithm.participation=0.5"]
DRAWING = ["backbone=mlp", "backbone._target_=helpers.networks.Drawing"]
KINDS = {
    "private": PRIVATE,
    "quantile": [*PRIVATE, "aggregation.quantile=0.5"],
    "dropout": [*DRAWING, "+backbone.draw=dropout"],
    "noise": [*DRAWING, "+backbone.draw='noise in scores too'"],
}
"""Private means (of a clipping length that is fixed or follows a quantile), and networks with random numbers of their
own."""


def run_of(name: str, engine: str) -> list[str]:
    """The words of a run of a method, or of FedEM in one of `KINDS`."""
    method = [f"algorithm={'fedem' if name in KINDS else name}", f"engine={engine}"]
    data = DENSITY if name == "oracle" else NPZ
    return list(dict.fromkeys([*RUN, *method, *data, *OPTIONS.get(name, []), *KINDS.get(name, [])]))


def write_data(path: Path) -> None:
    """Eight clients of 12 to 26 samples, two classes, two domains."""
    rng, client = np.random.default_rng(0), np.repeat(np.arange(8), np.arange(12, 28, 2))
    x = rng.normal(size=(len(client), 5)).astype(np.float32)
    y = (x[:, 0] + np.where(client % 2, 1, -1) * x[:, 1] > 0).astype(np.int64)
    np.savez(path, x=x, y=y, client=client, domain=np.arange(len(y)) % 2)


def differences(straight: Path, other: Path) -> list[str]:
    """Files that one of two runs lacks, or that differ in more than times; those of trackers are left out."""
    names = [_files(folder) for folder in (straight, other)]
    differing = [f"{name} is missing" for name in sorted(names[0] - names[1])]
    differing += [f"{name} is left over" for name in sorted(names[1] - names[0])]
    for name in sorted(names[0] & names[1]):
        a, b = (content(folder / name) for folder in (straight, other))
        if not same(a, b):
            keys = sorted(a.keys() | b.keys()) if isinstance(a, dict) and isinstance(b, dict) else []
            found = ", ".join(key for key in keys if not same(a.get(key), b.get(key)))
            differing.append(f"{name} ({found})" if found else name)
    return differing


def _files(folder: Path) -> set[str]:
    """All files; of checkpoints, those that are kept."""
    found = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    return {str(path) for path in found if path.parts[0] != "wandb"}


def content(path: Path) -> Any:
    """What a file says, without times, and without how the run was found."""
    if path.suffix == ".ckpt":
        saved = torch.load(path, weights_only=True)
        left = {k: v for k, v in saved["statistics"].items() if k not in TIMED_STATISTICS}
        rows = {n: {k: v for k, v in row.items() if k not in TIMED_COLUMNS} for n, row in saved["curves"].items()}
        return saved | {"statistics": left, "curves": rows, "callbacks": None, "loops": None}
    if path.name == "results.json":
        return {k: v for k, v in json.loads(path.read_text()).items() if k not in TIMED}
    if path.name == "metrics.csv":
        return pd.read_csv(path, dtype=str).drop(columns=TIMED_COLUMNS).fillna("").to_dict("list")
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    if path.suffix == ".parquet":
        return {name: column.to_numpy() for name, column in pd.read_parquet(path).items()}
    if path.name == "config.yaml":
        return yaml.safe_load(path.read_text()) | {"ckpt_path": None}
    if path.name == "overrides.yaml":
        return [word for word in yaml.safe_load(path.read_text()) if not word.startswith("ckpt_path=")]
    return path.read_bytes()


def same(a: Any, b: Any) -> bool:
    """Whether two contents are equal to the bit; NaN is equal to NaN."""
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return same(a.numpy(), b.numpy())
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        if a.dtype == object:
            return same(a.tolist(), b.tolist())
        return (a.dtype, a.shape) == (b.dtype, b.shape) and a.tobytes() == b.tobytes()
    return bool(a == b) or (a != a and b != b)
