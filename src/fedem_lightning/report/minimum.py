"""The least possible test loss, if the ground truth of generated data gives it."""

import numpy as np

from fedem_lightning.report.cells import Cell
from fedem_lightning.report.finished_run import Run


def minimum_cell(runs: list[Run]) -> Cell | None:
    """The least expected test loss, a mean over seeds; None if a run does not have it.

    If each client predicts with one of q models (`n_served_models` in results.json) it is a range, from the best to the
    worst way to merge the true groups into q. Otherwise it is the loss of one model for each client.
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
