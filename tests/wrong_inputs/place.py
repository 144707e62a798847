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


def _at_3(array: Any, value: Any) -> Any:
    return np.where((np.arange(N) == 3).reshape([-1] + [1] * (array.ndim - 1)), value, array)


ARRAYS: dict[str, dict[str, Any]] = {
    "good": {},
    "new": {"client": CLIENT + 100},
    "no_x": {"x": None},
    "no_y": {"y": None},
    "no_client": {"client": None},
    "short_y": {"y": Y[:-1]},
    "nan": {"x": _at_3(X, np.nan)},
    "words": {"x": np.array(["a"] * N)},
    "empty": {"x": X[:0], "y": Y[:0], "client": CLIENT[:0]},
    "wide": {"x": np.zeros((N, 5))},
    "half_clients": {"client": CLIENT + 0.5},
    "split_3": {"split": np.full(N, 3)},
    "split_words": {"split": np.array(["tset"] * N)},
    "no_training": {"split": np.full(N, 2)},
    "few_names": {"names": np.array(["a"])},
    "equal_names": {"names": np.array(["a", "a", "b", "c"])},
    "typo": {"splits": np.zeros(N, int)},
    "objects": {"x": np.array([[object()] * 3] * N, dtype=object)},
}
"""Files .npz, by what is changed in them; None: the array is missing."""


def _text(change: Callable[[list[str]], list[str]] = lambda lines: lines) -> bytes:
    return "\n".join(change(TABLE.to_csv(index=False).splitlines())).encode()


TEXTS: dict[str, bytes] = {
    "good.csv": _text(),
    "header.csv": _text(lambda lines: lines[:1]),
    "empty.csv": b"",
    "ragged.csv": _text(lambda lines: [*lines[:5], lines[5] + ",7,8", *lines[6:]]),
    "semicolons.csv": _text().replace(b",", b";"),
    "equal.csv": _text().replace(b"a,b,c", b"a,a,c"),
    "no_label.csv": _text(lambda lines: [*lines[:4], "1,2,3,,0", *lines[4:]]),
    "no_client.csv": _text(lambda lines: [*lines[:4], "1,2,3,0,", *lines[4:]]),
    "infinite.csv": _text(lambda lines: [*lines[:4], "inf,2,3,0,0", *lines[4:]]),
    "headless.csv": _text(lambda lines: lines[1:]),
    "utf16.csv": _text().decode().encode("utf-16"),
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
    "no_results": lambda run: (run / "results.json").unlink(),
    "half_results": lambda run: (run / "results.json").write_text("{"),
    "no_config": lambda run: shutil.rmtree(run / ".hydra"),
    "half_config": lambda run: (run / ".hydra" / "config.yaml").write_text("a: [1"),
    "no_checkpoints": lambda run: shutil.rmtree(run / "checkpoints"),
    "half_checkpoints": lambda run: [path.write_bytes(b"half") for path in (run / "checkpoints").iterdir()],
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
    TABLE.to_parquet(place / "good.parquet")
    for name in ("folder", "folder.npz", "folder.csv"):
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
