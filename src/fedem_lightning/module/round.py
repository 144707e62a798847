"""A communication round: cohort -> batches of clients -> client updates -> aggregation -> server step -> costs.

`FederatedAlgorithm.training_step` runs it once an epoch: an epoch is a round.
"""

import itertools
import secrets
import time

import torch
from torch import Tensor

from fedem_lightning.aggregate import Collector, Means, RoundContext, Sampling
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.randomness import expected_size, sample_cohort, sample_independently
from fedem_lightning.method import Method
from fedem_lightning.models.tensors import trained_parameters
from fedem_lightning.module.client_updates import (
    ClientUpdates,
    count_traffic,
    filters_of,
    rehearsed,
    transmission_of,
    work_of,
)
from fedem_lightning.settings.errors import Diverged, NoUpdateLeft, UserError
from fedem_lightning.state.history import NO_ANSWER, NOT_FINITE, Rejection, Round, RoundMetrics, summarised
from fedem_lightning.state.network import Transmission
from fedem_lightning.state.processes import Processes


def run_round(algorithm: Method, federation: Federation) -> dict[str, float]:
    """Runs one round of any algorithm; returns the metrics to log."""
    start = time.perf_counter()
    statistics, processes = algorithm.statistics, Processes.of(algorithm.trainer)
    round_ = statistics.rounds  # a new Trainer counts its epochs from 0, a model its rounds on
    federation, faulty = as_clients_have_it(algorithm, federation, round_)
    drawn = draw_cohort(algorithm, federation, round_)
    cohort, silent = answering(algorithm, drawn, faulty)
    algorithm.local.work.clear()
    algorithm.traffic = None
    means, rejections, sent = train_clients(algorithm, federation, cohort, round_, faulty)
    algorithm.server.begin()
    algorithm.server_update(means, Round(round_, federation, cohort))
    algorithm.server.end(type(algorithm).__name__, means is not None)
    work = work_of(algorithm.local.work, drawn)
    work = work.to(drawn.device) if processes.size > 1 else work
    processes.sum([work])
    count_traffic(algorithm, algorithm.traffic or sent, drawn, len(cohort), work, round_)
    statistics.rejections.add(round_ + 1, silent + rejections)
    statistics.round_seconds.append(time.perf_counter() - start)
    statistics.tick()
    return {
        "round": round_ + 1,
        "lr": algorithm.local.lr_at(round_),
        "cohort": len(cohort),
        "seconds": statistics.round_seconds[-1],
        "rejected": len(silent + rejections),
        **statistics.totals(),
        **algorithm.round_metrics.means(),
    }


def draw_cohort(algorithm: Method, federation: Federation, round_: int) -> Tensor:
    """The cohort of an algorithm's round, int64, ascending."""
    clients, share, seed = federation.clients(), algorithm.participation, algorithm.seed
    if algorithm.samples_by_size:
        return sample_cohort(clients, share, seed, round_, federation.splits["train"].counts(clients))
    if not algorithm.aggregation.samples_independently:
        return sample_cohort(clients, share, seed, round_)
    if algorithm.remote is not None and not algorithm.cohort_secret:  # clients are sent the seed
        algorithm.cohort_secret = secrets.token_hex(32)
    return sample_independently(clients, share, seed, round_, algorithm.cohort_secret)


def sampling_of(algorithm: Method, n_clients: int, rounds: int) -> Sampling:
    """How n_clients clients take part in a number of rounds."""
    size = expected_size(algorithm.participation, n_clients)
    return Sampling(size / n_clients, size, rounds, algorithm.remote is not None)


