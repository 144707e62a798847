"""The client updates of a round, batch by batch: what clients send, what changes it on its way, and its cost."""

import copy
import functools
from collections.abc import Callable, Iterator, Sequence

import torch
from pytorch_lightning.utilities import rank_zero_only
from torch import Tensor

from fedem_lightning.aggregate import Models, Update, all_finite, check_update
from fedem_lightning.aggregate.compression import Compression
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.data.randomness import Purpose, fold
from fedem_lightning.method import Method
from fedem_lightning.models.parts import model_bytes
from fedem_lightning.models.tensors import frozen_bytes, trained_parameters
from fedem_lightning.settings.errors import UserError, require
from fedem_lightning.state.history import RoundMetrics, first_line
from fedem_lightning.state.network import Traffic, Transmission, times_of_round

Filter = Callable[[Update, Tensor], Update]
"""Changes the updates of some clients, int64 [C]."""


class ClientUpdates:
    """Runs the client updates of one round.

    If a batch of clients does not fit a GPU's memory, it is run again in two halves, and later ones are half as large.
    Any other exception ends the run: UserError with the client, the round and the exception. Private state that is not
    finite is put back.
    """

    def __init__(self, algorithm: Method, round_: int) -> None:
        self.algorithm, self.round_ = algorithm, round_
        self._put_back: list[Callable[..., None]] | None = []  # while all updates of this process are rejected

    def updates(self, federation: Federation, clients: Tensor) -> Iterator[tuple[Tensor, Update | None]]:
        """The updates of the clients, int64 [C], as they become ready: some of the clients, and what they send."""
        for block in self.algorithm.local.blocks(federation, clients):
            yield from self._of(block)

    def _of(self, block: Block) -> Iterator[tuple[Tensor, Update | None]]:
        """The updates of a batch of clients; those of its halves, if it is run again."""
        states, local, metrics = (
            self.algorithm.states,
            self.algorithm.local,
            copy.deepcopy(self.algorithm.round_metrics),
        )
        done, put_back, does_not_fit = len(local.work), states.remember(block.clients), False
        if self._put_back is not None:
            self._put_back.append(put_back)
        try:
            update = self._update(block)
        except UserError:
            raise
        except Exception as error:
            does_not_fit = isinstance(error, torch.OutOfMemoryError) and len(block.clients) > 1
            if not does_not_fit:
                raise UserError(self._failure(block, error)) from error
        if does_not_fit:  # after the exception, which holds the update's tensors
            put_back()
            self.algorithm.round_metrics = metrics
            del local.work[done:]
            yield from self._in_halves(block)
        else:
            diverged = states.diverged(block.clients)
            if diverged.any():
                put_back(diverged)
            if update is None:  # what clients keep is their update
                self.algorithm.round_metrics.reject(block.clients[diverged])
            yield block.clients, update
        if len(self.algorithm.round_metrics.rejections) - len(metrics.rejections) < len(block.clients):
            self._put_back = None  # the round counts

    def put_all_back(self) -> None:
        """Gives all clients of this process the private state from before the round; all updates were rejected."""
        for put_back in self._put_back or ():
            put_back()

    def _failure(self, block: Block, error: Exception) -> str:
        """Which client failed, in which round, and why; an engine that trains several at once cannot tell which."""
        place, names = getattr(error, "client", None), block.federation.names
        first, last = (names[t] for t in block.clients[[0, -1]].tolist())
        one = place is not None or len(block.clients) == 1
        who = f"client {names[int(block.clients[place or 0])]}" if one else f"one of the clients {first} to {last}"
        return f"{' '.join(who.split())} failed in the update of round {self.round_ + 1}: {first_line(error)}"

    def _in_halves(self, block: Block) -> Iterator[tuple[Tensor, Update | None]]:
        engine = self.algorithm.local.engine
        if not engine.halvings:
            rank_zero_only(print)("out of memory: blocks of clients are halved (a smaller engine.memory_gb avoids it)")
        engine.halvings += 1
        for clients in block.clients.chunk(2):
            yield from self._of(block.federation.block(clients, "train"))

    def _update(self, block: Block) -> Update | None:
        update = self.algorithm.client_update(block, self.round_)
        check_update(self.algorithm, update)
        kind, rule = type(self.algorithm).__name__, self.algorithm.aggregation
        combined = update is not None or rule.is_plain
        require(combined, f"aggregation: {kind} sends no updates, expected mean, got {type(rule).__name__}")
        return update


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


