"""Scores and predictions in Lightning's steps: clients are personalised, scored, and left as they were."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedem_lightning.data.federation import Federation
from fedem_lightning.data.randomness import keyed_streams
from fedem_lightning.data.splits import SPLITS
from fedem_lightning.evaluate.client_table import client_table, final_metrics
from fedem_lightning.evaluate.scores import all_scored_clients, curve_metrics, score, scored_clients, scored_models
from fedem_lightning.method import Method
from fedem_lightning.module.fitting import log, mixture_metrics, prepare
from fedem_lightning.state.processes import Processes


class ClientPredictions(NamedTuple):
    """Predictions for the test samples of some clients, sample after sample."""

    client: np.ndarray  # names, str [n]
    y: np.ndarray  # labels, as the federation has them
    prediction: np.ndarray  # probabilities [n, Y], or means [n, k]
    sample: np.ndarray  # positions in the data set, such as rows of the arrays of `from_arrays`, int64 [n]


def score_first_models(algorithm: Method, federation: Federation) -> None:
    """Logs the scores of the models with which training starts as those of round 0, if the Trainer validates."""
    trainer = algorithm.trainer
    if algorithm.remote is not None or not trainer.enable_validation:
        return
    nothing_yet = {f"time_{name}": 0.0 for name in algorithm.networks} | algorithm.statistics.totals()
    metrics = {"round": 0, **nothing_yet, **curve_scores(algorithm, federation)}
    algorithm.curves[0] = metrics
    for logger in trainer.loggers:
        logger.log_metrics(metrics, step=0)


def curve_scores(algorithm: Method, federation: Federation) -> dict[str, float]:
    """The scores of the seen clients, by split and measure, and in training the mixture's figures."""
    federation = prepare(algorithm, federation)
    algorithm.states.collect(Processes.of(algorithm.trainer))
    training = algorithm.trainer.state.fn == "fit"
    with keyed_streams(algorithm.device, algorithm.seed, algorithm.statistics.rounds):
        if algorithm.personalizes_seen:
            _personalize(algorithm, federation, scored_clients(algorithm, federation))
        splits = SPLITS if training else ("train", "val")
        result = score(algorithm, federation, scored_clients(algorithm, federation))
        metrics = curve_metrics(algorithm, federation, result, splits)
        return metrics | mixture_metrics(algorithm, federation) if training else metrics


def test(algorithm: Method, federation: Federation) -> None:
    """Personalises the unseen clients, scores all clients on every split; fills the clients' table and the rest."""
    federation = prepare(algorithm, federation)
    algorithm.states.collect(Processes.of(algorithm.trainer))
    with keyed_streams(algorithm.device, algorithm.seed, algorithm.statistics.rounds):
        algorithm.tested = client_table(algorithm, federation, personalize_for_scoring(algorithm, federation))
    algorithm.clients = algorithm.tested.rows
    log(algorithm, final_metrics(algorithm.clients))


@torch.inference_mode(False)
@torch.no_grad()
def predict(algorithm: Method, federation: Federation) -> ClientPredictions:
    """Predictions for the test samples of the scored clients, of this process's share if there are several."""
    federation = prepare(algorithm, federation)
    processes, task = Processes.of(algorithm.trainer), federation.task
    algorithm.states.collect(processes)
    names, labels, predictions, positions = [], [], [], []
    own = personalize_for_scoring(algorithm, federation)
    mine = all_scored_clients(algorithm, federation)[processes.rank :: processes.size]
    for block in algorithm.local.blocks(own, mine):
        personal, test = scored_models(algorithm, block), federation.block(block.clients, "test")
        for piece in test.pieces() if len(test.index) else ():
            names += [federation.names[t] for t in block.clients[piece.owner].tolist()]
            labels.append(piece.y())
            predictions.append(task.answer(personal.predict(piece)))
            positions.append(piece.index)
    return ClientPredictions(np.array(names), _joined(labels), _joined(predictions), _joined(positions))


def _joined(parts: list[Tensor]) -> np.ndarray:
    return torch.cat(parts).cpu().numpy() if parts else np.zeros(0)


def personalize_for_scoring(algorithm: Method, federation: Federation) -> Federation:
    """Personalises unseen clients, and seen ones where the method does so.

    It returns the federation in which unseen clients have the share of their training samples that they may use.
    """
    unseen, part = scored_clients(algorithm, federation, seen=False), algorithm.personalize_fraction
    own = federation if part == 1 else federation.with_part(federation.clients(seen=False), part, algorithm.seed)
    if algorithm.personalizes_seen:  # an adaptation may need the groups of all clients
        everyone = algorithm.adaptation is not None
        _personalize(algorithm, federation, federation.clients() if everyone else scored_clients(algorithm, federation))
    algorithm.states.forget_momentum(unseen)
    _personalize(algorithm, own, unseen)
    return own


def _personalize(algorithm: Method, federation: Federation, clients: Tensor) -> None:
    """Each process personalises its share of the clients; then all processes exchange the client state."""
    if not len(clients) or algorithm.remote is not None:  # remote clients personalise themselves
        return
    processes = Processes.of(algorithm.trainer)
    shares = [clients[rank :: processes.size] for rank in range(processes.size)]
    with torch.inference_mode(False), torch.no_grad():
        if len(mine := shares[processes.rank]):
            algorithm.personalize_clients(federation, mine)
        processes.exchange_rows(algorithm.states.rows(), shares)
