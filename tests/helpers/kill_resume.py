"""Kills runs at random moments, continues them, and compares every file with that of a run that nobody killed.

    python tests/helpers/kill_resume.py --kills 2 --out table.md
    python tests/helpers/kill_resume.py --kills 2 --kinds private dropout --only fedavg fedem

A run is a fork of a process that has loaded all packages, and so takes a second. Prints a row for each kind of run,
method, engine and number of processes; the exit code is 1 if a run differs. A run that a killed one refuses to continue
in one line, with exit code 2, counts as refused.
"""

import argparse
import json
import os
import random
import signal
import socket
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import yaml

TIMED = {"seconds", "environment", "peak_memory_bytes", "command"}
"""What depends on the machine, or on how often a run was begun: keys of results.json."""
TIMED_STATISTICS = {"round_seconds", "training_seconds", "seconds_before"}
TIMED_COLUMNS = ["seconds", "training_seconds"]
RUN = [
    *("trainer.max_epochs=8", "trainer.check_val_every_n_epoch=3", "trainer.accelerator=cpu"),
    *("trainer.enable_progress_bar=false", "callbacks.checkpoint.every_n_rounds=2"),
    *("local_training.state=keep", "run_dir=run"),
]
NPZ = ["dataset=npz", "dataset.path=../../data.npz", "dataset.unseen_fraction=0.25"]
DATA = {"oracle": ["dataset=density", "dataset.n_clients=8", "dataset.n_samples=20", "dataset.test_size=30"]}
"""Where a method needs another data set than `NPZ`."""
MORE = {
    "clustered": ["algorithm.min_rounds=2", "algorithm.eps1=1e9", "algorithm.eps2=0"],  # so that it splits
    "mocha": ["dataset.task=binary", "dataset.unseen_fraction=0"],
    **{key: ["backbone=mlp"] for key in ("fedala", "fedbabu", "fedper", "fedproto", "fedrep", "fedrod", "lg_fedavg")},
}
PRIVATE = ["aggregation=private", "aggregation.clip=0.5", "aggregation.delta=0.01", "algorithm.participation=0.5"]
DRAWING = ["backbone=mlp", "backbone._target_=networks.Drawing"]
KINDS = {
    "usual": [],
    "private": PRIVATE,
    "quantile": [*PRIVATE, "aggregation.quantile=0.5"],
    "dropout": [*DRAWING, "+backbone.draw=dropout"],
    "noise": [*DRAWING, "+backbone.draw='noise in scores too'"],
}
"""Private means (of a clipping length that is fixed or follows a quantile), and networks with random numbers of their
own."""


@dataclass(frozen=True)
class Setting:
    """What is run."""

    algorithm: str
    engine: str = "loop"
    processes: int = 1
    more: tuple[str, ...] = ()
    kind: str = "usual"

    @property
    def arguments(self) -> list[str]:
        """The words of the command line."""
        chosen = [f"algorithm={self.algorithm}", f"engine={self.engine}", f"trainer.devices={self.processes}"]
        data, more = DATA.get(self.algorithm, NPZ), MORE.get(self.algorithm, [])
        return list(dict.fromkeys([*RUN, *chosen, *data, *more, *KINDS[self.kind], *self.more]))


@dataclass
class Found:
    """What became of a chain of kills."""

    setting: Setting
    kills: int = 0
    differing: list[str] = field(default_factory=list)
    refused: str = ""

    def row(self) -> str:
        """A row of the table."""
        s, files = self.setting, self.refused or ", ".join(self.differing) or "equal"
        return f"| {s.kind} | `{s.algorithm}` | {s.engine} | {s.processes} | {self.kills} | {files} |"


def write_data(path: Path) -> None:
    """Eight clients of 12 to 26 samples, two classes, two domains."""
    rng, client = np.random.default_rng(0), np.repeat(np.arange(8), np.arange(12, 28, 2))
    x = rng.normal(size=(len(client), 5)).astype(np.float32)
    y = (x[:, 0] + np.where(client % 2, 1, -1) * x[:, 1] > 0).astype(np.int64)
    np.savez(path, x=x, y=y, client=client, domain=np.arange(len(y)) % 2)


