"""Clients that fail or attack, injected into a run."""

from abc import ABC
from typing import Any

import torch
from torch import Tensor

from fedem_lightning.aggregate import Update
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.randomness import Purpose, generator
from fedem_lightning.data.tasks import known
from fedem_lightning.settings.errors import require
from fedem_lightning.settings.ranges import BelowOne
from fedem_lightning.settings.recipes import Recorded


class Faults(Recorded, ABC):
    """A share of the clients that train is faulty; which ones is a function of the seed (and of the round).

    Args:
        share: share of the clients that train, in [0, 1); at least one client if it is above 0.
        every_round: False: the same clients in all rounds. True: others in every round.

    """

    corrupts = False  # whether faulty clients send something else than they computed (`corrupted`)
    answers = True  # whether faulty clients answer at all

    def __init__(self, share: BelowOne = 0.1, every_round: bool = False) -> None:
        self.share, self.every_round = share, every_round

    def check(self, federation: Federation) -> None:
        """Raises UserError if the faults are not defined for the data. Default: they always are."""

    def faulty(self, clients: Tensor, seed: int, round_: int) -> Tensor:
        """The faulty ones in a round (from 0) of all `clients` that train, int64, ascending."""
        number = max(1, round(self.share * len(clients))) if self.share > 0 else 0
        rng = generator(seed, Purpose.FAULTS, *([round_] if self.every_round else []))
        drawn = rng.choice(len(clients), size=number, replace=False)
        return clients[torch.from_numpy(drawn).to(clients.device).sort().values]

    def ever_faulty(self, clients: Tensor, seed: int, rounds: int) -> Tensor:
        """The clients that are faulty in any of the first rounds, int64, ascending."""
        drawn = [self.faulty(clients, seed, round_) for round_ in range(rounds if self.every_round else 1)]
        return torch.cat([clients[:0], *drawn]).unique()

    def corrupted(self, update: Update, faulty: Tensor, parameters: set[str]) -> Update:
        """The update of a batch of clients, of whom the `faulty` ones, bool [C], send other trained `parameters`."""
        models = dict(update.models)
        for name in parameters & models.keys() if self.corrupts and faulty.any() else ():
            rows = models[name]
            which = faulty.view(-1, *[1] * (rows.ndim - 1))
            models[name] = torch.where(which, self.sent(rows, update.start[name]), rows)
        return update._replace(models=models)

    def sent(self, rows: Tensor, start: Tensor) -> Tensor:
        """What faulty clients send in place of a tensor's `rows`, which `start` was before, [C, M, ...] each."""
        return rows

    def with_other_labels(self, federation: Federation, faulty: Tensor) -> Federation:
        """The federation as the faulty clients (int64) train with it. Default: as it is."""
        return federation


class NoAnswer(Faults):
    """Faulty clients receive models and do not answer. One client of a cohort always does, but for a private mean."""

    answers = False

    def __init__(self, share: BelowOne = 0.1, every_round: bool = True) -> None:
        super().__init__(share, every_round)


class SendNaN(Faults):
    """Faulty clients send NaN in every parameter."""

    corrupts = True

    def sent(self, rows: Tensor, start: Tensor) -> Tensor:
        """NaN."""
        return torch.full_like(rows, torch.nan)


class Scaling(Faults):
    """Faulty clients send theta + factor (theta_t - theta): a longer update, or with a negative factor the opposite.

    Args:
        share, every_round: see `Faults`.
        factor: of theta_t - theta, over the trained parameters; theta is the model that the client received.

    """

    corrupts = True

    def __init__(self, share: BelowOne = 0.1, every_round: bool = False, factor: float = 10.0) -> None:
        super().__init__(share, every_round)
        self.factor = factor

    def sent(self, rows: Tensor, start: Tensor) -> Tensor:
        """The scaled update."""
        return start + self.factor * (rows - start)


class LabelFlip(Faults):
    """Faulty clients train with the labels Y - 1 - y in place of y; of sequences every label."""

    def check(self, federation: Federation) -> None:
        """Checks that samples have features and classes."""
        kind = "density" if "minimum_loss" in federation.truth else type(federation.task).__name__
        classes = hasattr(federation.task, "n_classes") and kind != "density"
        require(classes, f"faults: label_flip needs a classification, the data is a {kind}")

    def with_other_labels(self, federation: Federation, faulty: Tensor) -> Federation:
        """The federation with Y - 1 - y at the training samples of the faulty clients."""
        positions, _ = federation.splits["train"].positions(faulty)
        task: Any = federation.task
        other = federation.samples.relabelled(positions, lambda y: torch.where(known(y), task.n_classes - 1 - y, y))
        return federation._with(samples=other)
