"""A mixture of networks, and the nearest of a client's samples by the networks' features, as one module: kNN-Per."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedem_lightning.data.samples import Inputs
from fedem_lightning.data.tasks import Task
from fedem_lightning.models.heads import with_inputs_of
from fedem_lightning.models.personal_models import mixed
from fedem_lightning.models.tensors import SizedByState, share_frozen
from fedem_lightning.settings.ranges import Positive, PositiveInt
from fedem_lightning.settings.recipes import Recorded

FAR = 1e30  # a distance larger than every other one; no sample is so far away


class FeatureMixture(Recorded, nn.Module):
    """M networks, of which it holds copies: their mixture (FedEM, Eq. 5), and the features of the one that weighs most.

    These are the inputs of `layer`. A network may hold it in several parts: then their features stand side by side.
    Networks that are `shared`, the same for all clients, are no part of a client's model.
    """

    takes_samples = True
    weights: Tensor  # of the networks, [M]
    strongest: Tensor  # int64 [], the network with the largest weight

    def __init__(self, networks: Sequence[nn.Module], layer: str, task: Task, shared: bool = True) -> None:
        super().__init__()
        self.networks = nn.ModuleList(copy.deepcopy(network) for network in networks)
        for network in self.networks[1:]:
            share_frozen(network, self.networks[0])
        if shared:
            self.networks.requires_grad_(False)
        self.layer, self.task = layer, task
        like = next(self.networks.parameters())  # on the networks' device
        self.register_buffer("weights", like.new_full((len(networks),), 1 / len(networks)))
        self.register_buffer("strongest", torch.tensor(0, device=like.device))

    def forward(self, x: Inputs) -> tuple[Tensor, Tensor]:
        """Features and the mixture's prediction: x [n, ...] -> [n, D], log-probabilities [n, Y]."""
        result = [features_and_outputs(network, self.layer, x) for network in self.networks]
        features = torch.stack([z for z, _ in result]).index_select(0, self.strongest.view(1)).squeeze(0)
        return features, mixed(self.task, [outputs for _, outputs in result], self.weights)


def features_and_outputs(network: nn.Module, layer: str, x: Inputs) -> tuple[Tensor, Tensor]:
    """The inputs of a layer, flat, and the network's outputs: x [n, ...] -> [n, D], [n, ...]."""
    parts = (part for name, part in network.named_modules() if f".{name}".endswith(f".{layer}"))
    outputs, seen = with_inputs_of(network, parts, x)
    return torch.cat([inputs.flatten(1) for inputs in seen], dim=1), outputs


class Neighbours(SizedByState, Recorded, nn.Module):
    """lambda p_knn + (1 - lambda) p: p is the mixture of a client's networks, p_knn the vote of its samples."""

    takes_samples = True
    sized = ("features", "labels")
    share: Tensor  # lambda, []
    features: Tensor  # of the stored samples, [K, D]
    labels: Tensor  # int64 [K], the class + 1; 0: no sample

    def __init__(self, base: FeatureMixture, neighbours: PositiveInt = 10, scale: Positive = 1.0) -> None:
        super().__init__()
        self.base, self.neighbours, self.scale = base, neighbours, scale
        self.register_buffer("share", base.weights.new_zeros(()))
        self.register_buffer("features", base.weights.new_zeros(0, 0))
        self.register_buffer("labels", torch.zeros(0, dtype=torch.int64, device=base.weights.device))

    def forward(self, x: Inputs) -> Tensor:
        """Outputs: [n, ...] -> [n, Y], the mixture's log-probabilities; in a binary task [n, 1], its logit."""
        features, log_p = self.base(x)
        near = votes(features, self.features, self.labels, log_p.shape[1], self.neighbours, self.scale).log()
        return self.base.task.outputs(torch.logaddexp(self.share.log() + near, (1 - self.share).log() + log_p))


def votes(
    queries: Tensor,
    features: Tensor,
    labels: Tensor,
    n_classes: int,
    neighbours: int = 10,
    scale: float = 1.0,
    left_out: Tensor | None = None,
) -> Tensor:
    """p_knn(y) ~ the sum of exp(-d^2 / (D sigma)) over the k nearest samples with label y: [n, Y].

    Queries are features [n, D]; the stored samples have features [K, D] and labels int64 [K], the class + 1, or 0 for
    no sample. Those in `left_out`, bool [n, K], do not vote on a query. Zeros where no sample votes.

    Example:
        >>> features = torch.tensor([[0.0], [0.0], [9.0]])
        >>> votes(torch.zeros(1, 1), features, torch.tensor([1, 2, 2]), n_classes=2, neighbours=2)
        tensor([[0.5000, 0.5000]])

    """
    squares = queries.square().sum(dim=1, keepdim=True) + features.square().sum(dim=1)
    distances = (squares - 2 * queries @ features.T).relu() / (queries.shape[1] * scale)  # [n, K]
    distances = torch.where(labels > 0, distances.clamp(max=FAR / 2), FAR)
    if left_out is not None:
        distances = torch.where(left_out, FAR, distances)
    nearest, which = distances.topk(min(neighbours, len(labels)), dim=1, largest=False)  # [n, k]
    weights = torch.softmax(-nearest, dim=1) * (nearest < FAR)
    classes = torch.arange(1, n_classes + 1, device=labels.device)
    return (weights.unsqueeze(2) * (labels[which].unsqueeze(2) == classes)).sum(dim=1)
