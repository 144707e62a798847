"""The work that all libraries do: the data, the model, the clock and the result's line.

    python benchmarks/peers/work.py linear FILE [--clients 300] [--test-size 100] [--seed 0]
    python benchmarks/peers/work.py femnist FILE [--femnist NPZ] [--clients 50] [--seed 0]

write a work file: x, y, client, split (0 train, 2 test) and n_classes. Only this needs fedem-lightning; a peer's
interpreter needs torch and numpy.
"""

import argparse
import functools
import json
import math
import os
import random
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # some libraries take a GPU where they see one; this comparison is of the CPU

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

Samples = tuple[Tensor, Tensor]
"""x float32 [n, ...] and y int64 [n]."""


@dataclass(frozen=True)
class Work:
    """Training samples of each client, test samples of all together."""

    clients: list[Samples]
    test: Samples
    n_classes: int

    @property
    def in_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.test[0].shape[1:])


def read(path: str | Path) -> dict[str, Any]:
    """The arrays x, y, client, split and the number n_classes of a work file."""
    with np.load(path) as file:
        return {name: file[name] if name != "n_classes" else int(file[name]) for name in file.files}


@functools.cache  # a worker process that serves many clients reads the file once
def load(path: str | Path) -> Work:
    """The work of a file, images as floats in [0, 1] of shape [n, 1, height, width]."""
    arrays = read(path)
    x, client, split = arrays["x"], arrays["client"], arrays["split"]

    def samples(rows: np.ndarray) -> Samples:
        images = torch.from_numpy(x[rows])
        if images.dtype == torch.uint8:
            images = images.unsqueeze(1).float() / 255
        return images, torch.from_numpy(arrays["y"][rows])

    clients = [samples(np.flatnonzero((client == t) & (split == 0))) for t in range(client.max() + 1)]
    return Work(clients, samples(np.flatnonzero(split == 2)), arrays["n_classes"])


