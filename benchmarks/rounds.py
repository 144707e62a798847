"""Seconds a round of FedEM: plain sequential PyTorch and the library's engines, in turn in one run.

    python benchmarks/rounds.py [--work synthetic] [--clients 300] [--rounds 5] [--all-engines] [--json FILE]
    python benchmarks/rounds.py --work femnist [--femnist FILE.npz] [--clients 50]
    python benchmarks/rounds.py --work femnist --mixtures

The sequential way is what one writes first: for every client and component a DataLoader, a copy of the model, an
optimiser. All ways do the same work: the E-step over all training samples, one local epoch at batch size 128, the
weighted average. `synthetic` is the mixture with a linear model; its E-step takes a client's samples at once. `femnist`
is the public code's CNN on the first writers of a file (uint8 x [n, 28, 28], y, client) or on random images; its E-step
reads a DataLoader for every component, as that code does. Of the engines, the one that `auto` picks runs. `--mixtures`
measures FedEM with whole components and with a shared body beside FedAvg, in place of the plain loop. An E-step is a
forward pass over all samples, a third of a local epoch, so one local epoch takes at least 4/3 of FedAvg's time.
"""

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import fedem_lightning as fl
from common import (
    Way,
    alternate,
    femnist,
    finish,
    mixture,
    n_samples,
    now,
    one_round,
    print_header,
    print_row,
    read_options,
    round_parser,
)

BATCH = 128


