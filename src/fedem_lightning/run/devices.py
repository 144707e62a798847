"""On how many processes a run trains, and what would make it faster."""

import copy
import warnings
from typing import TYPE_CHECKING, Any

import torch
from pytorch_lightning.accelerators import MPSAccelerator
from torch.utils.flop_counter import FlopCounterMode

from fedem_lightning.cohort import share_of
from fedem_lightning.engine import LoopEngine, cores, processes_on_cpu
from fedem_lightning.protocol import Algorithm
from fedem_lightning.startup.rank import in_another_process

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from fedem_lightning.data import FederatedDataModule

LONG_RUN_FLOPS = 3e12
"""A CPU run with more floating-point operations than this uses several processes; a core does some 4e10 a second."""


def pick_devices(config: "DictConfig", model: Algorithm, data: "FederatedDataModule") -> Any:
    """The Trainer's devices; on a CPU "auto" means processes, by `engine.processes_on_cpu` (Lightning would take 1).

    None, the default: as "auto" for a long run on a CPU, else 1; also 1 where clients keep models or momentum of their
    own, whose exchange between processes takes what they gain.
    """
    devices, accelerator = config.trainer.devices, pick_accelerator(config)
    on_cpu = accelerator == "cpu" or (accelerator == "auto" and not torch.accelerator.is_available())
    if not on_cpu or model.remote is not None:
        return 1 if devices is None else devices
    long = arithmetic(model, data) * int(config.trainer.max_epochs) > LONG_RUN_FLOPS
    _print_precision_line(str(config.trainer.precision), long and isinstance(engine_on_cpu(model), LoopEngine))
    n_nodes = config.trainer.get("num_nodes", 1)
    if devices is None and (not long or n_nodes > 1 or model.client_stores() or _in_a_launchers_worker()):
        return 1
    if devices not in (None, "auto"):
        _warn_of_crowding(devices)
        return devices
    n_clients = share_of(model.participation, len(data.federation.clients())) // n_nodes
    return processes_on_cpu(engine_on_cpu(model), n_clients, cores())


def pick_accelerator(config: "DictConfig") -> str:
    """The Trainer's accelerator: the CPU where auto would take a Mac's GPU, which has no float64."""
    accelerator = config.trainer.get("accelerator", "auto")
    return "cpu" if accelerator == "auto" and MPSAccelerator.is_available() else accelerator


def _warn_of_crowding(devices: Any) -> None:
    """Where processes share cores by more than two."""
    if isinstance(devices, int) and devices > 2 * cores() and not in_another_process():
        warnings.warn(
            f"trainer.devices: {devices} processes share {cores()} cores, which is slower than "
            f"trainer.devices={cores()}, and each holds the whole federation",
            stacklevel=2,
        )


def engine_on_cpu(model: Algorithm) -> Any:
    """The engine that would run there."""
    return model.resolve_engine(torch.device("cpu"))


def arithmetic(model: Algorithm, data: "FederatedDataModule") -> float:
    """Floating-point operations of a round's gradients: those of a sample, forward three times, for each visit.

    A count, not a measurement: the number of processes, and with it the last bits of the results, must not depend on
    how busy the machine is.
    """
    federation = data.federation
    clients = federation.clients()
    index = federation.splits["train"].positions(clients[:1])[0][:1]
    network = copy.deepcopy(model.components[0]).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network(federation.samples.features(index, torch.float32))
    drawn = share_of(model.participation, len(clients)) / len(clients)
    return 3 * counter.get_total_flops() * drawn * float(model.local_work(federation, clients, 0).sum())


def _in_a_launchers_worker() -> bool:
    """Whether Hydra gave this job to another process (joblib, ray, ...): it cannot start processes of its own."""
    from hydra.core.hydra_config import HydraConfig

    return HydraConfig.initialized() and "BasicLauncher" not in HydraConfig.get().launcher._target_


def _print_precision_line(precision: str, long: bool) -> None:
    has_bfloat16 = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    if precision.startswith("bf16") and not has_bfloat16:
        print("trainer.precision: this CPU has no bfloat16 arithmetic, 32-true is many times faster", flush=True)
    elif precision == "32-true" and has_bfloat16 and long:
        print("this CPU has bfloat16 arithmetic: trainer.precision=bf16-mixed is about twice as fast", flush=True)
