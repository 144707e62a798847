"""Scores of each client's model on the test samples of all clients: what a model of its own costs outside its data."""

import numpy as np
import torch
from torch import Tensor

from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.data.randomness import Purpose, generator
from fedem_lightning.evaluate.scores import ClientMeans, models_scored
from fedem_lightning.method import Method
from fedem_lightning.state.processes import Processes

AT_ONCE = 1_000_000
"""Predictions whose positions are in memory together."""


def global_scores(
    algorithm: Method, federation: Federation, clients: Tensor, own_data: Federation | None, n_samples: int
) -> dict[str, np.ndarray]:
    """Mean scores of the models of `clients` (int64 [C]) on test samples of all clients that train, by measure, [C].

    Each client counts alike: about `n_samples` in all are drawn, equally many of each client, with replacement. All
    models see the same ones. Empty if no client has test samples.
    """
    index = balanced_samples(federation, n_samples, algorithm.seed)
    if not len(index):
        return {}
    processes, means = Processes.of(algorithm.trainer), ClientMeans(len(clients), federation.task, clients.device)
    mine = torch.arange(len(clients), device=clients.device)[processes.rank :: processes.size]
    for rows, personal in models_scored(algorithm, own_data or federation, clients, mine):
        for part in torch.arange(len(rows), device=rows.device).split(max(1, AT_ONCE // len(index))):
            owner = part.repeat_interleave(len(index))  # [c S]
            block = Block(federation, clients[rows], index.repeat(len(part)), owner)
            for piece in block.pieces():
                means.update(federation.task.scores(personal.predict(piece), piece.y()), rows[piece.owner])
    processes.sum([means.totals, means.count])
    return means.compute()


def balanced_samples(federation: Federation, n_samples: int, seed: int) -> Tensor:
    """Positions of about `n_samples` test samples, equally many of each client that trains and has any, int64 [S]."""
    test = federation.splits["test"]
    clients = federation.clients()
    clients = clients[test.counts(clients) > 0]
    if not len(clients):
        return clients
    draw = generator(seed, Purpose.SCORED, 2).random((len(clients), max(1, n_samples // len(clients))))
    n = test.counts(clients).unsqueeze(1)  # [C, 1]
    place = (torch.from_numpy(draw).to(n.device) * n).long()  # [C, S / C]
    return test.index[(test.offsets[clients].unsqueeze(1) + place).flatten()]
