"""All benchmarks, one after the other, each in a process of its own.

    python benchmarks [--quick] [--out DIR] [--femnist FILE.npz] [--only NAME ...]

Writes DIR/NAME.md, DIR/NAME.json and DIR/NAME.log (warnings, errors) of every part, and DIR/README.md, which joins the
tables. A part that fails is named there with the reason, the others go on, and the exit status is 1. `--quick` takes
the smallest sizes: a test that everything runs, its figures mean nothing. Results of an earlier call are overwritten.
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent


class Part(NamedTuple):
    """A benchmark and its options."""

    script: str
    always: str = ""
    full: str = ""
    quick: str = ""
    takes_femnist: bool = False


PEERS, QUICK_PEERS = "--repeats 3", "--clients 2 --rounds 2 --runners plain ours"
PARTS = {
    "loading": Part("loading.py", quick="--samples 2000 --repeats 1"),
    "rounds_synthetic": Part("rounds.py", "--work synthetic --all-engines", quick="--clients 4 --rounds 1"),
    "rounds_femnist": Part("rounds.py", "--work femnist", quick="--clients 2 --rounds 1", takes_femnist=True),
    "mixtures": Part("rounds.py", "--work femnist --mixtures", quick="--clients 2 --rounds 1", takes_femnist=True),
    "throughput": Part("throughput.py", quick="--clients 2 --samples 8 --rounds 1 --limit 2"),
    "roofs": Part("roofs.py", quick="--clients 4 --image-clients 1 --rounds 1 --megabytes 8"),
    "growth": Part("growth.py", quick="--clients 2 --rounds 1"),
    "processes": Part("processes.py", quick="--clients 4 --image-clients 2 --rounds 1 --repeats 1"),
    "precision": Part("precision.py", quick="--clients 4 --rounds 1"),
    "soak": Part("soak.py", quick="--clients 4 --rounds 8 --windows 2"),
    "peers_linear": Part("peers", "--model linear", PEERS, QUICK_PEERS),
    "peers_cnn": Part("peers", "--model reference_cnn", PEERS, QUICK_PEERS, takes_femnist=True),
}


def stop(process: subprocess.Popen[str]) -> str:
    """Ends a part as Ctrl-C does, so that it ends what it has started, or by force; what it had printed."""
    os.killpg(process.pid, signal.SIGINT)
    try:
        return process.communicate(timeout=10)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0]


def run(name: str, part: Part, options: argparse.Namespace) -> str | None:
    """Runs a part and writes its files; why it failed, or None."""
    own = [*shlex.split(part.always), *shlex.split(part.quick if options.quick else part.full)]
    if part.takes_femnist and options.femnist:
        own += ["--femnist", str(options.femnist)]
    shown = shlex.join(["python", f"benchmarks/{part.script}", *own])
    command = [sys.executable, str(HERE / part.script), *own, "--json", str(options.out.resolve() / f"{name}.json")]
    print(f"{name}: {shown}", file=sys.stderr, flush=True)
    with (options.out / f"{name}.log").open("w") as log:
        # a session of its own, so that whatever it has started can be ended with it
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)
        try:
            out, _ = process.communicate(timeout=options.timeout)
        except subprocess.TimeoutExpired:
            out = stop(process)
            log.write(f"took more than {options.timeout:g} s\n")
        except KeyboardInterrupt:
            stop(process)
            raise
    (options.out / f"{name}.md").write_text(f"`{shown}`\n\n{out.strip()}\n")
    if process.returncode == 0:
        return None
    lines = (options.out / f"{name}.log").read_text().strip().splitlines()
    return lines[-1] if lines else f"exit status {process.returncode}"


def main() -> None:
    """Runs the parts and joins their tables."""
    parser = argparse.ArgumentParser(
        prog="python benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="the smallest sizes")
    parser.add_argument("--out", type=Path, default=Path("benchmark_results"), metavar="DIR")
    parser.add_argument("--femnist", type=Path, metavar="FILE", help="images for the parts that use some")
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="NAME", help=", ".join(PARTS))
    parser.add_argument("--timeout", type=float, default=3600.0, help="seconds for one part")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    sections, failed = ["# Benchmarks\n"], []
    if options.quick:
        sections.append("Smallest sizes, to see that everything runs: these figures mean nothing.\n")
    for name in options.only or PARTS:
        start = time.monotonic()
        reason = run(name, PARTS[name], options)
        sections += [f"## {name}\n", (options.out / f"{name}.md").read_text()]
        if reason is not None:
            failed.append(name)
            sections.append(f"Failed: {reason}\n")
            print(f"{name} failed: {reason}", file=sys.stderr)
        sections.append(f"{time.monotonic() - start:.0f} s in all.\n")
        (options.out / "README.md").write_text("\n".join(sections))
    print((options.out / "README.md").read_text())
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
