"""Two published simulation jobs of FedAvg: this library, pfl and a plain loop on the same card.

    benchmarks/gpu.sh --only jobs --out DIR [--femnist FILE.npz]
    benchmarks/gpu.sh --only jobs --device cpu --tiny --out DIR

A kind of measurement of `gpu_worker.py`. All ways train `CNN`, which is the network of both jobs (two convolutions of
32 and 64 channels, one hidden layer of 128 units, dropout), on cohorts of the same size, with what lies between two
rounds. FLUTE's job has FEMNIST's writers (the file's again and again, else random images), pfl's has random images of
CIFAR-10's shape. Samples are on the card before the first round for pfl and the plain loop; this library reads and
moves them in every round.
"""

import os
import random
import sys
from collections.abc import Callable
from itertools import chain, cycle
from pathlib import Path

import torch

from common import femnist, images, make_trainer, now
from fedem_lightning import CNN, ClientSGD, FedAvg, FederatedDataModule
from gpu_measurement import Facts, WholeRoundClock, peak_gb, require_package, tell

sys.path.append(str(Path(__file__).resolve().parent / "peers"))

LR = 0.1
"""Of both jobs."""


def make_data(what: Facts, file: Path | None) -> FederatedDataModule:
    """The job's clients."""
    if what["job"] == "cifar10":
        return images(what["clients"], what["samples"], (32, 32, 3), classes=10)
    return femnist(file, what["clients"], repeat=True) if file else images(what["clients"], what["samples"])


class Samples:
    """Each client's samples on the device, and cohorts of those clients.

    Args:
        data: of all clients.
        what: the job.
        device: that trains.

    """

    def __init__(self, data: FederatedDataModule, what: Facts, device: torch.device) -> None:
        draw = random.Random(0)
        self.cohorts = [draw.sample(range(data.n_clients), what["cohort"]) for _ in range(what["rounds"] + 1)]
        chosen = sorted(set(chain.from_iterable(self.cohorts)))
        blocks = {t: data.federation.block(torch.tensor([t]), "train") for t in chosen}
        self.of = {t: (block.x(torch.float32).to(device), block.y().to(device)) for t, block in blocks.items()}


class RoundTeller:
    """Times rounds and tells of each.

    Args:
        device: that trains.
        facts: to tell with every round.

    """

    def __init__(self, device: torch.device, facts: Facts) -> None:
        self.device, self.facts = device, facts

    def begin(self) -> None:
        """A round begins."""
        self._begin = now(self.device)

    def end(self) -> None:
        """The round is over."""
        tell("round", seconds=now(self.device) - self._begin, peak_gb=peak_gb(self.device), **self.facts)


# --- ways -----------------------------------------------------------------------------------------------------------


def run_ours(what: Facts, data: FederatedDataModule, device: torch.device, facts: Facts) -> Facts:
    """FedAvg of this library under a Trainer; the engine that it has picked."""
    model = FedAvg(
        CNN(data.n_outputs, data.in_shape),
        data.n_clients,
        client_optimizer=ClientSGD(lr=LR),
        batch_size=what["batch_size"],
        participation=what["cohort"],
    )
    make_trainer(what["rounds"] + 1, device, callbacks=[WholeRoundClock(device, facts)]).fit(model, data)
    return {"engine": model.local.engine.name}


def run_pfl(what: Facts, data: FederatedDataModule, device: torch.device, facts: Facts) -> Facts:
    """FedAvg of pfl."""
    os.environ["PFL_PYTORCH_DEVICE"] = str(device)
    from pfl_federation import Plan, Rounds, train

    samples, teller = Samples(data, what, device), RoundTeller(device, facts)
    users = cycle(str(t) for t in chain.from_iterable(samples.cohorts))
    plan = Plan(what["rounds"] + 1, what["cohort"], what["batch_size"], LR)
    network = CNN(data.n_outputs, data.in_shape).to(device)
    train(network, lambda user: samples.of[int(user)], users.__next__, plan, Rounds(teller.begin, teller.end))
    return {}


def run_plain(what: Facts, data: FederatedDataModule, device: torch.device, facts: Facts) -> Facts:
    """FedAvg as one writes it first."""
    from plain import fedavg_round

    samples, teller = Samples(data, what, device), RoundTeller(device, facts)
    network = CNN(data.n_outputs, data.in_shape).to(device)
    for cohort in samples.cohorts:
        teller.begin()
        fedavg_round(network, [samples.of[t] for t in cohort], LR, what["batch_size"])
        teller.end()
    return {}


RUNNERS: dict[str, Callable[[Facts, FederatedDataModule, torch.device, Facts], Facts]] = {
    "ours": run_ours,
    "pfl": run_pfl,
    "plain": run_plain,
}


def measure_job(what: Facts, file: Path | None, device: torch.device) -> Facts:
    """Times rounds of a job, the first of which warms up, and tells of each."""
    if what["way"] == "pfl":
        require_package("pfl")  # before the data are made
    torch.manual_seed(0)
    data = make_data(what, file)
    facts = {"clients": data.n_clients, "random_images": file is None or what["job"] == "cifar10"}
    return {**facts, **RUNNERS[what["way"]](what, data, device, facts)}
