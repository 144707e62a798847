"""FedAvg by fedem-lightning, under a Trainer."""

import argparse

import pytorch_lightning as pl
import torch
import work as common
from torch import nn

import fedem_lightning as fl


class RoundClock(pl.Callback):
    """Times rounds from outside, so that what Lightning does around `training_step` counts too."""

    def __init__(self) -> None:
        self.clock, self.peak = common.Clock(), 0.0

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """A round begins."""
        self.clock.start()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """It ends."""
        self.clock.stop()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Takes the memory while all processes live: the first one counts the others, which are its children."""
        self.peak = common.peak_mb()
        trainer.strategy.barrier()


def backbone(options: argparse.Namespace, in_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    """The library's own model, with the parameters that the peers start from."""
    model = fl.Linear(in_shape, n_classes) if options.model == "linear" else fl.ReferenceCNN(n_classes, in_shape)
    start = common.make_model(options.model, in_shape, n_classes, options.seed)
    for ours, theirs in zip(model.parameters(), start.parameters(), strict=True):
        if ours.shape != theirs.shape:
            raise ValueError(f"{options.model}: a parameter is {tuple(ours.shape)} here, {tuple(theirs.shape)} there")
        ours.data.copy_(theirs.data)
    return model


def main() -> None:
    """Runs and prints the result."""
    parser = common.arguments(__doc__)
    parser.add_argument("--precision", choices=("32-true", "bf16-mixed"), default="32-true")
    parser.add_argument("--engine", choices=("auto", "loop", "vmap"), default="auto")
    parser.add_argument("--devices", type=int, default=1, help="processes, which share the threads")
    options = parser.parse_args()
    if options.devices > options.threads:
        parser.error(f"--devices: {options.devices} processes need as many --threads, got {options.threads}")
    torch.set_num_threads(options.threads // options.devices)
    data = fl.FederatedDataModule.from_arrays(**common.read(options.work))
    pl.seed_everything(options.seed, verbose=False)
    algorithm = fl.FedAvg(
        backbone(options, data.in_shape, data.n_outputs),
        data.n_clients,
        client_optimizer=fl.ClientSGD(lr=options.lr),
        local_epochs=options.local_epochs,
        batch_size=options.batch_size,
        engine=options.engine,
        seed=options.seed,
    )
    rounds = RoundClock()
    trainer = pl.Trainer(
        max_epochs=options.rounds,
        accelerator="cpu",
        devices=options.devices,
        strategy="ddp" if options.devices > 1 else "auto",
        precision=options.precision,
        limit_val_batches=0,  # no evaluation between rounds
        callbacks=[rounds],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(algorithm, data)
    if trainer.is_global_zero:
        test = common.load(options.work).test
        common.report("fedem-lightning", rounds.clock, algorithm.components[0], test, rounds.peak)


if __name__ == "__main__":
    main()
