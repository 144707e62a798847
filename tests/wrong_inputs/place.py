"""The folder in which people make their mistakes: a finished run, their data, files that something is wrong with."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

N = 40
X = np.random.default_rng(0).normal(size=(N, 3)).astype(np.float32)
Y, CLIENT = np.arange(N) % 2, np.arange(N) % 4
TABLE = pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=Y, client=CLIENT)
TINY = (
    *("dataset=synthetic", "dataset.n_clients=4", "dataset.dimension=3", "dataset.test_size=9"),
    *("trainer.max_epochs=2", "trainer.accelerator=cpu", "trainer.enable_progress_bar=false"),
)


ARRAYS: dict[str, dict[str, Any]] = {
    "good": {},
    "new": {"client": CLIENT + 100},
    "no_y": {"y": None, "client": CLIENT + 100},
    "no_client": {"client": None},
    "words": {"x": np.array(["a"] * N)},
    "wide": {"x": np.zeros((N, 5))},
    "half_clients": {"client": CLIENT + 0.5},
}
"""Files .npz, by what is changed in them; None: the array is missing."""


def _text(change: Callable[[list[str]], list[str]] = lambda lines: lines) -> bytes:
    return "\n".join(change(TABLE.to_csv(index=False).splitlines())).encode()


TEXTS: dict[str, bytes] = {
    "good.csv": _text(),
    "header.csv": _text(lambda lines: lines[:1]),
    "headless.csv": _text(lambda lines: lines[1:]),
    "text.npz": b"hello\n",
    "text.safetensors": b"hello\n",
    "text.ckpt": b"hello\n",
    "mine.txt": b"hello\n",
    "report/report.html": b"mine",
    "there.csv": b"mine",
    "evaluated/evaluation.json": b"mine",
    "own/algorithm/broken.yaml": b"a: [1\n",
    "own/algorithm/mine.yaml": b"defaults: [/algorithm_base@_here_, _self_]\n_target_: mine.Method\nstrength: 0.1\n",
    "mine.py": b"class Data:\n    pass\n\n\nnumber = 3\n",
    "wrong.py": b"import nowhere_at_all\n",
}
_ODD_RUNS: dict[str, Callable[[Path], object]] = {
    "half_config": lambda run: (run / ".hydra" / "config.yaml").write_text("a: [1"),
    "no_checkpoints": lambda run: shutil.rmtree(run / "checkpoints"),
}
"""Folders of runs in which something is missing or broken."""


def furnish(place: Path, run: Path) -> None:
    """Fills the folder; `run` is that of a finished run, which becomes `run`."""
    for name, changed in ARRAYS.items():
        arrays = {"x": X, "y": Y, "client": CLIENT} | changed
        np.savez(place / f"{name}.npz", **{key: value for key, value in arrays.items() if value is not None})  # type: ignore[arg-type]
    for name, content in TEXTS.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)
    whole = (place / "good.npz").read_bytes()
    (place / "half.npz").write_bytes(whole[: len(whole) // 2])
    for name in ("folder", "folder.csv"):
        (place / name).mkdir()
    shutil.copytree(run, place / "run")
    for name, spoil in _ODD_RUNS.items():
        shutil.copytree(run, place / name)
        spoil(place / name)


def snapshot(place: Path) -> dict[str, tuple[float, float]]:
    """Every file by its size and the time when it was written, every folder by its name."""
    paths = {str(path.relative_to(place)): path for path in place.rglob("*") if "__pycache__" not in path.parts}
    return {
        name: (0, 0) if path.is_dir() else (path.stat().st_size, path.stat().st_mtime) for name, path in paths.items()
    }
