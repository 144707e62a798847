"""Seconds and memory to load a large federation: random images, as many as FEMNIST and EMNIST have.

    python benchmarks/loading.py [--samples 800000] [--repeats 3] [--json FILE]

Each way to load runs in a process of its own, in turn, after one of each that warms up the file's cache; "memory at the
peak" is that of the process less what Python and the imports take, also divided by the size of the images (Linux).
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch

from common import Timing, bare_parser, finish, print_header, print_row
from fedem_lightning import ImageDataModule
from fedem_lightning.data.formats.npz import write_npz

MEGABYTE = 1e6
WAYS = {"read": [], "mapped": ["--mmap"]}


def memory(what: str) -> float:
    """Of this process, in MB: VmHWM at its peak, VmRSS now (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    kibibytes = next(line.split()[1] for line in lines if line.startswith(what))
    return int(kibibytes) * 1024 / MEGABYTE


def load_once(path: str, mmap: bool) -> None:
    """Loads and prints what it took, as JSON."""
    before = memory("VmRSS")
    start = time.perf_counter()
    data = ImageDataModule("femnist", path=path, mmap=mmap)
    seconds = time.perf_counter() - start
    size = data.federation.samples.x.numel() / MEGABYTE
    print(json.dumps({"seconds": seconds, "images_mb": size, "peak_mb": memory("VmHWM") - before}))


def write_images(path: Path, n: int) -> None:
    """A file of n random images, of 3597 writers as FEMNIST has them (of fewer if there are few images)."""
    rng = np.random.default_rng(0)
    images = rng.integers(256, size=(n, 28, 28), dtype=np.uint8)
    client = np.sort(rng.integers(min(3597, max(1, n // 200)), size=n))
    write_npz(path, {"x": images, "y": rng.integers(62, size=n), "client": client})


def main() -> None:
    """Writes the file, loads it in both ways, prints a table."""
    parser = bare_parser(__doc__)
    parser.add_argument("--samples", type=int, default=800_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--load", metavar="FILE", help=argparse.SUPPRESS)
    parser.add_argument("--mmap", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.load:
        load_once(options.load, options.mmap)
        return
    if options.repeats < 1:
        parser.error("--repeats: at least 1")
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.npz"
        write_images(path, options.samples)
        for _ in range(options.repeats + 1):
            for way, extra in WAYS.items():
                command = [sys.executable, __file__, "--load", str(path), *extra]
                found[way].append(json.loads(subprocess.check_output(command, text=True)))
    print_header(
        f"{options.samples} images of 28 x 28, {options.repeats} times after one that warms up",
        *("way", "seconds, median (min - max)", "images, MB", "memory at the peak, MB", "in sizes of the images"),
    )
    for way, runs in found.items():
        timing = Timing(seconds=[run["seconds"] for run in runs[1:]])
        size, peak = runs[0]["images_mb"], median(run["peak_mb"] for run in runs[1:])
        print_row(way, timing, f"{size:.0f}", f"{peak:.0f}", f"{peak / size:.2f}")
    finish(options, torch.device("cpu"), runs=found)


if __name__ == "__main__":
    main()
