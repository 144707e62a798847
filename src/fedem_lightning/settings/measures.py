"""What files of runs hold: names of scores and splits here, recipes, configurations."""

from collections.abc import Iterable

SPLITS = ("train", "val", "test")
"""Names of the splits; their positions are the codes 0, 1, 2 used in arrays."""

HIGHER_IS_BETTER = {"accuracy": True, "loss": False, "mse": False, "perplexity": False}

_SHOWN = {
    "mse": (1.0, "squared error"),
    "perplexity": (1.0, "perplexity"),
    "accuracy": (100.0, "accuracy, %"),
    "loss": (1.0, "loss, nats"),
}
"""Factor and unit of each measure, in the order in which one is preferred."""


def headline(measures: Iterable[str]) -> tuple[str, float, str]:
    """The measure to show first among `measures`, with its factor and unit."""
    given = set(measures)
    name = next((measure for measure in _SHOWN if measure in given), "accuracy")
    return name, *_SHOWN[name]


def title_of_sum(summary: str) -> str:
    """A summary over clients for readers: bottom_decile -> worst tenth, which of a loss is the top one."""
    return summary.replace("bottom_decile", "worst tenth").replace("_", " ")


def in_words(value: float, measure: str) -> str:
    """A score with its unit: 86.9 %, 1.234 nats, 0.05."""
    factor, (_, _, unit) = _SHOWN[measure][0], _SHOWN[measure][1].partition(", ")
    return f"{factor * value:.1f} %" if unit == "%" else f"{value:.4g} {unit}".rstrip()