def chain(setting: Setting, place: Path, kills: int, seed: int) -> Found:
    """Runs once without a kill, and once with `kills` of them; compares what they leave.

    Args:
        setting: what is run.
        place: an empty folder below the one of data.npz.
        kills: attempts; one that comes after the end does not count.
        seed: of the moments.

    """
    found, rng = Found(setting), random.Random(f"{setting} {seed}")
    straight, killed = place / "straight", place / "killed"
    start = time.monotonic()
    if _wait(_start(straight, setting)) != [0] * setting.processes:
        found.differing = [f"the straight run failed: {_last_line(straight)}"]
        return found
    seconds = time.monotonic() - start
    for attempt in range(kills):
        more = ["ckpt_path=auto"] if attempt else []
        pids = _start(killed, setting, *more)
        time.sleep(rng.uniform(0.15, 0.75) * seconds)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        codes = _wait(pids)
        if codes[0] == -signal.SIGKILL:
            found.kills += 1
        elif codes[0] != 0:
            found.differing = [f"exit code {codes[0]}: {_last_line(killed)}"]
            return found
    codes = _wait(_start(killed, setting, "ckpt_path=auto"))
    if codes[0] == 2:
        found.refused = f"refused: {_last_line(killed)}"
        return found
    if codes != [0] * setting.processes:
        found.differing = [f"exit codes {codes}: {_last_line(killed)}"]
        return found
    found.differing = differences(straight / "run", killed / "run")
    return found


def _start(place: Path, setting: Setting, *more: str) -> list[int]:
    """The process ids of a run, that of rank 0 first."""
    place.mkdir(exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pids = []
    for rank in range(setting.processes):
        pid = os.fork()
        if pid == 0:
            _be(rank, port, place, setting, [*setting.arguments, *more])
        pids.append(pid)
    return pids


def _be(rank: int, port: int, place: Path, setting: Setting, arguments: list[str]) -> None:
    """Runs the command line in a fork, as process `rank` of a run, and ends."""
    code = 1
    try:
        from lightning_utilities.core.rank_zero import rank_zero_only

        output = os.open(place / f"output-{rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(place)
        if setting.processes > 1:
            world = {"LOCAL_RANK": rank, "NODE_RANK": 0, "WORLD_SIZE": setting.processes, "MASTER_PORT": port}
            os.environ.update({name: str(value) for name, value in world.items()}, MASTER_ADDR="127.0.0.1")
            vars(rank_zero_only)["rank"] = rank
        sys.argv = ["fedem-lightning", *arguments]
        from fedem_lightning.run.cli import main

        main()
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(pids: list[int]) -> list[int]:
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def _last_line(place: Path) -> str:
    lines = (place / "output-0.txt").read_text().splitlines()
    return lines[-1] if lines else ""


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
    return {str(path) for path in found if path.parts[0] not in ("wandb", "tensorboard")}


def content(path: Path) -> Any:
    """What a file says, without times, and without how the run was found."""
    if path.suffix == ".ckpt":
        saved = torch.load(path, weights_only=True)
        left = {k: v for k, v in saved["statistics"].items() if k not in TIMED_STATISTICS}
        return saved | {"statistics": left, "callbacks": None, "loops": None}
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


def load_packages() -> None:
    """Imports what a run imports, so that forks need not."""
    import matplotlib.backends.backend_agg
    import pyarrow.parquet  # noqa: F401

    from fedem_lightning import algorithms

    assert matplotlib.backends.backend_agg
    for name in algorithms.__all__:
        getattr(algorithms, name)


def all_settings(kinds: list[str], processes: list[int]) -> list[Setting]:
    """Every shipped method, one by one and stacked, in runs of these kinds and numbers of processes."""
    from fedem_lightning.settings.keys import CONFIG_DIR

    names = sorted(path.stem for path in (CONFIG_DIR / "algorithm").glob("*.yaml"))
    engines = ("loop", "vmap")
    return [Setting(m, engine, n, kind=k) for k in kinds for m in names for engine in engines for n in processes]


def _job(job: tuple[Setting, Path, int, int]) -> Found:
    setting, place, kills, seed = job
    place.mkdir()
    found = chain(setting, place, kills, seed)
    print(found.row(), flush=True)
    return found


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=2, help="kills of each run")
    parser.add_argument("--only", nargs="*", default=[], help="names of methods")
    parser.add_argument("--processes", nargs="*", type=int, default=[1, 2], help="numbers of processes")
    parser.add_argument("--kinds", nargs="*", default=["usual"], choices=KINDS, help="kinds of runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--out", type=Path, help="file for the table")
    given = parser.parse_args()
    torch.set_num_threads(1)
    load_packages()
    settings = [s for s in all_settings(given.kinds, given.processes) if not given.only or s.algorithm in given.only]
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        write_data(Path(folder) / "data.npz")
        jobs = [(s, Path(folder) / f"run{i}", given.kills, given.seed) for i, s in enumerate(settings)]
        with get_context("fork").Pool(given.jobs) as pool:
            found = pool.map(_job, jobs, chunksize=1)
    wrong = sum(bool(f.differing) for f in found)
    kills, seconds = sum(f.kills for f in found), time.monotonic() - start
    refused = sum(bool(f.refused) for f in found)
    total = f"{kills} kills of {len(found)} runs in {seconds:.0f} s; {wrong} differ, {refused} refused"
    print(total)
    if given.out:
        head = ["| kind | method | engine | processes | kills | files |", "|---|---|---|---|---|---|"]
        given.out.write_text("\n".join([*head, *(f.row() for f in found), "", total, ""]))
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
