"""What the benchmarks share: the data, the Trainer, the clock and the tables."""

import argparse
import json
import logging
import os
import platform
import subprocess
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch

from fedem_lightning import FederatedAlgorithm, FederatedDataModule, SyntheticMixture

logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)  # what it says of every Trainer is known
warnings.filterwarnings("ignore", module=r"pytorch_lightning\.|torch\.jit\.")

Way = Callable[[], float]
"""Does a piece of work once and returns the seconds it took."""


def bare_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with what every benchmark understands."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the raw figures")
    return parser


def round_parser(description: str | None, rounds: int = 5) -> argparse.ArgumentParser:
    """A parser for benchmarks that time rounds in this process."""
    parser = bare_parser(description)
    parser.add_argument("--rounds", type=int, default=rounds, help="timed rounds, after one that warms up")
    parser.add_argument("--threads", type=int, help="default: torch's choice")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda where there is one")
    return parser


def read_options(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The arguments of a `round_parser`; sets threads and seed, and makes `device` a torch.device."""
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds: at least 1")
    if options.threads:
        torch.set_num_threads(options.threads)
    options.device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    torch.manual_seed(0)
    return options


def mixture(clients: int, components: int = 3) -> SyntheticMixture:
    """The synthetic mixture without its test samples, which no round sees."""
    return SyntheticMixture(n_clients=clients, n_components=components, test_size=0)


def images(
    clients: int, samples: int, shape: Sequence[int] = (28, 28), classes: int = 62, test: float = 0.0
) -> FederatedDataModule:
    """Random images [height, width] or [height, width, channels]; `test` is the fraction that is not for training."""
    rng, n = np.random.default_rng(0), clients * samples
    x = rng.integers(256, size=(n, *shape), dtype=np.uint8)
    y, client = rng.integers(classes, size=n), np.repeat(np.arange(clients), samples)
    if test:
        return FederatedDataModule.from_arrays(x, y, client, n_classes=classes, fractions=(1 - test, 0.0, test))
    return FederatedDataModule.from_arrays(x, y, client, split=np.zeros(n, dtype=np.int8), n_classes=classes)


def femnist(path: Path | None, clients: int, samples: int = 144) -> FederatedDataModule:
    """Writers of a FEMNIST file, a tenth of each one's images for the test; without a file random images.

    Args:
        path: the file, with x uint8 [n, 28, 28], y and client.
        clients: the first writers; of a file that has fewer, the same ones again as further clients.
        samples: of a client with random images.

    """
    if path is None:
        return images(clients, samples, test=0.1)
    with np.load(path) as file:
        x, y, client = (file[name] for name in ("x", "y", "client"))
    n_writers = int(client.max()) + 1
    copies = -(-clients // n_writers)
    x, y = np.concatenate([x] * copies), np.concatenate([y] * copies)
    client = np.concatenate([client + copy * n_writers for copy in range(copies)])
    kept = client < clients
    fractions = (0.9, 0.0, 0.1)
    return FederatedDataModule.from_arrays(x[kept], y[kept], client[kept], n_classes=62, fractions=fractions)


def n_samples(data: FederatedDataModule) -> int:
    """Training samples of all clients."""
    return len(data.federation.splits["train"].index)


def make_trainer(rounds: int, device: torch.device, **options: Any) -> pl.Trainer:
    """A Trainer for rounds alone: no evaluation (unless `options` ask for it), no files, no output."""
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    options = {"accelerator": device.type, "devices": 1, "limit_val_batches": 0} | quiet | options
    return pl.Trainer(max_epochs=rounds, logger=False, **options)


def one_round(model: FederatedAlgorithm, data: FederatedDataModule, device: torch.device, **options: Any) -> Way:
    """Runs a round under a Trainer of its own, whose start does not count: a real run pays it once."""

    def run() -> float:
        clock = RoundClock(device)
        make_trainer(1, device, callbacks=[clock], **options).fit(model, data)
        return clock.seconds[-1]

    return run


class RoundClock(pl.Callback):
    """Times the rounds of a fit, each until the device has done all of it.

    Args:
        device: that trains.
        tell: called with the seconds of each round.

    """

    def __init__(self, device: torch.device, tell: Callable[[float], None] = lambda seconds: None) -> None:
        self.device, self.tell = device, tell
        self.seconds: list[float] = []

    def on_train_batch_start(self, *_: Any) -> None:
        """A round begins."""
        self._start = now(self.device)

    def on_train_batch_end(self, *_: Any) -> None:
        """The round is over."""
        self.seconds.append(now(self.device) - self._start)
        self.tell(self.seconds[-1])


def now(device: torch.device) -> float:
    """Seconds on a clock, once the device has done all it was asked to."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


@dataclass
class Timing:
    """Of one way."""

    first: float = 0.0  # it warms up
    seconds: list[float] = field(default_factory=list)  # of each round after it
    cut: bool = False  # the first round took too long: it is the only one

    @property
    def median(self) -> float:
        """Seconds a round."""
        return median(self.seconds)

    def __str__(self) -> str:
        spread = f"{self.median:.4g} ({min(self.seconds):.4g} - {max(self.seconds):.4g})"
        return f"{self.first:.4g} (first round, the only one)" if self.cut else spread


def alternate(ways: Mapping[str, Way], rounds: int, limit: float = float("inf")) -> dict[str, Timing]:
    """Times all ways in turn, `rounds` times after a first, which warms up.

    Args:
        ways: by name.
        rounds: that are timed.
        limit: seconds; a way whose first round takes longer has no other.

    """
    timings = {name: Timing() for name in ways}
    for round_ in range(rounds + 1):
        for name, run in ways.items():
            timing = timings[name]
            if round_ == 0:
                timing.first = run()
                timing.cut = timing.first > limit
            elif not timing.cut:
                timing.seconds.append(run())
    for timing in timings.values():
        timing.seconds = timing.seconds or [timing.first]
    return timings


def print_row(*cells: object) -> None:
    """A row of a Markdown table, at once: a long run that fails leaves what it has found."""
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def print_header(title: str, *columns: str) -> None:
    """The title and the head of a Markdown table."""
    print(f"\n{title}\n")
    print_row(*columns)
    print("|" + "---|" * len(columns), flush=True)


def finish(options: argparse.Namespace, device: torch.device, **figures: Any) -> None:
    """Prints machine, versions and date, and writes the raw figures if asked to."""
    where = machine(device)
    print("\n" + ", ".join(f"{key} {value}" for key, value in where.items()), flush=True)
    if options.json:
        settings = {key: value for key, value in vars(options).items() if key != "json"}
        content = {"settings": settings, **figures, "environment": where}
        options.json.write_text(json.dumps(content, indent=2, default=_plain) + "\n")


def _plain(value: Any) -> Any:
    return asdict(value) if isinstance(value, Timing) else str(value)


def machine(device: torch.device) -> dict[str, Any]:
    """Versions, device, processor, commit and date."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
    facts = {"commit": subprocess.run(git, capture_output=True, text=True).stdout.strip()}
    facts |= {"python": platform.python_version(), "torch": torch.__version__, "lightning": pl.__version__}
    facts |= {"cpu": names[0] if names else platform.machine(), "cores": os.cpu_count() or 0}
    if device.type == "cuda":
        card = torch.cuda.get_device_properties(device)
        facts |= {"card": card.name, "card_gb": round(card.total_memory / 1e9), "cuda": torch.version.cuda}
    return {**facts, "threads": torch.get_num_threads(), "date": datetime.now(UTC).isoformat(timespec="seconds")}