def filters_of(algorithm: Method, federation: Federation, round_: int, faulty: Tensor) -> list[Filter]:
    """What changes the updates of a batch of clients on their way to the server: compression, then faults."""
    result: list[Filter] = []
    compression, faults = algorithm.compression, algorithm.faults
    if compression is not None:
        result.append(functools.partial(compressed, algorithm, compression, federation, round_))
    if faults is not None:
        parameters = set(trained_parameters(algorithm.components[0]))
        result.append(lambda update, clients: faults.corrupted(update, torch.isin(clients, faulty), parameters))
    return result


def compressed(
    algorithm: Method, compression: Compression, federation: Federation, round_: int, update: Update, clients: Tensor
) -> Update:
    """Compresses updates d = theta_t - theta; a client keeps the error where the compression says so.

    Buffers, such as the statistics of BatchNorm, are sent as they are. So are a method's extras.
    """
    start, keys = update.start, clients if federation.keys is None else federation.keys[clients]
    d = {name: update.models[name] - start[name] for name in _compressible(algorithm, update)}  # [C, M, ...]
    finite = all_finite(d)  # [C]; the server rejects the others
    store = algorithm.compression_error
    if store is not None:
        kept = store[clients]
        d = {name: rows + kept[name][:, : rows.shape[1]] for name, rows in d.items()}
    message = compression.encode(d, fold(algorithm.seed, Purpose.COMPRESSION, round_, keys))
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
    down = _bytes(update.start if update.receives is None else update.receives)
    up, model = _bytes(update.models) + _bytes(update.extras), model_bytes(algorithm.components[0])
    if algorithm.compression is not None:
        like = {name: update.models[name][:1] for name in _compressible(algorithm, update)}  # [1, M, ...]
        up += algorithm.compression.message_bytes(like) - _bytes(like)
    return Transmission(down / model, up / model)


def _bytes(models: Models) -> int:
    """Bytes of one client's tensors, of [C, M, ...] each; one that all M share, expanded along M, counts once."""

    def elements(rows: Tensor) -> int:
        shared = rows.ndim > 1 and rows.shape[1] > 1 and rows.stride(1) == 0
        return rows.shape[2 if shared else 1 :].numel()

    return sum(elements(rows) * rows.element_size() for rows in models.values())


def count_traffic(
    algorithm: Method, sent: Transmission, drawn: Tensor, n_trained: int, work: Tensor, number: int
) -> None:
    """Adds a round's bytes, gradients and simulated times to the statistics.

    `drawn` are the clients of the round, int64 [C], `n_trained` of them sent an update, `work` are gradients of single
    samples that each computed, [C]. Rounds are numbered from 0, special ones negative.
    """
    traffic = _with_frozen(algorithm, drawn, sent.traffic(len(drawn), n_trained, model_bytes(algorithm.components[0])))
    times = times_of_round(algorithm.networks, drawn, work, traffic, algorithm.seed, number)
    algorithm.statistics.count(traffic, times, float(work.sum()))


def count_special_round(algorithm: Method, clients: Tensor, work: Tensor, down: float, up: float) -> None:
    """Counts a special round, in which these clients [C] take part, whatever the cohort.

    Every client receives the same `down` models, computes `work` single-sample gradients [C], and sends `up` models.
    """
    algorithm.statistics.special_rounds += 1
    number = -algorithm.statistics.special_rounds
    count_traffic(algorithm, Transmission(down, up), clients, len(clients), work, number)


def work_of(parts: Sequence[tuple[Tensor, Tensor]], clients: Tensor) -> Tensor:
    """The work of clients [C], ascending, from parts of (clients, work), these on the CPU: float64 [C], on the CPU."""
    total = torch.zeros(len(clients), dtype=torch.float64)
    if not parts or not len(clients):
        return total
    some = torch.cat([part for part, _ in parts])
    place = torch.searchsorted(clients, some).clamp(max=len(clients) - 1)
    place = torch.where(clients[place] == some, place, -1).cpu()  # -1: a client of no interest
    work = torch.cat([part.double() for _, part in parts])
    return total.index_add_(0, place[place >= 0], work[place >= 0])


def _with_frozen(algorithm: Method, clients: Tensor, traffic: Traffic) -> Traffic:
    """A round's traffic, including the frozen parameters for clients (int64 [C]) that receive their first model.

    The server broadcasts them once for all of these. Without a server (graphs, Local) clients have them from the start.
    """
    new = clients[~algorithm.has_frozen[clients]]
    n_bytes = frozen_bytes(algorithm.components[0])
    if not n_bytes or not traffic.streams or not len(new):
        return traffic
    algorithm.has_frozen[new] = True
    models = n_bytes / traffic.model_bytes
    return traffic._replace(
        down=traffic.down + models * len(new), streams=traffic.streams + models, on_air=traffic.on_air + models
    )
