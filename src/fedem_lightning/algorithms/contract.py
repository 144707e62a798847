"""The contract of an algorithm: the hooks that it must define, often defines and rarely defines.

Shapes: T clients, C clients of a block or cohort, M components, n samples, G averages; `Models` are [C, M, ...].
"""

import secrets
from abc import abstractmethod

import numpy as np
import torch
from torch import Tensor

from fedem_lightning.aggregation import Means, Models, Sent
from fedem_lightning.cohort import sample_cohort, sample_independently
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.errors import require
from fedem_lightning.history import Round
from fedem_lightning.models.components import start_equal
from fedem_lightning.models.personal_models import PersonalModels, SharedModels
from fedem_lightning.network import Transmission
from fedem_lightning.protocol import Algorithm


class Contract:
    """The hooks. All but the first have a default."""

    # --- must -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def client_update(self, block: Block, round_: int) -> Sent | None:
        """The client update of the block's clients in a round: the clients' part of the paper's algorithm.

        Args:
            block: C clients and their n training samples.
            round_: number of the round, from 0.

        Returns:
            The models [C, M, ...] that the clients send, and each client's weight [C] in the average. None: nothing.

        """

    # --- often ------------------------------------------------------------------------------------------------------

    def server_update(self: Algorithm, means: Means | None, round_: Round) -> None:
        """The server's part of a round, after the averages. It calls `server_step` once, which counts the round.

        Default: theta <- server optimiser(theta, theta - mean); buffers become their mean (FedAvg, Reddi et al. 2021).

        Args:
            means: averages of the models sent, [G M, ...]; None: no client sent a model.
            round_: number, federation and cohort.

        """
        if means is None:
            self.server_step(None)
        else:
            self.take_means(means)

    def personal_models(self: Algorithm, clients: Tensor) -> PersonalModels:
        """The models with which each of the clients [C] predicts, and their mixture weights (FedEM, Eq. 5).

        Default: the newest components, with equal weights [C, M]. `own_models` makes models that clients do not share.
        """
        n_models = len(self.components)
        equal = torch.full((len(clients), n_models), 1 / n_models, dtype=self.parameter_dtype, device=clients.device)
        return SharedModels(self.components, equal)

    def personalize_clients(self, federation: Federation, clients: Tensor) -> None:
        """Gives clients (int64 [C]) their private state from their training samples. Default: they have none.

        It is called for the unseen clients before each test, and for the seen ones before every scoring if
        `personalizes_seen`. A second call starts anew.
        """

    personalizes_seen = False
    """Whether seen clients are personalised again with the newest models before every scoring (HypCluster, Eq. 4)."""

    def initialize(self: Algorithm, federation: Federation) -> None:
        """Sets up state from the data before the first round; a resumed run skips it.

        Default: refuses several components that are all equal.
        """
        require(
            not start_equal(self.components),
            f"backbone: all components start as copies of one network, and {type(self).__name__} would keep them "
            "equal; give a function in place of the network, which draws new values in every call",
        )

    def transmission(self: Algorithm, clients: Tensor) -> Transmission:
        """Numbers of models sent in the round that is ending; `clients` [C] were drawn. Default: each M down, M up."""
        return Transmission(down=len(self.components), up=len(self.components))

    uses_server_optimizer = True
    """Whether a server optimiser other than the plain average (SGD with rate 1, no momentum) is allowed."""

    uses_client_optimizer = True
    """Whether clients train with `client_optimizer`; False: the method has no learning rate."""

    sends_updates = True
    """Whether clients send models; False: only the mean is allowed, of whatever else `client_update` may return."""

    @property
    def released(self) -> tuple[str, ...] | None:
        """What of clients' data leaves them beside the mean of their updates, in words; None: the method does not say.

        `aggregation=private` adds noise to that mean alone, so it takes methods with () only: what one client's data
        change in the components, in the server's states and for other clients must come from the mean. Not so is, for
        example, what `initialize`, `prepare` or `server_update` compute from the federation's samples, or from clients'
        numbers of samples; nor are cohorts of a method's own. A private state that stays with its client is not
        released. Options may decide: FedEM's depend on `initialization`. A subclass inherits its parent's declaration,
        and has to declare anew if it lets more leave the clients.
        """
        return None

    needs_one_machine = ""
    """Why clients cannot be processes of their own (`deploy`), as the rest of a sentence; empty: they can."""

    def answer(self, question: str, block: Block, given: Models) -> Models:
        """What clients tell the server when it asks them something outside of training (`client_updates.answers`).

        Args:
            question: names what is asked.
            block: C clients and their n training samples.
            given: tensors that the server sends with the question.

        Returns:
            Tensors by name, each [C, ...].

        """
        raise NotImplementedError(f"{type(self).__name__} has no answer to {question!r}")

    # --- rarely -----------------------------------------------------------------------------------------------------

    def prepare(self, federation: Federation) -> None:
        """Reads what the algorithm needs to know from the federation, before any round or score (Oracle: true groups).

        It may be called several times.

        Raises:
            UserError: the algorithm is not defined for this federation.

        """

    def local_work(self: Algorithm, federation: Federation, clients: Tensor, round_: int) -> Tensor:
        """Number of single-sample gradients that each of the clients [C] computes in a round, without forward passes.

        Default: one for each visit of a sample and each model trained, int64 [C].
        """
        counts = federation.splits["train"].counts(clients)
        steps, batch = self.local_steps, self.batch_size
        visits = self.local_epochs * counts if steps is None else steps * counts.clamp(max=batch)
        return visits * self.n_trained_models

    def artifacts(self, federation: Federation) -> dict[str, dict[str, np.ndarray]]:
        """Arrays of a finished run that are saved as NAME.npz: by file, then by name (UserCentric: its matrix W)."""
        return {}

    @property
    def n_trained_models(self: Algorithm) -> int:
        """Number of models that a client trains in a round. Default: M (HypCluster: 1 of M)."""
        return len(self.components)

    def received_models(self: Algorithm, clients: Tensor) -> Models:
        """The models from which the clients' updates are measured, in the form in which they send them, [C, M, ...].

        Norms, clipping and faults need them, after `client_update` and before `server_update`. Default: the components
        (HypCluster: the chosen one; q-FFL: zeros, because its clients send differences).
        """
        return self.broadcast(clients)

    def expected_update(self: Algorithm, clients: Tensor, n_train: Tensor) -> Sent | None:
        """The form of what `client_update` returns: what differs from it is no reply of a client (`deploy`).

        The weights are the largest, and the extras the smallest that they may be. Default: the received models, with
        the numbers of training samples, `n_train` [C], as weights (Scaffold: an extra, too; Local: None).
        """
        return Sent(self.received_models(clients), n_train.clamp(min=1))

    def cohort(self: Algorithm, federation: Federation, round_: int) -> Tensor:
        """The cohort of a round, int64, ascending. Default: clients drawn uniformly (q-FFL: by size)."""
        if self.aggregation.samples_independently:
            if self.remote is not None and not self.cohort_secret:  # clients are sent the seed
                self.cohort_secret = secrets.token_hex(32)
            return sample_independently(federation.clients(), self.participation, self.seed, round_, self.cohort_secret)
        return sample_cohort(federation.clients(), self.participation, self.seed, round_)
