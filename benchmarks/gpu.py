"""What the library does on one card, in calls of at most ten minutes, on a machine without network.

    python benchmarks/gpu.py --out DIR [--wheels WHEELS] [--femnist FILE.npz]    (again, until it says that all is done)
    python benchmarks/gpu.py --out DIR --only jobs rounds
    python benchmarks/gpu.py --out DIR --device cpu --tiny    (a test that everything runs: its figures mean nothing)

A call goes on where the last one with this DIR ended. Its parts, in this order:

methods: every method in float32, on the CPU and twice on the card
jobs: two published simulation jobs of FedAvg, by this library, pfl and a plain loop
federations: FedEM and other methods at the size of a federation
rounds: FedEM's engines against a plain loop, in float32 and bfloat16

What is found is written at once: DIR/gpu.jsonl (a line for each event), DIR/gpu.md (tables) and DIR/gpu.log (errors).
WHEELS holds packages that the machine lacks; they are installed aside, with pip. Hydra and wandb are not needed.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
PARTS = ("methods", "jobs", "federations", "rounds")
Facts = dict[str, Any]

SIZES: dict[str, Facts] = {
    "FLUTE": {"clients": 3400, "samples": 144, "cohort": 10, "batch_size": 20},
    "pfl": {"clients": 1000, "samples": 50, "cohort": 50, "batch_size": 10},
    "federation": {"rounds": 3, "clients": 539, "samples": 144},
    "user-centric": {"clients": 100},  # with more than 100 the clients' models are on disk
    "MobileNetV2": {"rounds": 2, "clients": 80, "samples": 600},
    "femnist": {"rounds": 5, "clients": 539, "samples": 144},
    "synthetic": {"rounds": 5, "clients": 300},
}
TINY: Facts = {"rounds": 1, "clients": 3, "samples": 20, "cohort": 2, "batch_size": 4}
WAYS = (
    ("vmap", "32-true"),
    ("loop", "32-true"),
    ("sequential", "32-true"),
    ("vmap", "bf16-mixed"),
    ("loop", "bf16-mixed"),
)
FEDERATIONS = (
    ("FedEM", "ReferenceCNN"),
    ("user-centric", "ReferenceCNN"),
    ("HypCluster", "ReferenceCNN"),
    ("FedEM", "MobileNetV2"),
)
PUBLISHED = {"FLUTE": "502, with an evaluation every 50 rounds, on its authors' GPUs"}
"""Seconds of 1,500 rounds, by arXiv 2203.13789 and its repository."""


def plan(options: argparse.Namespace, methods: Sequence[str]) -> list[Facts]:
    """What is measured, in order of worth: a name, and what `gpu_worker.py` has to know; all methods by name."""
    made = [{"part": "methods", "name": f"{name} ({row})", "row": row, "rounds": 3} for row, name in enumerate(methods)]
    for job in ("FLUTE", "pfl"):
        for way, rounds in (("ours", 100), ("pfl", 50), ("plain", 30)):
            what = {"part": "jobs", "name": f"{job}'s job, {way}", "job": job, "way": way, "rounds": rounds}
            made.append(what | SIZES[job])
    for method, network in FEDERATIONS:
        what = {"part": "federations", "name": f"{method}, {network}", "method": method, "network": network}
        made.append(what | SIZES["federation"] | SIZES.get(method, {}) | SIZES.get(network, {}))
    for work in ("femnist", "synthetic"):
        for way, precision in WAYS:
            what = {"part": "rounds", "name": f"{work}, {way}, {precision}", "work": work, "way": way}
            made.append(what | {"precision": precision} | SIZES[work])
    tiny = TINY if options.tiny else {}
    chosen = [what for what in made if what["part"] in options.only]
    return [{**what, "device": options.device, **{key: tiny[key] for key in tiny if key in what}} for what in chosen]


def read(file: Path) -> dict[str, Facts]:
    """What the last attempt at each measurement has found, by name, in the order of the first attempts."""
    found: dict[str, Facts] = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        with contextlib.suppress(json.JSONDecodeError):  # a call was killed while it wrote
            event = json.loads(line)
            if "begun" in event:
                found[event["name"]] = {"status": "running", "seconds": []}
            found[event["name"]]["seconds"] += event.pop("round", [])
            found[event["name"]] |= event
    return found


def append(file: Path, **event: Any) -> None:
    """An event as a line."""
    with file.open("a") as lines:
        lines.write(json.dumps(event) + "\n")


def tables(found: Sequence[Facts]) -> str:
    """Everything found so far, in Markdown."""
    sections = ["# One card", *dict.fromkeys(row["machine"] for row in found)]
    for part in PARTS:
        make = _method if part == "methods" else _rounds
        cells = [make(row) for row in found if row["part"] == part and row["status"] == "done"]
        if cells:
            lines = [f"## {part}\n", "| " + " | ".join(cells[0]) + " |", "|" + "---|" * len(cells[0])]
            sections.append("\n".join([*lines, *("| " + " | ".join(row.values()) + " |" for row in cells)]))
    rest = [row for row in found if row["status"] != "done"]
    if rest:
        lines = (f"- {row['name']}: {row['status']} {row.get('reason', '')} {row['seconds'] or ''}" for row in rest)
        sections.append("Not finished (with the seconds of their rounds):\n\n" + "\n".join(lines))
    return "\n\n".join(sections) + "\n"


def _method(row: Facts) -> dict[str, str]:
    return {
        "method, in float32 without TF32": row["name"],
        "status": "PASS" if row["passed"] else "FAIL",
        "largest difference from the CPU, relative to the largest parameter": f"{row['difference']:.2g}",
        "same bits twice": "yes" if row["same_bits"] else "no",
    }


def _rounds(row: Facts) -> dict[str, str]:
    timed = row["seconds"][1:]  # the first one warms up
    cells = {
        "what": row["name"],
        "clients": f"{row['clients']:,}" + (f", {row['cohort']} a round" if "cohort" in row else ""),
        "engine": row.get("engine", ""),
        "seconds a round, median (min - max)": f"{median(timed):.4g} ({min(timed):.4g} - {max(timed):.4g})",
        "peak memory, GB": f"{row['peak_gb']:.2f}" if "peak_gb" in row else "",
    }
    if row["part"] == "jobs":
        cells["seconds of 1,500 rounds, extrapolated"] = f"{1500 * median(timed):.4g}, from {len(timed)}"
        cells["published"] = PUBLISHED.get(row["job"], "")
    if row["part"] == "federations":
        cells["seconds before the first round"] = f"{row['start_seconds']:.3g}"
        cells["seconds of an evaluation (first, second)"] = ", ".join(f"{s:.3g}" for s in row["evaluations"])
    return cells


def read_options() -> argparse.Namespace:
    """The command line, which a worker gets as well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu_results"), metavar="DIR", help="default: gpu_results")
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="wheels of packages that this machine lacks")
    parser.add_argument("--femnist", type=Path, metavar="FILE", help="default: random images")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--minutes", type=float, default=9.5, help="of this call")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for one measurement")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="the smallest sizes")
    options = parser.parse_args()
    if options.femnist and not options.femnist.is_file():
        parser.error(f"--femnist: no file {options.femnist}")
    if options.wheels and not list(options.wheels.glob("*.whl")):
        parser.error(f"--wheels: no wheels in {options.wheels}")
    return options


