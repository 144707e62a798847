"""Methods by PFLlib: `python pfllib_.py FOLDER WORK ...` runs its main.py with a user's flags, and takes notes.

What is replaced beside the mends, in memory: `DNN` is the network of both libraries; loaders of training samples follow
the order of batches that ours has written; scoring evaluates no training loss; no reports are written.
"""

import importlib
import os
import runpy
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import torch
from longer_mends import MENDS
from mends import Shared, there
from torch import Tensor
from torch.utils.data import DataLoader
from work import BATCH, DATA, EPOCHS, LR, Result, Work, flat, run_each

SHARED = Shared()
TEST = ("test_metrics", "test_metrics_personalized")


class Passes:
    """Positions of a loader's batches: its k-th pass is the k-th of the round.

    Per-FedAvg's halves of a batch are every second sample here, and the first and the last samples there (`halves`).
    """

    def __init__(self, order: Tensor, size: int, halves: bool) -> None:
        self.order, self.size, self.halves, self.passes = order, size, halves, 0

    def __iter__(self) -> Iterator[list[int]]:
        """Batch after batch."""
        order = self.order[self.passes % len(self.order)]
        self.passes += 1
        for rows in order.split(self.size)[: len(self)]:
            yield (torch.cat([rows[::2], rows[1::2]]) if self.halves else rows).tolist()

    def __len__(self) -> int:
        n = self.order.shape[1]
        return -(-n // self.size) if SHARED.keeps_short else n // self.size


def follow_the_order(work: Work) -> None:
    """Loaders of training samples (`drop_last=True`) follow the order; ALA's samples lie in it."""
    orders = torch.load(work.folder / "orders.pt")

    def loader(samples: Any, size: int, drop_last: bool, **options: Any) -> Any:
        if not drop_last:
            return DataLoader(samples, size, **options)
        passes = Passes(orders[SHARED.round][SHARED.client.id], size, work.method == "per_fedavg")
        return DataLoader(samples, batch_sampler=passes)  # type: ignore[arg-type]

    def noting_the_client(load: Callable[..., Any]) -> Callable[..., Any]:
        def loading(self: Any, *options: Any, **named: Any) -> Any:
            SHARED.client = self
            return load(self, *options, **named)

        return loading

    for name, kind in (("clientbase", "Client"), ("clientfomo", "clientFomo")):
        module = importlib.import_module(f"flcore.clients.{name}")
        module.DataLoader = loader  # type: ignore[attr-defined]
        getattr(module, kind).load_train_data = noting_the_client(getattr(module, kind).load_train_data)
    ala = there("utils.ALA", "ALA")
    learn = ala.adaptive_local_aggregation

    def learn_in_order(self: Any, *models: Any) -> None:
        given = self.train_data
        self.train_data = [given[i] for i in orders[SHARED.round][self.cid][0].tolist()]
        learn(self, *models)
        self.train_data = given

    ala.adaptive_local_aggregation = learn_in_order


def take_notes(result: Result, clock: dict[int, list[float]]) -> None:
    """Notes right predictions and models at every scoring, and by round the processor's times around it."""

    def noted(function: Callable[[], Any]) -> Callable[[], Any]:
        def call() -> Any:
            SHARED.served.clear()
            found = function()
            result.right.append([int(n) for n in found[2]])
            result.models.append(torch.stack([SHARED.served[t] for t in sorted(SHARED.served)]))
            return found

        return call

    def timed(function: Callable[[], None]) -> Callable[[], None]:
        def call() -> None:
            times = clock.setdefault(SHARED.round, [time.process_time()])
            function()
            times.append(time.process_time())

        return call

    def noting_the_model(test: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any) -> Any:
            found = test(self)
            shift = [self.client_mean] if hasattr(self, "client_mean") else []  # FedDBE's
            own = self.head.parameters() if hasattr(self, "head") else []  # FedRoD's
            SHARED.served[self.id] = flat([*shift, *getattr(self, "model_per", self.model).parameters(), *own])
            return found

        return call

    server, base = there("flcore.servers.serverbase", "Server"), there("flcore.clients.clientbase", "Client")
    made = server.__init__

    def make(self: Any, *options: Any) -> None:
        SHARED.server = self
        made(self, *options)
        for name in ("evaluate", "evaluate_personalized", "evaluate_one_step"):
            if hasattr(self, name):
                setattr(self, name, timed(getattr(self, name)))
        name = next(name for name in reversed(TEST) if hasattr(self, name))
        setattr(self, name, noted(getattr(self, name)))
        self.train_metrics = self.train_metrics_personalized = lambda: ([0], [1], [0], [0])
        self.avg_generalization_metrics = lambda: None  # FedAS calls it at its end, and it does not exist

    server.__init__ = make
    for kind in (base, *base.__subclasses__()):
        for name in TEST:
            if name in vars(kind):
                setattr(kind, name, noting_the_model(vars(kind)[name]))


def samples(data: dict[str, Any]) -> list[tuple[Tensor, Tensor]]:
    """Samples in torch's default dtype; PFLlib's own are float32."""
    x, y = torch.as_tensor(data["x"]), torch.as_tensor(data["y"])
    return list(zip(x.to(torch.get_default_dtype()), y.long(), strict=True))


def import_all(system: Path) -> None:
    """Imports PFLlib; what writes reports becomes nothing."""
    sys.path.insert(0, str(system))
    sys.modules |= {name: MagicMock() for name in ("utils.result_utils", "utils.mem_utils", "h5py")}
    for kind in ("client", "server"):
        for file in sorted((system / "flcore" / f"{kind}s").glob(f"{kind}*.py")):
            importlib.import_module(f"flcore.{kind}s.{file.stem}")


def run(work: Work, system: Path) -> Result:
    """Runs main.py in the work folder."""
    network, result, clock = work.start(), Result(), dict[int, list[float]]()
    importlib.import_module("flcore.trainmodel.models").DNN = lambda *_, **__: network  # type: ignore[attr-defined]
    importlib.import_module("utils.data_utils").process_image = samples  # type: ignore[attr-defined]
    follow_the_order(work)
    take_notes(result, clock)
    for name, mend in MENDS.items():
        if work.method in mend.methods and name not in work.without:
            mend.apply(SHARED)
    (work.folder / "system").mkdir(exist_ok=True)
    os.chdir(work.folder / "system")  # it reads ../dataset, and writes models
    rounds = work.rounds
    flags = f"-data {DATA} -m DNN -dev cpu -nc {work.clients} -lbs {BATCH} -lr {LR} -ls {EPOCHS} -gr {rounds}"
    sys.argv = ["main.py", *f"-algo {work.pair.name} {flags} {work.pair.flags}".split()]
    runpy.run_path(str(system / "main.py"), run_name="__main__")
    # it scores before every round, so once before the first one, and trains once more after the last scores
    result.right, result.models = result.right[1 : rounds + 1], result.models[1 : rounds + 1]
    result.seconds = [clock[i + 1][0] - clock[i][-1] for i in range(rounds)]
    return result


if __name__ == "__main__":
    SYSTEM = Path(sys.argv[1]).resolve() / "system"
    import_all(SYSTEM)
    run_each("pfllib", sys.argv[2:], lambda work: run(work, SYSTEM))
