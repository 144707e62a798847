"""Seconds and memory to load a large federation: random images, as many as FEMNIST and EMNIST have.

python benchmarks/loading.py --samples 800000

Each way to load runs in a process of its own; "extra memory" is its peak less what Python and the imports take, divided
by the size of the images.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from fedem_lightning import ImageFederation
from fedem_lightning.data.formats.npz import write_npz

MEGABYTE = 1e6


def memory(what: str) -> float:
    """Of this process, in MB: VmHWM at its peak, VmRSS now (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    kibibytes = next(line.split()[1] for line in lines if line.startswith(what))
    return int(kibibytes) * 1024 / MEGABYTE


def load_once(path: str, mmap: bool) -> None:
    """Loads and prints what it took, as JSON."""
    before = memory("VmRSS")
    start = time.perf_counter()
    data = ImageFederation("femnist", path=path, mmap=mmap)
    seconds = time.perf_counter() - start
    size = data.federation.samples.x.numel() / MEGABYTE
    print(json.dumps({"seconds": seconds, "images_mb": size, "peak_mb": memory("VmHWM") - before}))


def main() -> None:
    """Writes the file, loads it in both ways, prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=800_000)
    parser.add_argument("--load", metavar="FILE", help=argparse.SUPPRESS)
    parser.add_argument("--mmap", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.load:
        load_once(chosen.load, chosen.mmap)
        return
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.npz"
        n = chosen.samples
        images = rng.integers(256, size=(n, 28, 28), dtype=np.uint8)
        write_npz(path, {"x": images, "y": rng.integers(62, size=n), "client": np.sort(rng.integers(3597, size=n))})
        del images
        print("| way | seconds | images, MB | memory at the peak, MB | in sizes of the images |\n|---|---|---|---|---|")
        for options in ([], ["--mmap"]):
            command = [sys.executable, __file__, "--load", str(path), *options]
            found = json.loads(subprocess.check_output(command, text=True))
            ratio = found["peak_mb"] / found["images_mb"]
            way = "mapped" if options else "read"
            print(
                f"| {way} | {found['seconds']:.2f} | {found['images_mb']:.0f} | {found['peak_mb']:.0f} | {ratio:.2f} |"
            )


if __name__ == "__main__":
    main()
