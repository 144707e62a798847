"""The contract of an algorithm, on one page: what it must, often and rarely says.

Shapes: T clients, C clients of a block or cohort, M components, n samples, G averages; `Models` are [C, M, ...].
"""

from abc import abstractmethod

import numpy as np
import torch
from torch import Tensor

from fedem_lightning.aggregation import Means, Sent
from fedem_lightning.cohort import sample_cohort
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.history import Round
from fedem_lightning.models.personal_models import PersonalModels, SharedModels
from fedem_lightning.network import Transmission
from fedem_lightning.protocol import Algorithm


class Contract:
    """The hooks. All but the first have a default."""

    # --- must -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def client_update(self, block: Block, round_: int) -> Sent | None:
        """The update of the block's clients in round `round_` (from 0): their part of the paper's algorithm box.

        Args:
            block: C clients and their n training samples.
            round_: the round's number, from 0.

        Returns:
            What they send: models [C, M, ...] and the weights [C] of each client in the average. None: nothing.

        """

    # --- often ------------------------------------------------------------------------------------------------------

    def server_update(self: Algorithm, means: Means | None, round_: Round) -> None:
        """The server's part of a round, after the averages. It calls `server_step` once, which counts the round.

        Default: theta <- server optimiser(theta, theta - mean); buffers become their mean (FedAvg, Reddi et al. 2021).

        Args:
            means: of the G M models sent, [G M, ...]; None: nobody sent anything.
            round_: number, federation and cohort.

        """
        if means is None:
            self.server_step(None)
        else:
            self.take_means(means)

    def personal_models(self: Algorithm, clients: Tensor) -> PersonalModels:
        """The models that each of the clients [C] predicts with, and their weights in its prediction (FedEM, Eq. 5).

        Default: the newest components, with equal weights [C, M]. Clients with models of their own: `own_models`.
        """
        n_models = len(self.components)
        equal = torch.full((len(clients), n_models), 1 / n_models, dtype=self.parameter_dtype, device=clients.device)
        return SharedModels(self.components, equal)

    def personalize(self, federation: Federation, clients: Tensor) -> None:
        """Gives clients (int64 [C]) their private state from their training samples. Default: they have none.

        It is called for the unseen clients before each test, and for the seen ones before every scoring if
        `personalizes_seen`. A second call starts anew.
        """

    personalizes_seen = False
    """Whether seen clients personalise again with the newest models before every scoring (HypCluster, Eq. 4)."""

    def initialize(self, federation: Federation) -> None:
        """Work before the first round, with the data at hand; a resumed run skips it. Default: none."""

    def transmission(self: Algorithm, clients: Tensor) -> Transmission:
        """What the last round sent, in models; `clients` [C] were drawn for it. Default: M down and M up each."""
        return Transmission(down=len(self.components), up=len(self.components))

    uses_server_optimizer = True
    """Whether the server optimiser may be anything but the plain average (SGD, rate 1, no momentum)."""

    # --- rarely -----------------------------------------------------------------------------------------------------

    def prepare(self, federation: Federation) -> None:
        """Takes what the method needs to know from the federation, before any round or score (Oracle: true groups).

        It may be called several times.

        Raises:
            UserError: the method is not defined for this federation.

        """

    def local_work(self: Algorithm, federation: Federation, clients: Tensor, round_: int) -> Tensor:
        """Gradients of single samples that each of the clients [C] computes in a round; forward passes do not count.

        Default: one for each visit of a sample and each model trained, int64 [C].
        """
        counts = federation.splits["train"].counts(clients)
        steps, batch = self.local_steps, self.batch_size
        visits = self.local_epochs * counts if steps is None else steps * counts.clamp(max=batch)
        return visits * (self.n_trained_models or len(self.components))

    def artifacts(self, federation: Federation) -> dict[str, dict[str, np.ndarray]]:
        """Arrays of a finished run that get a file of their own, NAME.npz: by file, then by name (user-centric's W)."""
        return {}

    n_trained_models: int | None = None
    """Models that a client trains in a round (HypCluster: 1 of M); None: M."""

    def cohort(self: Algorithm, federation: Federation, round_: int) -> Tensor:
        """The clients of a round, int64, ascending. Default: drawn uniformly (q-FFL: by size)."""
        return sample_cohort(federation.clients(), self.participation, self.seed, round_)