def train_clients(
    algorithm: Method, federation: Federation, cohort: Tensor, round_: int, faulty: Tensor
) -> tuple[Means | None, list[Rejection], Transmission]:
    """Runs the client updates of a cohort (int64 [C], ascending), shared among the Trainer's processes.

    Returns:
        The average of the updates (None: none sent), the updates that were left out, and what one client sends.

    Raises:
        UserError: a client failed, no client update was left, or their mean is not finite.

    """
    processes, remote = Processes.of(algorithm.trainer), algorithm.remote
    shares = algorithm.states.divide(processes, federation, cohort)
    if shares is None:
        any_size = algorithm.aggregation.samples_independently  # the next cohort has another
        shares = processes.divide(cohort, federation.splits["train"].counts(cohort), idle=any_size)
    mine = shares[processes.rank]
    parameters = set(trained_parameters(algorithm.components[0]))
    sampling = sampling_of(algorithm, len(federation.clients()), algorithm.statistics.planned_rounds)
    algorithm.aggregation.plan(sampling)

    def start() -> dict[str, Tensor]:
        update = rehearsed(algorithm, federation, federation.clients()[:1], round_)
        return {} if update is None else update.start

    key = (algorithm.seed, round_) if remote is None else None  # else the noise has none
    context = RoundContext(cohort, parameters, start, sampling, key)
    collector, algorithm.round_metrics = algorithm.aggregation.begin(context), RoundMetrics()
    here, filters = ClientUpdates(algorithm, round_), filters_of(algorithm, federation, round_, faulty)
    updates = here.updates(federation, mine) if remote is None else remote.updates(algorithm, federation, mine, round_)
    failure, sent, streams = None, None, set[int]()  # the server's streams that a client has received
    try:
        for clients, update in updates:
            if update is None:
                continue
            sent = sent or transmission_of(algorithm, update)
            streams |= set() if update.stream is None else set(update.stream.unique().tolist())
            for change in filters:
                update = change(update, clients)
            finite = collector.add(update, clients)
            if not finite.all():
                algorithm.round_metrics.reject(clients[~finite])
    except UserError as error:  # the other processes have to know
        failure = error
    sent, rejections = _meet(algorithm, collector, processes, failure, sent, streams)
    if len(cohort) and len({rejection.client for rejection in rejections}) == len(cohort):
        here.put_all_back()  # the model is as it was before the round
        raise NoUpdateLeft(_why_none_is_left(algorithm, rejections, round_))
    processes.exchange_rows(algorithm.states.rows(own=False), shares)
    means = collector.compute()
    if means is not None:
        floats = [rows[means.nonempty] for rows in means.models.values() if rows.is_floating_point()]
        overflows = f"training diverged: in round {round_ + 1} the mean of the updates overflows; {_lower(algorithm)}"
        if not all(rows.isfinite().all() for rows in floats):
            raise Diverged(overflows)
    return means, rejections, sent


def _why_none_is_left(algorithm: Method, rejections: list[Rejection], round_: int) -> str:
    where = f"in round {round_ + 1} no client's update was"
    if all(rejection.reason == NOT_FINITE for rejection in rejections):
        return f"training diverged: {where} finite; {_lower(algorithm)}"
    return f"training stopped: {where} left: {summarised(rejections)}"


def _meet(
    algorithm: Method,
    collector: Collector,
    processes: Processes,
    failure: UserError | None,
    sent: Transmission | None,
    streams: set[int],
) -> tuple[Transmission, list[Rejection]]:
    """Combines updates, metrics, traffic and rejections of all processes; raises what ended the updates in any."""
    metrics = algorithm.round_metrics
    own = (failure and str(failure), sent, streams, (collector.like, list(metrics.sums())), metrics.rejections)
    lines, all_sent, all_streams, forms, rejections = zip(*processes.gather(own), strict=True)
    for line in filter(None, lines):
        raise failure or UserError(line)
    like, names = next((form for form in forms if form[0] is not None), (None, []))
    if collector.like is None and like is not None:  # the clients of this process have all failed
        collector.adopt(like, algorithm.device)
        for name in names:
            metrics.add_sum(name, 0.0, 0)
    collector.reduce(processes)
    metrics.reduce(processes, algorithm.device)
    sent = next(filter(None, all_sent), Transmission(0, 0))
    streams = streams.union(*all_streams)
    return sent._replace(streams=len(streams) or sent.streams), sorted(itertools.chain(*rejections))


def _lower(algorithm: Method) -> str:
    return f"lower algorithm.client_optimizer.lr (now {algorithm.local.optimizer.lr:g})"


def as_clients_have_it(algorithm: Method, federation: Federation, round_: int) -> tuple[Federation, Tensor]:
    """The federation, in which faulty clients may have other labels, and those clients, int64, ascending."""
    clients, faults = federation.clients(), algorithm.faults
    if faults is None:
        return federation, clients[:0]
    faulty = faults.faulty(clients, algorithm.seed, round_)
    return faults.with_other_labels(federation, faulty), faulty


def answering(algorithm: Method, cohort: Tensor, faulty: Tensor) -> tuple[Tensor, list[Rejection]]:
    """The clients of the cohort that answer, and those that do not; if none would, the first one does."""
    if algorithm.faults is None or algorithm.faults.answers:
        return cohort, []
    silent = torch.isin(cohort, faulty)
    if not algorithm.aggregation.samples_independently:  # else a round may be empty, as a cohort may
        silent[:1] &= not silent.all()
    return cohort[~silent], [Rejection(client, NO_ANSWER) for client in cohort[silent].tolist()]
