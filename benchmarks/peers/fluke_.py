"""FedAvg by fluke (fluke-fl on PyPI)."""

import work as common
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import FastDataLoader
from fluke.utils import FederationObserver
from torch import nn


class RoundClock(FederationObserver):
    """Hears of the start and the end of every round."""

    def __init__(self) -> None:
        self.clock = common.Clock()

    def start_round(self, round: int, global_model: nn.Module) -> None:
        """A round begins."""
        self.clock.start()

    def end_round(self, round: int) -> None:
        """It ends."""
        self.clock.stop()


class Splitter:
    """Gives every client the samples it has in the work file; fluke's own splits one data set at random."""

    def __init__(self, work: common.Work) -> None:
        self.work = work

    def assign(self, n_clients: int, batch_size: int) -> tuple[tuple[list, list], None]:
        """((training loaders, test loaders), the server's test loader)."""
        loaders = [
            # by default it leaves out a batch of one sample
            FastDataLoader(
                *samples, num_labels=self.work.n_classes, batch_size=batch_size, shuffle=True, skip_singleton=False
            )
            for samples in self.work.clients
        ]
        return (loaders, [None] * n_clients), None


def main() -> None:
    """Runs and prints the result."""
    options = common.arguments(__doc__).parse_args()
    work, model = common.prepare(options)
    environment = FlukeENV()
    environment.set_seed(options.seed)
    environment.set_device("cpu")
    environment.set_inmemory(True)
    environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    client = DDict(
        batch_size=options.batch_size,
        local_epochs=options.local_epochs,
        loss="CrossEntropyLoss",
        optimizer=DDict(name="SGD", lr=options.lr),
        scheduler=DDict(name="StepLR", step_size=1, gamma=1),
    )
    parameters = DDict(model=model, client=client, server=DDict(weighted=True))
    algorithm = FedAVG(len(work.clients), Splitter(work), parameters)
    rounds = RoundClock()
    algorithm.set_callbacks([rounds])
    algorithm.run(n_rounds=options.rounds, eligible_perc=1.0)
    common.report("fluke-fl", rounds.clock, algorithm.server.model, work.test)


if __name__ == "__main__":
    main()
