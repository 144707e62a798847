"""Kills servers and clients of a deployment at random moments, starts them again, and compares the results.

    python tests/helpers/kill_deployment.py --kills 7 --methods fedem ditto fedavg --out table.md

Each method runs twice with TLS and certificates: straight, and with SIGKILL for the server or a client, which is
started again a second later, as systemd or Docker would. A restarted server goes on from its newest checkpoint. Prints
a row for each method; the exit code is 1 if a run does not end, if a result differs or is missing, or if a process is
left.
"""

import argparse
import json
import multiprocessing
import os
import random
import signal
import socket
import sys
import tempfile
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pandas as pd
from hydra.utils import instantiate

from fedem_lightning.data.own_files import save_client
from fedem_lightning.deploy.__main__ import main
from fedem_lightning.deploy.certificates import make_keys
from fedem_lightning.run.not_composed import composed

N_CLIENTS, ROUNDS = 3, 120
TIMEOUT = 300.0
"""Seconds in which a run must end."""
WORDS = ["dataset=digits", "backbone=mlp", f"trainer.max_epochs={ROUNDS}", "callbacks.live=null"]
CONTEXT: Any = multiprocessing.get_context("forkserver")


def command(arguments: list[str], log: str) -> None:
    """A process of the deployment: `python -m fedem_lightning.deploy`, in a fork that has loaded it."""
    with open(log, "a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    main(arguments)


class Deployment:
    """A server and its clients, as processes.

    Args:
        folder: of keys, samples, states, logs and the run.
        method: value of the group algorithm.
        port: at which the server listens.

    """

    def __init__(self, folder: Path, method: str, port: int) -> None:
        self.folder, self.method, self.port = folder, method, port
        self.processes = dict[str, BaseProcess]()

    def start(self, name: str) -> None:
        """Starts the server, or a client, by its name."""
        keys, server = self.folder / "keys", f"127.0.0.1:{self.port}"
        if name == "server":
            options = ["--clients", str(N_CLIENTS), "--port", str(self.port), "--keys", str(keys / "server")]
            words = [*WORDS, f"algorithm={self.method}", f"run_dir={self.folder / 'run'}", "ckpt_path=auto"]
            arguments = ["server", *options, *words]
        else:
            options = ["--keys", str(keys / "clients" / name), "--state", str(self.folder / "states" / name)]
            arguments = ["client", "--data", str(self.folder / f"{name}.npz"), "--server", server, *options]
        process = CONTEXT.Process(target=command, args=(arguments, str(self.folder / f"{name}.log")))
        process.start()
        self.processes[name] = process

    def kill(self, name: str) -> bool:
        """Kills one; whether it was still there."""
        process = self.processes[name]
        there = process.is_alive()
        process.kill()
        process.join()
        return there

    def results(self) -> dict[str, Any] | None:
        """What results.json says, once it is there."""
        path = self.folder / "run" / "results.json"
        return json.loads(path.read_text()) if path.is_file() else None

    def run(self, kills: int, rng: random.Random) -> int:
        """Runs to the end with some kills on the way; the number of those that hit a process."""
        done, end = 0, time.monotonic() + TIMEOUT
        for name in ["server", *NAMES]:
            self.start(name)
        for _ in range(kills):
            time.sleep(rng.uniform(1.0, 6.0))
            if not self.processes["server"].is_alive() and self.results() is not None:
                break
            name = rng.choice(["server", *NAMES])
            done += self.kill(name)
            time.sleep(1.0)
            self.start(name)
        while self.processes["server"].is_alive() and time.monotonic() < end:
            time.sleep(0.2)
        for name in NAMES:
            os.kill(self.processes[name].pid or 0, signal.SIGTERM)
        for process in self.processes.values():
            process.join(10.0)
        return done


NAMES = [str(t) for t in range(N_CLIENTS)]


def differences(straight: Path, killed: Path) -> list[str]:
    """Which results differ: of results.json and of the clients' table."""
    first, second = (json.loads((folder / "run" / "results.json").read_text()) for folder in (straight, killed))
    found = [key for key in ("train", "val", "test", "rounds", "rejected_updates") if first.get(key) != second.get(key)]
    tables = [pd.read_parquet(folder / "run" / "clients.parquet") for folder in (straight, killed)]
    if not tables[0].equals(tables[1]):
        found.append("clients.parquet")
        numbers = [table.select_dtypes("number").astype(float) for table in tables]
        found[-1] += f" (by {(numbers[0] - numbers[1]).abs().max().max():.1e})"
    missing = [int(table.select_dtypes("number").isna().to_numpy().sum()) for table in tables]
    return found + ([f"{missing[1]} missing values"] if missing[0] != missing[1] else [])


def left() -> int:
    """Processes of this script that are left, besides those of multiprocessing."""
    return sum(process.is_alive() for process in multiprocessing.active_children())


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=7, help="kills of each run (7)")
    parser.add_argument("--methods", nargs="+", default=["fedem", "ditto", "fedavg"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="file for the table")
    return parser.parse_args()


def script() -> None:
    """Runs all methods."""
    options, rng, rows, wrong, total = parse(), random.Random(), [], 0, 0
    rng.seed(options.seed)
    CONTEXT.set_forkserver_preload(["fedem_lightning.deploy.__main__", "fedem_lightning.deploy.server", "__main__"])
    federation = instantiate(composed([*WORDS, f"dataset.n_clients={N_CLIENTS}"]).dataset).federation
    with tempfile.TemporaryDirectory() as place:
        for method in options.methods:
            runs = []
            for kind, kills in (("straight", 0), ("killed", options.kills)):
                folder = Path(place) / f"{method}-{kind}"
                make_keys(folder / "keys", ["127.0.0.1"], NAMES, 30, renew=False)
                for t, name in enumerate(NAMES):
                    save_client(federation, t, folder / f"{name}.npz")
                with socket.socket() as free:
                    free.bind(("127.0.0.1", 0))
                    port = free.getsockname()[1]
                deployment = Deployment(folder, method, port)
                done = deployment.run(kills, rng)
                ended = deployment.results() is not None
                if not ended:
                    print((folder / "server.log").read_text()[-2000:])
                runs.append((folder, done, ended))
            differing = differences(runs[0][0], runs[1][0]) if runs[0][2] and runs[1][2] else ["it did not end"]
            said = ", ".join(differing) or "equal"
            rows.append(f"| `{method}` | {runs[1][1]} | {said} | {left()} |")
            print(rows[-1], flush=True)
            wrong += bool(differing) + left()
            total += runs[1][1]
    head = ["| method | kills | results | processes left |", "|---|---|---|---|"]
    text = "\n".join([*head, *rows, "", f"{total} kills; {wrong} runs differ, did not end or left processes"])
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    script()
