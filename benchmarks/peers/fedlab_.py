"""FedAvg by FedLab, standalone: a serial trainer in one process."""

import torch
import work as common
from fedlab.contrib.algorithm.fedavg import FedAvgSerialClientTrainer, FedAvgServerHandler
from fedlab.core.standalone import StandalonePipeline
from fedlab.utils import Aggregators, SerializationTool
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset


class Federation:
    """What a trainer asks its data set for."""

    def __init__(self, work: common.Work) -> None:
        self.datasets = [TensorDataset(*samples) for samples in work.clients]

    def get_dataloader(self, id: int, batch_size: int) -> DataLoader:
        """Of a client."""
        return DataLoader(self.datasets[id], batch_size=batch_size, shuffle=True)


class Trainer(FedAvgSerialClientTrainer):
    """Sends the number of samples along; FedLab's own sends the parameters alone."""

    def train(self, model_parameters: Tensor, train_loader: DataLoader) -> list[Tensor]:
        """One client's local training."""
        return [*super().train(model_parameters, train_loader), torch.tensor(float(len(train_loader.dataset)))]


class Server(FedAvgServerHandler):
    """Weights the average by samples, which FedLab's aggregator can and its handler does not."""

    clock: common.Clock

    def sample_clients(self) -> list[int]:
        """The first thing that happens in a round."""
        self.clock.start()
        return super().sample_clients()

    def global_update(self, buffer: list[list[Tensor]]) -> None:
        """The weighted average."""
        parameters, weights = zip(*buffer, strict=True)
        average = Aggregators.fedavg_aggregate(list(parameters), torch.stack(weights))
        SerializationTool.deserialize_model(self._model, average)


class Pipeline(StandalonePipeline):
    """FedLab calls `evaluate` after every round, nothing in between: the clock stops there."""

    def evaluate(self) -> None:
        """The round has ended."""
        self.handler.clock.stop()


def main() -> None:
    """Runs and prints the result."""
    options = common.arguments(__doc__).parse_args()
    work, model = common.prepare(options)
    trainer = Trainer(model, len(work.clients), cuda=False)
    trainer.setup_dataset(Federation(work))
    trainer.setup_optim(options.local_epochs, options.batch_size, options.lr)
    server = Server(model, options.rounds, sample_ratio=1.0, cuda=False)
    server.clock = common.Clock()
    Pipeline(server, trainer).main()
    common.report("fedlab", server.clock, server.model, work.test)


if __name__ == "__main__":
    main()
