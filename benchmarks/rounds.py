"""Seconds a round of FedEM on the synthetic mixture: plain sequential PyTorch, `loop` and `vmap`, in turn in one run.

    python benchmarks/rounds.py [--clients 300] [--components 3] [--rounds 5] [--json FILE]

The sequential way is what one writes first: for every client and component a DataLoader, a model, an optimiser. All
three do the same work: the E-step over all training samples, one local epoch at batch size 128, the weighted average.
Prints a Markdown table with the machine, versions and date; the ratio is that of medians of the same run.
"""

import argparse
import copy
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytorch_lightning as pl
import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, TensorDataset

from fedem_lightning import ClientSGD, FedEM, Linear, SyntheticMixture
from fedem_lightning.reporting.results import environment


def sequential_round(data: SyntheticMixture, n_components: int) -> Callable[[], None]:
    """A round as a plain loop over clients and components."""
    federation = data.federation
    blocks = [federation.block(torch.tensor([t]), "train") for t in range(data.n_clients)]
    clients = [(b.x(torch.float32), b.y().float()) for b in blocks]
    components = [Linear(data.in_shape, 1) for _ in range(n_components)]
    pi = torch.full((data.n_clients, n_components), 1 / n_components)

    def losses(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return binary_cross_entropy_with_logits(model(x).squeeze(-1), y, reduction="none")

    def run() -> None:
        total = sum(len(y) for _, y in clients)
        averages = [{name: torch.zeros_like(p) for name, p in c.state_dict().items()} for c in components]
        for t, (x, y) in enumerate(clients):
            with torch.no_grad():
                q = torch.softmax(pi[t].log() - torch.stack([losses(c, x, y) for c in components], dim=1), dim=1)
            pi[t] = q.mean(dim=0)
            for m, component in enumerate(components):
                model = copy.deepcopy(component)
                optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
                for xb, yb, qb in DataLoader(TensorDataset(x, y, q[:, m]), batch_size=128, shuffle=True):
                    optimizer.zero_grad()
                    (qb * losses(model, xb, yb)).mean().backward()
                    optimizer.step()
                for name, tensor in model.state_dict().items():
                    averages[m][name] += len(y) / total * tensor
        for component, average in zip(components, averages, strict=True):
            component.load_state_dict(average)

    return run


def engine_round(data: SyntheticMixture, n_components: int, engine: str) -> Callable[[], None]:
    """A round through the Trainer, evaluation apart."""
    sgd = ClientSGD(lr=1.0, momentum=0.9)
    backbone = Linear(data.in_shape, data.n_outputs)
    model = FedEM(backbone, data.n_clients, n_components, client_optimizer=sgd, engine=engine)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}

    def run() -> None:
        trainer = pl.Trainer(max_epochs=1, accelerator="cpu", enable_model_summary=False, limit_val_batches=0, **quiet)
        trainer.fit(model, data)

    run.rounds = model.statistics.round_seconds  # type: ignore[attr-defined]
    return run


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("clients", 300), ("components", 3), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    data = SyntheticMixture(n_clients=options.clients, n_components=options.components, test_size=0)
    ways = {"sequential PyTorch": sequential_round(data, options.components)}
    ways |= {f"engine={name}": engine_round(data, options.components, name) for name in ("loop", "vmap")}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in range(options.rounds + 1):
        for name, run in ways.items():
            start = time.perf_counter()
            run()
            # an engine's own clock leaves out the Trainer's start, which a real run pays once
            spent = run.rounds[-1] if hasattr(run, "rounds") else time.perf_counter() - start
            if round_ > 0:  # the first one warms up
                seconds[name].append(spent)
    medians = {name: median(values) for name, values in seconds.items()}
    base = medians["sequential PyTorch"]
    print(f"\nFedEM, {options.clients} clients, M = {options.components}, {options.rounds} rounds after one warm-up\n")
    print("| way | seconds a round (median) | min - max | times faster |\n|---|---|---|---|")
    for name, values in seconds.items():
        print(f"| {name} | {medians[name]:.4f} | {min(values):.4f} - {max(values):.4f} | {base / medians[name]:.1f} |")
    where = environment(torch.device("cpu"))
    print("\n" + ", ".join(f"{key} {value}" for key, value in where.items()))
    if options.json:
        options.json.write_text(json.dumps({"seconds": seconds, "environment": where}, indent=2) + "\n")


if __name__ == "__main__":
    main()
