"""What clients upload in place of their updates, compressed or some components alone; and what a round sends in all.

Components are chosen at random by a client's mixture weights. FedEM's paper names it as future work (Marfoq et al.,
NeurIPS 2021, Conclusion): clients with few resources could send only some of the components.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedem_lightning.aggregation import Means, Models, Sent, all_finite
from fedem_lightning.data.block import Block
from fedem_lightning.errors import require
from fedem_lightning.models.tensors import frozen_bytes, trained_parameters
from fedem_lightning.network import Transmission
from fedem_lightning.network.traffic import Clocks, Traffic
from fedem_lightning.randomness import Purpose, fold

if TYPE_CHECKING:
    from fedem_lightning.algorithms.base import FederatedAlgorithm
    from fedem_lightning.algorithms.fedem import FedEM


UPLOADED = "uploaded_components"
"""Column of metrics.csv: components that a client uploads, on average."""


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
    names = [name for name in received if name in parameters]
    kind = type(algorithm).__name__
    require(bool(names) and algorithm.facts.sends_updates, f"compression: {kind} sends no parameters to a server")
    return names


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


def check_options(algorithm: "FedEM", sharing: str) -> None:
    """Raises UserError for options that do not go with `upload_some`, with `with_shares`, or with shared parameters.

    Args:
        algorithm: with its options.
        sharing: the option by which components share parameters, if they do.

    """
    some, compressed = algorithm.upload_threshold is not None, algorithm.compression is not None
    one = not (some and compressed)
    require(one, "upload_threshold: it leaves components out, compression shortens all; use one of both")
    small = not (some and algorithm.normalize_weights)
    require(small, "upload_threshold: normalize_weights makes rare updates long, and they count often")
    if algorithm.by_responsibilities:
        key = "component_weights=responsibilities"
        plain = algorithm.aggregation.is_plain and not compressed and not some
        require(plain, f"{key}: it needs aggregation=mean without a limit, no compression and no upload_threshold")
        require(algorithm.faults is None, f"{key}: faults change models, use samples")
    if algorithm.sharing is not None:
        alone = f"{sharing}: leave out {{}}, which treats each component alone"
        require(not some, alone.format("upload_threshold"))
        require(not algorithm.normalize_weights, alone.format("normalize_weights"))
        require(algorithm.start.initialization != "farthest", alone.format("initialization=farthest"))
    anew = algorithm.personal is not None and algorithm.facts.personalizes_seen
    require(not anew, "personal: leave out personalize_seen, which would train clients' own parameters anew")


def chosen_uploads(probability: Tensor, seed: int, round_: int, keys: Tensor) -> Tensor:
    """b: which components clients upload, bool [C, M]; b = 1 with probability p [C, M]; keys are the clients', [C]."""
    components = torch.arange(probability.shape[1], device=keys.device)
    draws = fold(seed, Purpose.UPLOADS, round_, keys.unsqueeze(1), components).double() / 2**32  # [C, M]
    return draws < probability


def uploaded_components(algorithm: "FedEM", sent: Sent, block: Block, round_: int) -> Sent:
    """What clients upload of their components: with `upload_threshold` rarely those whose pi is below it."""
    clients, threshold = block.clients, algorithm.upload_threshold
    if threshold is None or algorithm.start.is_warming_up(round_):
        return sent
    p = (algorithm.pi[clients] / threshold).clamp(max=1.0)  # [C, M]
    sends = chosen_uploads(p, algorithm.seed, round_, block.keys)
    algorithm.round_metrics.add(UPLOADED, sends.sum(dim=1))
    return upload_some(sent, algorithm.broadcast(clients), p, sends, algorithm.params_of(sent.models))


def upload_some(
    update: Sent, received: Models, probability: Tensor, sends: Tensor, parameters: Collection[str]
) -> Sent:
    """A component's update counts as theta + (b / p) (theta_t - theta), whose mean is theta_t: averages are unbiased.

    Where b = 0 nothing is sent, and the server takes theta.

    Args:
        update: theta_t, [C, M, ...].
        received: theta, [C, M, ...].
        probability: p, [C, M] in [0, 1].
        sends: b, bool [C, M].
        parameters: names of the trained parameters; buffers are not scaled.

    """
    factors = torch.where(sends, 1 / probability, 0.0)  # b / p  [C, M]
    models = {}
    for name, rows in update.models.items():
        start, shape = received[name], (*factors.shape, *[1] * (rows.ndim - 2))
        if name in parameters:  # others are not scaled: a variance must stay positive
            rows = start + factors.to(rows).view(shape) * (rows - start)
        models[name] = torch.where(sends.view(shape), rows, start)
    return update._replace(models=models, included=sends)


def with_shares(update: Sent, shares: Tensor, names: Collection[str]) -> Sent:
    """r_tm theta_tm in place of theta_tm, and r_t [C, M] beside it: the server takes means over n_t of both.

    Args:
        update: theta_t, [C, M, ...].
        shares: r_t, [C, M].
        names: of the tensors that count by r; the others stay.

    """
    models = dict(update.models)
    for name in names:
        rows = models[name]
        models[name] = rows * shares.to(rows).view(*shares.shape, *[1] * (rows.ndim - 2))
    return update._replace(models=models, extras={**update.extras, "share": shares})


def mean_by_shares(means: Means, theta: Models, names: Collection[str]) -> Means:
    """sum_t n_t r_tm theta_tm / sum_t n_t r_tm of updates `with_shares`; a model without any weight stays at theta.

    Args:
        means: over n_t of the models [M, ...] and of r, [1, M].
        theta: what the clients received, [1, M, ...].
        names: of the tensors that count by r.

    """
    models, share = dict(means.models), means.extras["share"][0]  # [M]
    for name in names:
        mean = models[name]
        weight = share.to(mean).view(-1, *[1] * (mean.ndim - 1))  # [M, 1, ...]
        models[name] = torch.where(weight > 0, mean / weight, theta[name][0, : len(mean)])
    return means._replace(models=models, extras={})


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

    The server broadcasts them once for all of these clients. Without a server (graphs, Local) clients have them from
    the start, like their first models.

    Args:
        algorithm: it records which clients have them.
        clients: clients that receive from the server in this round, int64 [C].
        traffic: the round's traffic without them.

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
