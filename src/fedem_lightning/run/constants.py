"""Metrics that never change over the rounds of a run: a chart of one would be a flat line."""

from collections.abc import Mapping

SCORES = ("train/", "val/", "test/")
"""How the names of scores begin."""


class Constants:
    """Tells metrics that change over the rounds from those that stay what they were in the first round.

    A score is always a metric that changes. Another one is a constant until it changes: a learning rate or the size of
    a cohort that stays; a count or an amount that stays 0.
    """

    _levels = ("lr", "cohort", "scored_clients")  # they may stay at any value

    def __init__(self) -> None:
        self._first: dict[str, float] = {}
        self._moving: set[str] = set()

    def divide(self, metrics: Mapping[str, float]) -> tuple[dict[str, float], dict[str, float]]:
        """The metrics of a round that change, and the constants that were not there before."""
        moving, new = dict[str, float](), dict[str, float]()
        alone = "pi/mean_0" in metrics and "pi/mean_1" not in metrics  # one component has all the weight
        for name, value in metrics.items():
            if name in ("round", "epoch", "step") or (alone and name.startswith("pi/")):
                continue
            known = self._first.get(name)
            if known is None:
                self._first[name] = value
            still = known is None or value == known
            rests = still and name not in self._moving and not name.startswith(SCORES)
            if rests and (value == 0 or name in self._levels):
                new |= {name: value} if known is None else {}
                continue
            self._moving.add(name)
            moving[name] = value
        return moving, new