class Work(NamedTuple):
    """What a round works on."""

    data: fl.FederatedDataModule
    backbone: nn.Module
    sgd: fl.ClientSGD
    at_once: bool  # the sequential E-step takes all samples of a client at once

    def losses(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Of each sample."""
        if self.data.n_outputs == 1:
            return binary_cross_entropy_with_logits(model(x).squeeze(-1), y.float(), reduction="none")
        return cross_entropy(model(x), y, reduction="none")

    def fedem(self, n_components: int, engine: fl.Engine | str, **options: Any) -> fl.FedEM:
        """The library's algorithm for it."""
        options |= {"client_optimizer": self.sgd, "batch_size": BATCH, "engine": engine}
        return fl.FedEM(self.backbone, self.data.n_clients, n_components, **options)

    def mixtures(self, n_components: int) -> dict[str, fl.FederatedAlgorithm]:
        """FedAvg, and FedEM with M heads and with M networks."""
        heads = self.fedem(n_components, "auto", initialization="random", shared="body")
        whole = self.fedem(n_components, "auto", initialization="random")
        options: dict[str, Any] = {"client_optimizer": self.sgd, "batch_size": BATCH}
        alone = fl.FedAvg(self.backbone, self.data.n_clients, **options)
        return {"FedAvg": alone, "FedEM, shared body": heads, "FedEM, whole components": whole}


def synthetic_work(data: fl.FederatedDataModule) -> Work:
    """The mixture and a linear model."""
    return Work(data, fl.Linear(data.in_shape, data.n_outputs), fl.ClientSGD(lr=1.0, momentum=0.9), at_once=True)


def femnist_work(data: fl.FederatedDataModule) -> Work:
    """Images and the public code's CNN."""
    return Work(data, fl.ReferenceCNN(data.n_outputs, data.in_shape), fl.ClientSGD(lr=0.03), at_once=False)


class Sequential:
    """A round as a plain loop over clients and components.

    Args:
        work: to do.
        n_components: M.
        device: of the models and the samples.

    """

    def __init__(self, work: Work, n_components: int, device: torch.device) -> None:
        data = work.data
        blocks = [data.federation.block(torch.tensor([t]), "train") for t in range(data.n_clients)]
        self.clients = [(b.x(torch.float32).to(device), b.y().to(device)) for b in blocks]
        self.components = list(fl.FedEM(work.backbone, data.n_clients, n_components).components.to(device))
        self.pi = torch.full((data.n_clients, n_components), 1 / n_components, device=device)
        self.work, self.device = work, device
        self.total = n_samples(data)

    def __call__(self) -> float:
        """One round."""
        start = now(self.device)
        averages = [{name: torch.zeros_like(t) for name, t in c.state_dict().items()} for c in self.components]
        for t, (x, y) in enumerate(self.clients):
            q = self.responsibilities(t)
            self.pi[t] = q.mean(dim=0)
            for m in range(len(self.components)):
                for name, tensor in self.trained(m, x, y, q[:, m]).state_dict().items():
                    averages[m][name] += len(y) / self.total * tensor
        for component, average in zip(self.components, averages, strict=True):
            component.load_state_dict(average)
        return now(self.device) - start

    @torch.no_grad()
    def responsibilities(self, t: int) -> Tensor:
        """The E-step of client t, [n, M]."""
        x, y = self.clients[t]
        columns = []
        for component in self.components:
            passes: Iterable[list[Tensor]] = DataLoader(TensorDataset(x, y), batch_size=BATCH)
            if self.work.at_once:
                passes = [[x, y]]
            columns.append(torch.cat([self.work.losses(component, xb, yb) for xb, yb in passes]))
        return torch.softmax(self.pi[t].log() - torch.stack(columns, dim=1), dim=1)

    def trained(self, m: int, x: Tensor, y: Tensor, q: Tensor) -> nn.Module:
        """Component m after a client's local epoch."""
        model, sgd = copy.deepcopy(self.components[m]), self.work.sgd
        optimizer = torch.optim.SGD(model.parameters(), lr=sgd.lr, momentum=sgd.momentum)
        for xb, yb, qb in DataLoader(TensorDataset(x, y, q), batch_size=BATCH, shuffle=True):
            optimizer.zero_grad()
            (qb * self.work.losses(model, xb, yb)).mean().backward()
            optimizer.step()
        return model


def main() -> None:
    """Measures and prints."""
    parser = round_parser(__doc__)
    parser.add_argument("--work", choices=("synthetic", "femnist"), default="synthetic")
    parser.add_argument("--femnist", type=Path, metavar="FILE", help="default: random images")
    parser.add_argument("--clients", type=int, help="default: 300, or 50 for femnist")
    parser.add_argument("--components", type=int, default=3)
    parser.add_argument("--mixtures", action="store_true", help="FedAvg and two FedEMs, and no plain loop")
    parser.add_argument("--all-engines", action="store_true", help="also the engine that auto does not pick")
    options = read_options(parser)
    if options.mixtures and options.work != "femnist":
        parser.error("--mixtures: a linear model has no body to share, use --work femnist")
    if options.work == "synthetic":
        work = synthetic_work(mixture(options.clients or 300, options.components))
    else:
        work = femnist_work(femnist(options.femnist, options.clients or 50))
    data = work.data
    picked = work.fedem(options.components, "auto").local.resolve_engine(options.device).name
    engines = [picked, *({"loop", "vmap"} - {picked} if options.all_engines else ())]
    models = {f"engine={name}": work.fedem(options.components, name) for name in engines}
    ways: dict[str, Way] = {"sequential PyTorch": Sequential(work, options.components, options.device)}
    if options.mixtures:
        models, ways = work.mixtures(options.components), {}
    ways |= {name: one_round(model, data, options.device) for name, model in models.items()}
    timings = alternate(ways, options.rounds)
    print_header(
        f"{options.work}, {data.n_clients} clients, {n_samples(data)} training samples, M = "
        f"{options.components}, {options.rounds} rounds after one that warms up; `auto` picks {picked}",
        *("way", "seconds a round, median (min - max)", "times FedAvg's" if options.mixtures else "times faster"),
    )
    base = next(iter(timings.values())).median
    for name, timing in timings.items():
        ratio = timing.median / base if options.mixtures else base / timing.median
        print_row(name, timing, f"{ratio:.2f}")
    finish(options, options.device, picked=picked, timings=timings)


if __name__ == "__main__":
    main()
