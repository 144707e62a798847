"""Clustered federated learning: clusters are split by the cosine similarity of client updates.

Sattler, Mueller, Samek: "Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization under Privacy
Constraints", IEEE TNNLS 2020, arXiv 1910.01991. Algorithms 1 (bipartition), 3 (training) and 4 (unseen clients).
"""

import warnings
from typing import Any, Literal

import numpy as np
import torch
from sklearn.cluster import AgglomerativeClustering
from torch import Tensor

from fedem_lightning.aggregate import Means, Models, Update
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.models.client_store import ClientStore
from fedem_lightning.models.components import Backbone, stacked_state
from fedem_lightning.models.personal_models import OwnModels
from fedem_lightning.module.algorithm import FederatedAlgorithm
from fedem_lightning.module.checks import check_everybody_trains
from fedem_lightning.settings.errors import require
from fedem_lightning.settings.ranges import Count, NotNegative
from fedem_lightning.state.history import Round

CHUNK = 2**22
"""Elements of the updates that are compared at a time."""
MAX_DEPTH = 5
"""Of the tree: there are 32 clusters at most."""


class Clustered(FederatedAlgorithm):
    """FedAvg in each cluster; a cluster near a stationary point whose client updates are still long is split in two.

    Clusters are the leaves of a binary tree: node v has the children 2v + 1 and 2v + 2, the root is 0. A split node
    keeps its model and its clients' last updates, by which unseen clients are assigned to a leaf (Alg. 4). In the round
    of the split each child already takes the mean of its own members.

    Args:
        backbone, n_clients, options: see `FederatedAlgorithm`. The server optimiser must be the plain average.
        eps1: a cluster is split only if its mean update is short, |sum_t (n_t / n_c) Delta_t| < eps1 ...
        eps2: ... and its longest is long, max_t |Delta_t| > eps2. Both depend on learning rate, model and steps; the
            metrics `mean_update_norm` and `max_update_norm` show them. "auto" (the paper's rule of thumb): eps1 is a
            tenth of the cluster's longest mean update so far, eps2 is 4 eps1, the ratio of the authors' code.
        min_rounds: number of initial rounds without splits.
        gamma_max: a cluster is split only if sqrt((1 - alpha_cross) / 2) > gamma_max; alpha_cross is the largest
            similarity between clients of different parts.

    """

    one_process = True  # the server compares the clients' updates one by one
    cluster: Tensor  # int64 [T], the leaf of each client
    split: Tensor  # bool [nodes]
    update_norms: Tensor  # |Delta_t| of the last round, [T]
    longest_mean: Tensor  # norm of each cluster's longest mean update so far, [nodes]

    def __init__(
        self,
        backbone: Backbone,
        n_clients: int,
        eps1: NotNegative | Literal["auto"] = 0.4,
        eps2: NotNegative | Literal["auto"] = 1.6,
        min_rounds: Count = 20,
        gamma_max: NotNegative = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(backbone, n_clients, n_components=1, **options)
        self.eps1, self.eps2, self.gamma_max = eps1, eps2, gamma_max
        self.min_rounds, n_nodes = min_rounds, 2 ** (MAX_DEPTH + 1) - 1
        self.cluster = self.per_client(torch.zeros(n_clients, dtype=torch.int64), column="cluster", held_by="both")
        self.register_buffer("split", torch.zeros(n_nodes, dtype=torch.bool))
        self.update_norms = self.per_client(torch.zeros(n_clients), held_by="both")
        self.register_buffer("longest_mean", torch.zeros(n_nodes))
        self.nodes = ClientStore(n_nodes, stacked_state(self.components), "server", of_clients=False)
        row = self.params_of(self.nodes[torch.tensor(0)])
        self.updates = self.per_client(row, held_by="both")  # Delta_t of the last round
        # the updates at the split of each level, client after client
        self.split_updates = ClientStore(MAX_DEPTH * n_clients, row, "server", of_clients=False, levels=MAX_DEPTH)

    def prepare(self, data: Federation) -> None:
        """Checks that every client takes part in every round: all client updates are compared."""
        check_everybody_trains(self, data)
        require(self.compression is None, "compression: Clustered compares the clients' whole updates")

    def initialize(self, data: Federation) -> None:
        """Warns if no cluster can be split."""
        rounds = f"min_rounds={self.min_rounds} of {self.statistics.planned_rounds} rounds"
        if self.min_rounds >= self.statistics.planned_rounds:
            warnings.warn(f"algorithm: Clustered cannot split, so it is FedAvg ({rounds})", stacklevel=2)

    def client_update(self, batch: Block, round_: int) -> Update:
        """Delta_t = local_sgd(theta_c) - theta_c, which the client also keeps for the comparison."""
        t = batch.clients
        theta = self.nodes[self.cluster[t]]  # [C, 1, ...]
        trained = self.local_sgd(theta, batch, round_)
        delta = {name: trained[name] - theta[name] for name in self.params_of(theta)}
        self.updates[t] = delta
        self.update_norms[t] = sum(d.flatten(1).square().sum(dim=1) for d in delta.values()).sqrt()  # type: ignore[union-attr]
        group = torch.searchsorted(self.leaves(batch.federation), self.cluster[t])
        return Update(trained, batch.counts(), start=theta, group=group, n_groups=self.n_groups, stream=group)

    def server_update(self, means: Means | None, round_: Round) -> None:
        """theta_c <- theta_c + sum_t (n_t / n_c) Delta_t, the mean of the members' models; then splits clusters."""
        leaves = self.leaves(round_.federation)
        for g, leaf in enumerate(leaves):
            if means is None or not means.nonempty[g]:
                continue
            theta = {name: rows[g] for name, rows in means.models.items()}  # [...]
            members = round_.cohort[self.cluster[round_.cohort] == leaf]
            side = self._bipartition(leaf, members, theta, round_.number)
            if side is None:
                self._serve(leaf, theta)
            else:
                self._split(leaf, members, side, theta, round_.federation)
        self.measure("clusters", torch.tensor([float(self.n_groups)]))

    def _serve(self, node: Tensor, theta: Models) -> None:
        self.nodes[node.view(1)] = {name: tensor[None, None] for name, tensor in theta.items()}

    def _split(self, leaf: Tensor, members: Tensor, side: Tensor, theta: Models, data: Federation) -> None:
        """Makes two children, each at theta_c + its members' mean update, with the buffers of the cluster's mean."""
        old = self.nodes[leaf]  # theta_c, where the members started  [1, ...]
        for child, half in ((2 * leaf + 1, members[~side]), (2 * leaf + 2, members[side])):
            self.cluster[half] = child
            mean = self.updates.mean(half, data.splits["train"].counts(half))  # [1, ...]
            self._serve(child, theta | {name: (old[name] + update)[0] for name, update in mean.items()})
        self.split_updates[depth(leaf) * self.n_clients + members] = self.updates[members]
        self.split[leaf] = True

    def _bipartition(self, leaf: Tensor, members: Tensor, theta: Models, round_: int) -> Tensor | None:
        """The part that each member joins, bool [c]; None: the cluster is not split."""
        old = self.nodes[leaf]
        a = sum((theta[name] - old[name][0]).square().sum() for name in self.params_of(old))
        a, b = float(a) ** 0.5, float(self.update_norms[members].max())
        for name, norm in (("mean_update_norm", a), ("max_update_norm", b)):
            self.measure(name, torch.tensor([norm]))
        self.longest_mean[leaf] = max(float(self.longest_mean[leaf]), a)
        eps1 = float(self.longest_mean[leaf]) / 10 if isinstance(self.eps1, str) else self.eps1
        eps2 = 4 * eps1 if isinstance(self.eps2, str) else self.eps2
        deepest = int(leaf) >= len(self.split) // 2
        if not (a < eps1 and b > eps2 and len(members) > 2 and round_ >= self.min_rounds) or deepest:
            return None
        similarity = cosine_similarities(self.updates[members])  # [c, c]
        clustering = AgglomerativeClustering(n_clusters=2, metric="precomputed", linkage="complete")  # as in their code
        side = clustering.fit_predict(1 - similarity).astype(bool)
        across = similarity[side][:, ~side].max()
        if np.sqrt(max(0.0, 1 - across) / 2) <= self.gamma_max:
            return None
        return torch.from_numpy(side).to(members.device)

    @property
    def n_groups(self) -> int:
        """Number of clusters."""
        return int(self.split.sum()) + 1

    def leaves(self, data: Federation) -> Tensor:
        """The nodes that are clusters, ascending."""
        return self.cluster[data.clients()].unique()

    def personal_models(self, clients: Tensor) -> OwnModels:
        """The model of each client's cluster."""
        return self.own_models(self.nodes[self.cluster[clients]])

    def personalize_clients(self, data: Federation, clients: Tensor) -> None:
        """Unseen clients go down the tree (Alg. 4); without samples they go to the left child."""
        for t in clients.split(1):
            batch = data.block(t, "train")
            self.cluster[t] = 0
            while self.split[self.cluster[t]]:
                self.cluster[t] = self._nearer_child(batch)

    def _nearer_child(self, batch: Block) -> Tensor:
        """The child of the client's node whose clients include the one with the most similar update at the split."""
        node = self.cluster[batch.clients]  # [1]
        theta, seen = self.nodes[node], batch.federation.clients()
        trained = self.local_sgd(theta, batch, self.statistics.rounds, state=None)
        own = {name: trained[name] - theta[name] for name in self.params_of(theta)}
        level = depth(node)
        best = []
        for child in (2 * node + 1, 2 * node + 2):
            side = seen[ancestor(self.cluster[seen], level + 1) == child]
            known = self.split_updates[level * self.n_clients + side]
            both = {name: torch.cat([own[name], known[name]]) for name in own}
            best.append(cosine_similarities(both)[0, 1:].max())
        return 2 * node + (1 if best[0] >= best[1] else 2)


def depth(node: Tensor) -> Tensor:
    """Depth of nodes in the tree; the root has depth 0."""
    return (node + 1).double().log2().long()


def ancestor(node: Tensor, level: Tensor | int) -> Tensor:
    """The nodes' ancestors at a level of the tree; -1 for a node above that level."""
    up = depth(node) - level
    return torch.where(up >= 0, ((node + 1) >> up.clamp(min=0)) - 1, -1)


def cosine_similarities(updates: Models) -> np.ndarray:
    """alpha_st = <Delta_s, Delta_t> / (|Delta_s| |Delta_t|), [c, c]; 0 for an update of length 0."""
    gram = sum(
        part.double() @ part.double().T
        for rows in updates.values()
        for part in rows.flatten(1).split(max(1, CHUNK // len(rows)), dim=1)
    )
    assert isinstance(gram, Tensor)
    norm = gram.diagonal().sqrt()
    scale = torch.where(norm > 0, 1 / norm, 0.0)
    similarity = scale.unsqueeze(1) * gram * scale
    return similarity.fill_diagonal_(1.0).clamp(-1, 1).cpu().numpy()
