"""Rounds and samples a second for every backbone, algorithm, engine and precision, on small federations.

    python benchmarks/throughput.py [--rounds 3] [--clients 8] [--samples 64] [--bf16] [--only CNN MLP] [--json FILE]

Random samples of the data sets' shapes; one local epoch at batch size 128, all clients in every round. The engines of a
row run in turn. A way whose first round takes longer than `--limit` seconds has no other: that round, a warm-up, is its
figure. The rule: the engine that `auto` picks takes at most 1.15 times as long as the better one; beside a way with a
single round, first rounds are compared.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

import fedem_lightning as fl
from common import (
    Timing,
    alternate,
    finish,
    images,
    mixture,
    n_samples,
    one_round,
    print_header,
    print_row,
    read_options,
    round_parser,
)
from fedem_lightning.data.samples import Windows
from fedem_lightning.data.tasks import Classification

RULE = 1.15
"""Times the better engine's seconds that `auto` may take."""


class Work(NamedTuple):
    """A data set and a backbone."""

    data_name: str
    name: str
    data: Callable[[int, int], fl.FederatedDataModule]  # of clients and samples
    backbone: Callable[[fl.FederatedDataModule], nn.Module]


def _mlp(width: int) -> Callable[[fl.FederatedDataModule], nn.Module]:
    return lambda data: fl.MLP(data.in_shape, data.n_outputs, hidden=(width,))


def _for_images(kind: type[nn.Module]) -> Callable[[fl.FederatedDataModule], nn.Module]:
    return lambda data: kind(data.n_outputs, data.in_shape)


def _digits(clients: int, samples: int) -> fl.FederatedDataModule:
    return images(clients, samples, (8, 8), classes=10)


def _colour(clients: int, samples: int) -> fl.FederatedDataModule:
    return images(clients, max(1, samples // 2), (32, 32, 3), classes=10)  # its networks are the largest


def _text(clients: int, samples: int) -> fl.FederatedDataModule:
    """Overlapping windows of random characters, half as many as samples: a window costs as much as 40."""
    window, classes, n = 40, 80, max(1, samples // 2)
    length = n + window  # the last window's targets reach one further than the window
    codes = np.random.default_rng(0).integers(classes, size=clients * length, dtype=np.uint8)
    client = np.repeat(np.arange(clients), n)
    federation = fl.Federation.from_samples(
        Windows(torch.from_numpy(codes), window),
        client,
        np.zeros(len(client), dtype=np.int8),
        position=client * length + np.tile(np.arange(n), clients),
        task=Classification(classes, n_targets=window),
        names=[str(t) for t in range(clients)],
    )
    return fl.FederatedDataModule(federation)


WORKS = [
    Work("synthetic", "Linear", lambda c, n: mixture(c), lambda data: fl.Linear(data.in_shape, data.n_outputs)),
    Work("8 x 8", "MLP-64", _digits, _mlp(64)),
    Work("8 x 8", "MLP-2048", _digits, _mlp(2048)),
    Work("28 x 28", "CNN", images, _for_images(fl.CNN)),
    Work("28 x 28", "ReferenceCNN", images, _for_images(fl.ReferenceCNN)),
    Work("28 x 28", "LeNet5", images, _for_images(fl.LeNet5)),
    Work("32 x 32 x 3", "MobileNetV2", _colour, lambda data: fl.MobileNetV2(data.n_outputs)),
    Work("32 x 32 x 3", "ResNet18", _colour, lambda data: fl.ResNet18(data.n_outputs)),
    Work("text of 40", "CharLSTM", _text, lambda data: fl.CharLSTM(data.n_outputs)),
]
COLUMNS = (
    *("data", "backbone", "parameters", "algorithm", "precision", "engine"),
    *("seconds a round, median (min - max)", "rounds a second", "samples a second", "`auto`'s rule"),
)


def verdict(timings: dict[str, Timing], picked: str) -> str:
    """Whether `auto` keeps its rule."""
    cut = any(timing.cut for timing in timings.values())
    seconds = {engine: timing.first if cut else timing.median for engine, timing in timings.items()}
    ratio = seconds[picked] / min(seconds.values())
    return f"{'PASS' if ratio <= RULE else 'FAIL'} ({ratio:.2f})"


def measure(work: Work, data: fl.FederatedDataModule, algorithm: str, precision: str, options: Any) -> dict[str, Any]:
    """Times the engines in turn and prints a line for each."""
    backbone = work.backbone(data)

    def model(engine: str) -> fl.FederatedAlgorithm:
        chosen: dict[str, Any] = {"client_optimizer": fl.ClientSGD(lr=1e-4), "engine": engine}
        if algorithm == "FedAvg":
            return fl.FedAvg(backbone, data.n_clients, **chosen)
        return fl.FedEM(backbone, data.n_clients, 3, **chosen)

    picked = model("auto").local.resolve_engine(options.device).name
    ways = {
        name: one_round(model(name), data, options.device, precision=precision) for name in {"loop", "vmap", picked}
    }
    timings = alternate(dict(sorted(ways.items())), options.rounds, options.limit)
    parameters = sum(p.numel() for p in backbone.parameters())
    rule = verdict(timings, picked)
    for engine, timing in timings.items():
        speed = (f"{1 / timing.median:.3g}", f"{n_samples(data) / timing.median:.4g}")
        label = "FedEM, M = 3" if algorithm == "FedEM" else algorithm
        cells = (work.data_name, work.name, f"{parameters:,}", label, precision, engine, timing, *speed)
        print_row(*cells, f"picked: {rule}" if engine == picked else "")
    facts = {"data": work.data_name, "backbone": work.name, "parameters": parameters, "samples": n_samples(data)}
    return {**facts, "algorithm": algorithm, "precision": precision, "picked": picked, "rule": rule, "timings": timings}


def main() -> None:
    """Measures and prints."""
    parser = round_parser(__doc__, rounds=3)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--samples", type=int, default=64, help="of a client; the synthetic mixture has its own sizes")
    parser.add_argument("--limit", type=float, default=30.0, help="seconds of a first round")
    parser.add_argument("--bf16", action="store_true", help="also precision bf16-mixed")
    parser.add_argument("--only", nargs="+", choices=[work.name for work in WORKS], help="backbones")
    options = read_options(parser)
    works = [work for work in WORKS if not options.only or work.name in options.only]
    print_header(
        f"{options.clients} clients of {options.samples} samples (colour and text: half; synthetic: its own sizes), "
        f"{options.rounds} rounds after one that warms up; a sample counts once a round, also with 3 components",
        *COLUMNS,
    )
    rows = []
    for work in works:
        data = work.data(options.clients, options.samples)
        for algorithm in ("FedAvg", "FedEM"):
            for precision in ("32-true", "bf16-mixed") if options.bf16 else ("32-true",):
                torch.manual_seed(0)
                rows.append(measure(work, data, algorithm, precision, options))
    failed = [f"{row['backbone']} with {row['algorithm']}" for row in rows if row["rule"].startswith("FAIL")]
    kept = f"{len(rows) - len(failed)} of {len(rows)}" + (f"; not by {', '.join(failed)}" if failed else "")
    print(f"\nThe rule (`auto` takes at most {RULE} times as long as the better engine) is kept by {kept}")
    finish(options, options.device, rows=rows)


if __name__ == "__main__":
    main()
