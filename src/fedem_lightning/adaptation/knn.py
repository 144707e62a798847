"""kNN-Per: a client mixes its model's probabilities with the votes of its nearest training samples.

Marfoq, Neglia, Kameni, Vidal: "Personalized Federated Learning through Local Memorization", ICML 2022, arXiv
2111.09360. Section 3.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fedem_lightning.adaptation.base import GRID, Adaptation, Grid, SelectionSamples
from fedem_lightning.aggregation import Models
from fedem_lightning.data.block import Block
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.samples import Arrays
from fedem_lightning.errors import require
from fedem_lightning.models.components import model_state
from fedem_lightning.models.last_layer import one_sample
from fedem_lightning.models.neighbours import FeatureMixture, Neighbours, votes
from fedem_lightning.models.parts import head_layer
from fedem_lightning.models.personal_models import OwnModels, PersonalModels, SharedModels, client_means, parts_of
from fedem_lightning.models.tensors import call_with
from fedem_lightning.randomness import Purpose, fold
from fedem_lightning.settings.ranges import Positive, PositiveInt, PositiveShare
from fedem_lightning.tasks import BinaryClassification, Classification

if TYPE_CHECKING:
    from fedem_lightning.algorithms.base import FederatedAlgorithm


class KNN(Adaptation):
    """Client t predicts with lambda_t p_knn + (1 - lambda_t) p; p is its mixture of models before, none is trained.

    p_knn(y) ~ the sum of exp(-d^2 / (D sigma)) over those of the k nearest training samples that have label y; d is the
    distance of the features, and D their number; of several models, those of the one with
    the largest mixture weight. A client without training samples has lambda = 0. "lambda" is a column
    of the clients' table.

    Args:
        neighbours: k; a client with fewer samples takes all.
        scale: sigma.
        capacity: share of its training samples that a client stores, drawn at random; at least one.
        head: a regular expression found in the names of the head's tensors: the features are the inputs of its first
            layer. None: the head is the layer that computes the outputs.
        lambdas: the grid, in [0, 1].
        selection: "val": lambda has the lowest loss on validation samples; for a client without any, or with "train",
            on training samples, none of which is its own neighbour.

    """

    columns = ("lambda",)
    released = ()
    tunes = False

    def __init__(
        self,
        neighbours: PositiveInt = 10,
        scale: Positive = 1.0,
        capacity: PositiveShare = 1.0,
        head: str | None = None,
        lambdas: Grid = GRID,
        selection: SelectionSamples = "val",
    ) -> None:
        super().__init__(0, None)
        self.neighbours, self.scale, self.capacity = neighbours, scale, capacity
        self.head, self.selection = head, selection
        self.lambdas = tuple(sorted(float(value) for value in lambdas))

    def prepare(self, federation: Federation) -> None:
        """Refuses data without one class a sample, and without features."""
        task, samples = federation.task, federation.samples
        classes = isinstance(task, Classification | BinaryClassification) and task.n_targets == 1
        require(classes, "adaptation: KNN needs one class for each sample, the data has sequences or real targets")
        x = samples.x if isinstance(samples, Arrays) and federation.in_shape == (1,) else torch.zeros(0)
        alike = len(x) > 0 and bool((x == x[:1]).all())  # a density has no inputs
        require(not alike, "adaptation: KNN needs features, but all samples have the same x")

    def check_network(self, network: nn.Module, federation: Federation) -> None:
        """Refuses a head that the network does not have."""
        self._layer(network, federation)

    def _layer(self, network: nn.Module, federation: Federation) -> str:
        """The name of the layer whose inputs are the features."""
        return head_layer(network, self.head, "adaptation.head", one_sample(federation, network))

    @torch.no_grad()
    def adapt(self, algorithm: "FederatedAlgorithm", block: Block) -> OwnModels:
        """Stores each client's features and labels, and chooses its lambda."""
        layer = self._layer(algorithm.components[0], block.federation)
        personal = algorithm.personal_models(block.clients)
        base, state = self._base(personal, layer, block)
        draws = fold(algorithm.seed, Purpose.THINNED, block.index)
        kept = block if self.capacity == 1 else block.thinned(self.capacity, draws)  # the samples that clients store
        store = self._store(base, state, kept)
        share = self._best(base, state, store, block)
        share[kept.counts() == 0] = 0.0
        network = Neighbours(base, self.neighbours, self.scale)
        own = {"share": share, "features": store["features"], "labels": store["labels"]}
        models = {f"base.{name}": rows.unsqueeze(1) for name, rows in state.items()}
        models |= {name: rows.unsqueeze(1).to(getattr(network, name).dtype) for name, rows in own.items()}
        one = personal.mixture.new_ones(len(block.clients), 1)
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

    def _store(self, base: FeatureMixture, state: Models, kept: Block) -> Models:
        """The stored samples of each client: features [C, K, D], labels [C, K] (the class + 1) and positions [C, K]."""
        counts = kept.counts()
        some = call_with(base, _of(state, 0), one_sample(kept.federation, base))[0]  # any one has the features' width
        shape = (len(counts), max(1, int(counts.max())))  # K: of the client with the most samples
        features = some.new_zeros(*shape, some.shape[1])
        labels, positions = (torch.zeros(shape, dtype=torch.int64, device=counts.device) for _ in range(2))
        if len(kept.index):
            where = (kept.owner, kept.ranks())
            features[where] = _predicted(base, state, kept)[0]
            labels[where], positions[where] = kept.y() + 1, kept.index + 1
        return {"features": features, "labels": labels, "positions": positions}

    def _best(self, base: FeatureMixture, state: Models, store: Models, block: Block) -> Tensor:
        """Each client's lambda, float64 [C]: the one of the lowest loss, of equal ones the smallest."""
        losses = base.weights.new_zeros(len(block.clients), len(self.lambdas))
        undecided = torch.ones(len(block.clients), dtype=torch.bool, device=block.owner.device)
        for split in ("val", "train") if self.selection == "val" else ("train",):
            chosen = block if split == "train" else block.federation.block(block.clients, split)
            decided = undecided & (chosen.counts() > 0)
            if decided.any():
                found = client_means(self._losses(base, state, store, chosen), chosen)
                losses[decided] = found[decided]
            undecided &= ~decided
        best = losses.nan_to_num(nan=torch.inf, posinf=torch.inf).argmin(dim=1)
        return torch.tensor(self.lambdas, dtype=torch.float64, device=best.device)[best]

    def _losses(self, base: FeatureMixture, state: Models, store: Models, block: Block) -> Tensor:
        """-log of each label's probability for every lambda, [n, L]; a stored sample is not its own neighbour."""
        features, log_p = _predicted(base, state, block)
        y, votes_of_y = block.y().unsqueeze(1), []
        for c in block.owner.unique().tolist():
            mine = block.owner == c
            same = (block.index[mine] + 1).unsqueeze(1) == store["positions"][c]
            stored, labels = store["features"][c], store["labels"][c]
            p = votes(features[mine], stored, labels, log_p.shape[1], self.neighbours, self.scale, same)
            votes_of_y.append(p.gather(1, y[mine]))
        near, base_log_p = torch.cat(votes_of_y).log(), log_p.gather(1, y)  # [n, 1]
        share = log_p.new_tensor(self.lambdas)
        return -torch.logaddexp(share.log() + near, (1 - share).log() + base_log_p)


def _of(state: Models, c: int) -> Models:
    return {name: rows[c] for name, rows in state.items()}


def _predicted(base: FeatureMixture, state: Models, block: Block) -> tuple[Tensor, Tensor]:
    """Features and log-probabilities of the block's samples, each [n, ...], by their clients' networks."""
    parts = []
    for piece in block.pieces():
        present, counts = (found.tolist() for found in piece.owner.unique_consecutive(return_counts=True))
        for c, x in zip(present, parts_of(piece.x(base.weights.dtype), counts), strict=True):
            parts.append(call_with(base, _of(state, c), x))
    features, log_p = zip(*parts, strict=True)
    return torch.cat(features), torch.cat(log_p)
