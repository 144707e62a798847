"""A method of your own: Ditto (Li et al., ICML 2021, arXiv 2012.04221) beside FedAvg and local training.

docs/adding_an_algorithm.md explains the class, and runs it from the command line.
"""

import argparse
import logging

import pytorch_lightning as pl

from fedem_lightning import ClientSGD, Digits, FedAvg, FederatedAlgorithm, Linear, Local, Update, near


class MyDitto(FederatedAlgorithm):
    """FedAvg of w; client t serves v_t ~ argmin F_t(v) + (strength / 2) |v - w|^2."""

    def __init__(self, backbone, n_clients, strength=0.1, **options):
        super().__init__(backbone, n_clients, n_components=1, **options)
        self.strength = strength
        self.v = self.per_client(self.components)  # each client's own model
        self.v_state = self.optimizer_state()  # its momentum, if clients keep it

    def client_update(self, batch, round_):
        w = self.received(batch.clients)  # [C, 1, ...]
        self.train_own(batch, round_)
        return Update(self.local_sgd(w, batch, round_), batch.counts(), start=w)

    def train_own(self, batch, round_):
        t, step = batch.clients, near(self.received(batch.clients), self.strength)
        own = {"step": step, "state": self.v_state}
        self.v[t] = self.local_sgd(self.v[t], batch, round_, **own)

    def personal_models(self, clients):
        return self.own_models(self.v[clients])

    def personalize_clients(self, data, clients):
        self.v[clients] = self.received(clients)
        for batch in self.batches(data, clients):
            self.train_own(batch, self.statistics.rounds)


def main() -> None:
    """Trains the three methods on digits that are dealt unevenly to the clients."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--strength", type=float, default=3.0, help="of the pull to the shared model")
    chosen = parser.parse_args()

    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    data = Digits(n_clients=chosen.clients, seed=0)
    sgd = ClientSGD(lr=0.3)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    for method, own in ((FedAvg, {}), (Local, {}), (MyDitto, {"strength": chosen.strength})):
        pl.seed_everything(0, verbose=False)
        model = method(Linear(data.in_shape, data.n_outputs), data.n_clients, client_optimizer=sgd, **own)
        trainer = pl.Trainer(max_epochs=chosen.rounds, accelerator="cpu", limit_val_batches=0, **quiet)
        trainer.fit(model, data)
        trainer.test(model, data, verbose=False)
        accuracy = model.clients.test_accuracy
        print(f"{method.__name__:7} mean {accuracy.mean():.3f}, bottom decile {accuracy.quantile(0.1):.3f}")


if __name__ == "__main__":
    main()
