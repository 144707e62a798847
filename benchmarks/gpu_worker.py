"""The measurements of `benchmarks/gpu.py`, one after the other in one process: it is started anew after a failure.

Called by `gpu.py`, with its options. An error of Python ends its measurement alone. If the card no longer computes
after it, it ends the process, because nothing there can be trusted; so does a measurement that takes too long.
"""

import faulthandler
import gc
import importlib.util
import os
import random
import time
import traceback
from collections.abc import Callable, Iterator
from itertools import chain, cycle
from pathlib import Path

import pytorch_lightning as pl
import torch
from torch import Tensor

import fedem_lightning as fl
from common import RoundClock, femnist, images, machine, make_trainer, mixture, n_samples, now
from gpu import Facts, append, plan, read, read_options, tables
from helpers.conformance import ROWS, Row
from helpers.federations import make_trainer as make_small_trainer
from rounds import Sequential, femnist_work, synthetic_work

START = 180.0
"""Seconds for what comes before the first measurement."""
ALLOWED = 1e-4
"""Largest difference from the CPU, relative to the largest parameter; without TF32 float32 has 24 bits, 6e-8."""
COMPONENTS = 3
JOB_LR = 0.1

Tell = Callable[[float], None]
"""Called with the seconds of each round."""


def method_names() -> list[str]:
    """Of the rows of the tests' conformance table: the class, and plain options where a class has several rows."""
    kinds = [row.kind for row in ROWS]

    def words(row: Row) -> Iterator[str]:
        yield row.kind.__name__
        for key, value in row.options.items():
            if kinds.count(row.kind) > 1 and isinstance(value, str | list):
                yield f"{key}={value if isinstance(value, str) else ' '.join(value)}"

    return [" ".join(words(row)) for row in ROWS]


def measure_method(what: Facts, facts: Facts, tell: Tell, device: torch.device) -> None:
    """One method on the CPU, and twice on the device: all that it holds is compared."""
    row = ROWS[what["row"]]
    torch.backends.cudnn.allow_tf32 = False
    data = row.data()
    states: list[dict[str, Tensor]] = []
    for trained_on in (torch.device("cpu"), device, device):
        begin = now(device)
        model = row.model(data, client_optimizer=fl.ClientSGD(lr=0.5, momentum=0.9))
        trainer = make_small_trainer(what["rounds"], precision="32-true", accelerator=trained_on.type, devices=1)
        trainer.fit(model, data)
        states.append({name: tensor.detach().cpu() for name, tensor in model.state_dict().items()})
        tell(now(device) - begin)
    expected, found, again = states
    largest = max(float(p.detach().abs().max()) for p in model.parameters())
    apart = [
        (found[k].double() - t.double()).abs().max() for k, t in expected.items() if t.is_floating_point() and t.numel()
    ]
    facts["difference"] = float(torch.stack(apart).max()) / largest
    facts["same_bits"] = all(torch.equal(again[name], tensor) for name, tensor in found.items())
    facts["passed"] = facts["difference"] <= ALLOWED and facts["same_bits"]


class WholeRoundClock(pl.Callback):
    """Times rounds with all that Lightning does between them."""

    def __init__(self, device: torch.device, tell: Tell) -> None:
        self.device, self.tell = device, tell

    def on_train_start(self, *_: object) -> None:
        """The first round begins; the others begin where the one before ends."""
        self._begin = now(self.device)

    def on_train_epoch_end(self, *_: object) -> None:
        """The round is over."""
        begin, self._begin = self._begin, now(self.device)
        self.tell(self._begin - begin)


def measure_job(what: Facts, facts: Facts, tell: Tell, device: torch.device) -> None:
    """FedAvg with `CNN`, the network of both jobs; for pfl and the plain loop samples are on the card beforehand."""
    if what["job"] == "pfl":
        data = images(what["clients"], what["samples"], (32, 32, 3), classes=10)
    else:
        data = femnist(facts["femnist"], what["clients"], what["samples"])
    n_rounds, network = what["rounds"] + 1, fl.CNN(data.n_outputs, data.in_shape)
    if what["way"] == "ours":
        options = {"batch_size": what["batch_size"], "participation": what["cohort"]}
        model = fl.FedAvg(network, data.n_clients, client_optimizer=fl.ClientSGD(lr=JOB_LR), **options)
        make_trainer(n_rounds, device, callbacks=[WholeRoundClock(device, tell)]).fit(model, data)
        facts["engine"] = model.local.engine.name
        return
    draw = random.Random(0)
    cohorts = [draw.sample(range(data.n_clients), what["cohort"]) for _ in range(n_rounds)]
    blocks = {t: data.federation.block(torch.tensor([t]), "train") for t in set(chain.from_iterable(cohorts))}
    samples = {t: (block.x(torch.float32).to(device), block.y().to(device)) for t, block in blocks.items()}
    network.to(device)
    if what["way"] == "plain":
        from plain import fedavg_round

        for cohort in cohorts:
            begin = now(device)
            fedavg_round(network, [samples[t] for t in cohort], JOB_LR, what["batch_size"])
            tell(now(device) - begin)
        return
    os.environ["PFL_PYTORCH_DEVICE"] = str(device)
    from pfl_ import Rounds, train

    mark: list[float] = []
    rounds = Rounds(lambda: mark.append(now(device)), lambda: tell(now(device) - mark[-1]))
    users = cycle(str(t) for t in chain.from_iterable(cohorts))
    local = {"local_num_epochs": 1, "local_learning_rate": JOB_LR, "local_batch_size": what["batch_size"]}
    train(network, lambda user: samples[int(user)], users.__next__, rounds, n_rounds, what["cohort"], **local)


