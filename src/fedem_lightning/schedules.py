"""Learning-rate schedules over rounds."""

import math
from collections.abc import Callable
from typing import Literal


def constant(done: float) -> float:
    """The factor 1 in all rounds; `done` is the finished share of the rounds, in [0, 1)."""
    return 1.0


def multistep(done: float) -> float:
    """The factor 1, then 0.1 from half of the rounds on, then 0.01 from three quarters on."""
    return 0.1 ** ((done >= 0.5) + (done >= 0.75))


def cosine(done: float) -> float:
    """Half a period of a cosine, from 1 to 0."""
    return 0.5 * (1.0 + math.cos(math.pi * done))


Schedule = Literal["constant", "multistep", "cosine"]
SCHEDULES: dict[Schedule, Callable[[float], float]] = {"constant": constant, "multistep": multistep, "cosine": cosine}
"""Learning-rate schedules over rounds, as functions of the finished share, so that a resumed run agrees."""
