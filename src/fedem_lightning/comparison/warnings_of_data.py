"""What of the data makes an answer less sure: tiny clients, imbalance, a column that gives the label away."""

import numpy as np
import torch
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from fedem_lightning.data.arrays import listed
from fedem_lightning.data.federation import Federation

_FEW = 20
_MOST_ROWS = 5_000
_GIVEN_AWAY = 0.99


def data_warnings(federation: Federation) -> list[str]:
    """A line for each doubt about the data."""
    lines, clients = [], federation.clients()
    counts = federation.splits["train"].counts(clients).numpy()
    tiny = [str(federation.names[t]) for t in clients[counts < _FEW].tolist()]
    if tiny:
        lines.append(f"{len(tiny)} of {len(clients)} clients have fewer than {_FEW} training rows: {listed(tiny, 5)}")
    y = getattr(federation.samples, "y", None)
    if y is None:
        return lines
    y = y[federation.splits["train"].index].numpy()
    classes = np.issubdtype(y.dtype, np.integer) and y.ndim == 1
    if classes:
        share = np.bincount(y).max() / len(y)
        if share > 0.8:
            lines.append(
                f"{share:.0%} of the training rows have one class; accuracy says little, see balanced accuracy"
            )
    if y.ndim == 1:
        lines += _given_away(federation, y, classes)
    return lines


def _given_away(federation: Federation, y: np.ndarray, classes: bool) -> list[str]:
    """A line for each column of a table that alone predicts the label almost without error, by a small tree."""
    if federation.features is None:
        return []
    index = federation.splits["train"].index
    rows = np.random.default_rng(0).permutation(len(index))[:_MOST_ROWS]
    x = federation.samples.features(index[rows], torch.float32).numpy()
    half, names, lines = len(rows) // 2, federation.features.names, []
    tree = DecisionTreeClassifier(max_leaf_nodes=32) if classes else DecisionTreeRegressor(max_leaf_nodes=256)
    base = np.bincount(y).max() / len(y) if classes else 0.0
    for column, name in enumerate(names):
        one = x[:, [column]]
        score = tree.fit(one[:half], y[rows[:half]]).score(one[half:], y[rows[half:]])
        if score > _GIVEN_AWAY and base < 0.95:
            lines.append(f"column {name} alone predicts the label ({score:.1%}); is it known before the label is?")
    return lines
