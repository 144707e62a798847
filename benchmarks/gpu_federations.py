"""Methods and networks at the size of a real federation: seconds of a round, of an evaluation, peak memory.

    benchmarks/gpu.sh --only federations --out DIR [--femnist FILE.npz]
    benchmarks/gpu.sh --only federations --device cpu --tiny --out DIR

A kind of measurement of `gpu_worker.py`. FEMNIST's CNN is `ReferenceCNN`, on the file's writers again and again or on
random images; the network with BatchNorm is MobileNetV2, on random images of 32 x 32 x 3. `start_seconds` is what a
method does before its first round, such as the gradients of the user-centric method.
"""

from pathlib import Path

import torch
from torch import nn

from common import RoundClock, femnist, images, make_trainer, n_samples, now
from fedem_lightning import (
    ClientSGD,
    FedEM,
    FederatedAlgorithm,
    FederatedDataModule,
    HypCluster,
    MobileNetV2,
    ReferenceCNN,
    UserCentric,
)
from gpu_measurement import Facts, peak_gb, require_package, tell

COMPONENTS = 3
BATCH = 128
RANK = 8
"""Of LoRA adapters."""


def make_data(what: Facts, file: Path | None) -> FederatedDataModule:
    """The clients, a tenth of whose samples are for the test."""
    if what["network"] == "MobileNetV2":
        return images(what["clients"], what["samples"], (32, 32, 3), classes=10, test=0.1)
    if file is None:
        return images(what["clients"], what["samples"], test=0.1)
    return femnist(file, what["clients"], repeat=True)


def make_network(what: Facts, data: FederatedDataModule) -> nn.Module:
    """By name."""
    if what["network"] == "MobileNetV2":
        return MobileNetV2(data.n_outputs)
    return ReferenceCNN(data.n_outputs, data.in_shape)


def make_model(what: Facts, data: FederatedDataModule) -> FederatedAlgorithm:
    """The method with its network."""
    network, n = make_network(what, data), data.n_clients
    options = {"client_optimizer": ClientSGD(lr=0.03), "batch_size": BATCH}
    if what["method"] == "user-centric":
        return UserCentric(network, n, **options)
    if what["method"] == "HypCluster":
        return HypCluster(network, n, COMPONENTS, initialization="random", **options)
    if what["method"] == "FedEM with LoRA":
        return FedEM(network, n, COMPONENTS, adapters=RANK, **options)
    return FedEM(network, n, COMPONENTS, initialization="random", **options)


def measure_federation(what: Facts, file: Path | None, device: torch.device) -> Facts:
    """Times rounds, the first of which warms up, and then evaluations of all clients; tells of each round."""
    if what["method"] == "FedEM with LoRA":
        require_package("peft")
    torch.manual_seed(0)
    data = make_data(what, file)
    model = make_model(what, data)
    facts: Facts = {"clients": data.n_clients, "samples": n_samples(data)}
    begin = now(device)

    def tell_round(seconds: float) -> None:
        facts.setdefault("start_seconds", now(device) - begin - seconds)
        tell("round", seconds=seconds, peak_gb=peak_gb(device), **facts)

    trainer = make_trainer(what["rounds"] + 1, device, callbacks=[RoundClock(device, tell_round)])
    trainer.fit(model, data)
    facts["engine"] = model.local.engine.name
    evaluations = []
    for _ in range(what["evaluations"]):
        begin_test = now(device)
        trainer.test(model, data, verbose=False)
        evaluations.append(now(device) - begin_test)
    return {**facts, "evaluations": evaluations, "peak_with_evaluation_gb": peak_gb(device)}
