"""The machine of a run: on how many processes it trains, what would make it faster, what results.json says of it."""

import copy
import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from pytorch_lightning.accelerators import MPSAccelerator
from torch.utils.flop_counter import FlopCounterMode

from fedem_lightning.cohort import share_of
from fedem_lightning.engine import LoopEngine, cores
from fedem_lightning.errors import require
from fedem_lightning.models.tensors import called

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from fedem_lightning.algorithms.base import FederatedAlgorithm
    from fedem_lightning.data import FederatedDataModule

LONG_RUN_FLOPS = 3e12
"""A CPU run with more floating-point operations than this uses several processes; a core does some 4e10 a second."""


def pick_devices(config: "DictConfig", model: "FederatedAlgorithm", data: "FederatedDataModule") -> Any:
    """The Trainer's devices; on a CPU "auto" means processes: one for each core if learners run one by one, else one.

    None, the default: as "auto" for a long run on a CPU, else 1. Also 1 where clients keep models that others read,
    whose exchange in every round takes what processes gain; or models on disk, of which each process has a file.
    """
    devices = config.trainer.devices
    if not on_cpu(config) or model.remote is not None:
        return 1 if devices is None else devices
    n_nodes = config.trainer.get("num_nodes", 1)
    exchanged = any(store.on_disk or not store.alone for store in model.states.stores().values())
    if devices is None and (n_nodes > 1 or exchanged or _in_a_launchers_worker()):
        return 1
    if devices is None and arithmetic(model, data) * int(config.trainer.max_epochs) <= LONG_RUN_FLOPS:
        return 1
    n_clients = share_of(model.participation, len(data.federation.clients()))
    if devices not in (None, "auto"):
        n = len(devices) if isinstance(devices, Sequence) and not isinstance(devices, str) else int(devices)
        fits = n * n_nodes <= n_clients or model.aggregation.samples_independently
        require(fits, f"trainer.devices: {n * n_nodes} processes, but only {n_clients} clients in a round")
        return devices
    one_by_one = isinstance(model.local.resolve_engine(torch.device("cpu")), LoopEngine)
    return max(1, min(cores(), n_clients // n_nodes)) if one_by_one else 1


def pick_accelerator(config: "DictConfig") -> str:
    """The Trainer's accelerator: the CPU where auto would take a Mac's GPU, which has no float64."""
    accelerator = config.trainer.get("accelerator", "auto")
    return "cpu" if accelerator == "auto" and MPSAccelerator.is_available() else accelerator


def on_cpu(config: "DictConfig") -> bool:
    """Whether the Trainer takes the CPU."""
    accelerator = pick_accelerator(config)
    return accelerator == "cpu" or (accelerator == "auto" and not torch.accelerator.is_available())


def arithmetic(model: "FederatedAlgorithm", data: "FederatedDataModule") -> float:
    """Floating-point operations of a round's gradients: those of a sample, forward three times, for each visit.

    A count, not a measurement: the number of processes, and with it the last bits of the results, must not depend on
    how busy the machine is.
    """
    federation = data.federation
    clients = federation.clients()
    index = federation.splits["train"].positions(clients[:1])[0][:1]
    network = copy.deepcopy(model.local.network).eval()
    x = federation.samples.features(index, torch.float32)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        called(network, x)
    drawn = share_of(model.participation, len(clients)) / len(clients)
    return 3 * counter.get_total_flops() * drawn * float(model.local_work(federation, clients, 0).sum())


def _in_a_launchers_worker() -> bool:
    """Whether Hydra gave this job to another process (joblib, ray, ...): it cannot start processes of its own."""
    from hydra.core.hydra_config import HydraConfig

    return HydraConfig.initialized() and "BasicLauncher" not in HydraConfig.get().launcher._target_


def environment(device: torch.device) -> dict[str, Any]:
    """Versions, device, commit and date of the run."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    packages = ("fedem-lightning", "torch", "pytorch-lightning", "torchmetrics", "numpy")
    return {
        **{package.replace("-", "_"): version(package) for package in packages},
        "python": platform.python_version(),
        "device": f"{device.type} ({name})",
        "threads": torch.get_num_threads(),
        "commit": _commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def peak_memory(device: torch.device) -> int | None:
    """The most bytes that this process has had at a time, on a GPU those of its tensors; None: Windows does not say."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, Linux kibibytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _commit() -> str | None:
    """The commit of the package's checkout, with "-dirty" if files have changed; None outside a checkout."""
    folder = Path(__file__).resolve().parents[3]
    if not (folder / ".git").exists():
        return None
    # without the lock of the index, which a commit at the same time would find taken
    command = ["git", "--no-optional-locks", *["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]]
    try:
        run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return run.stdout.strip()
