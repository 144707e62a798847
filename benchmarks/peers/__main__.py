"""Our FedAvg beside other libraries' and a plain loop, each in a process of its own, in turn, on the same work.

    python benchmarks/peers --model linear [--rounds 5] [--repeats 3] [--threads 1] [--json FILE]
    python benchmarks/peers --model reference_cnn --femnist femnist.npz
    python benchmarks/peers --model linear --threads 2 --runners plain ours "ours --engine vmap" "ours --devices 2"
    python benchmarks/peers --model linear --python flower=venv/bin/python

FedAvg with plain SGD, all clients in every round, the average weighted by training samples, the same first parameters;
only the shuffling differs. A library that is not installed is left out and named. On a CPU: GPUs are hidden.
"""

import argparse
import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

PACKAGES = {
    "plain": "torch",
    "pfl": "pfl",
    "flower": "flwr",
    "fluke": "fluke-fl",
    "fedlab": "fedlab",
    "ours": "fedem-lightning",
}
"""The distribution each runner needs."""

HERE = Path(__file__).resolve().parent
PASSED_ON = ("model", "rounds", "batch_size", "local_epochs", "lr", "threads", "seed")

Result = dict[str, Any]


def arguments() -> argparse.Namespace:
    """Of the driver; most are passed on to the runners."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("linear", "reference_cnn"), required=True)
    parser.add_argument("--runners", nargs="+", default=list(PACKAGES), help="names, each with options of its own")
    parser.add_argument("--python", action="append", default=[], metavar="NAME=PATH", help="interpreter of a runner")
    parser.add_argument("--work", type=Path, help="a work file; default: one is made")
    parser.add_argument("--femnist", type=Path, help="for reference_cnn without --work; default: random images")
    parser.add_argument("--clients", type=int, help="of the work file that is made")
    for name, default in (("rounds", 5), ("repeats", 1), ("batch-size", 128), ("local-epochs", 1), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=3600.0, help="seconds for one run of one runner")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds: at least 2, the first one warms up")
    for runner in options.runners:
        if (shlex.split(runner) or [""])[0] not in PACKAGES:
            parser.error(f"--runners: {runner!r} is none of {', '.join(PACKAGES)}")
    if any(choice.partition("=")[0] not in PACKAGES or "=" not in choice for choice in options.python):
        parser.error(f"--python: expected NAME=PATH with a NAME of {', '.join(PACKAGES)}")
    options.python = dict(choice.split("=", 1) for choice in options.python)
    return options


def make_work(options: argparse.Namespace, folder: str) -> Path:
    """The work file, made by this interpreter unless there is one."""
    if options.work:
        return options.work.resolve()
    file = Path(folder) / "work.npz"
    kind = "linear" if options.model == "linear" else "femnist"
    command = [sys.executable, str(HERE / "work.py"), kind, str(file), "--seed", str(options.seed)]
    if options.clients:
        command += ["--clients", str(options.clients)]
    if options.femnist and kind == "femnist":
        command += ["--femnist", str(options.femnist)]
    subprocess.run(command, check=True, stdout=sys.stderr)
    return file


def missing(runner: str, python: str) -> str | None:
    """Why a runner cannot run, or None."""
    package = PACKAGES[shlex.split(runner)[0]]
    command = [python, "-c", "import sys, importlib.metadata as m; m.version(sys.argv[1])", package]
    try:
        process = subprocess.run(command, capture_output=True)
    except OSError as error:
        return f"no interpreter: {error}"
    return f"{package} is not installed" if process.returncode else None


def run(runner: str, python: str, work: Path, options: argparse.Namespace) -> Result:
    """One run of a runner: its result, or {"error": why}."""
    name, *own = shlex.split(runner)
    script = HERE / f"{name if name in ('plain', 'ours', 'flower') else name + '_'}.py"
    command = [python, str(script), "--work", str(work)]
    for option in PASSED_ON:
        command += [f"--{option.replace('_', '-')}", str(getattr(options, option))]
    command += own  # a runner's own options, say --threads, go before the common ones
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(options.threads))
    # a session of its own: what a library has started ends with it
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | threads,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=options.timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return {"error": f"took more than {options.timeout:g} s"}
    except KeyboardInterrupt:
        os.killpg(process.pid, signal.SIGTERM)
        raise
    if process.returncode:
        return {"error": (err.strip().splitlines() or [f"exit status {process.returncode}"])[-1]}
    return json.loads(out.strip().splitlines()[-1])


def measure(options: argparse.Namespace, work: Path) -> dict[str, list[Result]]:
    """The runs of every runner; one that cannot run, or has failed, is not tried again."""
    pythons = {runner: options.python.get(shlex.split(runner)[0], sys.executable) for runner in options.runners}
    results: dict[str, list[Result]] = {}
    for runner, python in pythons.items():
        reason = missing(runner, python)
        results[runner] = [{"error": reason}] if reason else []
    for repeat in range(options.repeats):
        for runner, python in pythons.items():
            if any("error" in result for result in results[runner]):
                continue
            print(f"repeat {repeat + 1}: {runner}", file=sys.stderr, flush=True)
            results[runner].append(run(runner, python, work, options))
    return results


def table(results: dict[str, list[Result]], n_clients: int) -> str:
    """Markdown, one row a runner."""
    rounds = {
        runner: [seconds for run in runs for seconds in run["seconds"][1:]]  # the first round warms up
        for runner, runs in results.items()
        if not any("error" in run for run in runs)
    }
    plain = median(rounds["plain"]) if "plain" in rounds else None
    lines = [
        "| library | version | seconds a round (min - max) | clients a second | times faster than plain "
        "| start, s | first round, s | test accuracy | test loss | peak memory, MB |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for runner, runs in results.items():
        if runner not in rounds:
            error = next(run["error"] for run in runs if "error" in run)
            lines.append(f"| {runner} | left out: {error.replace('|', '/')} | | | | | | | | |")
            continue
        seconds = rounds[runner]
        middle = median(seconds)
        start, accuracy, loss, peak = (
            median(run[key] for run in runs) for key in ("start_seconds", "test_accuracy", "test_loss", "peak_mb")
        )
        first = median(run["seconds"][0] for run in runs)
        faster = f"{plain / middle:.2f}" if plain else ""
        lines.append(
            f"| {runner} | {runs[0]['version']} | {middle:.4g} ({min(seconds):.4g} - {max(seconds):.4g}) "
            f"| {n_clients / middle:.1f} | {faster} | {start:.1f} | {first:.3g} "
            f"| {accuracy:.4f} | {loss:.4f} | {peak:.0f} |"
        )
    return "\n".join(lines)


def machine(threads: int) -> dict[str, Any]:
    """Versions, machine and date, by the library's own hand."""
    import torch

    from fedem_lightning.run.devices import environment

    names = [line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    cpu = names[0] if names else platform.machine()
    return {**environment(torch.device("cpu")), "threads": threads, "cpu": cpu, "cores": os.cpu_count()}


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def main() -> None:
    """Measures, prints and writes."""
    options = arguments()
    with tempfile.TemporaryDirectory() as folder:
        work = make_work(options, folder)
        import numpy as np

        with np.load(work) as file:
            counts = np.bincount(file["client"][file["split"] == 0])
        results = measure(options, work)
    print(
        f"\nFedAvg, {options.model}, {len(counts)} clients with {counts.mean():.0f} training samples on average, batch "
        f"size {options.batch_size}, {options.local_epochs} local epochs, learning rate {options.lr:g}, "
        f"{options.threads} threads, {options.rounds - 1} rounds after one warm-up, {options.repeats} repeats\n"
    )
    print(table(results, len(counts)))
    where = machine(options.threads)
    print("\n" + ", ".join(f"{key} {value}" for key, value in where.items()))
    if options.json:
        settings = {key: value for key, value in vars(options).items() if key in (*PASSED_ON, "repeats", "clients")}
        settings |= {"clients": len(counts), "train_samples": int(counts.sum())}
        options.json.write_text(
            json.dumps({"settings": settings, "results": results, "environment": where}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
