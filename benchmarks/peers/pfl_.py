"""FedAvg by Apple's pfl, with its simulated backend and PyTorch model, on samples in tensors.

pfl takes the card where it finds one, and the device of PFL_PYTORCH_DEVICE otherwise; `benchmarks/gpu_worker.py` calls
`train` on a card.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
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
        for rows in torch.randperm(len(y), device=y.device).split(batch_size or len(y)):
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


class Rounds(TrainingProcessCallback):
    """Pfl tells its callbacks of the end of a round only: that is where the next one begins.

    Args:
        begin: called before each round.
        end: called after each round.

    """

    def __init__(self, begin: Callable[[], None], end: Callable[[], None]) -> None:
        self.begin, self.end = begin, end

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        """The first round begins."""
        self.begin()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """A round ends and the next begins."""
        self.end()
        self.begin()
        return False, Metrics()


def train(
    network: nn.Module,
    samples: Callable[[str], Sequence[Tensor]],
    next_user: Callable[[], str],
    rounds: Rounds,
    n_rounds: int,
    cohort: int,
    **local: float,
) -> None:
    """Trains the network in place; `samples` has x and y of a user, on the network's device.

    `local`: local_num_epochs, local_learning_rate, local_batch_size. Round 0 evaluates, which cannot be switched off.
    """
    federation = FederatedDataset(lambda user: ShuffledDataset(samples(user), user_id=user), next_user)
    backend = SimulatedBackend(federation, federation, postprocessors=[WeightByDatapoints()])
    module = Network(network)
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    parameters = NNAlgorithmParams(
        central_num_iterations=n_rounds,
        evaluation_frequency=n_rounds + 1,
        train_cohort_size=cohort,
        val_cohort_size=None,
    )
    hyper = NNTrainHyperParams(**local), NNEvalHyperParams(local_batch_size=None)
    FederatedAveraging().run(parameters, backend, model, *hyper, [rounds], send_metrics_to_platform=False)


def main() -> None:
    """Runs and prints the result."""
    import work as common  # it hides the GPUs

    options = common.arguments(__doc__).parse_args()
    work, network = common.prepare(options)
    users = [str(t) for t in range(len(work.clients))]
    samples = dict(zip(users, work.clients, strict=True))
    local = {"local_num_epochs": options.local_epochs, "local_learning_rate": options.lr}
    local["local_batch_size"] = options.batch_size
    clock = common.Clock()
    next_user = get_user_sampler("minimize_reuse", users)
    rounds = Rounds(clock.start, clock.stop)
    train(network, samples.__getitem__, next_user, rounds, options.rounds, len(users), **local)
    common.report("pfl", clock, network, work.test)


if __name__ == "__main__":
    main()
