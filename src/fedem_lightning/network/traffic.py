"""Models sent in a round: what a method transmits, and the traffic of a round that follows from it."""

from typing import NamedTuple

from torch import Tensor


class Transmission(NamedTuple):
    """Numbers of models that one client and the server send in a round, as an algorithm's `transmission` hook says.

    With a server each sends a model once, to one receiver or as a broadcast: `uploads` is `up`, and the server
    broadcasts `streams` different models. On a graph a client transmits fewer models than its neighbours receive.
    """

    down: float  # models that a client receives, on average over the clients
    up: float  # models that a client sends, counted once for each receiver, on average
    uploads: float | None = None  # transmissions of a client, a broadcast counts once; None: `up`
    streams: float | None = None  # different models that the server broadcasts; None: `down`
    stream_of: Tensor | None = None  # the stream that each drawn client receives, int64 [C]; None: all receive all

    def traffic(self, n_drawn: int, n_trained: int, model_bytes: int) -> "Traffic":
        """The traffic of a round in which `n_drawn` clients were drawn and `n_trained` of them met the deadline.

        A client that missed the deadline uploads nothing but receives the broadcast.

        Args:
            n_drawn, n_trained: numbers of clients.
            model_bytes: size of a model.

        """
        uploads = self.up if self.uploads is None else self.uploads
        streams = self.down if self.streams is None else self.streams
        received = self.down * (n_drawn if streams else n_trained)
        streams = min(streams, received)  # a server sends no stream without a receiver
        return Traffic(
            up=self.up * n_trained,
            down=received,
            uploads=uploads,
            streams=streams,
            on_air=uploads * n_trained + streams,
            stream_of=None if self.stream_of is None else self.stream_of.cpu(),
            model_bytes=model_bytes,
        )


class Traffic(NamedTuple):
    """Numbers of models sent in a round; C clients were drawn, and those of the cohort trained."""

    up: float  # by all clients together, to the server or to one another
    down: float  # received by all clients together
    uploads: float  # transmissions of each client of the cohort
    streams: float  # transmissions of the server: different models, a broadcast counts once
    on_air: float  # transmissions of all clients and the server
    stream_of: Tensor | None  # the stream that each drawn client receives, int64 [C]; None: all receive all
    model_bytes: int
