"""New clients without labels: FedEM's densities beside FedAvg, and beside FedEM from five labelled rows.

    python benchmarks/unlabelled.py --data DATA [--seeds 3] [--rounds 60] [--only digits]

A quarter of the clients joins later. Scores are mean test accuracies of these clients, by seed. Rates are the defaults,
for all methods alike. For DATA see federations.py.
"""

import argparse
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytorch_lightning as pl
import torch

import fedem_lightning as fl
from fedem_lightning.data.tasks import MISSING
from federations import federations

LABELLED = 5


def accuracy(model: Any, data: fl.FederatedDataModule) -> float:
    """The mean test accuracy of the unseen clients, after they are personalised."""
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    pl.Trainer(accelerator="cpu", devices=1, **quiet).test(model, data, verbose=False)
    unseen = model.clients[model.clients["population"] == "unseen"]
    return float(unseen["test_accuracy"].mean())


def held_out(data: fl.FederatedDataModule, labelled: int | None, seed: int) -> fl.FederatedDataModule:
    """A quarter of the clients are unseen, and have labels at so many of their training rows; None: at all."""
    federation = data.federation
    unseen = torch.from_numpy(np.random.default_rng(seed).permutation(federation.n_clients)[::4].copy())
    seen = federation.seen.clone()
    seen[unseen] = False
    federation = federation._with(seen=seen)
    if labelled is not None and labelled > 0:
        train = federation.splits["train"]
        for t in unseen:
            n = int(train.counts(t[None]))
            train = train.thinned(t[None], min(1.0, labelled / n), seed)
        federation = federation._with(splits={**federation.splits, "train": train})
    if labelled == 0:
        positions, _ = federation.splits["train"].positions(unseen)
        samples = federation.samples.relabelled(positions, lambda y: torch.full_like(y, MISSING))
        federation = federation._with(samples=samples)
    return fl.FederatedDataModule(federation)


def main() -> None:
    """Prints a row for each federation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--only", nargs="+", default=["digits", "wisdm", "femnist"])
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows = []
    for name, (source, options) in federations(chosen.data).items():
        if not any(word in name for word in chosen.only):
            continue
        for seed in range(1, chosen.seeds + 1):
            data = source(seed)
            full = held_out(data, None, seed)
            network = (lambda d=data: fl.MLP(d.in_shape, d.n_outputs, [64])) if options else None
            backbone = network or (lambda d=data: fl.Linear(d.in_shape, d.n_outputs))
            row: dict[str, Any] = {"federation": name, "seed": seed}
            for kind in (fl.FedAvg, fl.DensityFedEM):
                torch.manual_seed(seed)
                model = kind(backbone, n_clients=data.n_clients, local_steps=20, seed=seed)
                quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
                trainer = pl.Trainer(max_epochs=chosen.rounds, accelerator="cpu", limit_val_batches=0, **quiet)
                trainer.fit(model, full)
                if kind is fl.FedAvg:
                    row["FedAvg"] = accuracy(model, full)
                    continue
                for labelled, title in ((0, "no labels"), (LABELLED, f"{LABELLED} rows"), (None, "all rows")):
                    row[title] = accuracy(model, held_out(data, labelled, seed))
            rows.append(row)
            print(row, flush=True)
    print(pd.DataFrame(rows).drop(columns="seed").groupby("federation").agg(["mean", "std"]).round(4).to_string())


if __name__ == "__main__":
    main()
