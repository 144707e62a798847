"""What a run with `aggregation=private` has spent: epsilon at a given delta."""

import math
from typing import TYPE_CHECKING, Any

from fedem_lightning.aggregation import PrivateMean
from fedem_lightning.cohort import expected_size
from fedem_lightning.errors import require
from fedem_lightning.evaluation.accountant import epsilon_of, noise_for

if TYPE_CHECKING:
    from fedem_lightning.algorithms.base import FederatedAlgorithm

SIMULATED = (
    "nobody else knows the seed, from which cohorts and noise are drawn, by a generator that is not cryptographic"
)
DEPLOYED = "nobody but the server knows who is in a cohort; cohorts are drawn from its secret, noise from the system"
OF_ALL = (
    "only models are published, not scores, metrics, or the states that clients keep",
    "nothing was chosen by looking at these clients' data: their number, the form of samples, the settings",
)
"""What the guarantee assumes; docs/privacy.md says more."""


def spent(
    rule: PrivateMean, participation: float | int, n_clients: int, rounds: int, deployed: bool = False
) -> dict[str, Any]:
    """The guarantee for a client, whose data are all added or removed, after some rounds.

    Args:
        rule: z, delta and the like.
        participation: q, or a number of clients.
        n_clients: T.
        rounds: number of noisy means.
        deployed: whether clients are processes of their own.

    Returns:
        epsilon (None: infinite), an upper bound; accountant: how it was found (None: there is none); delta,
        noise_multiplier, clip (S of the last round), sampling (q), n_clients: of the federation that the guarantee is
        for, more than T with `cohort`; and assumptions: when it holds.

    """
    size = expected_size(participation, n_clients)
    q = size / n_clients
    z = float(rule.z)
    found = epsilon_of(z, q, rounds, rule.delta) if z > 0 else None
    finite = found is not None and math.isfinite(found.value)
    return {
        "epsilon": found.value if found and finite else None,
        "accountant": found.accountant if found and finite else None,
        "delta": rule.delta,
        "noise_multiplier": z,
        "clip": float(rule.length),
        "sampling": q,
        "n_clients": round((rule.cohort or size) / q),
        "assumptions": [DEPLOYED if deployed else SIMULATED, *OF_ALL],
    }


def choose_noise(rule: PrivateMean, q: float, size: float, rounds: int) -> None:
    """Sets z so that `rounds` means spend the rule's epsilon, once; see `spent` for q; q T is the size of a cohort.

    Raises:
        UserError: the number of rounds is not known, no noise is enough for so small an epsilon, or the count of short
            updates has too little noise for z.

    """
    if rule.epsilon is None or float(rule.z) > 0:
        return
    require(rounds > 0, "aggregation.epsilon: the number of rounds must be known before; set trainer.max_epochs")
    rule.z.fill_(noise_for(rule.epsilon, q, rounds, rule.delta))
    rule.noise_of_updates(rule.cohort or size)


def plan_privacy(algorithm: "FederatedAlgorithm", n_clients: int, rounds: int) -> dict[str, Any] | None:
    """What the planned rounds will have spent, before the first one; see `spent`. None: no rule adds noise.

    It chooses the noise where that follows from an epsilon, and finds what `choose_noise` refuses.

    Args:
        algorithm: before its training.
        n_clients: T.
        rounds: that are planned; -1: their number is not known.

    """
    rule = algorithm.aggregation
    if not isinstance(rule, PrivateMean):
        return None
    size = expected_size(algorithm.participation, n_clients)
    choose_noise(rule, size / n_clients, size, rounds)
    deployed = algorithm.remote is not None
    return spent(rule, algorithm.participation, n_clients, rounds, deployed) if rounds > 0 else None
