"""What the runners of all libraries share: the work file, the first model, the clock and the result's line.

A work file has x float32, y, client, split (0 train, 2 test) and n_classes. A peer's interpreter needs torch and numpy.
"""

import argparse
import json
import math
import os
import random
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

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
    """The work and its model, with the same first parameters in every library; sets threads and seeds."""
    torch.set_num_threads(options.threads)
    with np.load(options.work) as file:
        x, y, client, split = (file[name] for name in ("x", "y", "client", "split"))
        n_classes = int(file["n_classes"])

    def samples(rows: np.ndarray) -> Samples:
        return torch.from_numpy(x[rows]), torch.from_numpy(y[rows])

    clients = [samples(np.flatnonzero((client == t) & (split == 0))) for t in range(client.max() + 1)]
    work = Work(clients, samples(np.flatnonzero(split == 2)), n_classes)
    torch.manual_seed(options.seed)
    model = make_model(options.model, work.in_shape, n_classes)
    random.seed(options.seed)
    np.random.seed(options.seed)
    return work, model


def make_model(name: str, in_shape: tuple[int, ...], n_classes: int) -> nn.Sequential:
    """A "linear" model, or the "reference_cnn" for images of one channel."""
    if name == "linear":
        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(in_shape), n_classes))
    _, height, width = in_shape
    flat = 64 * (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2)
    convolutions = [nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(flat, 2048), nn.ReLU(), nn.Linear(2048, n_classes))


@dataclass
class Clock:
    """Seconds of every round."""

    seconds: list[float] = field(default_factory=list)
    _mark: float = 0.0

    def start(self) -> None:
        """A round begins."""
        self._mark = time.perf_counter()

    def stop(self) -> None:
        """It ends."""
        self.seconds.append(time.perf_counter() - self._mark)


@torch.no_grad()
def report(package: str, clock: Clock, model: nn.Module, test: Samples) -> None:
    """Prints the result as one line of JSON: the library's distribution, its rounds, the trained model's scores."""
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
    model.eval()
    loss = correct = 0.0
    for x, y in zip(test[0].split(2048), test[1].split(2048), strict=True):
        outputs = model(x)
        loss += cross_entropy(outputs, y, reduction="sum").item() / len(test[1])
        correct += (outputs.argmax(dim=1) == y).sum().item() / len(test[1])
    result = {"library": package, "version": version(package), "seconds": clock.seconds}
    print(json.dumps({**result, "test_accuracy": correct, "test_loss": loss, "peak_mb": peak}), flush=True)
