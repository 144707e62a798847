"""A communication round: cohort -> blocks -> client updates -> aggregation -> server step -> costs.

`FederatedAlgorithm.training_step` runs it once an epoch: an epoch is a round.
"""

import time

from torch import Tensor

from fedem_lightning.aggregation import Means, WeightedMean, check_sent
from fedem_lightning.data.federation import Federation
from fedem_lightning.errors import UserError
from fedem_lightning.history import Round, RoundMetrics
from fedem_lightning.models.frozen import frozen_bytes
from fedem_lightning.network import Clocks, Traffic, Transmission
from fedem_lightning.processes import Processes
from fedem_lightning.protocol import Algorithm


def run_round(algorithm: Algorithm, federation: Federation) -> dict[str, float]:
    """Runs one round of any algorithm; returns the metrics to log."""
    start = time.perf_counter()
    round_, statistics = algorithm.current_epoch, algorithm.statistics
    if round_ == 0:
        algorithm.initialize(federation)
    drawn = algorithm.cohort(federation, round_)
    clocks = Clocks(algorithm.networks, drawn, algorithm.local_work(federation, drawn, round_), algorithm.seed, round_)
    cohort = drawn[clocks.in_time.to(drawn.device)]
    means = train_clients(algorithm, federation, cohort, round_)
    algorithm.server_update(means, Round(round_, federation, cohort))
    sent = algorithm.transmission(drawn)
    traffic = with_frozen(algorithm, drawn, sent.traffic(len(drawn), len(cohort), algorithm.message_bytes))
    statistics.count(traffic, clocks.times(traffic))
    statistics.stragglers += len(drawn) - len(cohort)
    statistics.round_seconds.append(time.perf_counter() - start)
    statistics.tick()
    return {
        "round": round_ + 1,
        "lr": algorithm.lr_at(round_),
        "cohort": len(cohort),
        "seconds": statistics.round_seconds[-1],
        **statistics.totals(),
        **algorithm.round_metrics.means(),
    }


def train_clients(algorithm: Algorithm, federation: Federation, cohort: Tensor, round_: int) -> Means | None:
    """Runs the cohort's client updates, shared among the Trainer's processes; returns their average (None: none sent).

    Raises:
        UserError: no client update was finite.

    """
    processes = Processes.of(algorithm.trainer)
    shares = processes.deal(cohort, federation.splits["train"].counts(cohort))
    mine = shares[processes.rank]
    algorithm.observer.begin("clients", len(mine))
    mean, algorithm.round_metrics = WeightedMean(), RoundMetrics()
    for block in algorithm.blocks(federation, mine):
        update = algorithm.client_update(block, round_)
        check_sent(algorithm, update)
        if update is not None:
            mean.add(update)
    mean.reduce(processes)
    algorithm.round_metrics.reduce(processes, algorithm.device)
    processes.exchange_rows(algorithm.client_state(), shares)
    sent, kept = mean.rejected, algorithm.round_metrics.rejected  # numbers of updates that were not finite
    algorithm.statistics.rejected_updates += sent + kept
    if len(cohort) in (sent, kept):
        raise UserError(
            f"training diverged: in round {round_ + 1} no client's update was finite; "
            f"lower algorithm.client_optimizer.lr (now {algorithm.client_optimizer.lr:g})"
        )
    return mean.compute()


def count_special_round(algorithm: Algorithm, federation: Federation, down: float, up: float) -> None:
    """Counts a special round, in which all clients that train take part, whatever the cohort and the deadline.

    Every client receives the same `down` models, computes the gradients of its training samples, and sends `up` models.
    """
    clients, statistics = federation.clients(), algorithm.statistics
    statistics.special_rounds += 1
    work = federation.splits["train"].counts(clients)
    clocks = Clocks(algorithm.networks, clients, work, algorithm.seed, -statistics.special_rounds, limited=False)
    traffic = Transmission(down, up).traffic(len(clients), len(clients), algorithm.message_bytes)
    traffic = with_frozen(algorithm, clients, traffic)
    statistics.count(traffic, clocks.times(traffic))


def with_frozen(algorithm: Algorithm, clients: Tensor, traffic: Traffic) -> Traffic:
    """A round's traffic, including the frozen parameters for clients that receive a model for the first time.

    The server broadcasts them once for all of these clients. Without a server (graphs, Local) clients have them from
    the start, like their first models.

    Args:
        algorithm: it records which clients have them.
        clients: clients that receive from the server in this round, int64 [C].
        traffic: the round's traffic without them.

    """
    n_bytes = frozen_bytes(algorithm.components[0])
    new = clients[~algorithm.has_frozen[clients]]
    if not n_bytes or not traffic.streams or not len(new):
        return traffic
    algorithm.has_frozen[new] = True
    models = n_bytes / traffic.model_bytes
    return traffic._replace(
        down=traffic.down + models * len(new), streams=traffic.streams + models, on_air=traffic.on_air + models
    )
