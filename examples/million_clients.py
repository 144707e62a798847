"""A million clients, a thousand of them in a round: time and memory depend on the round's clients, not on all.

    python examples/million_clients.py [--clients 1000000] [--rounds 20]

Each client has ten samples of two features, in one array of all. A hidden half of the clients turns the label around,
so one model can do nothing, and FedEM's two components fit both halves.
"""

import argparse
import resource
import statistics
import time

import numpy as np
import pytorch_lightning as pl

import fedem_lightning as fl


def data(n_clients: int, n_samples: int = 10) -> fl.FederatedDataModule:
    """Samples x uniform in [-1, 1]^2 with the label x_0 > x_1; of every second client with the other one."""
    rng = np.random.default_rng(0)
    client = np.repeat(np.arange(n_clients), n_samples)
    x = rng.uniform(-1, 1, (len(client), 2)).astype(np.float32)
    y = (x[:, 0] > x[:, 1]) ^ (client % 2 == 1)
    split = np.tile([0] * (n_samples - 1) + [2], n_clients)
    unseen = min(0.5, 1000 / n_clients)
    return fl.FederatedDataModule.from_arrays(x, y.astype(int), client, split=split, unseen_fraction=unseen)


class Stopwatch(pl.Callback):
    """The seconds of each round."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.ends.append(time.perf_counter())


def main() -> None:
    """Trains FedEM, and scores a thousand clients that took no part in training."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    everyone, watch = data(options.clients), Stopwatch()
    cohort = min(1000, options.clients // 2)
    model = fl.FedEM(
        fl.Linear(everyone.in_shape, everyone.n_outputs),
        everyone.n_clients,
        n_components=2,
        client_optimizer=fl.ClientSGD(lr=1.0),
        local_epochs=5,
        participation=cohort,
        scored_clients=cohort,
    )
    trainer = pl.Trainer(max_epochs=options.rounds, logger=False, limit_val_batches=0, callbacks=[watch])
    trainer.fit(model, everyone)
    trainer.test(model, everyone, verbose=False)
    print(f"median seconds a round: {statistics.median(np.diff(watch.ends)):.3f}")
    print(f"peak memory, GB: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f}")
    new = model.clients[model.clients.population == "unseen"]
    print(f"test accuracy of {len(new)} new clients: {new.test_accuracy.mean():.3f}")


if __name__ == "__main__":
    main()
