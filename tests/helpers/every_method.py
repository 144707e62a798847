"""The rows of the conformance table as parameters of a test; the table itself is read where pytest is missing, too."""

import pytest

from fedem_lightning import APFL, FedAvg, FedEM, Local
from helpers.conformance import ROWS, Row

FAST = (FedEM, FedAvg, Local, APFL)  # one of each kind: `make test-fast`


def each(rows: list[Row], others: tuple[pytest.MarkDecorator, ...] = ()) -> pytest.MarkDecorator:
    """The rows; `others` marks those that are not FAST."""
    marked = [pytest.param(row, marks=pytest.mark.fast if row.kind in FAST else others) for row in rows]
    return pytest.mark.parametrize("row", marked, ids=lambda row: row.kind.__name__)


EVERY = each(ROWS)
"""Of the properties in test_algorithms.py two: engines and blocks agree, and a resumed run has the same bits."""
SLOW = (pytest.mark.slow,)
A_FEW = each(ROWS, SLOW)
"""By default one of each kind; the others with `-m slow`."""
SAMPLING = each([r for r in ROWS if r.samples], SLOW)
TRAINED_BY_SGD = each([r for r in ROWS if r.sgd], SLOW)
NUMBERED_AT_WILL = each([r for r in ROWS if r.sgd and not r.draws], SLOW)
