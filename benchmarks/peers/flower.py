"""FedAvg by Flower's simulation, with its Ray backend: as many clients at once as there are threads.

Ray starts its workers during the first round, so that one is long; a later round lasts at least 0.1 s, the time between
two looks of Flower's simulation at what has arrived.
"""

import logging
import os
from collections.abc import Iterable
from typing import Any

os.environ["FLWR_TELEMETRY_ENABLED"] = os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import torch
import work as common
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """One client's local training, in a worker process of Ray."""
    torch.set_num_threads(1)
    config = message.content["config"]
    work = common.load(config["work"])
    samples = TensorDataset(*work.clients[context.node_config["partition-id"]])
    model = common.make_model(config["model"], work.in_shape, work.n_classes, seed=0)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    torch.manual_seed(hash((config["seed"], config["server-round"], context.node_config["partition-id"])))
    for _ in range(config["local-epochs"]):
        for x, y in DataLoader(samples, batch_size=config["batch-size"], shuffle=True):
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(samples)})}
    return Message(content=RecordDict(content), reply_to=message)


class TimedFedAvg(FedAvg):
    """A round from the choice of its clients to the end of the average."""

    def __init__(self, clock: common.Clock, **options: Any) -> None:
        super().__init__(**options)
        self.clock = clock

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The round begins."""
        self.clock.start()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """It ends."""
        replies = list(replies)
        failed = [reply.error.reason for reply in replies if reply.has_error()]
        if failed:  # Flower would go on without them
            raise RuntimeError(f"{len(failed)} of {len(replies)} clients failed, the first: {failed[0]}")
        result = super().aggregate_train(server_round, replies)
        self.clock.stop()
        return result


def main() -> None:
    """Runs and prints the result."""
    options = common.arguments(__doc__).parse_args()
    work, model = common.prepare(options)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    clock, peak = common.Clock(), 0.0
    n_clients = len(work.clients)
    names = ("work", "model", "lr", "seed", "local_epochs", "batch_size")
    config = ConfigRecord({name.replace("_", "-"): getattr(options, name) for name in names})
    server_app = ServerApp()

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        nonlocal peak
        strategy = TimedFedAvg(clock, fraction_evaluate=0.0, min_train_nodes=n_clients, min_available_nodes=n_clients)
        start = ArrayRecord(model.state_dict())
        result = strategy.start(grid, start, num_rounds=options.rounds, train_config=config)
        model.load_state_dict(result.arrays.to_torch_state_dict())
        peak = common.peak_mb()  # while Ray's processes live

    resources = {"init_args": {"num_cpus": options.threads}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, num_supernodes=n_clients, backend_config=resources)
    common.report("flwr", clock, model, work.test, peak)


if __name__ == "__main__":
    main()
