"""FedAvg as one writes it first in PyTorch: for every client a DataLoader, a copy of the model, an optimiser."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

Samples = tuple[Tensor, Tensor]
"""x [n, ...] and y int64 [n]."""


def fedavg_round(model: nn.Module, clients: Sequence[Samples], lr: float, batch_size: int, epochs: int = 1) -> None:
    """One round: the model <- the clients' models, averaged by their numbers of samples."""
    total = sum(len(y) for _, y in clients)
    average = {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}
    for samples in clients:
        local = copy.deepcopy(model).train()
        optimizer = torch.optim.SGD(local.parameters(), lr=lr)
        loader = DataLoader(TensorDataset(*samples), batch_size=batch_size, shuffle=True)
        for _ in range(epochs):
            for x, y in loader:
                optimizer.zero_grad()
                cross_entropy(local(x), y).backward()
                optimizer.step()
        for name, tensor in local.state_dict().items():
            average[name] += len(samples[1]) / total * tensor
    model.load_state_dict(average)


def main() -> None:
    """Runs and prints the result."""
    import work as common  # it hides the GPUs, which benchmarks/gpu_worker.py needs

    options = common.arguments(__doc__).parse_args()
    work, model = common.prepare(options)
    clock = common.Clock()
    for _ in range(options.rounds):
        clock.start()
        fedavg_round(model, work.clients, options.lr, options.batch_size, options.local_epochs)
        clock.stop()
    common.report("torch", clock, model, work.test)


if __name__ == "__main__":
    main()
