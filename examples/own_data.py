"""Your own data: arrays, an .npz file, a federation, FedEM, and a table with one row a client."""

import argparse
import logging
import tempfile
from pathlib import Path

import numpy as np
import pytorch_lightning as pl

from fedem_lightning import ClientSGD, FedEM, Linear, NpzDataModule

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--samples", type=int, default=120, help="of each client")
parser.add_argument("--rounds", type=int, default=50)
parser.add_argument("--out", type=Path, default=None, help="a folder for mine.npz; default: a temporary one")
chosen = parser.parse_args()

# 1. Arrays: six clinics, four measurements a patient. The clinics of the two groups label the same patient differently.
rng = np.random.default_rng(0)
client = np.repeat([f"clinic {letter}" for letter in "ABCDEF"], chosen.samples)  # whole numbers will do as well
x = rng.normal(size=(len(client), 4)).astype(np.float32)  # [n, 4]
sign = np.where(np.isin(client, ["clinic A", "clinic B", "clinic C"]), 1, -1)
y = np.where(sign * (x[:, 0] + x[:, 1]) > 0, "ill", "well")  # strings, or whole numbers from 0 on

# 2. One file. `python -m fedem_lightning dataset=npz dataset.path=mine.npz` reads it, too.
folder = chosen.out or Path(tempfile.mkdtemp())
np.savez(folder / "mine.npz", x=x, y=y, client=client)

# 3. A federation: each client's samples are split 60/20/20.
data = NpzDataModule(folder / "mine.npz", seed=0)

# 4. FedEM with two components.
logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
pl.seed_everything(0, verbose=False)
network = Linear(data.in_shape, data.n_outputs)
model = FedEM(network, data.n_clients, n_components=2, client_optimizer=ClientSGD(lr=0.5), batch_size=16)
quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
trainer = pl.Trainer(max_epochs=chosen.rounds, accelerator="cpu", limit_val_batches=0, **quiet)
trainer.fit(model, data)
trainer.test(model, data, verbose=False)

# 5. The table. pi_0 and pi_1 are the mixture weights: the two groups of clinics have different ones.
columns = ["id", "n_train", "train_accuracy", "test_accuracy", "pi_0", "pi_1"]
print(model.clients[columns].round(2).to_string(index=False))
