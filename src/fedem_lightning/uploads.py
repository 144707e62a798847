"""What clients upload: their updates, as they are or compressed; and what a round sends in all."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedem_lightning.aggregation import Models, Sent, all_finite
from fedem_lightning.data.block import Block
from fedem_lightning.models.tensors import frozen_bytes, trained_parameters
from fedem_lightning.network import Clocks, Traffic, Transmission
from fedem_lightning.randomness import Purpose, fold

if TYPE_CHECKING:
    from fedem_lightning.algorithms.base import FederatedAlgorithm


def received_models(algorithm: "FederatedAlgorithm", clients: Tensor) -> Models:
    """The models from which the updates of clients [C] are measured, in the form in which they send them, [C, M, ...].

    Norms, clipping, compression and faults need them.
    """
    sent = algorithm.unmoved(clients, torch.ones_like(clients))
    return algorithm.broadcast(clients) if sent is None else sent.models


def compressed(algorithm: "FederatedAlgorithm", update: Sent, block: Block, round_: int) -> Sent:
    """Compresses updates d = theta_t - theta; a client keeps the error where the compression says so.

    Buffers, such as the statistics of BatchNorm, are sent as they are. So are a method's extras.
    """
    compression, clients = algorithm.compression, block.clients
    assert compression is not None
    received = received_models(algorithm, clients)
    names = compressible(algorithm, received)
    d = {name: update.models[name] - received[name] for name in names}  # [C, M, ...]
    finite = all_finite(d)  # [C]; the server rejects the others
    store = algorithm.compression_error
    if store is not None:
        kept = store.read(clients)
        d = {name: rows + kept[name][:, : rows.shape[1]] for name, rows in d.items()}
    keys = fold(algorithm.seed, Purpose.COMPRESSION, round_, block.keys)
    message = compression.encode(d, keys)
    read = compression.decode(message, d)
    if store is not None:
        errors = {name: torch.cat([d[name] - read[name], kept[name][:, d[name].shape[1] :]], dim=1) for name in names}
        store.write(clients[finite], {name: rows[finite] for name, rows in (kept | errors).items()})
    whole = {name: rows for name, rows in update.models.items() if name not in names}
    return update._replace(models=whole | {name: received[name] + read[name] for name in names})


def compressible(algorithm: "FederatedAlgorithm", received: Models) -> list[str]:
    """Names of the tensors that are compressed: the trained parameters among those that clients send."""
    parameters = trained_parameters(algorithm.components[0])
    return [name for name in received if name in parameters]


def transmitted(algorithm: "FederatedAlgorithm", clients: Tensor) -> Transmission:
    """The models sent in the round that is ending, where a compressed model counts by its bytes."""
    sent = algorithm.transmission(clients)
    if algorithm.compression is None or sent.up == 0:
        return sent
    received = received_models(algorithm, clients[:1])
    like = {name: received[name] for name in compressible(algorithm, received)}  # [1, M, ...]
    plain = sum(rows.shape[1:].numel() * rows.element_size() for rows in like.values())
    saved = (plain - algorithm.compression.message_bytes(like)) / algorithm.message_bytes
    uploads = None if sent.uploads is None else sent.uploads - saved
    return sent._replace(up=sent.up - saved, uploads=uploads)


def count_special_round(algorithm: "FederatedAlgorithm", clients: Tensor, work: Tensor, down: float, up: float) -> None:
    """Counts a special round, in which these clients [C] take part, whatever the cohort and the deadline.

    Every client receives the same `down` models, computes `work` single-sample gradients [C], and sends `up` models.
    """
    statistics = algorithm.statistics
    statistics.special_rounds += 1
    clocks = Clocks(algorithm.networks, clients, work, algorithm.seed, -statistics.special_rounds, limited=False)
    traffic = Transmission(down, up).traffic(len(clients), len(clients), algorithm.message_bytes)
    traffic = with_frozen(algorithm, clients, traffic)
    statistics.count(traffic, clocks.times(traffic))


def with_frozen(algorithm: "FederatedAlgorithm", clients: Tensor, traffic: Traffic) -> Traffic:
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
