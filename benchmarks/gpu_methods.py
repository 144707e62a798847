"""Every method on the card: the numbers of the CPU in float32, and the same bits twice.

    benchmarks/gpu.sh --only methods --out DIR
    benchmarks/gpu.sh --only methods --device cpu --tiny --out DIR    (compares the CPU with itself)

A kind of measurement of `gpu_worker.py`. The methods are the rows of the conformance table of the tests, with its
small federation; the numbers that are compared are all that a method holds: networks, clients' models, mixture weights.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from fedem_lightning import ClientSGD, FederatedDataModule
from gpu_measurement import CPU, Facts, set_tf32

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))  # the table is there

from helpers.conformance import ROWS, Row
from helpers.federations import make_trainer

ALLOWED = 1e-4
"""Largest difference from the CPU, relative to the largest parameter; without TF32 float32 has 24 bits, 6e-8."""

SGD = ClientSGD(lr=0.5, momentum=0.9)


def names() -> list[str]:
    """Of the rows, each once: the class, and its plain options where a class has several rows."""
    kinds = [row.kind for row in ROWS]
    return [", ".join(_name(row, alone=kinds.count(row.kind) == 1)) for row in ROWS]


def _name(row: Row, alone: bool) -> Iterator[str]:
    yield row.kind.__name__
    for key, value in row.options.items():
        if not alone and isinstance(value, str | list):
            yield f"{key}={value if isinstance(value, str) else ' '.join(value)}"


def train(row: Row, data: FederatedDataModule, rounds: int, device: torch.device) -> tuple[dict[str, Tensor], float]:
    """Rounds in float32: everything the model holds, on the CPU, and the largest absolute value of a parameter."""
    model = row.model(data, client_optimizer=SGD)
    make_trainer(rounds, precision="32-true", accelerator=device.type, devices=1).fit(model, data)
    largest = max(float(parameter.detach().abs().max()) for parameter in model.parameters())
    return {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}, largest


def measure_method(what: Facts, file: Path | None, device: torch.device) -> Facts:
    """One method on the CPU, and twice on the device."""
    row = ROWS[what["row"]]
    set_tf32(convolutions=False, products=False)
    data = row.data()
    expected, largest = train(row, data, what["rounds"], CPU)
    (found, _), (again, _) = (train(row, data, what["rounds"], device) for _ in range(2))
    differences = [
        (found[name].double() - tensor.double()).abs().max()
        for name, tensor in expected.items()
        if tensor.is_floating_point() and tensor.numel()
    ]
    difference = float(torch.stack(differences).max()) / largest
    same_bits = all(torch.equal(again[name], tensor) for name, tensor in found.items())
    return {"difference": difference, "same_bits": same_bits, "passed": difference <= ALLOWED and same_bits}
