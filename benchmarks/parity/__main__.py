"""Theirs and ours on one split, with one network, one start and one order of batches, round by round and by client.

    python benchmarks/parity --pfllib FOLDER [--methods fedavg ditto ...] [--rounds 5] [--as-is]
    python benchmarks/parity --fluke PYTHON

FOLDER is a clone of PFLlib, whose main.py runs; nothing is changed in it. Where it computes something else than the
papers, a mend changes it in memory: the output names its file, line and equation. `--as-is` leaves all mends out,
`--without NAME` some. PYTHON is an interpreter with fluke-fl, which runs as it is. Without a peer ours runs alone.

The split is in PFLlib's format: scikit-learn's digits, ten clients of unequal sizes, Dirichlet 0.3 by label. Libraries
run in processes of their own, with one thread. Seconds are the processor's, of the training of a round: the median
without the first, without scoring. Memory is the largest of a process. The exit status is 1 if a method differs: in a
number of right predictions, or in a parameter by more than 1e-9 (float64).
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from longer_mends import MENDS
from sklearn.datasets import load_digits
from work import FLUKE, PAIRS, Network, Result, Work

sys.path.append(str(Path(__file__).resolve().parents[1]))

from common import bare_parser, finish, print_header, print_row

HERE = Path(__file__).resolve().parent
CLIENTS, ALPHA = 10, 0.3
LARGEST = {"float64": 1e-9, "float32": 1e-3}
"""Differences of a parameter up to this are rounding."""
COLUMNS = ("counts that differ", "by at most", "parameters differ by", "seconds, theirs", "ours", "ours / theirs")


def read_options() -> argparse.Namespace:
    """The arguments."""
    parser = bare_parser(__doc__)
    parser.add_argument("--pfllib", type=Path, metavar="FOLDER", help="a clone of PFLlib")
    parser.add_argument("--fluke", metavar="PYTHON", help="an interpreter that has fluke-fl")
    parser.add_argument("--methods", nargs="+", choices=list(PAIRS), default=list(PAIRS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", choices=list(LARGEST), default="float64")
    parser.add_argument("--as-is", action="store_true", help="PFLlib without the mends")
    parser.add_argument("--without", nargs="+", choices=list(MENDS), default=[], metavar="MEND", help="leave them out")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds: at least 1")
    if options.pfllib is not None and not (options.pfllib / "system" / "main.py").is_file():
        parser.error(f"--pfllib: no system/main.py in {options.pfllib}")
    options.without = list(MENDS) if options.as_is else options.without
    return options


def deal(folder: Path) -> list[int]:
    """Writes the split, three quarters of a client's samples for training; their numbers, by client."""
    x, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    shares = rng.dirichlet([ALPHA] * CLIENTS, size=10)  # of each label
    client = np.array([rng.choice(CLIENTS, p=shares[label]) for label in y])
    sizes = []
    for t in range(CLIENTS):
        rows = rng.permutation(np.flatnonzero(client == t))
        sizes.append(int(0.75 * len(rows)))
        for part, own in (("train", rows[: sizes[-1]]), ("test", rows[sizes[-1] :])):
            (folder / part).mkdir(parents=True, exist_ok=True)
            with (folder / part / f"{t}.npz").open("wb") as file:
                np.savez_compressed(file, data={"x": (x[own] / 16).astype(np.float32), "y": y[own]})
    return sizes


