"""What trackers show of an evaluation: pictures of mixture weights and clients, and a histogram of test scores."""

import math
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedem_lightning.algorithms import FederatedAlgorithm
from fedem_lightning.algorithms.facts import known_pi
from fedem_lightning.data.federation import Federation
from fedem_lightning.records.measures import headline
from fedem_lightning.run.client_maps import weights_figure
from fedem_lightning.run.figure_style import STYLE
from fedem_lightning.run.figures import WEIGHTS_WORDS, clients_figure, entitled

MOST_PICTURES = 100
"""Evaluations of a run that are drawn; a picture takes a tenth of a second or two."""
_DPI = 120


@dataclass(frozen=True)
class Pictures:
    """Pictures and histograms of an evaluation."""

    figures: dict[str, np.ndarray]  # by the names of the run's figures: pixels uint8 [H, W, 3]
    histograms: dict[str, np.ndarray]  # by name: a value for each client [C]


def is_shown(round_: int, rounds: int | None, every: int | None) -> bool:
    """Whether the evaluation after this round is drawn: at most `MOST_PICTURES` at even distances, and the last one.

    Args:
        round_: from 1.
        rounds: of the whole run; None or -1: nobody knows.
        every: rounds between two evaluations.

    """
    every = every or 1
    planned = max(0, rounds or 0) // every
    return round_ == rounds or (round_ // every) % max(1, math.ceil(planned / MOST_PICTURES)) == 0


def pictures(algorithm: FederatedAlgorithm, federation: Federation, round_: int) -> Pictures:
    """Draws the newest evaluation of the seen clients: mixture weights, if the method has some, and test scores."""
    figures, histograms = {}, {}
    found: dict[str, np.ndarray] = algorithm.client_scores.get("test", {})
    measure, _, unit = headline(found)
    scores = found.get(measure, np.zeros(0))
    scores = scores[np.isfinite(scores)]
    pi = known_pi(algorithm)
    with mpl.rc_context(STYLE):
        if pi is not None:
            weights = pi[federation.clients()].cpu().numpy()  # [T, M]
            figures["mixture_weights"] = _pixels(weights_figure(weights), WEIGHTS_WORDS, round_)
        if len(scores):
            words = f"Test {unit.partition(',')[0]} over the clients"
            figures[f"{measure}_over_clients"] = _pixels(clients_figure({"seen": scores}, measure), words, round_)
            histograms[f"clients/test_{measure}"] = scores
    return Pictures(figures, histograms)


def _pixels(figure: Figure, words: str, round_: int) -> np.ndarray:
    """The figure as an image."""
    canvas: Any = FigureCanvasAgg(entitled(figure, words, f"after round {round_}"))
    figure.set_dpi(_DPI)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()
