"""The measurements of `benchmarks/gpu.py`, one after the other in one process: it is started anew after a failure.

    python benchmarks/gpu_worker.py PLAN    (JSON: {"device", "femnist", "measurements": [...]})

Prints a line of JSON for every event, at once: "ready", "begin", "round" (its seconds, and the peak of the memory so
far), and "done", "failed" or "missing" (a package). An error of Python ends its measurement alone; if the card no
longer computes after it, it ends the process: nothing there can be trusted.
"""

import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from common import RoundClock, femnist, images, make_trainer, mixture, n_samples, now
from fedem_lightning import FederatedDataModule, LoopEngine, SyntheticMixture, VmapEngine
from gpu_measurement import CPU, Facts, MissingPackageError, clean, describe, peak_gb, still_works, tell, tell_error
from rounds import Sequential, Work, femnist_work, synthetic_work

COMPONENTS = 3
ENGINES = {"loop": LoopEngine, "vmap": VmapEngine}


# --- rounds ---------------------------------------------------------------------------------------------------------


def make_work(what: Facts, file: Path | None) -> Work:
    """All samples train; the same data, models and orders whenever it is called."""
    torch.manual_seed(0)
    bf16 = what["precision"] == "bf16-mixed"
    if what["work"] == "synthetic":
        return synthetic_work(mixture(what["clients"], COMPONENTS), bf16)
    if file is None:
        return femnist_work(images(what["clients"], what["samples"]), bf16)
    return femnist_work(femnist(file, what["clients"], repeat=True), bf16)


def measure_rounds(what: Facts, file: Path | None, device: torch.device) -> Facts:
    """Times rounds, the first of which warms up, and tells of each; what else there is to say of them."""
    work = make_work(what, file)
    facts = {"clients": work.data.n_clients, "samples": n_samples(work.data), "allocated_before_gb": peak_gb(device)}

    def tell_round(seconds: float) -> None:
        tell("round", seconds=seconds, peak_gb=peak_gb(device), **facts)

    if what["way"] == "sequential":
        sequential = Sequential(work, COMPONENTS, device)
        for _ in range(what["rounds"] + 1):
            tell_round(sequential())
        return facts
    model = work.fedem(COMPONENTS, ENGINES[what["way"]](memory_gb=what.get("memory_gb")))
    clock = RoundClock(device, tell_round)
    trainer = make_trainer(what["rounds"] + 1, device, precision=what["precision"], callbacks=[clock])
    trainer.fit(model, work.data)
    return {**facts, "engine": model.local.engine.name, "reason": model.local.engine.reason}


# --- profile --------------------------------------------------------------------------------------------------------

TOP = 12
"""Kernels of a profile that are named, by the time they take."""


class ProfileSecondRound(pl.Callback):
    """Profiles the second round: the first one warms up."""

    def __init__(self, device: torch.device) -> None:
        kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
        self.device, self.profile = device, profile(activities=kinds, acc_events=True)

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        """The round begins."""
        if trainer.current_epoch == 1:
            now(self.device)
            self.profile.start()
            self._start = now(self.device)

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """The round is over."""
        if trainer.current_epoch == 1:
            self.seconds = now(self.device) - self._start
            self.profile.stop()


def measure_profile(what: Facts, file: Path | None, device: torch.device) -> Facts:
    """What a round asks of the card: kernels, synchronisations, and the kernels that take longest."""
    work = make_work(what, file)
    profiled = ProfileSecondRound(device)
    model = work.fedem(COMPONENTS, ENGINES[what["way"]]())
    make_trainer(2, device, precision=what["precision"], callbacks=[profiled]).fit(model, work.data)
    averages = profiled.profile.key_averages()
    on_card = [e for e in averages if e.device_type != DeviceType.CPU and not e.key.startswith(("Memcpy", "Memset"))]
    calls = {e.key: e.count for e in averages}
    top = sorted(on_card, key=lambda e: e.self_device_time_total, reverse=True)[:TOP]
    return {
        "seconds": [profiled.seconds],
        "kernels": sum(e.count for e in on_card),
        "busy_seconds": sum(e.self_device_time_total for e in on_card) / 1e6,
        "launches": sum(n for name, n in calls.items() if name.startswith(("cudaLaunch", "cuLaunch"))),
        "synchronisations": sum(n for name, n in calls.items() if name.endswith("Synchronize")),
        "reads": sum(n for name, n in calls.items() if name == "aten::_local_scalar_dense"),
        "copies": {name: n for name, n in calls.items() if name.startswith("Memcpy")},
        "top": [[e.key[:90], e.count, e.self_device_time_total / 1e6] for e in top],
    }


