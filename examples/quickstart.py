"""FedEM, FedAvg and local training on a synthetic mixture of three distributions."""

import argparse
import logging

import pytorch_lightning as pl

from fedem_lightning import ClientSGD, FedAvg, FedEM, Linear, Local, SyntheticMixture

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--clients", type=int, default=50)
parser.add_argument("--rounds", type=int, default=60)
chosen = parser.parse_args()

logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
data = SyntheticMixture(n_clients=chosen.clients, test_size=500, unseen_fraction=0.2, seed=0)
sgd = ClientSGD(lr=1.0, momentum=0.9)
quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)

for method in (FedEM, FedAvg, Local):
    pl.seed_everything(0, verbose=False)
    model = method(Linear(data.in_shape, data.n_outputs), data.n_clients, client_optimizer=sgd)
    # an epoch is a round
    trainer = pl.Trainer(max_epochs=chosen.rounds, accelerator="cpu", limit_val_batches=0, **quiet)
    trainer.fit(model, data)
    trainer.test(model, data, verbose=False)
    by_population = model.clients.groupby("population").test_accuracy  # model.clients: one row a client
    for population, accuracy in by_population:
        print(f"{method.__name__:7} {population:7} mean {accuracy.mean():.3f}, worst client {accuracy.min():.3f}")
