"""Names of scores and splits, as the files of a run and reports have them."""

from collections.abc import Iterable

SPLITS = ("train", "val", "test")
"""Names of the splits; their positions are the codes 0, 1, 2 used in arrays."""

HIGHER_IS_BETTER = {"accuracy": True, "loss": False, "mse": False}


def headline(measures: Iterable[str]) -> tuple[str, float, str]:
    """The measure to show first among `measures`, with its factor and unit."""
    return ("mse", 1.0, "squared error") if "mse" in measures else ("accuracy", 100.0, "accuracy, %")
