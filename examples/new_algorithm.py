"""A method of your own: Ditto (Li et al., ICML 2021, arXiv 2012.04221) beside FedAvg and local training.

docs/adding_an_algorithm.md explains the two classes, and runs them from the command line.
"""

import argparse
import logging
from dataclasses import dataclass

import pytorch_lightning as pl

from fedem_lightning import ClientSGD, Digits, FedAvg, FederatedAlgorithm, Linear, Local
from fedem_lightning.aggregation import Sent
from fedem_lightning.local_solver import LocalStep
from fedem_lightning.models.client_store import ClientStore


@dataclass(frozen=True)
class HeldStep(LocalStep):
    """A step on F(v) + (strength / 2) |v - w|^2; the learner carries w as "anchor"."""

    strength: float

    def advance(self, learner, gradient):
        params, anchor = learner["params"].values(), learner["anchor"].values()
        tensors = zip(gradient(learner), params, anchor, strict=True)
        held = [g + self.strength * (v - w) for g, v, w in tensors]
        self.optimizer.descend(learner, held, self.lr)


class MyDitto(FederatedAlgorithm):
    """FedAvg of w; client t serves v_t ~ argmin F_t(v) + (strength / 2) |v - w|^2."""

    def __init__(self, backbone, n_clients, strength=0.1, **options):
        super().__init__(backbone, n_clients, n_components=1, **options)
        self.strength = strength
        self.own = ClientStore.of_components(n_clients, self.components)  # v_t [1, ...]
        self.own_momentum = self.local.momentum_store()  # of v_t, if clients keep it

    def client_update(self, block, round_):
        t, w = block.clients, self.broadcast(block.clients)  # [C, 1, ...]
        own = {
            "step": self.local.step(block, round_, HeldStep, strength=self.strength),
            "extra": {"anchor": self.params_of(w)},
            "momentum": self.own_momentum,
            "quiet": True,  # the progress bar counts the training of w
        }
        v = self.local.solve(self.own.read(t), block, round_, **own)
        self.own.write(t, v)
        return Sent(self.local.solve(w, block, round_), block.counts())

    def local_work(self, federation, clients, round_):
        return 2 * super().local_work(federation, clients, round_)  # at v and at w

    def personal_models(self, clients):
        return self.own_models(self.own.read(clients))

    def personalize_clients(self, federation, clients):
        self.own.write(clients, self.broadcast(clients))
        for block in self.local.blocks(federation, clients):
            self.client_update(block, self.statistics.rounds)


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