def install(wheels: Path | None, site: Path) -> None:
    """Puts the wheels aside, and the name and version of this checkout, which may not be installed."""
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]
    facts = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    if wheels:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(site)]
        subprocess.run([*pip, *map(str, sorted(wheels.glob("*.whl")))], check=True)


def work_off(out: Path, site: str, deadline: float) -> bool:
    """Lets one worker measure what is left, until a measurement ends it or the time is over; whether all is done."""
    file, log, start = out / "gpu.jsonl", out / "gpu.log", time.time()
    own = [str(HERE.parent / "src"), str(HERE.parent / "tests"), str(HERE / "peers"), site]
    paths = [*own, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, str(HERE / "gpu_worker.py"), *sys.argv[1:]]
    with log.open("a") as words, contextlib.suppress(subprocess.TimeoutExpired):
        size, left = words.tell(), max(1.0, deadline - time.monotonic())
        if subprocess.run(command, stderr=words, env=environment, timeout=left).returncode == 0:
            return True
        lines = log.read_bytes()[size:].decode(errors="replace").strip().splitlines() or ["no reason given"]
        running = [row for row in read(file).values() if row["status"] == "running" and row["begun"] >= start]
        if not running:
            raise SystemExit(f"error: {lines[-1]}")  # nothing can be measured here
        late = any(line.startswith("Timeout (") for line in lines)
        why = {"status": "cut off", "reason": "by --limit"} if late else {"status": "failed", "reason": lines[-1]}
        append(file, name=running[-1]["name"], **why)
    return False


def main() -> None:
    """Measures until all is done, or the time is over."""
    options = read_options()
    deadline = time.monotonic() + 60 * options.minutes
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the worker ends, too
    options.out.mkdir(parents=True, exist_ok=True)
    done = False
    with tempfile.TemporaryDirectory() as site:
        install(options.wheels, Path(site))
        while not done and time.monotonic() < deadline:
            done = work_off(options.out, site, deadline)
    found = list(read(options.out / "gpu.jsonl").values())
    (options.out / "gpu.md").write_text(tables(found))
    print(f"\n{tables(found)}\n" + ("all is done" if done else "something is left: call again"))
    if any(row["status"] in ("failed", "cut off") for row in found):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
