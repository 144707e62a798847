"""FedAvg as one writes it first in PyTorch: for every client a DataLoader, a copy of the model, an optimiser."""

import copy

import torch
import work as common
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    """Runs and prints the result."""
    options = common.arguments(__doc__).parse_args()
    work, model = common.prepare(options)
    datasets = [TensorDataset(*samples) for samples in work.clients]
    total = sum(len(dataset) for dataset in datasets)
    clock = common.Clock()
    for _ in range(options.rounds):
        clock.start()
        average = {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}
        for dataset in datasets:
            local = copy.deepcopy(model).train()
            optimizer = torch.optim.SGD(local.parameters(), lr=options.lr)
            loader = DataLoader(dataset, batch_size=options.batch_size, shuffle=True)
            for _ in range(options.local_epochs):
                for x, y in loader:
                    optimizer.zero_grad()
                    cross_entropy(local(x), y).backward()
                    optimizer.step()
            for name, tensor in local.state_dict().items():
                average[name] += len(dataset) / total * tensor
        model.load_state_dict(average)
        clock.stop()
    common.report("torch", clock, model, work.test)


if __name__ == "__main__":
    main()
