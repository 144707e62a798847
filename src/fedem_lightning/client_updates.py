"""Where the client updates of a round come from; here block by block, and a client that fails does not end the run."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import torch
from pytorch_lightning.utilities import rank_zero_only
from torch import Tensor

from fedem_lightning.aggregation import Sent, check_sent
from fedem_lightning.data.block import Block
from fedem_lightning.data.federation import Federation
from fedem_lightning.errors import UserError, require
from fedem_lightning.rejections import EXCEPTION, first_line
from fedem_lightning.uploads import compressed

if TYPE_CHECKING:
    from fedem_lightning.algorithms.base import FederatedAlgorithm


class UpdateSource(Protocol):
    """Where the client updates of a round come from."""

    error: Exception | None  # the first one of a client

    def updates(self, federation: Federation, clients: Tensor) -> Iterator[tuple[Tensor, Sent | None]]:
        """The updates of the clients, int64 [C], as they become ready: some of the clients, and what they send."""

    def put_all_back(self) -> None:
        """Gives all clients the private state from before the round; all updates were rejected."""


class ClientProcesses(Protocol):
    """Clients that are processes of their own, elsewhere; `flower.clients` documents the members."""

    def check(self, algorithm: "FederatedAlgorithm") -> None: ...
    def begin(self, algorithm: "FederatedAlgorithm", round_: int) -> UpdateSource: ...
    def scores(self, algorithm: "FederatedAlgorithm", federation: Federation, clients: Tensor) -> Any: ...


class ClientUpdates:
    """Runs the client updates of one round.

    If a block does not fit a GPU's memory, its clients are run again in two halves, and later blocks are half as large.
    If the update of a block raises another exception, its clients are run again one by one. Those that fail alone are
    rejected, and their private state is what it was before. If none fails alone, the exception goes on: it is not a
    client's. A `UserError` always goes on. Private state that is not finite is put back, too.
    """

    def __init__(self, algorithm: "FederatedAlgorithm", round_: int) -> None:
        self.algorithm, self.round_ = algorithm, round_
        self.error: Exception | None = None  # the first exception of a client
        self._put_back: list[Callable[..., None]] | None = []  # while all updates of this process are rejected

    def updates(self, federation: Federation, clients: Tensor) -> Iterator[tuple[Tensor, Sent | None]]:
        """The updates of the clients, int64 [C], as they become ready: some of the clients, and what they send."""
        for block in self.algorithm.local.blocks(federation, clients):
            for part, update in self.of(block):
                yield part.clients, update

    def of(self, block: Block) -> Iterator[tuple[Block, Sent | None]]:
        """The updates of a block; several, of parts of it, if it is run again."""
        metrics, put_back = self.algorithm.round_metrics.copy(), self.algorithm.states.remember(block.clients)
        before, does_not_fit = metrics.rejected, False
        if self._put_back is not None:
            self._put_back.append(put_back)
        try:
            update = self._update(block)
        except UserError:
            raise
        except Exception as error:
            put_back()
            self.algorithm.round_metrics = metrics
            does_not_fit = isinstance(error, torch.OutOfMemoryError) and len(block.clients) > 1
            self.error = self.error if does_not_fit else self.error or error
            if does_not_fit:
                pass  # below, after the exception, which holds the update's tensors
            elif len(block.clients) == 1:
                self.algorithm.round_metrics.reject(block.clients, EXCEPTION, first_line(error))
            else:
                yield from self._one_by_one(block, error)
        else:
            diverged = self.algorithm.states.diverged(block.clients)
            if diverged.any():
                put_back(diverged)
            if update is None:  # what clients keep is their update
                self.algorithm.round_metrics.reject(block.clients[diverged])
            yield block, update
        if does_not_fit:
            yield from self._in_halves(block)
        if self.algorithm.round_metrics.rejected - before < len(block.clients):
            self._put_back = None  # the round counts

    def put_all_back(self) -> None:
        """Gives all clients of this process the private state from before the round; all updates were rejected."""
        for put_back in self._put_back or ():
            put_back()

    def _in_halves(self, block: Block) -> Iterator[tuple[Block, Sent | None]]:
        engine = self.algorithm.local.engine
        if not engine.halvings:
            rank_zero_only(print)("out of memory: blocks of clients are halved (a smaller engine.memory_gb avoids it)")
        engine.halvings += 1
        for clients in block.clients.chunk(2):
            yield from self.of(block.federation.block(clients, "train"))

    def _one_by_one(self, block: Block, error: Exception) -> Iterator[tuple[Block, Sent | None]]:
        failed = len(self.algorithm.round_metrics.rejections)
        for client in block.clients.split(1):
            yield from self.of(block.federation.block(client, "train"))
        again = self.algorithm.round_metrics.rejections[failed:]
        if not any(rejection.reason == EXCEPTION for rejection in again):
            raise error

    def _update(self, block: Block) -> Sent | None:
        update = self.algorithm.client_update(block, self.round_)
        check_sent(self.algorithm, update)
        kind, rule = type(self.algorithm).__name__, self.algorithm.aggregation
        combined = update is not None or rule.is_plain
        require(combined, f"aggregation: {kind} sends no updates, expected mean, got {type(rule).__name__}")
        if update is None or self.algorithm.compression is None:
            return update
        return compressed(self.algorithm, update, block, self.round_)
