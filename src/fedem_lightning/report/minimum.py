"""The least loss that can be had on a test set, where the data's generator knows it."""

import numpy as np

from fedem_lightning.report.cells import Cell
from fedem_lightning.report.collect import Run


def minimum_cell(runs: list[Run]) -> Cell | None:
    """The least expected test loss, a mean over seeds; None where a run does not know it.

    Of q models among which clients have one each (`n_served_models` of results.json) it is a range, from the best to
    the worst way to merge the true groups into q; of everything else that of one model for each client.
    """
    ranges = [_range(run) for run in runs]
    if any(found is None for found in ranges):
        return None
    low, high = np.mean([found for found in ranges if found is not None], axis=0).tolist()
    return Cell(low, n=len(runs), high=high if high > low else None)


def _range(run: Run) -> tuple[float, float] | None:
    minimum = (run.results.get("reference") or {}).get("minimum_loss")
    if minimum is None:
        return None
    n_models = run.results.get("n_served_models")
    by_models = (run.results.get("data") or {}).get("minimum_loss_by_models") or {}
    if n_models is not None and str(n_models) not in by_models:
        return None  # more models than true groups
    low, high = by_models.get(str(n_models), (minimum, minimum))
    return low, high
