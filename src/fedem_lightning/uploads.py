"""What clients upload: their updates, compressed where the run says so, and the bytes that a round sends."""

from collections.abc import Iterable

import torch
from torch import Tensor

from fedem_lightning.aggregation import Models, Update, all_finite
from fedem_lightning.data.block import Block
from fedem_lightning.data.federation import Federation
from fedem_lightning.history import RoundMetrics
from fedem_lightning.method import Method
from fedem_lightning.models.parts import model_bytes
from fedem_lightning.models.tensors import frozen_bytes, trained_parameters
from fedem_lightning.network import Traffic, Transmission, times_of_round
from fedem_lightning.randomness import Purpose, fold


def rehearsed(algorithm: Method, data: Federation, clients: Tensor, round_: int) -> Update | None:
    """What clients [C] would send without a training sample: the models from which they start. Nothing changes."""
    nothing = clients.new_zeros(0)
    metrics, put_back = algorithm.round_metrics, algorithm.states.remember(clients)
    algorithm.round_metrics = RoundMetrics()
    try:
        return algorithm.client_update(Block(data, clients, nothing, nothing), round_)
    finally:
        algorithm.round_metrics = metrics
        put_back()


def compressed(algorithm: Method, update: Update, block: Block, round_: int) -> Update:
    """Compresses updates d = theta_t - theta; a client keeps the error where the compression says so.

    Buffers, such as the statistics of BatchNorm, are sent as they are. So are a method's extras.
    """
    compression, clients, start = algorithm.compression, block.clients, update.start
    if compression is None:
        return update
    d = {name: update.models[name] - start[name] for name in _compressible(algorithm, update)}  # [C, M, ...]
    finite = all_finite(d)  # [C]; the server rejects the others
    store = algorithm.compression_error
    if store is not None:
        kept = store[clients]
        d = {name: rows + kept[name][:, : rows.shape[1]] for name, rows in d.items()}
    keys = fold(algorithm.seed, Purpose.COMPRESSION, round_, block.keys)
    message = compression.encode(d, keys)
    decoded = compression.decode(message, d)
    if store is not None:
        errors = {name: torch.cat([d[name] - decoded[name], kept[name][:, d[name].shape[1] :]], dim=1) for name in d}
        store[clients[finite]] = {name: rows[finite] for name, rows in (kept | errors).items()}
    return update._replace(models=update.models | {name: start[name] + decoded[name] for name in d})


def _compressible(algorithm: Method, update: Update) -> list[str]:
    """Names of the tensors that are compressed: the trained parameters among those that clients send."""
    parameters = trained_parameters(algorithm.components[0])
    return [name for name in update.start if name in parameters]


def transmission_of(algorithm: Method, update: Update) -> Transmission:
    """What each of the clients of an update has received and sends, counted in its tensors, as numbers of models."""
    up, down = (
        _bytes(update.models) + _bytes(update.extras),
        _bytes(update.start if update.receives is None else update.receives),
    )
    if algorithm.compression is not None:
        like = {name: update.models[name][:1] for name in _compressible(algorithm, update)}  # [1, M, ...]
        up += algorithm.compression.message_bytes(like) - _bytes(like)
    return Transmission(down / model_bytes(algorithm.components[0]), up / model_bytes(algorithm.components[0]))


def _bytes(models: Models) -> int:
    """Bytes of one client's tensors, of [C, M, ...] each; one that all M share, expanded along M, counts once."""

    def elements(rows: Tensor) -> int:
        shared = rows.ndim > 1 and rows.shape[1] > 1 and rows.stride(1) == 0
        return rows.shape[2 if shared else 1 :].numel()

    return sum(elements(rows) * rows.element_size() for rows in models.values())


def count_traffic(
    algorithm: Method,
    sent: Transmission,
    drawn: Tensor,
    in_time: Tensor,
    n_trained: int,
    work: Tensor,
    number: int,
) -> None:
    """Adds a round's bytes, gradients and simulated times to the statistics.

    Args:
        algorithm: whose networks and statistics these are.
        sent: by each client and the server.
        drawn: the clients of the round, int64 [C]; `in_time`: those that met the deadline, bool [C].
        n_trained: number of those that sent an update.
        work: gradients of single samples that each computed, [C].
        number: of the round, from 0; special ones are negative.

    """
    traffic = sent.traffic(len(drawn), n_trained, model_bytes(algorithm.components[0]))
    traffic = _with_frozen(algorithm, drawn, traffic)
    times = times_of_round(algorithm.networks, drawn, work, in_time, traffic, algorithm.seed, number)
    algorithm.statistics.count(traffic, times, float(work.sum()))


def count_special_round(algorithm: Method, clients: Tensor, work: Tensor, down: float, up: float) -> None:
    """Counts a special round, in which these clients [C] take part, whatever the cohort and the deadline.

    Every client receives the same `down` models, computes `work` single-sample gradients [C], and sends `up` models.
    """
    algorithm.statistics.special_rounds += 1
    everyone = torch.ones(len(clients), dtype=torch.bool)
    number = -algorithm.statistics.special_rounds
    count_traffic(algorithm, Transmission(down, up), clients, everyone, len(clients), work, number)


def work_of(parts: Iterable[tuple[Tensor, Tensor]], clients: Tensor) -> Tensor:
    """The work of clients [C], ascending, from parts of (clients, work): float64 [C], on the CPU."""
    total, known = torch.zeros(len(clients), dtype=torch.float64), clients.cpu()
    for some, work in parts:
        mine = torch.isin(some.cpu(), known)
        total.index_add_(0, torch.searchsorted(known, some.cpu()[mine]), work.double().cpu()[mine])
    return total


def _with_frozen(algorithm: Method, clients: Tensor, traffic: Traffic) -> Traffic:
    """A round's traffic, including the frozen parameters for clients that receive a model for the first time.

    The server broadcasts them once for all of these clients (int64 [C]), and the algorithm records who has them.
    Without a server (graphs, Local) clients have them from the start, like their first models.
    """
    n_bytes = frozen_bytes(algorithm.components[0])
    if not n_bytes or not traffic.streams:
        return traffic
    new = clients[~algorithm.has_frozen[clients]]
    if not len(new):
        return traffic
    algorithm.has_frozen[new] = True
    models = n_bytes / traffic.model_bytes
    return traffic._replace(
        down=traffic.down + models * len(new), streams=traffic.streams + models, on_air=traffic.on_air + models
    )
