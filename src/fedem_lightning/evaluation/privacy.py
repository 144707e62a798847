"""What a run with `aggregation=private` has spent: epsilon at a given delta, by dp-accounting (extra `privacy`)."""

import sys
from typing import Any

from fedem_lightning.aggregation import PrivateMean
from fedem_lightning.cohort import expected_size
from fedem_lightning.errors import require

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
        epsilon (None: infinite), delta, noise_multiplier, clip (S of the last round), sampling (q), n_clients: of the
        federation that the guarantee is for, more than T with `cohort`; and assumptions: when it holds.

    """
    size = expected_size(participation, n_clients)
    q = size / n_clients
    z = float(rule.z)
    epsilon = epsilon_of(z, q, rounds, rule.delta) if z > 0 else None
    return {
        "epsilon": epsilon,
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
        UserError: the number of rounds is not known, or the count of short updates has too little noise for z.

    """
    if rule.epsilon is None or float(rule.z) > 0:
        return
    require(rounds > 0, "aggregation.epsilon: the number of rounds must be known before; set trainer.max_epochs")
    from dp_accounting import calibrate_dp_mechanism

    accountant = _accountant()
    z = calibrate_dp_mechanism(accountant, lambda z: _event(z, q, rounds), rule.epsilon, rule.delta, tol=1e-4)
    rule.z.fill_(z)
    rule.noise_of_updates(rule.cohort or size)


def epsilon_of(noise_multiplier: float, q: float, rounds: int, delta: float) -> float:
    """epsilon of `rounds` Gaussian mechanisms on samples drawn independently with probability q (add or remove one)."""
    if not rounds:
        return 0.0
    return float(_accountant()().compose(_event(noise_multiplier, q, rounds)).get_epsilon(delta))


def _event(noise_multiplier: float, q: float, rounds: int) -> Any:
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

    mechanism = GaussianDpEvent(noise_multiplier)
    return SelfComposedDpEvent(mechanism if q == 1 else PoissonSampledDpEvent(q, mechanism), rounds)


def _accountant() -> Any:
    """The class of the accountant, imported without messages."""
    from absl import logging
    from dp_accounting.pld import PLDAccountant

    logging.set_verbosity(logging.ERROR)
    # absl closes any other stream when Hydra configures the logging of the next job
    logging.get_absl_handler().python_handler.setStream(sys.__stderr__)
    return PLDAccountant
