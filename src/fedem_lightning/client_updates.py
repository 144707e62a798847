"""Where the client updates of a round come from: here batch by batch of clients."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from pytorch_lightning.utilities import rank_zero_only
from torch import Tensor

from fedem_lightning.aggregation import Update, check_update
from fedem_lightning.data.block import Block
from fedem_lightning.data.federation import Federation
from fedem_lightning.errors import UserError, require
from fedem_lightning.method import Method
from fedem_lightning.rejections import first_line
from fedem_lightning.uploads import compressed


class UpdateSource(Protocol):
    """Where the client updates of a round come from."""

    error: Exception | None  # the first one of a client

    def updates(self, federation: Federation, clients: Tensor) -> Iterator[tuple[Tensor, Update | None]]:
        """The updates of the clients, int64 [C], as they become ready: some of the clients, and what they send."""

    def put_all_back(self) -> None:
        """Gives all clients the private state from before the round; all updates were rejected."""


class ClientProcesses(Protocol):
    """Clients that are processes of their own, elsewhere; `flower.clients` documents the members."""

    def check(self, algorithm: Method) -> None: ...
    def begin(self, algorithm: Method, round_: int) -> UpdateSource: ...
    def scores(self, algorithm: Method, federation: Federation, clients: Tensor) -> Any: ...


class ClientUpdates:
    """Runs the client updates of one round.

    If a batch of clients does not fit a GPU's memory, it is run again in two halves, and later ones are half as large.
    Any other exception ends the run: UserError with the client, the round and the exception. Private state that is not
    finite is put back.
    """

    error: Exception | None = None

    def __init__(self, algorithm: Method, round_: int) -> None:
        self.algorithm, self.round_ = algorithm, round_
        self._put_back: list[Callable[..., None]] | None = []  # while all updates of this process are rejected

    def updates(self, federation: Federation, clients: Tensor) -> Iterator[tuple[Tensor, Update | None]]:
        """The updates of the clients, int64 [C], as they become ready: some of the clients, and what they send."""
        for block in self.algorithm.local.blocks(federation, clients):
            for part, update in self.of(block):
                yield part.clients, update

    def of(self, block: Block) -> Iterator[tuple[Block, Update | None]]:
        """The updates of a batch of clients; those of its halves, if it is run again."""
        states, local = self.algorithm.states, self.algorithm.local
        metrics, done, put_back = self.algorithm.round_metrics.copy(), len(local.work), states.remember(block.clients)
        before, does_not_fit = metrics.rejected, False
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
            yield block, update
        if self.algorithm.round_metrics.rejected - before < len(block.clients):
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

    def _in_halves(self, block: Block) -> Iterator[tuple[Block, Update | None]]:
        engine = self.algorithm.local.engine
        if not engine.halvings:
            rank_zero_only(print)("out of memory: blocks of clients are halved (a smaller engine.memory_gb avoids it)")
        engine.halvings += 1
        for clients in block.clients.chunk(2):
            yield from self.of(block.federation.block(clients, "train"))

    def _update(self, block: Block) -> Update | None:
        update = self.algorithm.client_update(block, self.round_)
        check_update(self.algorithm, update)
        kind, rule = type(self.algorithm).__name__, self.algorithm.aggregation
        combined = update is not None or rule.is_plain
        require(combined, f"aggregation: {kind} sends no updates, expected mean, got {type(rule).__name__}")
        return None if update is None else compressed(self.algorithm, update, block, self.round_)
