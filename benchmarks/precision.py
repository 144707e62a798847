"""How far 32-true and bf16-mixed are from 64-true after some rounds, on the synthetic mixture; how fast they are.

    python benchmarks/precision.py [--clients 30] [--rounds 50] [--json FILE]
    python benchmarks/precision.py --speed [--threads 1]

Every run of a method begins with the same models, data and shuffling. The parameters differ relative to their norm.
`--speed`: the processor time of forward and backward passes in bf16-mixed, relative to 32-true, by network and batch.
"""

import argparse
import time
from functools import partial
from statistics import median

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from common import finish, make_trainer, print_header, print_row, read_options, round_parser
from fedem_lightning import (
    APFL,
    CNN,
    MLP,
    ClientSGD,
    FedAvg,
    FedEM,
    FederatedAlgorithm,
    LeNet5,
    Linear,
    MobileNetV2,
    PFedMe,
    ReferenceCNN,
    ResNet18,
    SyntheticMixture,
)

METHODS = {"FedEM": partial(FedEM, n_components=3), "FedAvg": FedAvg, "pFedMe": PFedMe, "APFL": APFL}
BACKBONES = {"linear": Linear, "mlp": partial(MLP, hidden=[32])}


def trained(method: str, backbone: str, precision: str, options: argparse.Namespace) -> FederatedAlgorithm:
    """A method after its rounds and its test."""
    data = SyntheticMixture(n_clients=options.clients, dimension=20, test_size=100)
    torch.manual_seed(0)
    network: nn.Module = BACKBONES[backbone](data.in_shape, data.n_outputs)
    sgd = ClientSGD(lr=0.1, momentum=0.9)
    model: FederatedAlgorithm = METHODS[method](network, options.clients, batch_size=32, client_optimizer=sgd)
    trainer = make_trainer(options.rounds, options.device, precision=precision)
    trainer.fit(model, data)
    trainer.test(model, data, verbose=False)
    return model


def parameters(model: FederatedAlgorithm) -> torch.Tensor:
    """All shared parameters, in float64."""
    return torch.cat([p.detach().double().flatten() for p in model.components.parameters()])


def accuracy(model: FederatedAlgorithm) -> float:
    """The clients' test accuracy by the numbers of their training samples, in percent."""
    return 100 * float(np.average(model.clients.test_accuracy, weights=model.clients.n_train))


IMAGES = {
    "CNN": (lambda: CNN(10, (1, 28, 28)), (1, 28, 28)),
    "ReferenceCNN": (lambda: ReferenceCNN(10, (1, 28, 28)), (1, 28, 28)),
    "ResNet18": (lambda: ResNet18(10), (3, 32, 32)),
    "LeNet5": (lambda: LeNet5(10, (3, 32, 32)), (3, 32, 32)),
    "MobileNetV2": (lambda: MobileNetV2(10), (3, 32, 32)),
}
"""Networks of `--speed`, and the shapes of their samples."""


def processor_seconds(network: nn.Module, x: torch.Tensor, y: torch.Tensor, bf16: bool, repeats: int = 5) -> float:
    """Of a forward and a backward pass, the median."""
    found = []
    for _ in range(repeats + 1):  # the first one warms up
        start = time.process_time()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = cross_entropy(network(x).float(), y)
        loss.backward()
        found.append(time.process_time() - start)
    return median(found[1:])


def speed(options: argparse.Namespace) -> None:
    """Prints bf16-mixed's time relative to 32-true's, each measured three times in turn."""
    print_header("processor time of bf16-mixed relative to 32-true", "network", "batch", "ratios")
    rows = []
    for name, (make, shape) in IMAGES.items():
        for size in (16, 32, 128):
            torch.manual_seed(0)
            network, x, y = make(), torch.randn(size, *shape), torch.randint(10, (size,))
            pairs = [[processor_seconds(network, x, y, bf16) for bf16 in (True, False)] for _ in range(3)]
            ratios = sorted(short / long for short, long in pairs)
            print_row(name, size, ", ".join(f"{ratio:.2f}" for ratio in ratios))
            rows.append({"network": name, "batch": size, "ratios": ratios})
    finish(options, torch.device("cpu"), rows=rows)


def main() -> None:
    """Measures and prints."""
    parser = round_parser(__doc__, rounds=50)
    parser.add_argument("--clients", type=int, default=30)
    parser.add_argument("--speed", action="store_true", help="measure time on the CPU")
    options = read_options(parser)
    if options.speed:
        speed(options)
        return
    print_header(
        f"against 64-true after {options.rounds} rounds, {options.clients} clients",
        *("method", "network", "precision", "parameters", "mixture weights, at most", "accuracy, %", "64-true, %"),
    )
    rows = []
    for method in METHODS:
        for backbone in BACKBONES:
            exact = trained(method, backbone, "64-true", options)
            for precision in ("32-true", "bf16-mixed"):
                model = trained(method, backbone, precision, options)
                away = float((parameters(model) - parameters(exact)).norm() / parameters(exact).norm())
                pi = float((model.pi - exact.pi).abs().max()) if isinstance(exact, FedEM) else float("nan")
                scores = accuracy(model), accuracy(exact)
                print_row(method, backbone, precision, f"{away:.1e}", f"{pi:.1e}", *(f"{s:.2f}" for s in scores))
                row = {"method": method, "network": backbone, "precision": precision}
                rows.append(row | {"parameters": away, "pi": pi, "accuracy": scores[0], "exact": scores[1]})
    finish(options, options.device, rows=rows)


if __name__ == "__main__":
    main()
