"""Arrays that a run leaves beside its results, e.g. coefficients.npz."""

import zipfile

import numpy as np

from fedem_lightning.records.files import regular
from fedem_lightning.report.collect import Run


def arrays(run: Run, name: str) -> dict[str, np.ndarray]:
    """The arrays of the run's file NAME.npz, by name; empty if it is missing or unreadable."""
    try:
        with np.load(regular(run.folder / f"{name}.npz"), allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return {}
