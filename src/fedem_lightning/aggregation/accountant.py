"""Epsilon of the subsampled Gaussian mechanism over all rounds: an upper bound that seconds and 1 GB suffice for.

With all clients in every round it is that of one Gaussian mechanism, exactly. Otherwise it is by dp-accounting (extra
`privacy`): by the privacy loss distribution (PLD), or, where that takes gigabytes, by Renyi differential privacy (RDP),
which is looser.
"""

import functools
import math
import sys
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr

from fedem_lightning.errors import require

GAUSSIAN, PLD, RDP = "Gaussian", "PLD", "RDP"
PLD_UP_TO, PLD_FROM_NOISE, PLD_ROUNDS = 50.0, 0.3, 10**6
"""PLD is used up to this epsilon, from this noise multiplier on, and for so many rounds at most: its grid grows."""
PLD_FROM_DELTA = 1e-10
"""PLD is used from this delta on: a Fourier transform loses smaller tails."""
MOST_NOISE_TO_SAMPLING, RDP_ROUNDING = 1e6, 1e-3
"""RDP takes no larger noise multiplier than q times the first: it would lose its moments. The second is added."""
LEAST_NOISE, MOST_NOISE = 2.0**-20, 2.0**20
"""Noise multipliers among which one is chosen for an epsilon."""
GRIDS = {10**4: 5e-4, PLD_ROUNDS: 1e-4}
"""Steps of the privacy loss for up to so many rounds; the first changes epsilon by 1e-5 of it, and takes a fifth."""
TOLERANCE = 1e-4
"""Of the chosen noise multiplier, relative."""


SIMULATED = (
    "nobody else knows the seed, from which cohorts and noise are drawn, by a generator that is not cryptographic"
)
DEPLOYED = "nobody but the server knows who is in a cohort; cohorts are drawn from its secret, noise from the system"
OF_ALL = (
    "only models are published, not scores, metrics, or the states that clients keep",
    "nothing was chosen by looking at these clients' data: their number, the form of samples, the settings",
)


def assumptions(deployed: bool) -> list[str]:
    """What the guarantee of a run assumes, whose clients are processes of their own or not; docs/privacy.md."""
    return [DEPLOYED if deployed else SIMULATED, *OF_ALL]


class Epsilon(NamedTuple):
    """An upper bound on epsilon, which may be infinite, and how it was found."""

    value: float
    accountant: str


def guarantee(z: float, q: float, rounds: int, delta: float) -> dict[str, Any]:
    """What `rounds` noisy means have spent.

    Returns:
        epsilon (None: infinite), an upper bound; accountant: how it was found (None: there is none); delta;
        noise_multiplier.

    """
    found = epsilon_of(z, q, rounds, delta) if z > 0 else None
    finite = found is not None and math.isfinite(found.value)
    return {
        "epsilon": found.value if found and finite else None,
        "accountant": found.accountant if found and finite else None,
        "delta": delta,
        "noise_multiplier": z,
    }


@functools.lru_cache(maxsize=256)
def epsilon_of(noise_multiplier: float, q: float, rounds: int, delta: float) -> Epsilon:
    """epsilon of `rounds` Gaussian mechanisms on samples drawn independently with probability q (add or remove one)."""
    if not rounds:
        return Epsilon(0.0, GAUSSIAN)
    if noise_multiplier < 1e-100:  # its square is no number any more
        return Epsilon(math.inf, GAUSSIAN)
    everybody = Epsilon(_of_gaussian(noise_multiplier / math.sqrt(rounds), delta), GAUSSIAN)  # sampling spends less
    if q == 1:
        return everybody
    noise = min(noise_multiplier, q * MOST_NOISE_TO_SAMPLING)  # with less noise epsilon is larger
    found = min(everybody, Epsilon(_composed(RDP, noise, q, rounds, delta) * (1 + RDP_ROUNDING), RDP))
    too_large = found.value > PLD_UP_TO or rounds > PLD_ROUNDS
    if too_large or noise_multiplier < PLD_FROM_NOISE or delta < PLD_FROM_DELTA:
        return found
    return min(found, Epsilon(_composed(PLD, noise_multiplier, q, rounds, delta), PLD))


def noise_for(epsilon: float, q: float, rounds: int, delta: float) -> float:
    """The least noise multiplier with which `rounds` mechanisms spend epsilon at most, up to `TOLERANCE`.

    Raises:
        UserError: `MOST_NOISE` is not enough.

    """

    def excess(log_z: float) -> float:
        spent = epsilon_of(math.exp(log_z), q, rounds, delta).value
        return math.log(max(spent, 1e-300) / epsilon) if spent < math.inf else 1e3

    high = 1.0
    while high < MOST_NOISE and excess(math.log(high)) > 0:
        high *= 2
    least = epsilon_of(high, q, rounds, delta).value
    spends = f"{least:.2g}, which {rounds} rounds spend with a noise multiplier of {high:g}"
    require(least <= epsilon, f"aggregation.epsilon: expected at least {spends}, got {epsilon:g}")
    low = high / 2
    while low > LEAST_NOISE and excess(math.log(low)) <= 0:
        high, low = low, low / 2
    if excess(math.log(low)) <= 0:
        return low
    z = math.exp(brentq(excess, math.log(low), math.log(high), xtol=TOLERANCE / 2))
    while excess(math.log(z)) > 0:
        z *= 1 + TOLERANCE / 2
    return z


def _of_gaussian(sigma: float, delta: float) -> float:
    """epsilon of one Gaussian mechanism (Balle and Wang, ICML 2018, Theorem 8), rounded up."""

    def log_delta(epsilon: float) -> float:
        a, b = log_ndtr(0.5 / sigma - epsilon * sigma), epsilon + log_ndtr(-0.5 / sigma - epsilon * sigma)
        return float(a + np.log(-np.expm1(np.minimum(b - a, -1e-300))))

    if log_delta(0.0) <= math.log(delta):
        return 0.0
    high = 0.5 / sigma**2 + 1.0
    while log_delta(high) > math.log(delta):
        high *= 2
    return float(brentq(lambda epsilon: log_delta(epsilon) - math.log(delta), 0.0, high, rtol=1e-12)) * (1 + 1e-9)


def _composed(kind: str, noise_multiplier: float, q: float, rounds: int, delta: float) -> float:
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

    event = SelfComposedDpEvent(PoissonSampledDpEvent(q, GaussianDpEvent(noise_multiplier)), rounds)
    try:
        with np.errstate(all="ignore"):
            found = float(_accountant(kind, rounds).compose(event).get_epsilon(delta))
    except (ArithmeticError, ValueError, MemoryError):  # no bound; a run does not lose its results for it
        return math.inf
    return math.inf if math.isnan(found) else found


def _accountant(kind: str, rounds: int) -> Any:
    """A new accountant, imported without messages."""
    from absl import logging
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    logging.set_verbosity(logging.ERROR)
    # absl closes any other stream when Hydra configures the logging of the next job
    logging.get_absl_handler().python_handler.setStream(sys.__stderr__)
    if kind == RDP:
        return RdpAccountant()
    return PLDAccountant(value_discretization_interval=next(grid for most, grid in GRIDS.items() if rounds <= most))
