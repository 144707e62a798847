"""How far 32-true and bf16-mixed are from 64-true after some rounds, on the synthetic mixture.

    python benchmarks/precision.py [--clients 30] [--rounds 50] [--json FILE]

Every run of a method begins with the same models, data and shuffling. The parameters differ relative to their norm.
"""

import argparse
from functools import partial

import numpy as np
import torch
from torch import nn

from common import finish, make_trainer, print_header, print_row, read_options, round_parser
from fedem_lightning import APFL, MLP, ClientSGD, FedAvg, FedEM, FederatedAlgorithm, Linear, PFedMe, SyntheticMixture

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


def main() -> None:
    """Measures and prints."""
    parser = round_parser(__doc__, rounds=50)
    parser.add_argument("--clients", type=int, default=30)
    options = read_options(parser)
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
