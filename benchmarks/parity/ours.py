"""Methods by fedem-lightning: `python ours.py WORK ...`. It also writes the order of all batches, for the peers."""

import sys
import time
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from work import BATCH, EPOCHS, LR, Result, Work, flat, run_each

import fedem_lightning as fl
from fedem_lightning.data.own_folders import read_pfllib
from fedem_lightning.evaluate.scores import scored_models
from fedem_lightning.local.training import shuffled_batches


def data_of(work: Work) -> fl.FederatedDataModule:
    """PFLlib's folder, as it is or with the last fifth of each client's training samples for validation."""
    if not work.pair.held_out:
        return fl.PFLlibDataModule(work.data)
    arrays = read_pfllib(work.data)
    for t in np.unique(arrays.client):
        rows = np.flatnonzero((arrays.client == t) & (arrays.split == 0))
        arrays.split[rows[len(rows) - len(rows) // 5 :]] = 1
    return fl.FederatedDataModule.from_arrays(arrays.x, arrays.y, arrays.client, split=arrays.split)


def orders(data: fl.FederatedDataModule, rounds: int, seed: int) -> list[list[torch.Tensor]]:
    """Positions among each client's training samples in every pass of every round, [R + 2][T] x int64 [EPOCHS, n_t]."""
    block = data.federation.block(torch.arange(data.n_clients), "train")
    sizes = block.counts().tolist()
    passes = [shuffled_batches(block, BATCH, EPOCHS, seed, round_).order for round_ in range(rounds + 2)]
    return [[block.ranks()[rows] for rows in order.split(sizes, dim=1)] for order in passes]


class Record(pl.Callback):
    """Notes what clients predict with after each round, and how many test samples they predict rightly."""

    def __init__(self, result: Result) -> None:
        self.result = result

    def on_train_batch_start(self, *_: Any) -> None:
        """A round begins."""
        self.start = time.process_time()

    def on_train_batch_end(self, *_: Any) -> None:
        """It ends."""
        self.result.seconds.append(time.process_time() - self.start)

    @torch.no_grad()
    def on_train_epoch_end(self, trainer: pl.Trainer, algorithm: Any) -> None:
        """Scores, as the validation has just done."""
        federation, clients = trainer.datamodule.federation, torch.arange(algorithm.n_clients)  # type: ignore[attr-defined]
        personal = scored_models(algorithm, federation.block(clients, "train"))
        test = federation.block(clients, "test")
        right = personal.predict(test).argmax(dim=1) == test.y()
        self.result.right.append(torch.bincount(test.owner, right, len(clients)).long().tolist())
        names = [name for name, _ in algorithm.components[0].named_parameters()]
        rows = [[personal.models[name][t, 0] for name in names] for t in range(len(clients))]
        self.result.models.append(torch.stack([flat(row) for row in rows]))


def run(work: Work) -> Result:
    """Runs a method."""
    network, data = work.start(), data_of(work)
    options = {"batch_size": BATCH, "local_epochs": EPOCHS, **work.pair.options}
    kind = getattr(fl, work.pair.ours)
    algorithm = kind(network, data.n_clients, client_optimizer=fl.ClientSGD(lr=LR), seed=0, **options)
    torch.save(orders(data, work.rounds, algorithm.seed), work.folder / "orders.pt")
    result = Result(version=fl.__version__)
    trainer = pl.Trainer(
        max_epochs=work.rounds,
        accelerator="cpu",
        precision="64-true" if work.dtype == "float64" else "32-true",
        check_val_every_n_epoch=1,
        num_sanity_val_steps=0,
        callbacks=[Record(result)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(algorithm, data)
    return result


if __name__ == "__main__":
    run_each("ours", sys.argv[1:], run)
