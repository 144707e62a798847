"""What the library does on one card, in three calls of at most ten minutes each.

    benchmarks/gpu.sh [--wheels DIR] --call 1 --out DIR [--femnist FILE.npz]    (then --call 2, --call 3)
    benchmarks/gpu.sh --out DIR --only femnist --minutes 20
    python benchmarks/gpu.py --call 1 --device cpu --tiny    (a test that everything runs: its figures mean nothing)

1: every method in float32 on the CPU and twice on the card; a profile; FedEM's agreement with the CPU by precision.
2: two published simulation jobs of FedAvg, by this library, pfl and a plain loop.
3: FedEM and other methods at the size of a federation, FedEM's engines against a plain loop, larger blocks.

Every measurement has a time limit, and what it has found is written at once: DIR/gpu.jsonl (a line for each),
DIR/gpu.md (tables) and DIR/gpu.log. A later call with the same DIR adds to them. Neither hydra nor wandb is needed.
"""

import argparse
import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from gpu_plan import CALLS, MINUTES, PARTS, Measurement, plan
from gpu_tables import tables

HERE = Path(__file__).resolve().parent
PACKAGES = ("fedem-lightning", "torch", "torchvision", "pytorch-lightning", "torchmetrics", "numpy", "scipy")
PACKAGES += ("scikit-learn", "pandas", "pyarrow", "matplotlib", "networkx", "rich", "pillow", "safetensors")
PACKAGES += ("jinja2", "markupsafe", "pydantic", "annotated-types")
NOT_NEEDED = ("hydra-core", "omegaconf", "wandb")
START = 180.0
"""Seconds that a worker may take to import everything and to find the card."""


class Book:
    """The results so far, in a file of JSON lines and a Markdown file.

    Args:
        folder: for both; what an earlier call left there is kept.

    """

    def __init__(self, folder: Path) -> None:
        self.lines, self.markdown = folder / "gpu.jsonl", folder / "gpu.md"
        text = self.lines.read_text() if self.lines.exists() else ""
        self.rows = [json.loads(line) for line in text.splitlines()]
        self.begun = False  # whether this call has added to it

    def add(self, what: Measurement, status: str, found: dict[str, Any]) -> None:
        """Writes a measurement down, in place of an earlier one of its name; says so on the screen."""
        row, self.begun = {**what, "status": status, **found}, True
        self.rows = [*(old for old in self.rows if old["name"] != what["name"]), row]
        for path, text in (
            (self.lines, "".join(json.dumps(r) + "\n" for r in self.rows)),
            (self.markdown, tables(self.rows)),
        ):
            part = path.with_suffix(".part")
            part.write_text(text)
            part.replace(path)
        print(f"{what['name']}: {status}{in_words(found)}", flush=True)


def in_words(found: dict[str, Any]) -> str:
    """The most important thing that a measurement has found, for the screen."""
    if "reason" in found and "engine" not in found:
        return f" ({found['reason']})"
    if "difference" in found:
        bits = "the same bits twice" if found["same_bits"] else "other bits the second time"
        return f"; {'PASS' if found['passed'] else 'FAIL'}, difference {found['difference']:.2g}, {bits}"
    seconds = [f"{value:.4g} s" for value in found.get("seconds", [])]
    shown = [*seconds[:3], f"... ({len(seconds)} in all)"] if len(seconds) > 7 else seconds
    return f"; rounds of {', '.join(shown)}" if shown else ""


class Worker:
    """A process that measures, and what it says.

    Args:
        rest: what it shall measure.
        options: of the command line.

    """

    def __init__(self, rest: list[Measurement], options: argparse.Namespace) -> None:
        file = str(options.femnist.resolve()) if options.femnist else None
        job = json.dumps({"device": options.device, "femnist": file, "measurements": rest})
        self.log = options.out / "gpu.log"
        with self.log.open("a") as log:
            command = [sys.executable, str(HERE / "gpu_worker.py"), job]
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        self.said: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self.process.stdout or ():
            with contextlib.suppress(json.JSONDecodeError):  # a library may print, too
                self.said.put(json.loads(line))
        self.said.put(None)

    def hear(self, until: float) -> dict[str, Any] | None:
        """The next event, None if the process has ended; raises queue.Empty at the time `until` (monotonic)."""
        return self.said.get(timeout=max(0.0, until - time.monotonic()))

    def last_words(self) -> str:
        """Why it failed."""
        lines = self.log.read_text().strip().splitlines()
        return lines[-1] if lines else f"exit status {self.process.wait()}"

    def end(self) -> None:
        """Ends it, whatever it does."""
        self.process.kill()
        self.process.wait()