def run(script: str, works: list[Work], *more: object, python: str = sys.executable) -> list[Result | str]:
    """The results of works by a script, or why there is none."""
    command = [python, str(HERE / script), *map(str, more), *(str(work.folder) for work in works)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    found: list[Result | str] = []
    for work in works:
        result, error = (work.folder / f"{script.removesuffix('.py').strip('_')}.{kind}" for kind in ("pt", "error"))
        lines = (error.read_text() if error.is_file() else done.stderr).strip().splitlines() or ["it ended"]
        found.append(Result.load(result) if result.is_file() else lines[-1].replace("|", "/"))
    return found


def run_all(works: list[Work], options: argparse.Namespace) -> dict[str, dict[str, Result | str]]:
    """Results by method and library, ours first: the peers follow the order that it writes."""
    found = {work.method: {"ours": result} for work, result in zip(works, run("ours.py", works), strict=True)}
    works = [work for work in works if isinstance(found[work.method]["ours"], Result)]
    if options.pfllib is not None and works:
        for work, result in zip(works, run("pfllib_.py", works, options.pfllib.resolve()), strict=True):
            found[work.method]["PFLlib"] = result
    works = [work for work in works if work.method in FLUKE]
    if options.fluke is not None and works:
        for work, result in zip(works, run("fluke_.py", works, python=options.fluke), strict=True):
            found[work.method]["fluke"] = result
    return found


def print_rounds(method: str, results: dict[str, Result]) -> None:
    """Right test predictions by round and client: ours, theirs, and the differences, ours less theirs."""
    print_header(f"{method}: right test predictions", "round", "of", *range(CLIENTS), "all")
    right = {name: np.array(result.right) for name, result in results.items()}
    right |= {f"ours - {name}": right["ours"] - right[name] for name in results if name != "ours"}
    for round_ in range(len(right["ours"])):
        for name, rows in right.items():
            print_row(round_ + 1, name, *rows[round_], rows[round_].sum())


def compared(theirs: Result, ours: Result) -> list[float]:
    """What the columns `COLUMNS` and then those of memory show."""
    away = np.abs(np.array(theirs.right) - np.array(ours.right))
    apart = max(float((a - b).abs().max()) for a, b in zip(theirs.models, ours.models, strict=True))
    seconds = [median(result.seconds[1:] or result.seconds) for result in (theirs, ours)]
    return [int((away > 0).sum()), int(away.max()), apart, *seconds, seconds[1] / seconds[0]]


def compare(method: str, found: dict[str, Result | str], without: list[str]) -> Iterator[list[Any]]:
    """Prints a method's rounds and mends, and gives the summary's rows."""
    good = {name: result for name, result in found.items() if isinstance(result, Result)}
    mends = [name for name, mend in MENDS.items() if method in mend.methods and name not in without]
    if "ours" in good:
        print_rounds(method, good)
    for name in mends if "PFLlib" in good else ():
        print(f"\n{name}: {MENDS[name].where}: {MENDS[name].equation}")
    for name, result in found.items():
        if isinstance(result, str):
            yield [method, name, result]
        elif name != "ours":
            mended = [mend for mend in mends if name == "PFLlib" and mend != "short_batches"]  # this one all have
            cells = compared(result, good["ours"])
            yield [method, name, *cells, result.peak_mb, good["ours"].peak_mb, ", ".join(mended)]


def main() -> None:
    """Compares, prints and writes."""
    options, rows = read_options(), list[list[Any]]()
    with tempfile.TemporaryDirectory() as folder:
        works = [Work(Path(folder, m), m, options.rounds, options.dtype, options.without) for m in options.methods]
        for work in works:
            sizes = deal(work.data)
            torch.manual_seed(0)
            torch.save(Network().to(getattr(torch, options.dtype)).state_dict(), work.folder / "start.pt")
            work.write()
        for method, found in run_all(works, options).items():
            rows += compare(method, found, options.without)
    print_header(
        f"{CLIENTS} clients with {min(sizes)} to {max(sizes)} training samples, {options.rounds} rounds",
        *("method", "peer", *COLUMNS, "MB, theirs", "ours", "mends beside short_batches"),
    )
    for row in rows:
        print_row(*(f"{cell:.3g}" if isinstance(cell, float) else cell for cell in row))
    if options.pfllib is not None:
        git = ["git", "-C", str(options.pfllib), "log", "-1", "--format=%h of %as"]
        print(f"\nPFLlib {subprocess.run(git, capture_output=True, text=True).stdout.strip()}")
    finish(options, torch.device("cpu"), rows=rows)
    largest = LARGEST[options.dtype]
    wrong = [f"{row[0]} ({row[1]})" for row in rows if len(row) == 3 or row[2] or row[4] > largest]
    if wrong and not options.without:
        raise SystemExit(f"different: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