def measure_federation(what: Facts, facts: Facts, tell: Tell, device: torch.device) -> None:
    """Rounds with what comes before the first one, such as the gradients of the user-centric method; evaluations."""
    if what["network"] == "MobileNetV2":
        data = images(what["clients"], what["samples"], (32, 32, 3), classes=10, test=0.1)
    else:
        data = femnist(facts["femnist"], what["clients"], what["samples"])
    model = federation_model(what, data)
    begin = now(device)

    def tell_round(seconds: float) -> None:
        facts.setdefault("start_seconds", now(device) - begin - seconds)
        tell(seconds)

    trainer = make_trainer(what["rounds"] + 1, device, callbacks=[RoundClock(device, tell_round)])
    trainer.fit(model, data)
    facts |= {"engine": model.local.engine.name, "evaluations": []}
    for _ in range(2):
        begin = now(device)
        trainer.test(model, data, verbose=False)
        facts["evaluations"].append(now(device) - begin)


def federation_model(what: Facts, data: fl.FederatedDataModule) -> fl.FederatedAlgorithm:
    """The method with its network."""
    network, n = fl.ReferenceCNN(data.n_outputs, data.in_shape), data.n_clients
    if what["network"] == "MobileNetV2":
        network = fl.MobileNetV2(data.n_outputs)
    options = {"client_optimizer": fl.ClientSGD(lr=0.03), "batch_size": 128}
    if what["method"] == "user-centric":
        return fl.UserCentric(network, n, **options)
    if what["method"] == "HypCluster":
        return fl.HypCluster(network, n, COMPONENTS, initialization="random", **options)
    return fl.FedEM(network, n, COMPONENTS, initialization="random", **options)


def measure_rounds(what: Facts, facts: Facts, tell: Tell, device: torch.device) -> None:
    """FedEM's rounds, by an engine or by a plain loop."""
    if what["work"] == "synthetic":
        work = synthetic_work(mixture(what["clients"], COMPONENTS))
    else:
        work = femnist_work(femnist(facts["femnist"], what["clients"], what["samples"]))
    facts["training_samples"] = n_samples(work.data)
    if what["way"] == "sequential":
        one_round = Sequential(work, COMPONENTS, device)
        for _ in range(what["rounds"] + 1):
            tell(one_round())
        return
    model = work.fedem(COMPONENTS, what["way"])
    clock = RoundClock(device, tell)
    make_trainer(what["rounds"] + 1, device, precision=what["precision"], callbacks=[clock]).fit(model, work.data)
    facts["engine"] = model.local.engine.name


MEASURES = {"methods": measure_method, "jobs": measure_job, "federations": measure_federation, "rounds": measure_rounds}
NEEDED = {"pfl": "pfl"}
"""Packages of ways."""


def measure(what: Facts, known: Facts, file: Path, device: torch.device) -> None:
    """One measurement, whose events go to the file; raises its error again only if the device no longer works."""
    on_card = device.type == "cuda"
    gc.collect()
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = True, False  # torch's defaults
    torch.manual_seed(0)
    if on_card:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    facts = dict(known)
    append(file, **what, machine=known["machine"], begun=time.time())

    def tell(seconds: float) -> None:
        peak = {"peak_gb": torch.cuda.max_memory_allocated(device) / 1e9} if on_card else {}
        append(file, name=what["name"], round=[seconds], **peak)

    package = NEEDED.get(what.get("way", what.get("method")))
    try:
        if package and importlib.util.find_spec(package) is None:
            facts |= {"status": "missing", "reason": f"{package} is not installed"}
        else:
            MEASURES[what["part"]](what, facts, tell, device)
            facts["status"] = "done"
    except Exception as error:
        traceback.print_exc()  # for gpu.log
        torch.ones(2, device=device).sum().item()  # fails if the card no longer works
        facts |= {"status": "failed", "reason": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
    append(file, name=what["name"], **{key: value for key, value in facts.items() if key not in ("femnist", "machine")})
    print(f"{what['name']}: {facts['status']} {facts.get('reason', '')}", flush=True)


def main() -> None:
    """Works off what is left of the plan."""
    faulthandler.dump_traceback_later(START, exit=True)
    options = read_options()
    device, file = torch.device(options.device), options.out / "gpu.jsonl"
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SystemExit(f"torch {torch.__version__} finds no CUDA card here")
    facts = {key: value for key, value in machine(device).items() if key != "date"}
    known = {"machine": ", ".join(f"{key} {value}" for key, value in facts.items()), "femnist": options.femnist}
    found = read(file)
    for what in plan(options, method_names()):
        before = found.get(what["name"], {})
        if before.get("status") in ("done", "failed", "cut off") and what.items() <= before.items():
            continue
        faulthandler.dump_traceback_later(options.limit, exit=True)
        measure(what, known, file, device)
        (options.out / "gpu.md").write_text(tables(list(read(file).values())))


if __name__ == "__main__":
    main()