def make_model(name: str, in_shape: tuple[int, ...], n_classes: int, seed: int) -> nn.Sequential:
    """The model by name, with the same first parameters in every library.

    Args:
        name: "linear", or "reference_cnn" (for images of one channel).
        in_shape: of a sample.
        n_classes: logits.
        seed: of the parameters.

    """
    torch.manual_seed(seed)
    if name == "linear":
        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(in_shape), n_classes))
    _, height, width = in_shape
    flat = 64 * (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2)
    convolutions = [nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(flat, 2048), nn.ReLU(), nn.Linear(2048, n_classes))


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The arguments that all runners share."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", required=True, help="a work file")
    parser.add_argument("--model", choices=("linear", "reference_cnn"), required=True)
    for name, default in (("rounds", 5), ("batch-size", 128), ("local-epochs", 1), ("threads", 1), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--lr", type=float, default=0.05)
    return parser


def prepare(options: argparse.Namespace) -> tuple[Work, nn.Sequential]:
    """The work and its model; sets threads and seeds."""
    torch.set_num_threads(options.threads)
    work = load(options.work)
    model = make_model(options.model, work.in_shape, work.n_classes, options.seed)
    random.seed(options.seed)
    np.random.seed(options.seed)
    return work, model


def process_age() -> float:
    """Seconds since this process started (Linux)."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")


@dataclass
class Clock:
    """Seconds of every round, and from the start of the process to the first of them."""

    seconds: list[float] = field(default_factory=list)
    start_seconds: float | None = None
    _mark: float = 0.0

    def start(self) -> None:
        """A round begins."""
        if self.start_seconds is None:
            self.start_seconds = process_age()
        self._mark = time.perf_counter()

    def stop(self) -> None:
        """It ends."""
        self.seconds.append(time.perf_counter() - self._mark)


def peak_mb() -> float:
    """Peak resident memory of this process and, each with its own peak, of its living descendants.

    What several processes share, such as the libraries they have mapped, counts in each.
    """
    parents, peaks = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            lines = (folder / "status").read_text().splitlines()
        except OSError:  # it ended meanwhile
            continue
        status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        parents[int(folder.name)] = int(status["PPid"])
        peaks[int(folder.name)] = int(status.get("VmHWM", "0 kB").split()[0])
    family, size = {os.getpid()}, 0
    while len(family) > size:
        size = len(family)
        family |= {child for child, parent in parents.items() if parent in family}
    return sum(peaks[process] for process in family) / 1024


@torch.no_grad()
def evaluate(model: nn.Module, test: Samples) -> tuple[float, float]:
    """Mean loss and accuracy over all test samples."""
    model.eval()
    loss = correct = 0.0
    for x, y in zip(test[0].split(2048), test[1].split(2048), strict=True):
        outputs = model(x)
        loss += cross_entropy(outputs, y, reduction="sum").item()
        correct += (outputs.argmax(dim=1) == y).sum().item()
    return loss / len(test[1]), correct / len(test[1])


def report(package: str, clock: Clock, model: nn.Module, test: Samples, peak: float | None = None) -> None:
    """Prints the result as one line of JSON.

    Args:
        package: the library's distribution.
        clock: of the rounds.
        model: the trained one.
        test: what to evaluate it on.
        peak: peak memory in MB, where it has to be taken before the library's processes end; None: now.

    """
    peak = peak_mb() if peak is None else peak
    loss, accuracy = evaluate(model, test)
    result = {"library": package, "version": version(package), "seconds": clock.seconds}
    result |= {"start_seconds": clock.start_seconds, "test_accuracy": accuracy, "test_loss": loss, "peak_mb": peak}
    print(json.dumps(result), flush=True)


def linear_work(n_clients: int, test_size: int, seed: int) -> dict[str, np.ndarray]:
    """The synthetic mixture: log-normal sizes, 150 features, 2 classes. Its validation samples are left out."""
    from fedem_lightning import SyntheticMixture

    federation = SyntheticMixture(n_clients=n_clients, test_size=test_size, seed=seed).federation
    parts = []
    for code, split in ((0, "train"), (2, "test")):
        block = federation.block(torch.arange(n_clients), split)
        codes = np.full(len(block.index), code, dtype=np.int8)
        parts.append((block.x(torch.float32).numpy(), block.y().numpy(), block.owner.numpy(), codes))
    arrays = (np.concatenate(pieces) for pieces in zip(*parts, strict=True))
    return {**dict(zip(("x", "y", "client", "split"), arrays, strict=True)), "n_classes": np.int64(2)}


def femnist_work(path: Path | None, n_clients: int, seed: int) -> dict[str, np.ndarray]:
    """The first writers of a FEMNIST file, a tenth of each one's images for the test; without a file random images."""
    from fedem_lightning.data.splits import Splitting

    if path is None:
        rng, n = np.random.default_rng(seed), n_clients * 144  # 130 of them train
        x, y = rng.integers(256, size=(n, 28, 28), dtype=np.uint8), rng.integers(62, size=n)
        client, n_classes = np.repeat(np.arange(n_clients), 144), 62
    else:
        with np.load(path) as file:
            x, y, client = file["x"], file["y"].astype(np.int64), file["client"]
        n_classes, chosen = int(y.max()) + 1, client < n_clients
        x, y, client = x[chosen], y[chosen], client[chosen]
    split = Splitting(seed=seed, fractions=(0.9, 0.0, 0.1)).split(client)
    return {"x": x, "y": y, "client": client, "split": split, "n_classes": np.int64(n_classes)}


def main() -> None:
    """Writes a work file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("linear", "femnist"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--clients", type=int, help="default: 300 for linear, 50 for femnist")
    parser.add_argument("--test-size", type=int, default=100, help="test samples a client, for linear")
    parser.add_argument("--femnist", type=Path, help="an .npz with x uint8 [n, 28, 28], y and client")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.kind == "linear":
        arrays = linear_work(options.clients or 300, options.test_size, options.seed)
    else:
        arrays = femnist_work(options.femnist, options.clients or 50, options.seed)
    np.savez(options.file, **arrays)
    counts = np.bincount(arrays["client"][arrays["split"] == 0])
    print(f"{len(counts)} clients, {counts.min()} to {counts.max()} training samples, {counts.mean():.0f} on average")


if __name__ == "__main__":
    main()
