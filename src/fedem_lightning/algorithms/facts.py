"""What a method says of itself beside its hooks, and what a class must not lack."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from fedem_lightning.errors import require

if TYPE_CHECKING:
    from fedem_lightning.algorithms.base import FederatedAlgorithm


@dataclass(frozen=True)
class Facts:
    """Facts of a method, in its class attribute `facts`; a constructor may replace those that depend on options.

    A subclass inherits its parent's, and has to state anew what it changes.
    """

    released: tuple[str, ...] | None = None
    """What of clients' data leaves them beside the mean of their updates, in words; None: the method does not say.

    `aggregation=private` adds noise to that mean alone, so it takes methods with () only: what one client's data change
    in the components, in the server's states and for other clients must come from the mean. Not so is, for example,
    what `initialize`, `prepare` or `server_update` compute from the federation's samples, or from clients' numbers of
    samples; nor are cohorts of a method's own. A private state that stays with its client is not released."""

    needs_one_machine: str = ""
    """Why the method does not run under Flower (`flower`), as the rest of a sentence; empty: it does."""

    uses_server_optimizer: bool = True
    """Whether a server optimiser other than the plain average (SGD with rate 1, no momentum) is allowed."""

    uses_client_optimizer: bool = True
    """Whether clients train with `client_optimizer`; False: the method has no learning rate."""

    needs_sgd: str = ""
    """Why clients need `ClientSGD`, as the rest of a sentence: an adaptive optimiser would change the method's
    equations; empty: any client optimiser will do."""

    with_adaptive: str = ""
    """What an adaptive client optimiser changes, as a sentence that a run says once; empty: the solver alone."""

    sends_updates: bool = True
    """Whether clients send models; False: only the mean is allowed, of whatever else `client_update` may return."""

    samples_by_size: bool = False
    """Whether clients with more training samples are drawn more often; False: uniformly."""

    personalizes_seen: bool = False
    """Whether seen clients are personalised again with the newest models before every scoring (HypCluster, Eq. 4)."""

    predicts_with_own_state: bool = True
    """Whether clients predict with what they keep; False: they only train with it (SCAFFOLD)."""

    chooses_one: bool = False
    """Whether each client trains, sends and predicts with one of the M components (HypCluster)."""

    mixes: bool = False
    """Whether clients have mixture weights of the components, `pi` [T, M]."""

    score_columns: tuple[str, ...] = ()
    """Names of the columns of the clients' table that `scored_models` brings."""


def known_pi(algorithm: "FederatedAlgorithm") -> Tensor | None:
    """The mixture weights [T, M] of a method that mixes; None also where they are with clients elsewhere."""
    pi: Tensor | None = algorithm.pi if algorithm.facts.mixes and not algorithm.is_deployed else None  # type: ignore[assignment]
    return pi


def check_class(kind: type) -> None:
    """Raises UserError if a class lacks a hook; a LightningModule is no ABC."""
    for name in dir(kind):
        abstract = getattr(getattr(kind, name), "__isabstractmethod__", False)
        require(not abstract, f"{kind.__name__} does not define {name}, see docs/adding_an_algorithm.md")
