"""New clients without labels: FedEM's densities, FedGMM and FEROMA beside FedAvg, and beside five labelled rows.

    python benchmarks/unlabelled.py --data DATA [--seeds 3] [--rounds 60] [--only rotation wisdm]

A quarter of the clients joins later, and has all of its training rows without labels, five of them with labels, or all.
Scores are mean test accuracies of these clients, by seed. Rates and settings are the defaults, for all methods alike.
For DATA see federations.py.
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
from fedem_lightning.module.trained import personalized
from federations import federations

LABELLED = 5
METHODS = {"density": fl.DensityFedEM, "fedgmm": fl.FedGMM, "feroma": fl.FEROMA}
QUIET: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}


def trained(kind: Any, data: fl.FederatedDataModule, rounds: int, seed: int) -> Any:
    """A model with one hidden layer of 64 after these rounds, of 20 local steps."""
    torch.manual_seed(seed)
    model = kind(
        lambda: fl.MLP(data.in_shape, data.n_outputs, [64]), n_clients=data.n_clients, local_steps=20, seed=seed
    )
    trainer = pl.Trainer(max_epochs=rounds, accelerator="cpu", limit_val_batches=0, enable_model_summary=False, **QUIET)
    trainer.fit(model, data)
    return model


def accuracy(model: Any, data: fl.Federation, clients: torch.Tensor, labelled: int | None) -> float:
    """The mean test accuracy of new clients with so many labelled training rows; 0: with all rows and no label."""
    has, samples = data, data.samples
    if labelled:
        train = data.splits["train"]
        for t in clients:
            train = train.thinned(t[None], min(1.0, labelled / int(train.counts(t[None]))), model.seed)
        has = data._with(splits={**data.splits, "train": train})
    if labelled == 0:
        has = data._with(samples=samples._with(lambda part: part[:0] if part is samples.y else part))
    block = data.block(clients, "test")
    with torch.no_grad():
        right = personalized(model, has, clients).predict(block).argmax(dim=1) == block.y()
    return float(pd.Series(right.numpy()).groupby(block.owner.numpy()).mean().mean())


def main() -> None:
    """Prints a row for each federation and seed, then their means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--only", nargs="+", default=["rotation", "inversion", "labels of", "wisdm", "femnist"])
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows = []
    for name, (source, _) in federations(chosen.data).items():
        for seed in range(1, chosen.seeds + 1) if any(word in name for word in chosen.only) else ():
            data = source(seed)
            federation = data.federation
            new = torch.from_numpy(np.random.default_rng(seed).permutation(federation.n_clients)[::4].copy())
            new = new.sort().values
            seen = federation.seen.clone()
            seen[new] = False
            federation = federation._with(seen=seen)
            module, row = fl.FederatedDataModule(federation), {"federation": name, "seed": seed}
            row["FedAvg"] = accuracy(trained(fl.FedAvg, module, chosen.rounds, seed), federation, new, None)
            for title, kind in METHODS.items():
                model = trained(kind, module, chosen.rounds, seed)
                for labelled, what in ((0, "none"), (LABELLED, "5"), (None, "all")):
                    row[f"{title} {what}"] = accuracy(model, federation, new, labelled)
            rows.append(row)
            print(row, flush=True)
    with pd.option_context("display.width", 250):
        print(pd.DataFrame(rows).drop(columns="seed").groupby("federation").agg(["mean", "std"]).round(4).T.to_string())


if __name__ == "__main__":
    main()
