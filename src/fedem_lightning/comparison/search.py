"""The search of a comparison: the same number of trials for every method, then its best setting on several seeds."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fedem_lightning.comparison.runs import Done, Runs
from fedem_lightning.comparison.trials import Candidate, Setting, in_words, next_setting
from fedem_lightning.run.commands import user_message
from fedem_lightning.settings.errors import UserError

NEEDED = ("local", "fedavg")
"""The methods to which the answer compares the others."""
_LEAST_TRIALS = 3
_MOST_TRIALS = 40
_NEAR = 0.005


@dataclass
class Search:
    """Finds each method's best setting by validation, and runs it on the seeds 1, 2, ...; trials have the seed 0.

    `minutes` are the time of all runs together, those of an earlier call of the same comparison included; None: there
    are `trials` of each method. `left_out` has the reason of each method that was left out, by title.
    """

    runs: Runs
    say: Callable[[str], None]
    trials: int
    minutes: float | None
    seeds: int
    left_out: dict[str, str] = field(default_factory=dict)

    def best(self, methods: Sequence[Candidate]) -> dict[str, Setting]:
        """The best setting of each method that is not left out."""
        tried: dict[str, list[Done]] = {candidate.name: [] for candidate in methods}
        number, most = 0, self.trials if self.minutes is None else _MOST_TRIALS
        while number < most:
            number += 1
            for candidate in [c for c in methods if c.name in tried]:
                self._try(candidate, tried, number)
            seconds = {name: sum(one.seconds for one in done) / len(done) for name, done in tried.items()}
            if number == 1:
                self._plan(tried, seconds, {candidate.name: candidate.title for candidate in methods})
            if self.minutes is None or number < _LEAST_TRIALS:
                continue
            each, spent = sum(seconds.values()), sum(one.seconds for one in self.runs.used.values())
            if spent + (self.seeds + 2) * each > 60 * self.minutes:  # one more trial, the seeds, the models
                break
        self.say(f"{number} trials of each method")
        return {name: _best(done) for name, done in tried.items()}

    def on_seeds(self, candidate: Candidate, setting: Setting) -> list[Done]:
        """A setting on every seed."""
        names = {seed: f"seeds/{candidate.name}/{seed}" for seed in range(1, self.seeds + 1)}
        done = [self.runs.run(name, candidate, setting, seed, words=["scores=global"]) for seed, name in names.items()]
        self.say(f"{candidate.title} on {self.seeds} seeds: {sum(one.seconds for one in done):.0f} s")
        return done

    def _try(self, candidate: Candidate, tried: dict[str, list[Done]], number: int) -> None:
        """The next trial of a method; it is left out if it is not defined for the data."""
        before = tried[candidate.name]
        try:
            base = candidate.base
            if base is not None and base not in tried:
                raise UserError(f"{base} is left out")
            start = {} if base is None else _best(tried[base])
            setting = next_setting(candidate, [(one.setting, one.error) for one in before], start)
            if setting is not None:
                done = self.runs.run(f"trials/{candidate.name}/{number:02d}", candidate, setting, 0)
                line = f"trial {number} of {candidate.title}: {in_words(setting)}"
                self.say(f"{line}: validation error {done.error:.4g}, {done.seconds:.1f} s")
                before.append(done)
        except Exception as error:
            reason = user_message(error)
            if reason is None or candidate.name in NEEDED:
                raise
            self._leave_out(tried, candidate.name, candidate.title, reason)

    def _leave_out(self, tried: dict[str, list[Done]], name: str, title: str, reason: str) -> None:
        del tried[name]
        self.left_out[title] = reason
        self.say(f"{title} is left out: {reason}")

    def _plan(self, tried: dict[str, list[Done]], seconds: Mapping[str, float], titles: Mapping[str, str]) -> None:
        """Says how long all will take; the slowest methods are left out until the least of it fits into the minutes."""
        if self.minutes is not None:
            left = 60 * self.minutes - sum(seconds.values())
            for name in sorted(set(tried) - set(NEEDED), key=lambda name: -seconds[name]):
                if sum(seconds[one] for one in tried) * (_LEAST_TRIALS + self.seeds) > left:
                    self._leave_out(tried, name, titles[name], f"{self.minutes:g} min do not suffice for it")
        each = sum(seconds[name] for name in tried)
        total = (self.trials + self.seeds + 1) * each / 60 if self.minutes is None else self.minutes
        self.say(f"a trial of each method takes {each:.0f} s, all of it about {max(1, math.ceil(total))} min")


def _best(done: Sequence[Done]) -> Setting:
    """The setting with the lowest validation error; of those within half a percent of it the one with fewest models."""
    least = min(one.error for one in done)
    near = [one for one in done if one.error <= (1 + _NEAR) * least]
    return min(near, key=lambda one: (one.setting.get("n_components", 0), one.error)).setting
