"""The answer of a comparison in six lines, and its table."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from fedem_lightning.comparison.answer import Answer, Gain, gain
from fedem_lightning.comparison.trials import Candidate, Setting, in_words
from fedem_lightning.data.arrays import listed
from fedem_lightning.settings.measures import HIGHER_IS_BETTER, headline

_MOST_NAMES = 8
_CLOSE = 1.1
"""A new client's error is near its lowest one below this multiple of it."""


@dataclass(frozen=True)
class Findings:
    """All that a comparison says; errors are 1 - accuracy, or the loss itself."""

    answer: Answer
    candidates: Mapping[str, Candidate]
    settings: Mapping[str, Setting]
    validation: Mapping[str, float]  # mean errors over seeds
    errors: Mapping[str, pd.DataFrame]  # test errors [clients, seeds]
    measure: str
    noun: str  # what a client is called
    new: pd.DataFrame  # errors of new clients [rows, methods]
    model: Path
    seeds: int
    folders: Mapping[str, Path]  # of each method's run on the first seed

    def title(self, name: str) -> str:
        """A method's name for readers."""
        return self.candidates[name].title if name in self.candidates else f"each {self.noun}'s own constant"

    def score(self, error: float) -> str:
        """An error as the score that is shown."""
        return f"{100 * (1 - error):.1f} %" if HIGHER_IS_BETTER[self.measure] else f"{error:.4g}"

    def difference(self, value: float) -> str:
        """A difference of errors; of an accuracy in points."""
        return f"{100 * value:+.1f}" if HIGHER_IS_BETTER[self.measure] else f"{value:+.3g}"

    def interval(self, gained: Gain) -> str:
        """A gain with its 95 % interval."""
        return f"{self.difference(gained.mean)} ({self.difference(gained.low)} to {self.difference(gained.high)})"

    def table(self) -> pd.DataFrame:
        """A row for each method, the best first: settings, mean scores, gains over the one model and over Local."""
        rows = []
        for name, errors in self.errors.items():
            setting = self.settings.get(name, {})
            row = {
                "method": self.title(name),
                "validation": self.score(self.validation[name]) if name in self.validation else "",
                "test": self.score(float(errors.to_numpy().mean())),
                "deviation": f"{errors.mean(axis=0).std() * (100 if HIGHER_IS_BETTER[self.measure] else 1):.2g}",
                "worst tenth": self.score(float(errors.mean(axis=1).quantile(0.9))),
                "error": float(errors.to_numpy().mean()),
            }
            for other in ("fedavg", "local"):
                if other in self.errors:
                    row[f"over {self.title(other)}"] = (
                        "" if name == other else self.interval(gain(errors, self.errors[other]))
                    )
            rows.append(row | {"settings": in_words(setting)})
        return pd.DataFrame(rows).sort_values("error").drop(columns="error").reset_index(drop=True)


def sentences(findings: Findings) -> list[str]:
    """Six lines: what to do, the scores, the differences, who gains and loses, new clients, the model."""
    decided, noun, title = findings.answer, findings.noun, findings.title
    scores = {name: findings.score(float(errors.to_numpy().mean())) for name, errors in findings.errors.items()}
    names = dict.fromkeys([decided.chosen, decided.rival, "fedavg", "local", "constant"])
    listing = "; ".join(f"{title(name)} {scores[name]}" for name in names if name in scores)
    measure = headline([findings.measure])[2].partition(",")[0]
    lines = [f"{_verdict(findings)}", f"Test {measure}: {listing}."]
    if decided.to_one_model is not None:
        personal, shared = (
            (decided.chosen, decided.rival) if decided.verdict == "yes" else (decided.rival, decided.chosen)
        )
        line = f"Gain of {title(personal)} over {title(shared)}: {findings.interval(decided.to_one_model)}"
        if decided.to_local is not None:
            line += f"; of {title(decided.chosen)} over {title('local')}: {findings.interval(decided.to_local)}"
        lines.append(
            f"{line}; 95 % intervals over {findings.seeds} seeds and {len(findings.errors['fedavg'])} {noun}s."
        )
    lines.append(_who(findings))
    lines.append(_newcomers(findings))
    lines.append(f"Model: {findings.model}")
    return lines


def _verdict(findings: Findings) -> str:
    decided, noun, title = findings.answer, findings.noun, findings.title
    if decided.verdict == "yes":
        return f"Yes: {advice(findings.candidates[decided.chosen], findings.settings[decided.chosen], noun)}."
    if decided.verdict == "no":
        return f"No: one model is as good ({title(decided.chosen)}); models of each {noun}'s own gain less than 1 %."
    more = (
        f"{decided.more_seeds} more seeds would show"
        if decided.more_seeds
        else "no number of seeds up to 100 would show"
    )
    return f"Cannot tell whether each {noun} gains by a model of its own: {more} a difference of 1 %."


def advice(candidate: Candidate, setting: Setting, noun: str) -> str:
    """What to do with a method, as a sentence without its end."""
    number = setting.get("n_components")
    if candidate.name == "local":
        return f"train a model for each {noun} alone"
    if candidate.name == "fedem":
        return f"give each {noun} FedEM's mixture of {number} models"
    if candidate.name == "hypcluster":
        return f"give each {noun} the one of HypCluster's {number} models that fits it"
    if candidate.base is not None:
        mixture = f"mixture of {number} models" if number else "model"
        return f"fine-tune {candidate.title.partition(',')[0]}'s {mixture} on the rows of each {noun}"
    return f"give each {noun} its model of {candidate.title}"


def _who(findings: Findings) -> str:
    """How many clients gain and lose by the chosen method; over being alone, or, if that is chosen, over one model."""
    decided = findings.answer
    other = "local" if decided.to_local is not None else "fedavg"
    compared = gain(findings.errors[decided.chosen], findings.errors[other])
    n, lose = len(findings.errors[other]), [str(name) for name in compared.worse]
    over = "over being alone" if other == "local" else "over the one model"
    line = f"{len(compared.better)} of {n} {findings.noun}s gain {over}"
    return f"{line}, {len(lose)} lose ({listed(lose, _MOST_NAMES)})." if lose else f"{line}, none loses."


def _newcomers(findings: Findings) -> str:
    """From how many rows on new clients are served about as well as with many, and better than by the one model."""
    noun, new = findings.noun, findings.new
    if new.empty or findings.answer.chosen not in new:
        return f"There are too few {noun}s to say how many rows a new one needs."
    chosen, one = new[findings.answer.chosen], new["fedavg"]
    if findings.answer.chosen == "fedavg":
        score = findings.score(float(one.iloc[-1]))
        return f"A new {noun} needs no rows: it gets the same model, with a test score of {score}."
    last = int(new.index[-1])
    enough = (chosen <= _CLOSE * chosen.iloc[-1]) & (chosen < one)
    if not enough.iloc[-1]:
        return f"New {noun}s do better with the one model up to {last} rows."
    late = new.index[~enough]
    least = int(new.index[new.index > late.max()][0]) if len(late) else int(new.index[0])
    rows = f"about {least} rows" if least > 1 else "one row"
    if least == last:
        return f"New {noun}s need {last} rows or more; their test score is then {findings.score(float(chosen[last]))}."
    first, most = (findings.score(float(chosen[n])) for n in (least, last))
    return f"New {noun}s need {rows}; their test score is then {first}, and with {last} rows {most}."
