"""What every measurement of `benchmarks/gpu_worker.py` shares: its events, its memory, and how it may fail.

A library of `gpu_worker.py` and its kinds of measurement (`gpu_methods.py`, `gpu_jobs.py`, `gpu_federations.py`); it
has no command line. An event is a line of JSON on standard output, written at once:

    {"event": "round", "seconds": 0.25, "peak_gb": 1.2}
"""

import gc
import importlib.util
import json
from typing import Any

import pytorch_lightning as pl
import torch

from common import cpu_name, now
from fedem_lightning.run.devices import environment

Facts = dict[str, Any]

CPU = torch.device("cpu")


class MissingPackageError(Exception):
    """A measurement needs a package that is not installed."""


def require_package(name: str) -> None:
    """Ends the measurement, which is then named as missing, where a package cannot be imported.

    Raises:
        MissingPackageError: it is not installed.

    """
    if importlib.util.find_spec(name) is None:
        raise MissingPackageError(f"{name} is not installed")


def tell(event: str, **facts: Any) -> None:
    """Prints an event."""
    print(json.dumps({"event": event, **facts}), flush=True)


def tell_error(error: Exception) -> None:
    """Prints the event of a measurement that failed by itself."""
    words = str(error).strip().splitlines()
    tell("failed", reason=f"{type(error).__name__}: {words[0] if words else ''}".rstrip(": ")[:300])


def peak_gb(device: torch.device) -> float | None:
    """Memory of tensors at its peak since the measurement began, in 10^9 bytes; None on a CPU."""
    return torch.cuda.max_memory_allocated(device) / 1e9 if device.type == "cuda" else None


def clean(device: torch.device) -> None:
    """Lets go of what an earlier measurement left, so that the next peak is its own, and restores torch's defaults."""
    gc.collect()
    set_tf32(convolutions=True, products=False)
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def set_tf32(convolutions: bool, products: bool) -> None:
    """Whether a card may multiply float32 with 10 bits (TF32); torch does so in convolutions unless told otherwise."""
    torch.backends.cudnn.allow_tf32 = convolutions
    torch.backends.cuda.matmul.allow_tf32 = products


def still_works(device: torch.device) -> bool:
    """Whether the device computes after an error; after an error of CUDA itself nothing in this process does."""
    try:
        torch.ones(2, device=device).sum().item()
    except RuntimeError:
        return False
    return True


def describe(device: torch.device) -> Facts:
    """Versions, the card and the processor."""
    facts = {**environment(device), "processor": cpu_name()}
    if device.type == "cuda":
        card = torch.cuda.get_device_properties(device)
        facts |= {"cuda": torch.version.cuda, "memory_gb": card.total_memory / 1e9}
    return facts


class WholeRoundClock(pl.Callback):
    """Times rounds with all that Lightning does between them, and tells of each.

    Args:
        device: that trains.
        facts: to tell with every round.

    """

    def __init__(self, device: torch.device, facts: Facts) -> None:
        self.device, self.facts = device, facts
        self._last: float | None = None

    def on_train_epoch_start(self, *_: Any) -> None:
        """The first round begins; the others begin where the one before ends."""
        if self._last is None:
            self._last = now(self.device)

    def on_train_epoch_end(self, *_: Any) -> None:
        """The round is over."""
        end, begin = now(self.device), self._last or 0.0
        self._last = end
        tell("round", seconds=end - begin, peak_gb=peak_gb(self.device), **self.facts)
