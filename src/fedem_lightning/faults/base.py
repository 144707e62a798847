"""What faults must define: which clients are faulty in a round, and what they do."""

from abc import ABC

import torch
from torch import Tensor

from fedem_lightning.aggregation import Models, Sent
from fedem_lightning.data.federation import Federation
from fedem_lightning.randomness import Purpose, generator
from fedem_lightning.records.recipes import Recorded
from fedem_lightning.settings.ranges import BelowOne


class Faults(Recorded, ABC):
    """A share of the clients that train is faulty; which ones is a function of the seed (and of the round).

    Args:
        share: share of the clients that train, in [0, 1); at least one client if it is above 0.
        every_round: False: the same clients in all rounds. True: others in every round.

    Raises:
        UserError: a value is out of its range.

    """

    corrupts = False  # whether faulty clients send something else than they computed (`corrupted`)
    answers = True  # whether faulty clients answer at all
    corrupts_labels = False  # whether faulty clients train with other labels (`with_other_labels`)

    def __init__(self, share: BelowOne = 0.1, every_round: bool = False) -> None:
        self.share, self.every_round = share, every_round

    def check(self, federation: Federation) -> None:
        """Raises UserError if the faults are not defined for the data. Default: they always are."""

    def faulty(self, clients: Tensor, seed: int, round_: int) -> Tensor:
        """The faulty clients of a round, int64, ascending.

        Args:
            clients: all clients that train, int64 [T], ascending.
            seed: of the run; round_: number of the round, from 0.

        """
        number = max(1, round(self.share * len(clients))) if self.share > 0 else 0
        rng = generator(seed, Purpose.FAULTS, *([round_] if self.every_round else []))
        drawn = rng.choice(len(clients), size=number, replace=False)
        return clients[torch.from_numpy(drawn).to(clients.device).sort().values]

    def ever_faulty(self, clients: Tensor, seed: int, rounds: int) -> Tensor:
        """The clients that are faulty in any of the first rounds, int64, ascending."""
        drawn = [self.faulty(clients, seed, round_) for round_ in range(rounds if self.every_round else 1)]
        return torch.cat([clients[:0], *drawn]).unique()

    def corrupted(self, sent: Sent, received: Models, faulty: Tensor, parameters: set[str]) -> Sent:
        """What the clients of a block send; see `corrupts`.

        Args:
            sent: what they would send; it is not changed.
            received: the models that they received, [C, M, ...].
            faulty: bool [C].
            parameters: names of the trained parameters.

        """
        return sent

    def with_other_labels(self, federation: Federation, faulty: Tensor) -> Federation:
        """The federation in which the faulty clients (int64) have other training labels; see `corrupts_labels`."""
        return federation