def work_off(rest: list[Measurement], options: argparse.Namespace, book: Book, deadline: float) -> int:
    """Lets one worker measure until it has done all or one fails or takes too long; how many are dealt with."""
    worker = Worker(rest, options)
    done, limit, until = 0, START, min(deadline, time.monotonic() + START)
    environment, found = None, {}
    try:
        while done < len(rest):
            heard = worker.hear(until)
            if heard is None:
                if environment is None and not book.begun:
                    raise SystemExit(f"error: {worker.last_words()}")  # the first one: the others would fail alike
                book.add(rest[done], "failed", {**found, "reason": worker.last_words()})
                return done + 1
            event = heard.pop("event")
            if event == "ready":
                environment, until = heard["environment"], min(deadline, time.monotonic() + START)
                print(", ".join(f"{key} {value}" for key, value in environment.items()), flush=True)
            elif event == "begin":
                limit, until = options.limit, min(deadline, time.monotonic() + options.limit)
                found = {"environment": environment, "seconds": []}
            elif event == "round":
                found["seconds"].append(heard.pop("seconds"))
                found |= heard
            else:  # "done", "failed" or "missing"
                book.add(rest[done], event, {**found, **heard})
                done, found = done + 1, {}
        return done
    except queue.Empty:
        why = {"reason": "all of the time was over"} if time.monotonic() >= deadline else {"limit": limit}
        book.add(rest[done], "cut off", {**found, **why})
        return done + 1
    finally:
        worker.end()


def what_is_there() -> list[str]:
    """Prints the versions that are installed in one line; the names of those that are needed and missing."""
    found = {}
    for name in (*PACKAGES, *NOT_NEEDED):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "missing" if name in PACKAGES else "missing (not needed here)"
    print(f"Python {sys.version.split()[0]}, " + ", ".join(f"{name} {v}" for name, v in found.items()), flush=True)
    return [name for name in PACKAGES if found[name] == "missing"]


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    folder = Path(os.environ.get("OUT", "gpu_results"))
    parser.add_argument("--out", type=Path, default=folder, metavar="DIR", help="default: $OUT, or gpu_results")
    parser.add_argument("--femnist", type=Path, metavar="FILE", help="default: random images")
    parser.add_argument("--clients", type=int, help="of FEMNIST; default: 539")
    parser.add_argument("--rounds", type=int, help="timed, after one that warms up; default: 5")
    parser.add_argument("--call", type=int, choices=CALLS, help=f"its parts, in {MINUTES:g} minutes")
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--minutes", type=float, help="for all; what does not fit is named; default: 20")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for one measurement")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="the smallest sizes")
    options = parser.parse_args()
    if options.call and options.only:
        print("error: --call and --only: give one of them", file=sys.stderr)
        raise SystemExit(2)
    options.only = options.only or CALLS.get(options.call, PARTS)
    options.minutes = (MINUTES if options.call else 20.0) if options.minutes is None else options.minutes
    if options.femnist and not options.femnist.is_file():
        parser.error(f"--femnist: no file {options.femnist}")
    if min(options.minutes, options.limit) <= 0 or min(options.clients or 1, options.rounds or 1) < 1:
        parser.error("--minutes, --limit: above 0; --clients, --rounds: at least 1")
    return options


def main() -> None:
    """Measures and writes."""
    start = time.monotonic()
    options = read_options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the worker ends, too
    missing = what_is_there()
    if missing:
        raise SystemExit(f'error: missing: {", ".join(missing)}; docs/scaling.md, "On a GPU", says how to bring them')
    options.out.mkdir(parents=True, exist_ok=True)
    book, deadline = Book(options.out), start + 60 * options.minutes
    rest = plan(options.only, options.tiny, options.clients, options.rounds)
    while rest and time.monotonic() < deadline:
        rest = rest[work_off(rest, options, book, deadline) :]
    for what in rest:
        book.add(what, "not begun", {})
    print(f"\n{book.markdown.read_text()}\n{book.markdown}, {time.monotonic() - start:.0f} s in all")
    if any(row["status"] == "failed" for row in book.rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
