"""Epsilon of the subsampled Gaussian mechanism over all rounds, and the noise for an epsilon, by dp-accounting.

With all clients in every round it is that of one Gaussian mechanism, exactly. Otherwise it is an upper bound: by the
privacy loss distribution (PLD), or, where that takes gigabytes, by Renyi differential privacy (RDP), which is looser.
"""

import functools
import math
import sys
from typing import Any, NamedTuple

import numpy as np

from fedem_lightning.settings.errors import require

GAUSSIAN, PLD, RDP = "Gaussian", "PLD", "RDP"
PLD_UP_TO, PLD_FROM_NOISE, PLD_ROUNDS = 50.0, 0.3, 10**6  # the largest epsilon, the least noise: its grid grows
PLD_FROM_DELTA = 1e-10  # a Fourier transform loses smaller tails
MOST_NOISE_TO_SAMPLING = 1e6  # RDP takes no larger noise multiplier than q times this: it would lose its moments
RDP_ROUNDING = 1e-3  # is added
MOST_NOISE = 2.0**20  # the largest noise multiplier that is chosen for an epsilon
TOLERANCE = 1e-5  # of the chosen noise multiplier, relative


class Epsilon(NamedTuple):
    """An upper bound on epsilon, which may be infinite, and how it was found."""

    value: float
    accountant: str


@functools.lru_cache(maxsize=256)
def epsilon_of(noise_multiplier: float, q: float, rounds: int, delta: float) -> Epsilon:
    """epsilon of `rounds` Gaussian mechanisms on samples drawn independently with probability q (add or remove one)."""
    if not rounds or noise_multiplier < 1e-100:  # the square of less is no number any more
        return Epsilon(math.inf if rounds else 0.0, GAUSSIAN)
    from dp_accounting.gaussian_mechanism import get_epsilon_gaussian

    with np.errstate(all="ignore"):
        exact = get_epsilon_gaussian(noise_multiplier / math.sqrt(rounds), delta)  # Balle and Wang 2018, Theorem 8
    result = Epsilon(float(exact) * (1 + 1e-9) + 1e-11, GAUSSIAN)  # rounded up; sampling spends less
    if q == 1:
        return result
    noise = min(noise_multiplier, q * MOST_NOISE_TO_SAMPLING)  # with less noise epsilon is larger
    result = min(result, Epsilon(_composed(RDP, noise, q, rounds, delta) * (1 + RDP_ROUNDING), RDP))
    too_large = result.value > PLD_UP_TO or rounds > PLD_ROUNDS
    if too_large or noise_multiplier < PLD_FROM_NOISE or delta < PLD_FROM_DELTA:
        return result
    return min(result, Epsilon(_composed(PLD, noise_multiplier, q, rounds, delta), PLD))


class _Tightest:
    """`epsilon_of` as an accountant for dp-accounting's calibration, whose mechanisms are here -ln z."""

    def __init__(self, q: float, rounds: int) -> None:
        from dp_accounting import NoOpDpEvent

        self.q, self.rounds, self.ledger, self.x = q, rounds, NoOpDpEvent(), 0.0

    def compose(self, x: float) -> "_Tightest":
        self.x = x
        return self

    def get_epsilon(self, delta: float) -> float:
        return epsilon_of(math.exp(-self.x), self.q, self.rounds, delta).value


def noise_for(epsilon: float, q: float, rounds: int, delta: float) -> float:
    """The least noise multiplier with which `rounds` mechanisms spend epsilon at most, up to `TOLERANCE`.

    UserError: `MOST_NOISE` is not enough.
    """
    from dp_accounting import mechanism_calibration as calibration
    from dp_accounting.gaussian_mechanism import get_sigma_gaussian

    least = epsilon_of(MOST_NOISE, q, rounds, delta).value
    spends = f"{least:.2g}, which {rounds} rounds spend with a noise multiplier of {MOST_NOISE:g}"
    require(least <= epsilon, f"aggregation.epsilon: expected at least {spends}, got {epsilon:g}")
    with np.errstate(all="ignore"):
        enough = min(MOST_NOISE, get_sigma_gaussian(epsilon, delta) * math.sqrt(rounds) * 1.001)  # with all clients
    bracket = calibration.LowerEndpointAndGuess(-math.log(enough), -math.log(enough / 2))
    accountant = functools.partial(_Tightest, q, rounds)
    x = calibration.calibrate_dp_mechanism(accountant, lambda x: x, epsilon, delta, bracket, tol=TOLERANCE)
    return math.exp(-x)


def _composed(kind: str, noise_multiplier: float, q: float, rounds: int, delta: float) -> float:
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

    event = SelfComposedDpEvent(PoissonSampledDpEvent(q, GaussianDpEvent(noise_multiplier)), rounds)
    try:
        with np.errstate(all="ignore"):
            result = float(_accountant(kind, rounds).compose(event).get_epsilon(delta))
    except (ArithmeticError, ValueError, MemoryError):  # no bound; a run does not lose its results for it
        return math.inf
    return math.inf if math.isnan(result) else result


def _accountant(kind: str, rounds: int) -> Any:
    """A new accountant, imported without messages."""
    from absl import logging
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    logging.set_verbosity(logging.ERROR)
    # absl closes any other stream when Hydra configures the logging of the next job
    logging.get_absl_handler().python_handler.setStream(sys.__stderr__)
    # the coarser grid changes epsilon by 1e-5 of it, and takes a fifth of the time
    step = 5e-4 if rounds <= 10**4 else 1e-4
    return RdpAccountant() if kind == RDP else PLDAccountant(value_discretization_interval=step)
