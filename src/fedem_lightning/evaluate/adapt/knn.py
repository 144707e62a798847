"""kNN-Per: a client mixes its model's probabilities with the votes of its nearest training samples.

Marfoq, Neglia, Kameni, Vidal: "Personalized Federated Learning through Local Memorization", ICML 2022, arXiv
2111.09360. Section 3.
"""

import torch
from torch import Tensor, nn

from fedem_lightning.aggregate import Models
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.data.samples import Arrays
from fedem_lightning.data.tasks import BinaryClassification, Classification
from fedem_lightning.evaluate.adapt.base import GRID, Adaptation, Grid, selection_samples
from fedem_lightning.method import Method
from fedem_lightning.models.client_outputs import client_outputs
from fedem_lightning.models.components import model_state
from fedem_lightning.models.neighbours import FeatureMixture, Neighbours, votes
from fedem_lightning.models.parts import computed_last, one_sample
from fedem_lightning.models.personal_models import OwnModels, PersonalModels, SharedModels, client_means
from fedem_lightning.models.tensors import call_with
from fedem_lightning.settings.errors import require
from fedem_lightning.settings.ranges import Positive, PositiveInt


class KNN(Adaptation):
    """Client t predicts with lambda_t p_knn + (1 - lambda_t) p; p is its mixture of models before, none is trained.

    p_knn(y) ~ the sum of exp(-d^2 / (D sigma)) over those of the k nearest training samples that have label y; d is the
    distance of the features, and D their number; of several models, those of the one with the largest mixture weight. A
    client without training samples has lambda = 0.

    Args:
        neighbours: k; a client with fewer samples takes all.
        scale: sigma.
        lambdas: the grid, in [0, 1]. lambda has the lowest loss on validation samples; for a client without any, on
            training samples, none of which is its own neighbour.

    """

    columns = ("lambda",)
    private_ok = True
    tunes = False

    def __init__(self, neighbours: PositiveInt = 10, scale: Positive = 1.0, lambdas: Grid = GRID) -> None:
        super().__init__(0, None)
        self.neighbours, self.scale = neighbours, scale
        self.lambdas = tuple(sorted(float(value) for value in lambdas))

    def check(self, network: nn.Module, federation: Federation) -> None:
        """Refuses data without one class a sample or without features, and outputs that come from no single layer."""
        task, samples = federation.task, federation.samples
        classes = isinstance(task, Classification | BinaryClassification) and task.n_targets == 1
        require(classes, "adaptation: KNN needs one class for each sample, the data has sequences or real targets")
        x = samples.x if isinstance(samples, Arrays) and federation.in_shape == (1,) else torch.zeros(0)
        alike = len(x) > 0 and bool((x == x[:1]).all())  # a density has no inputs
        require(not alike, "adaptation: KNN needs features, but all samples have the same x")
        computed_last(network, one_sample(federation, network), "adaptation")

    @torch.no_grad()
    def adapt(self, algorithm: Method, block: Block) -> OwnModels:
        """Stores each client's features and labels, and chooses its lambda."""
        network = algorithm.components[0]
        layer = computed_last(network, one_sample(block.federation, network), "adaptation")
        personal, counts = algorithm.personal_models(block.clients), block.counts()
        base, state = self._base(personal, layer, block)
        anyone = {name: rows[0] for name, rows in state.items()}
        some, _ = call_with(base, anyone, one_sample(block.federation, base))  # for the features' width
        shape = (len(counts), max(1, int(counts.max())))  # K: of the client with the most samples
        features = some.new_zeros(*shape, some.shape[1])  # [C, K, D]
        labels, positions = counts.new_zeros(2, *shape)  # and 1; 0: none
        if len(block.index):
            where = (block.owner, block.ranks())
            features[where] = _predicted(base, state, block)[0]
            labels[where], positions[where] = block.y() + 1, block.index + 1
        chosen = selection_samples(block)
        share = torch.zeros(len(counts), dtype=torch.float64, device=counts.device)
        if len(chosen.index):
            losses = client_means(self._losses(base, state, features, labels, positions, chosen), chosen)
            best = losses.nan_to_num(nan=torch.inf, posinf=torch.inf).argmin(dim=1)  # of equal ones the smallest lambda
            share = torch.where(counts > 0, share.new_tensor(self.lambdas)[best], share)
        network = Neighbours(base, self.neighbours, self.scale)
        models = {f"base.{name}": rows.unsqueeze(1) for name, rows in state.items()}
        models |= {"features": features.unsqueeze(1), "labels": labels.unsqueeze(1)}
        models["share"] = share.unsqueeze(1).to(base.weights.dtype)
        one = personal.mixture.new_ones(len(counts), 1)
        return OwnModels(network, models, one, columns={"lambda": share})

    def _base(self, personal: PersonalModels, layer: str, block: Block) -> tuple[FeatureMixture, Models]:
        """The clients' mixtures as one module, and what differs by client, each [C, ...]."""
        shared, m = isinstance(personal, SharedModels), personal.mixture.shape[1]
        networks = personal.components if isinstance(personal, SharedModels) else [personal.backbone] * m
        base = FeatureMixture(list(networks), layer, block.federation.task, shared).eval()
        state: Models = {"weights": personal.mixture, "strongest": personal.mixture.argmax(dim=1)}
        models = personal.models
        for name in model_state(base):
            if name not in state:
                _, m_, rest = name.split(".", 2)
                state[name] = models[rest][:, int(m_)]
        return base, state

    def _losses(
        self, base: FeatureMixture, state: Models, stored: Tensor, labels: Tensor, positions: Tensor, block: Block
    ) -> Tensor:
        """-log of each label's probability for every lambda, [n, L]; a stored sample is not its own neighbour."""
        features, log_p = _predicted(base, state, block)
        y, near = block.y().unsqueeze(1), []
        for c in block.owner.unique_consecutive().tolist():
            mine = block.owner == c
            same = (block.index[mine] + 1).unsqueeze(1) == positions[c]
            p = votes(features[mine], stored[c], labels[c], log_p.shape[1], self.neighbours, self.scale, same)
            near.append(p.gather(1, y[mine]))
        share = log_p.new_tensor(self.lambdas)
        return -torch.logaddexp(share.log() + torch.cat(near).log(), (1 - share).log() + log_p.gather(1, y))


def _predicted(base: FeatureMixture, state: Models, block: Block) -> tuple[Tensor, Tensor]:
    """Features and log-probabilities of the block's samples, each [n, ...], by their clients' networks."""
    models, result = {name: rows.unsqueeze(1) for name, rows in state.items()}, list[Tensor]()
    for where, ((features, log_p),) in client_outputs(base, models, block):
        result = result or [t.new_empty(len(block.index), t.shape[1]) for t in (features, log_p)]
        result[0][where], result[1][where] = features, log_p
    return result[0], result[1]
