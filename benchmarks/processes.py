"""A machine's cores as threads or as processes: seconds a round, beside one process with one thread.

    python benchmarks/processes.py [--cores 2] [--rounds 4] [--repeats 3] [--json FILE]

FedAvg with the public code's CNN on random images, whose clients keep momentum or not, and FedEM on the synthetic
mixture, on a CPU: 1 process with 1
thread, 1 process with `--cores` threads, `--cores` processes with 1 thread (strategy ddp). Each run has processes of
its own; all take turns, `--repeats` times.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
from typing import Any

import torch

from common import Timing, bare_parser, finish, images, make_trainer, mixture, print_header, print_row
from fedem_lightning import ClientSGD, FedAvg, FedEM, FederatedAlgorithm, FederatedDataModule, Linear, ReferenceCNN

WORKS = ("FedAvg, ReferenceCNN", "FedEM, synthetic mixture", "FedAvg, ReferenceCNN, clients keep momentum")
CPU = torch.device("cpu")


def make_work(name: str, clients: int) -> tuple[FederatedAlgorithm, FederatedDataModule]:
    """The model and the data; the same in every process."""
    torch.manual_seed(0)
    if name != WORKS[1]:
        keep = name == WORKS[2]
        sgd = ClientSGD(lr=0.01, momentum=0.9, state="keep") if keep else ClientSGD(lr=0.01)
        pictures = images(clients, 130)
        backbone = ReferenceCNN(pictures.n_outputs, pictures.in_shape)
        return FedAvg(backbone, pictures.n_clients, client_optimizer=sgd), pictures
    data = mixture(clients)
    sgd = ClientSGD(lr=1.0, momentum=0.9)
    return FedEM(Linear(data.in_shape, data.n_outputs), data.n_clients, 3, client_optimizer=sgd), data


def train(options: argparse.Namespace) -> None:
    """One run, in a process of its own, which starts the others; prints the seconds of its rounds."""
    model, data = make_work(options.child, options.clients)
    several = options.processes > 1
    trainer = make_trainer(
        options.rounds + 1,
        CPU,
        devices=options.processes,
        strategy="ddp" if several else "auto",
        use_distributed_sampler=False,
    )
    trainer.fit(model, data)
    if trainer.is_global_zero:
        print(json.dumps({"seconds": model.statistics.round_seconds, "threads": torch.get_num_threads()}), flush=True)


def run(work: str, clients: int, processes: int, threads: int, options: argparse.Namespace) -> list[float]:
    """Seconds of the rounds of one run, the first left out."""
    command = [sys.executable, __file__, "--child", work, "--processes", str(processes), "--clients", str(clients)]
    command += ["--rounds", str(options.rounds)]
    environment = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    environment |= {"CUDA_VISIBLE_DEVICES": ""}
    # a session of its own: the processes that it has started end with it
    child = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        out, err = child.communicate(timeout=options.timeout)
    finally:
        end_session(child)
    if child.returncode:
        reason = (err.strip().splitlines() or [f"exit status {child.returncode}"])[-1]
        raise SystemExit(f"{work}, {processes} x {threads}: {reason}")
    result: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    if result["threads"] != threads:
        raise SystemExit(f"{work}: {result['threads']} threads a process instead of {threads}")
    return result["seconds"][1:]


def end_session(child: subprocess.Popen[str]) -> None:
    """Ends whatever is left of a run's processes."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def main() -> None:
    """Measures and prints."""
    parser = bare_parser(__doc__)
    parser.add_argument("--cores", type=int, default=2, help="threads, or processes")
    parser.add_argument("--rounds", type=int, default=4, help="timed rounds of a run, after one that warms up")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--clients", type=int, default=300, help="of the synthetic mixture")
    parser.add_argument("--image-clients", type=int, default=50)
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds for one run")
    parser.add_argument("--child", choices=WORKS, help=argparse.SUPPRESS)
    parser.add_argument("--processes", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        train(options)
        return
    if min(options.cores - 1, options.rounds, options.repeats) < 1:
        parser.error("--cores: at least 2; --rounds, --repeats: at least 1")
    splits = ((1, 1), (1, options.cores), (options.cores, 1))
    timings = {(work, *split): Timing() for work in WORKS for split in splits}
    for _ in range(options.repeats):
        for (work, processes, threads), timing in timings.items():
            clients = options.clients if work == WORKS[1] else options.image_clients
            timing.seconds += run(work, clients, processes, threads, options)
    print_header(
        f"{options.rounds} rounds after one that warms up, {options.repeats} times, in turn",
        *("work", "processes x threads", "seconds a round, median (min - max)", "times faster than 1 x 1"),
    )
    for (work, processes, threads), timing in timings.items():
        faster = timings[work, 1, 1].median / timing.median
        print_row(work, f"{processes} x {threads}", timing, f"{faster:.2f}")
    named = {f"{work}, {processes} x {threads}": t for (work, processes, threads), t in timings.items()}
    finish(options, CPU, timings=named)


if __name__ == "__main__":
    main()
