"""How a round of FedEM grows with clients, components and the cohort, on the synthetic mixture.

    python benchmarks/growth.py [--clients 30] [--components 3] [--rounds 5] [--engine auto] [--json FILE]

Beside every factor of time stands the factor of work: of the cohort's training samples times components. All sizes run
in turn in one process; a time factor below that of the work means that fixed costs are shared out among more.
"""

from typing import NamedTuple

import torch

from common import alternate, finish, mixture, one_round, print_header, print_row, read_options, round_parser
from fedem_lightning import ClientSGD, FedEM, Linear, SyntheticMixture
from fedem_lightning.data.randomness import sample_cohort


class Size(NamedTuple):
    """Of a round."""

    clients: int
    cohort: int
    components: int

    def __str__(self) -> str:
        return f"{self.cohort} of {self.clients} clients, M = {self.components}"


def make_model(size: Size, data: SyntheticMixture, engine: str) -> FedEM:
    """FedEM of this size."""
    return FedEM(
        Linear(data.in_shape, data.n_outputs),
        data.n_clients,
        size.components,
        client_optimizer=ClientSGD(lr=0.1),
        participation=1.0 if size.cohort == size.clients else size.cohort,
        engine=engine,
    )


def work(size: Size, data: SyntheticMixture, model: FedEM) -> int:
    """The cohort's training samples, each once for every component; every timed round is a first one, so has this."""
    cohort = sample_cohort(torch.arange(data.n_clients), model.participation, model.seed, 0)
    return int(data.federation.splits["train"].counts(cohort).sum()) * size.components


def main() -> None:
    """Measures and prints."""
    parser = round_parser(__doc__)
    parser.add_argument("--clients", type=int, default=30, help="the smaller number; from 2 on")
    parser.add_argument("--components", type=int, default=3, help="the smaller number")
    parser.add_argument("--engine", choices=("auto", "loop", "vmap"), default="auto")
    options = read_options(parser)
    if options.clients < 2:
        parser.error("--clients: at least 2")
    t, m = options.clients, options.components
    small, large = Size(t, t, m), Size(10 * t, 10 * t, m)
    wide, part = Size(10 * t, 10 * t, 3 * m), Size(10 * t, t, m)
    data = {clients: mixture(clients) for clients in (t, 10 * t)}
    models = {size: make_model(size, data[size.clients], options.engine) for size in (small, large, wide, part)}
    works = {size: work(size, data[size.clients], model) for size, model in models.items()}
    ways = {str(size): one_round(model, data[size.clients], options.device) for size, model in models.items()}
    timings = alternate(ways, options.rounds)
    changes = {
        "clients x 10, all in every round": (small, large),
        "components x 3": (large, wide),
        "cohort x 10, the same clients": (part, large),
        "clients x 10, the same cohort": (small, part),
    }
    print_header(
        f"FedEM on the synthetic mixture, {options.rounds} rounds after one that warms up",
        *("what grows", "from", "to", "seconds from", "seconds to", "factor of time", "factor of work"),
    )
    rows = []
    for what, (before, after) in changes.items():
        seconds = [timings[str(size)] for size in (before, after)]
        factors = seconds[1].median / seconds[0].median, works[after] / works[before]
        print_row(what, before, after, *seconds, *(f"{factor:.2f}" for factor in factors))
        rows.append({"what": what, "from": str(before), "to": str(after), "time": factors[0], "work": factors[1]})
    finish(options, options.device, rows=rows, timings=timings)


if __name__ == "__main__":
    main()
