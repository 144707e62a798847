"""Our FedAvg beside other libraries' and a plain loop, each in a process of its own, in turn, on the same work.

    python benchmarks/peers --model linear [--rounds 5] [--repeats 3] [--threads 1] [--json FILE]
    python benchmarks/peers --model reference_cnn --femnist femnist.npz
    python benchmarks/peers --model linear --runners plain ours "ours --engine vmap"
    python benchmarks/peers --model linear --python pfl=venv/bin/python

FedAvg with plain SGD, all clients in every round, the average weighted by training samples, the same first parameters;
only the shuffling differs. A library that is not installed is left out and named. On a CPU: GPUs are hidden.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

sys.path.append(str(Path(__file__).resolve().parents[1]))

from common import bare_parser, femnist, finish, print_header, print_row
from fedem_lightning import FederatedDataModule, SyntheticMixture

HERE = Path(__file__).resolve().parent
SCRIPTS = {"plain": "plain.py", "pfl": "pfl_.py", "fluke": "fluke_.py", "ours": "ours.py"}
PASSED_ON = ("model", "rounds", "batch_size", "local_epochs", "lr", "threads", "seed")

Result = dict[str, Any]


def read_options() -> argparse.Namespace:
    """Of the driver; most are passed on to the runners."""
    parser = bare_parser(__doc__)
    parser.add_argument("--model", choices=("linear", "reference_cnn"), required=True)
    parser.add_argument("--runners", nargs="+", default=list(SCRIPTS), help="names, each with options of its own")
    parser.add_argument("--python", action="append", default=[], metavar="NAME=PATH", help="interpreter of a runner")
    parser.add_argument("--femnist", type=Path, help="for reference_cnn; default: random images")
    parser.add_argument("--clients", type=int, help="default: 300 for linear, 50 for reference_cnn")
    for name, default in (("rounds", 5), ("repeats", 1), ("batch-size", 128), ("local-epochs", 1), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=3600.0, help="seconds for one run of one runner")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds: at least 2, the first one warms up")
    for runner in options.runners:
        if (shlex.split(runner) or [""])[0] not in SCRIPTS:
            parser.error(f"--runners: {runner!r} is none of {', '.join(SCRIPTS)}")
    if any(choice.partition("=")[0] not in SCRIPTS or "=" not in choice for choice in options.python):
        parser.error(f"--python: expected NAME=PATH with a NAME of {', '.join(SCRIPTS)}")
    options.python = dict(choice.split("=", 1) for choice in options.python)
    return options


def make_data(options: argparse.Namespace) -> FederatedDataModule:
    """The synthetic mixture with 100 test samples a client, or FEMNIST's writers."""
    if options.model == "linear":
        return SyntheticMixture(n_clients=options.clients or 300, test_size=100, seed=options.seed)
    return femnist(options.femnist, options.clients or 50)


def write_work(data: FederatedDataModule, file: Path) -> None:
    """The work file; validation samples are left out."""
    parts = []
    for code, split in ((0, "train"), (2, "test")):
        block = data.federation.block(torch.arange(data.n_clients), split)
        codes = np.full(len(block.index), code, dtype=np.int8)
        parts.append((block.x(torch.float32).numpy(), block.y().long().numpy(), block.owner.numpy(), codes))
    x, y, client, split_codes = (np.concatenate(pieces) for pieces in zip(*parts, strict=True))
    np.savez(file, x=x, y=y, client=client, split=split_codes, n_classes=max(2, data.n_outputs))


def run(runner: str, work: Path, options: argparse.Namespace) -> Result:
    """One run of a runner: its result, or {"error": why}."""
    name, *own = shlex.split(runner)
    command = [options.python.get(name, sys.executable), str(HERE / SCRIPTS[name]), "--work", str(work)]
    for option in PASSED_ON:
        command += [f"--{option.replace('_', '-')}", str(getattr(options, option))]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(options.threads))
    try:
        done = subprocess.run(
            [*command, *own], capture_output=True, text=True, env=os.environ | threads, timeout=options.timeout
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"error": str(error)}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def table(results: dict[str, list[Result]], n_clients: int) -> None:
    """Prints a row for each runner."""
    good = {name: runs for name, runs in results.items() if not any("error" in run for run in runs)}
    rounds = {name: [s for run in runs for s in run["seconds"][1:]] for name, runs in good.items()}  # 0 warms up
    for name, runs in results.items():
        if name not in good:
            error = next(run["error"] for run in runs if "error" in run)
            print_row(name, f"left out: {error.replace('|', '/')}", *[""] * 6)
            continue
        middle = median(rounds[name])
        faster = f"{median(rounds['plain']) / middle:.2f}" if "plain" in rounds else ""
        accuracy, loss, peak = (median(run[key] for run in runs) for key in ("test_accuracy", "test_loss", "peak_mb"))
        spread = f"{middle:.4g} ({min(rounds[name]):.4g} - {max(rounds[name]):.4g})"
        scores = (f"{accuracy:.4f}", f"{loss:.4f}", f"{peak:.0f}")
        print_row(name, runs[0]["version"], spread, f"{n_clients / middle:.1f}", faster, *scores)


def main() -> None:
    """Measures, prints and writes."""
    options = read_options()
    data = make_data(options)
    results: dict[str, list[Result]] = {runner: [] for runner in options.runners}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "work.npz"
        write_work(data, work)
        for _ in range(options.repeats):
            for runner, runs in results.items():
                if not any("error" in one for one in runs):  # one that has failed is not tried again
                    runs.append(run(runner, work, options))
    n = len(data.federation.splits["train"].index)
    print_header(
        f"FedAvg, {options.model}, {data.n_clients} clients with {n / data.n_clients:.0f} training samples on average, "
        f"batch size {options.batch_size}, {options.local_epochs} local epochs, learning rate {options.lr:g}, "
        f"{options.threads} threads, {options.rounds - 1} rounds after one warm-up, {options.repeats} repeats",
        *("library", "version", "seconds a round (min - max)", "clients a second", "times faster than plain"),
        *("test accuracy", "test loss", "peak memory, MB"),
    )
    table(results, data.n_clients)
    finish(options, torch.device("cpu"), clients=data.n_clients, train_samples=n, results=results)


if __name__ == "__main__":
    main()
