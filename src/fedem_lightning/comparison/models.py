"""The models of a comparison: the chosen method's on all rows; errors of new clients by their number of rows."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
import pytorch_lightning as pl
import torch

from fedem_lightning.comparison.runs import Runs
from fedem_lightning.comparison.trials import Candidate, Setting
from fedem_lightning.data import FederatedDataModule
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.randomness import Purpose, generator
from fedem_lightning.data.splits import Split
from fedem_lightning.evaluate.client_table import majority
from fedem_lightning.models.personal_models import ClientModels
from fedem_lightning.module.trained import personalized
from fedem_lightning.serving.model_files import load, write_clients
from fedem_lightning.settings.measures import HIGHER_IS_BETTER, headline

NEW_SHARE = 0.2
"""Of the clients, for the errors of new ones."""
ROWS = (1, 2, 5, 10, 20, 50, 100, 200)
"""Numbers of rows that a new client has."""


def final_model(runs: Runs, candidate: Candidate, setting: Setting, rounds: Sequence[int]) -> Path:
    """Trains the method on training and validation rows, for as many rounds as it took in the comparison's runs.

    It returns the file with all clients' models, for `predict` and `export`; beside it is the folder of the run, for
    `personalize`.
    """
    last = max(1, round(median(rounds)))
    words = ["callbacks.best_round=null", f"trainer.max_epochs={last}", f"trainer.check_val_every_n_epoch={last}"]
    done = runs.run("model", candidate, setting, 0, words=words, change=with_validation_rows)
    path, beside = runs.folder / "model.safetensors", runs.folder / "model"
    if beside.is_symlink() or not beside.exists():
        beside.unlink(missing_ok=True)
        beside.symlink_to(Path(done.folder).name, target_is_directory=True)
    model = load(done.folder, **runs.network_again)
    if model.adaptation is None:
        write_clients(path, model.trained_model.clients_models())
        return path
    federation = with_validation_rows(runs.data(0)).federation  # clients tune their models on these rows
    clients = federation.clients()
    names = tuple(federation.names[t] for t in clients.tolist())
    assert model.schema is not None  # `load` refuses a model without
    write_clients(path, ClientModels(names, personalized(model, federation, clients), model.schema))
    return path


def with_validation_rows(data: FederatedDataModule) -> FederatedDataModule:
    """The data with the validation rows among the training rows."""
    federation = data.federation
    parts = [federation.splits[name] for name in ("train", "val")]
    owner = torch.cat([torch.repeat_interleave(torch.arange(len(p.counts())), p.counts()) for p in parts])  # [n]
    index = torch.cat([part.index for part in parts])[torch.argsort(owner, stable=True)]
    counts = parts[0].counts() + parts[1].counts()
    train = Split(index, torch.cat([counts.new_zeros(1), counts.cumsum(0)]))
    none = Split(index[:0], torch.zeros_like(train.offsets))
    return FederatedDataModule(federation._with(splits={**federation.splits, "train": train, "val": none}))


def new_clients(runs: Runs, methods: Sequence[tuple[Candidate, Setting]]) -> pd.DataFrame:
    """Mean errors of new clients, [rows, methods]: a fifth of the clients takes no part, then gets so many rows each.

    Numbers of rows beyond those of half the new clients are left out; no columns if there are fewer than five clients.
    """
    federation = runs.data(0).federation
    clients = federation.clients()
    n_new = round(NEW_SHARE * len(clients))
    if n_new < 1:
        return pd.DataFrame()
    drawn = generator(0, Purpose.UNSEEN).permutation(len(clients))[:n_new]
    new = clients[torch.from_numpy(np.sort(drawn))]
    counts = federation.splits["train"].counts(new)
    rows = [n for n in ROWS if n <= float(counts.float().median())]

    def held_out(data: FederatedDataModule) -> FederatedDataModule:
        seen = data.federation.seen.clone()
        seen[new] = False
        return FederatedDataModule(data.federation._with(seen=seen))

    errors = pd.DataFrame(index=pd.Index(rows, name="rows"))
    for candidate, setting in methods:
        done = runs.run(f"new/{candidate.name}", candidate, setting, 0, change=held_out)
        model = load(done.folder, **runs.network_again)
        data = held_out(runs.data(0))
        errors[candidate.name] = [_error_of_new(model, _thinned(data.federation, new, n)) for n in rows]
    return errors


def _thinned(federation: Federation, clients: torch.Tensor, n: int) -> Federation:
    """The federation in which these clients have n training rows each, or all that they have."""
    train = federation.splits["train"]
    for client, count in zip(clients, train.counts(clients).tolist(), strict=True):
        train = train.thinned(client[None], min(1.0, n / count), seed=0)
    return federation._with(splits={**federation.splits, "train": train})


def _error_of_new(model: Any, federation: Federation) -> float:
    """The mean test error of the unseen clients, after they are personalised."""
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    pl.Trainer(accelerator="cpu", devices=1, **quiet).test(model, FederatedDataModule(federation), verbose=False)
    table = model.clients[model.clients["population"] == "unseen"]
    measure = headline(name.removeprefix("test_") for name in table if name.startswith("test_"))[0]
    value = float(table[f"test_{measure}"].mean())
    return 1 - value if HIGHER_IS_BETTER[measure] else value


def constant_errors(federation: Federation) -> pd.Series | None:
    """Test errors of each client's own constant, its majority class or mean, by name; None without one label a row."""
    clients, y = federation.clients(), getattr(federation.samples, "y", None)
    names = [str(federation.names[t]) for t in clients.tolist()]
    base = majority(federation, clients)
    if base is not None:
        return pd.Series(1 - base.accuracy, names).dropna()
    if y is None or not y.is_floating_point():
        return None
    own, held = (federation.block(clients, split) for split in ("train", "test"))
    means = pd.DataFrame(own.y().numpy().reshape(len(own.index), -1)).groupby(own.owner.numpy()).mean()
    wrong = (held.y().numpy().reshape(len(held.index), -1) - means.to_numpy()[held.owner.numpy()]) ** 2
    return pd.Series(wrong.mean(axis=1)).groupby(held.owner.numpy()).mean().rename(index=dict(enumerate(names)))
