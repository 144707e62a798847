"""FedAvg by Apple's pfl, with its simulated backend and PyTorch model."""

from collections.abc import Iterator

import torch
import work as common
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


class ShuffledDataset(Dataset):
    """Pfl's own keeps the batches of the first pass; the others shuffle at every pass, so this one does."""

    def iter(self, batch_size: int | None) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of one pass."""
        x, y = self.raw_data
        for rows in torch.randperm(len(y)).split(batch_size or len(y)):
            yield x[rows], y[rows]


class Network(nn.Module):
    """A network with the two methods that pfl asks for."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """To minimise."""
        return cross_entropy(self.network(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        """Of a user's samples."""
        return {"loss": Weighted(self.loss(x, y).item() * len(y), len(y))}


class RoundClock(TrainingProcessCallback):
    """Pfl tells its callbacks of the end of a round only: that is where the next one begins."""

    def __init__(self) -> None:
        self.clock = common.Clock()

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        """The first round begins."""
        self.clock.start()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """A round ends and the next begins."""
        self.clock.stop()
        self.clock.start()
        return False, Metrics()


def main() -> None:
    """Runs and prints the result."""
    options = common.arguments(__doc__).parse_args()
    work, network = common.prepare(options)
    users = [str(t) for t in range(len(work.clients))]
    datasets = {user: ShuffledDataset(samples, user_id=user) for user, samples in zip(users, work.clients, strict=True)}
    federation = FederatedDataset(datasets.__getitem__, get_user_sampler("minimize_reuse", users))
    backend = SimulatedBackend(federation, federation, postprocessors=[WeightByDatapoints()])
    module = Network(network)
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    parameters = NNAlgorithmParams(
        central_num_iterations=options.rounds,
        evaluation_frequency=options.rounds + 1,  # pfl evaluates in round 0 all the same, which is the warm-up
        train_cohort_size=len(users),
        val_cohort_size=None,
    )
    training = NNTrainHyperParams(
        local_num_epochs=options.local_epochs,
        local_learning_rate=options.lr,
        local_batch_size=options.batch_size,
    )
    rounds = RoundClock()
    evaluation = NNEvalHyperParams(local_batch_size=None)
    FederatedAveraging().run(parameters, backend, model, training, evaluation, [rounds], send_metrics_to_platform=False)
    common.report("pfl", rounds.clock, network, work.test)


if __name__ == "__main__":
    main()
