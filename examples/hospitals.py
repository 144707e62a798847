"""Four hospitals, one table: who has heart disease, and whether the hospitals gain by learning together.

Four clients are a smoke test, not a place to measure a mixture: whole columns are missing in some hospitals, and the
share of ill patients runs from 36 to 93 %. The table shows every seed's range.

    python examples/hospitals.py heart_hospitals/data.parquet

The table has the columns client (the hospital), label (0 or 1), split, and 13 attributes. The learning rate is, for
each method, the one of `--rates` with the lowest validation loss; test samples choose nothing. A hospital's own split
column holds its test patients; a quarter of the others validates.
"""

import argparse
import logging
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytorch_lightning as pl
import torch

import fedem_lightning as fl

METHODS: dict[str, tuple[type[fl.FederatedAlgorithm], dict[str, Any]]] = {
    "FedEM": (fl.FedEM, {"n_components": 2}),
    "FedAvg": (fl.FedAvg, {}),
    "FedAvg+": (fl.FedAvg, {"adaptation": fl.Finetune(epochs=1)}),
    "Local": (fl.Local, {}),
}


def patients(path: Path, seed: int) -> fl.TableDataModule:
    """The hospitals' patients; missing numbers become the median, with a feature that says where."""
    frame = pd.read_parquet(path)
    rng = np.random.default_rng([seed, 1])  # not the stream from which somebody may have drawn the split
    validates = (frame["split"] == "train") & (rng.random(len(frame)) < 0.25)
    frame["split"] = frame["split"].mask(validates, "val")
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "patients.parquet"
        frame.drop(columns=["num"], errors="ignore").to_parquet(table)
        return fl.TableDataModule(table, "label", "client", split="split", missing="median", task="binary", seed=seed)


def trained(name: str, data: fl.TableDataModule, rounds: int, rate: float, seed: int) -> Any:
    """A method after its rounds, with the scores of all hospitals."""
    kind, options = METHODS[name]
    torch.manual_seed(seed)
    network = fl.Linear(data.in_shape, data.n_outputs)
    model = kind(network, data.n_clients, client_optimizer=fl.ClientSGD(lr=rate), batch_size=32, seed=seed, **options)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=rounds,
        limit_val_batches=0,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(model, data)
    trainer.test(model, data, verbose=False)
    return model


def main() -> None:
    """Trains the methods and prints the accuracy of each hospital, mean and range over the seeds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("table", type=Path)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.03, 0.1, 0.3])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    chosen = parser.parse_args()
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    rows: dict[str, list[pd.Series]] = {name: [] for name in METHODS}
    for seed in chosen.seeds:
        data = patients(chosen.table, seed)
        for name in METHODS:
            found = [trained(name, data, chosen.rounds, rate, seed) for rate in chosen.rates]
            best = min(found, key=lambda m: float(np.average(m.clients["val_loss"], weights=m.clients["n_val"])))
            scores = best.clients.set_index("id")["test_accuracy"]
            scores["all"] = float(np.average(best.clients["test_accuracy"], weights=best.clients["n_test"]))
            rows[name].append(scores)
    hospitals = list(rows["FedEM"][0].index)
    print(f"| method | {' | '.join(hospitals)} |\n|---|{'---|' * len(hospitals)}")
    for name, found in rows.items():
        table = 100 * pd.concat(found, axis=1)
        cells = (f"{line.mean():.1f} ({line.min():.1f} to {line.max():.1f})" for _, line in table.iterrows())
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
