"""How a round of FedEM grows with clients, components and the cohort, on the synthetic mixture.

    python benchmarks/growth.py [--clients 30] [--components 3] [--rounds 5] [--engine auto] [--json FILE]
    python benchmarks/growth.py --personal [FedAvg Ditto ...] [--clients 300] [--backbone linear]

Beside every factor of time stands the factor of work: of the cohort's training samples times components. All sizes run
in turn in one process; a time factor below that of the work means that fixed costs are shared out among more.

`--personal` measures methods whose clients keep models, beside FedAvg: processor seconds of a round with the scores of
all clients, with so many and ten times as many clients of 10 samples. Each run has a process of its own, whose peak
memory it tells. `PYTHONPATH` sets whose source is measured.
"""

import multiprocessing
import resource
import time
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import pytorch_lightning as pl
import torch

import fedem_lightning as fl
from common import (
    alternate,
    finish,
    make_trainer,
    mixture,
    one_round,
    print_header,
    print_row,
    read_options,
    round_parser,
)
from fedem_lightning import ClientSGD, FedEM, Linear, SyntheticMixture
from fedem_lightning.data.randomness import sample_cohort
from fedem_lightning.evaluate import adapt


class Size(NamedTuple):
    """Of a round."""

    clients: int
    cohort: int
    components: int

    def __str__(self) -> str:
        return f"{self.cohort} of {self.clients} clients, M = {self.components}"


def make_model(size: Size, data: SyntheticMixture, engine: str) -> FedEM:
    """FedEM of this size."""
    return FedEM(
        Linear(data.in_shape, data.n_outputs),
        data.n_clients,
        size.components,
        client_optimizer=ClientSGD(lr=0.1),
        participation=1.0 if size.cohort == size.clients else size.cohort,
        engine=engine,
    )


def work(size: Size, data: SyntheticMixture, model: FedEM) -> int:
    """The cohort's training samples, each once for every component; every timed round is a first one, so has this."""
    cohort = sample_cohort(torch.arange(data.n_clients), model.participation, model.seed, 0)
    return int(data.federation.splits["train"].counts(cohort).sum()) * size.components


PERSONAL: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("FedAvg", "FedPer", "Local", "Ditto", "FedRep", "APFL", "FedBN", "PFedMe", "L2SGD")},
    **{name: {} for name in ("LGFedAvg", "FedBABU", "FedRoD", "FedProto", "FedALA", "PerFedAvg", "FedEM")},
    **{name: {"n_components": 3} for name in ("HypCluster",)},
    **{"UserCentric": {"n_streams": 3}, "Clustered": {}, "FedFOMO": {"participation": 20}, "DFedEM": {}},
    **{
        f"FedAvg, {kind.__name__}": {"adaptation": kind}
        for kind in (adapt.Finetune, adapt.Dapper, adapt.Interpolate, adapt.KNN)
    },
}
"""Methods with their options."""


def vectors(clients: int, shape: tuple[int, ...]) -> fl.FederatedDataModule:
    """10 random samples of each client in 10 classes: 6 for training, 2 for validation, 2 for the test."""
    rng, n = np.random.default_rng(0), 10 * clients
    x, y = rng.normal(size=(n, *shape)).astype(np.float32), rng.integers(10, size=n)
    split = np.tile(np.repeat([0, 1, 2], [6, 2, 2]), clients).astype(np.int8)
    return fl.FederatedDataModule.from_arrays(x, y, np.repeat(np.arange(clients), 10), split=split, n_classes=10)


