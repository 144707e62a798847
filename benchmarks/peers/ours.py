"""FedAvg by fedem-lightning, under a Trainer."""

from typing import Any

import numpy as np
import pytorch_lightning as pl
import work as common

import fedem_lightning as fl


class RoundClock(pl.Callback):
    """Times rounds from outside, so that what Lightning does around `training_step` counts too."""

    def __init__(self) -> None:
        self.clock = common.Clock()

    def on_train_epoch_start(self, *_: Any) -> None:
        """A round begins."""
        self.clock.start()

    def on_train_epoch_end(self, *_: Any) -> None:
        """It ends."""
        self.clock.stop()


def main() -> None:
    """Runs and prints the result."""
    parser = common.arguments(__doc__)
    parser.add_argument("--precision", choices=("32-true", "bf16-mixed"), default="32-true")
    parser.add_argument("--engine", choices=("auto", "loop", "vmap"), default="auto")
    options = parser.parse_args()
    work, start = common.prepare(options)
    with np.load(options.work) as file:
        arrays = {name: file[name] for name in ("x", "y", "client", "split")}
    data = fl.FederatedDataModule.from_arrays(**arrays, n_classes=work.n_classes)
    pl.seed_everything(options.seed, verbose=False)
    linear = options.model == "linear"
    model = fl.Linear(data.in_shape, data.n_outputs) if linear else fl.ReferenceCNN(data.n_outputs, data.in_shape)
    for own, theirs in zip(model.parameters(), start.parameters(), strict=True):
        own.data.copy_(theirs.data)
    algorithm = fl.FedAvg(
        model,
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
        precision=options.precision,
        limit_val_batches=0,  # no evaluation between rounds
        callbacks=[rounds],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(algorithm, data)
    common.report("fedem-lightning", rounds.clock, algorithm.components[0], work.test)


if __name__ == "__main__":
    main()