# --- agreement ------------------------------------------------------------------------------------------------------


def scored_data(what: Facts, file: Path | None) -> FederatedDataModule:
    """With test samples."""
    if what["work"] == "synthetic":
        return SyntheticMixture(n_clients=what["clients"], n_components=COMPONENTS, test_size=what["test_size"])
    if file is None:
        return images(what["clients"], what["samples"], test=0.1)
    return femnist(file, what["clients"], repeat=True)


def train(what: Facts, file: Path | None, device: torch.device, engine: str) -> tuple[Tensor, Tensor]:
    """A few rounds: the weights as one vector, and the clients' accuracies on their test samples; both float64."""
    torch.manual_seed(0)
    data = scored_data(what, file)
    work = synthetic_work(data) if what["work"] == "synthetic" else femnist_work(data)
    model = work.fedem(COMPONENTS, engine)
    trainer = make_trainer(what["rounds"], device, precision=what["precision"])
    trainer.fit(model, data)
    trainer.test(model, data, verbose=False)
    weights = torch.cat([t.detach().cpu().double().flatten() for t in model.state_dict().values()])
    tested = model.clients[model.clients.n_test > 0]
    return weights, torch.tensor(tested.test_accuracy.to_numpy())


def measure_agreement(what: Facts, file: Path | None, device: torch.device) -> Facts:
    """The same rounds on the CPU, learner by learner, and on the device: how far apart they end."""
    # cuDNN multiplies float32 with 10 bits (TF32) unless told otherwise
    torch.backends.cudnn.allow_tf32 = what["tf32"]
    weights, accuracies = train(what, file, CPU, "loop")
    apart = {}
    for engine in ENGINES:
        own_weights, own_accuracies = train(what, file, device, engine)
        apart[engine] = {
            "weights": float((own_weights - weights).abs().max()),
            "client_accuracy": float((own_accuracies - accuracies).abs().max()),
            "mean_accuracy": float(own_accuracies.mean()),
        }
    largest = float(weights.abs().max())
    return {"apart": apart, "largest_weight": largest, "mean_accuracy_cpu": float(accuracies.mean())}


# --- all ------------------------------------------------------------------------------------------------------------


def find(kind: str) -> Callable[[Facts, Path | None, torch.device], Facts]:
    """The function that measures; what only some kinds import counts in the first measurement of its kind."""
    if kind == "method":
        from gpu_methods import measure_method as found
    elif kind == "job":
        from gpu_jobs import measure_job as found
    elif kind == "federation":
        from gpu_federations import measure_federation as found
    else:
        found = {"rounds": measure_rounds, "profile": measure_profile, "agreement": measure_agreement}[kind]
    return found


def measure(what: Facts, file: Path | None, device: torch.device) -> None:
    """One measurement; raises its error again only if the device no longer works after it."""
    try:
        tell("done", **find(what["kind"])(what, file, device))
    except MissingPackageError as error:
        tell("missing", reason=str(error))
    except Exception as error:
        if not still_works(device):
            raise
        traceback.print_exc()  # for gpu.log
        tell_error(error)


def main() -> None:
    """Works off the plan."""
    plan = json.loads(sys.argv[1])
    device, file = torch.device(plan["device"]), Path(plan["femnist"]) if plan["femnist"] else None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SystemExit(f"torch {torch.__version__} finds no CUDA card here")
    tell("ready", environment=describe(device))
    for what in plan["measurements"]:
        clean(device)
        tell("begin")
        measure(what, file, device)


if __name__ == "__main__":
    main()
