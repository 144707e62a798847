"""The columns of the table, and a run's values in them."""

import math
from typing import Any, NamedTuple

from scipy import special

from fedem_lightning.records import title_of_sum
from fedem_lightning.report.finished_run import Run
from fedem_lightning.report.groups import BASELINES

FIRST = (
    *("weighted", "paper_weighted", "unseen", "bottom_decile", "worse_than_local", "learning_rate", "megabytes"),
    *("val", "mean"),
)
"""The order of the columns that tables show unless the user names others: the first six of these that have numbers."""


class Column(NamedTuple):
    """Header of a column, and formats of its mean and its standard deviation (empty: only report.csv has it)."""

    header: str
    form: str = ".3g"
    std_form: str = ""

    def show(self, value: float, std: float = math.nan) -> str:
        """A mean, and its deviation if there is one, as text; "-" for a value that is not finite."""
        if not math.isfinite(value):
            return "-"
        text = f"{value:,.0f}" if self.form == ".3g" and abs(value) >= 1000 else f"{value:{self.form}}"
        return f"{text} ± {std:{self.std_form}}" if self.std_form and math.isfinite(std) else text


class Score(NamedTuple):
    """A score in results.json, at PLACE.MEASURE.SUMMARY, and the papers' column with which it is compared."""

    header: str
    place: str
    summary: str = "weighted"
    published: str = ""


SCORES = {
    "weighted": Score("test, weighted", "test", "weighted", "average"),
    "pooled": Score("pooled", "test", "pooled"),
    "mean": Score("mean", "test", "mean", "mean"),
    "bottom_decile": Score("worst tenth", "test", "bottom_decile", "bottom_decile"),
    "worst": Score("worst", "test", "worst", "worst"),
    "honest": Score("test, honest", "honest.test"),
    "train": Score("train", "train", published="train"),
    "val": Score("val", "val"),
    "unseen": Score("unseen test", "unseen.test", published="unseen_average"),
    "unseen_mean": Score("unseen mean", "unseen.test", "mean", "unseen_mean"),
    "unseen_train": Score("unseen train", "unseen.train", published="unseen_train"),
}
TESTED = tuple(key for key, score in SCORES.items() if score.place.endswith("test"))
"""The columns of test scores, in which the best row may be bold."""
ENTROPIES = ("entropy", "unseen_entropy")
_OTHERS = {
    "balanced_accuracy": Column("balanced accuracy", ".1f", ".2f"),
    "auroc": Column("AUROC", ".3f", ".3f"),
    "worse_than_majority": Column("worse than majority, %", ".0f"),
    "megabytes": Column("MB a client"),
    "seconds": Column("s a round"),
    "components": Column("components", ".0f"),
    "entropy": Column("entropy", ".2f", ".2f"),
    "paper_entropy": Column("paper entropy", ".2f"),
    "unseen_entropy": Column("unseen entropy", ".2f", ".2f"),
    "paper_unseen_entropy": Column("paper unseen entropy", ".2f"),
    "dead": Column("dead components", ".2g"),
    "pi_cosine_distance": Column("weights' distance", ".2g", ".1g"),
    "theta_cosine_distance": Column("components' distance", ".2g", ".1g"),
    "group_accuracy": Column("clients in their group, %", ".1f", ".2f"),
    "adjusted_rand_index": Column("adjusted Rand index", ".2f", ".2f"),
    "groups_found": Column("groups found", ".3g", ".2g"),
}
_RECOVERY = ("pi_cosine_distance", "theta_cosine_distance", "group_accuracy", "adjusted_rand_index", "groups_found")


def all_columns(percent: bool) -> dict[str, Column]:
    """All columns by key, in their order; scores are in percent, or losses and squared errors."""
    form, std = (".1f", ".2f") if percent else (".4g", ".2g")
    columns = {"seeds": Column("seeds", ".0f"), "rounds": Column("rounds", ".0f")}
    columns["learning_rate"] = Column("learning rate", ".3g")
    for key, score in SCORES.items():
        columns[key] = Column(score.header, form, std)
        if score.published:
            columns[f"paper_{key}"] = Column(f"paper {title_of_sum(score.published)}", form, std)
            columns[f"difference_{key}"] = Column(f"{score.header}: difference", f"+{form}")
    columns["interval"] = Column("95 % interval", form)
    columns |= _OTHERS
    for name in BASELINES:
        columns[f"worse_than_{name}"] = Column(f"worse than {name}, %", ".0f")
        columns[f"loses_to_{name}"] = Column(f"worse than {name} beyond chance, %", ".1f")
    return columns


def run_values(run: Run) -> dict[str, float]:
    """A run's scores after training, in the table's unit, its costs and its mixture; NaN for what is not finite.

    A column that the run says nothing about is missing.
    """
    (measure, factor), results = run.measure, run.results
    found: dict[str, Any] = {"rounds": results["rounds"], "seconds": results["seconds"].get("per_round")}
    for key, score in SCORES.items():
        scores = results
        for part in score.place.split("."):
            scores = scores.get(part) or {}
        value = scores.get(measure, {}).get(score.summary)
        found[key] = None if value is None else factor * value
    sent, rates = results["communication"], results.get("learning_rates")
    found["megabytes"] = (sent["up_bytes"] + sent["down_bytes"]) / 1e6 / max(1, results["n_clients"])
    if rates:
        found["learning_rate"] = rates[0]["rate"]
    found |= _of_classes(results["class_scores"]) | _of_mixture(run)
    given = {key: float(value) for key, value in found.items() if value is not None}
    return {key: value if math.isfinite(value) else math.nan for key, value in given.items()}


def _of_classes(classes: dict[str, Any]) -> dict[str, Any]:
    """Scores of imbalanced classes, of all test samples together."""
    if not classes.get("imbalanced"):
        return {}
    auroc, balanced = (classes.get(name, {}).get("pooled") for name in ("auroc", "balanced_accuracy"))
    found = {"auroc": auroc, "balanced_accuracy": None if balanced is None else 100 * balanced}
    return {**found, "worse_than_majority": 100 * classes["worse_than_majority"]}


def _of_mixture(run: Run) -> dict[str, Any]:
    """The clients' mean entropy -sum_m pi_m ln pi_m in nats, unused components, and what is known of true groups."""
    seen, unseen, found = run.weights(), run.weights("unseen"), dict[str, Any]()
    if seen is not None:
        found = {"components": seen.shape[1], "dead": len(run.results["components"].get("dead", ()))}
    for key, pi in zip(ENTROPIES, (seen, unseen), strict=True):
        found[key] = None if pi is None else special.entr(pi).sum(axis=1).mean()
    known = {key: run.results["recovery"].get(key) for key in _RECOVERY}
    return found | {k: v and v * (100 if k == "group_accuracy" else 1) for k, v in known.items()}