class EpochClock(pl.Callback):
    """Processor seconds of each round with its scores."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_validation_end(self, *_: Any) -> None:
        """All clients have scores."""
        self.ends.append(time.process_time())


def personal_round(name: str, clients: int, backbone: str, rounds: int) -> dict[str, Any]:
    """The processor seconds of each round of a method, and the peak memory of this process in GB."""
    data = vectors(clients, (1, 14, 14) if backbone == "cnn" else (150,))
    networks = {"linear": fl.Linear, "mlp": fl.MLP}
    network = fl.LeNet5(10, (1, 14, 14)) if backbone == "cnn" else networks[backbone](data.in_shape, 10)
    clock, options = EpochClock(), dict(PERSONAL[name])
    if "adaptation" in options:
        options["adaptation"] = options["adaptation"]()
    model = getattr(fl, name.split(",")[0])(network, clients, client_optimizer=ClientSGD(lr=0.1), **options)
    make_trainer(rounds + 1, torch.device("cpu"), callbacks=[clock], limit_val_batches=1).fit(model, data)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    return {"seconds": np.diff(clock.ends[-rounds - 1 :]).tolist(), "gb": memory}


def personal(options: Any) -> None:
    """Measures methods whose clients keep models, and prints."""
    sizes = (options.clients, 10 * options.clients)
    title = f"{options.backbone}, 10 samples of a client, {options.rounds} rounds after one that warms up"
    columns = ("seconds of a round and scores, median (min - max)", "times FedAvg's", "peak GB")
    print_header(title, "method", "clients", *columns)
    base, rows = dict.fromkeys(sizes, float("nan")), []
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for name in options.personal or PERSONAL:
            for clients in sizes:
                job = (name, clients, options.backbone, options.rounds)
                try:
                    row = pool.apply(personal_round, job)
                except fl.UserError as error:
                    print_row(name, clients, str(error)[:60], "", "")
                    continue
                seconds = row["seconds"]
                if name == "FedAvg":
                    base[clients] = median(seconds)
                spread = f"{median(seconds):.3g} ({min(seconds):.3g} - {max(seconds):.3g})"
                print_row(name, clients, spread, f"{median(seconds) / base[clients]:.1f}", f"{row['gb']:.2f}")
                rows.append({"method": name, "clients": clients, **row})
    finish(options, torch.device("cpu"), rows=rows)


def main() -> None:
    """Measures and prints."""
    parser = round_parser(__doc__)
    parser.add_argument("--clients", type=int, default=30, help="the smaller number; from 2 on")
    parser.add_argument("--personal", nargs="*", choices=PERSONAL, help="methods; default: all", metavar="METHOD")
    parser.add_argument("--backbone", choices=("linear", "mlp", "cnn"), default="linear", help="of --personal")
    parser.add_argument("--components", type=int, default=3, help="the smaller number")
    parser.add_argument("--engine", choices=("auto", "loop", "vmap"), default="auto")
    options = read_options(parser)
    if options.clients < 2:
        parser.error("--clients: at least 2")
    if options.personal is not None:
        return personal(options)
    t, m = options.clients, options.components
    small, large = Size(t, t, m), Size(10 * t, 10 * t, m)
    wide, part = Size(10 * t, 10 * t, 3 * m), Size(10 * t, t, m)
    data = {clients: mixture(clients) for clients in (t, 10 * t)}
    models = {size: make_model(size, data[size.clients], options.engine) for size in (small, large, wide, part)}
    works = {size: work(size, data[size.clients], model) for size, model in models.items()}
    ways = {str(size): one_round(model, data[size.clients], options.device) for size, model in models.items()}
    timings = alternate(ways, options.rounds)
    changes = {
        "clients x 10, all in every round": (small, large),
        "components x 3": (large, wide),
        "cohort x 10, the same clients": (part, large),
        "clients x 10, the same cohort": (small, part),
    }
    print_header(
        f"FedEM on the synthetic mixture, {options.rounds} rounds after one that warms up",
        *("what grows", "from", "to", "seconds from", "seconds to", "factor of time", "factor of work"),
    )
    rows = []
    for what, (before, after) in changes.items():
        seconds = [timings[str(size)] for size in (before, after)]
        factors = seconds[1].median / seconds[0].median, works[after] / works[before]
        print_row(what, before, after, *seconds, *(f"{factor:.2f}" for factor in factors))
        rows.append({"what": what, "from": str(before), "to": str(after), "time": factors[0], "work": factors[1]})
    finish(options, options.device, rows=rows, timings=timings)


if __name__ == "__main__":
    main()
