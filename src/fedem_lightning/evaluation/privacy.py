"""What a run with `aggregation=private` has spent: epsilon at a given delta, by dp-accounting (extra `privacy`)."""

import sys
from typing import Any

from fedem_lightning.aggregation import PrivateMean
from fedem_lightning.cohort import expected_size


def spent(rule: PrivateMean, participation: float | int, n_clients: int, rounds: int) -> dict[str, Any]:
    """The guarantee for a client, whose data are all added or removed, after some rounds.

    Args:
        rule: z, delta and the like.
        participation: q, or a number of clients.
        n_clients: T.
        rounds: number of noisy means.

    Returns:
        epsilon (None: infinite), delta, noise_multiplier, clip (S of the last round), sampling (q), and n_clients: of
        the federation that the guarantee is for, more than T with `cohort`.

    """
    size = expected_size(participation, n_clients)
    q = size / n_clients
    epsilon = epsilon_of(rule.noise_multiplier, q, rounds, rule.delta) if rule.noise_multiplier > 0 else None
    return {
        "epsilon": epsilon,
        "delta": rule.delta,
        "noise_multiplier": rule.noise_multiplier,
        "clip": float(rule.length),
        "sampling": q,
        "n_clients": round((rule.cohort or size) / q),
    }


def epsilon_of(noise_multiplier: float, q: float, rounds: int, delta: float) -> float:
    """epsilon of `rounds` Gaussian mechanisms on samples drawn independently with probability q (add or remove one)."""
    import dp_accounting
    from absl import logging
    from dp_accounting.pld import PLDAccountant

    logging.set_verbosity(logging.ERROR)
    # absl closes any other stream when Hydra configures the logging of the next job
    logging.get_absl_handler().python_handler.setStream(sys.__stderr__)
    mechanism = dp_accounting.GaussianDpEvent(noise_multiplier)
    event = mechanism if q == 1 else dp_accounting.PoissonSampledDpEvent(q, mechanism)
    return float(PLDAccountant().compose(event, rounds).get_epsilon(delta)) if rounds else 0.0
