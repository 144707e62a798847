"""FedFOMO: every client combines the models that lower the loss on its own validation samples.

Zhang, Sapra, Fidler, Yeung, Alvarez: "Personalized Federated Learning with First Order Model Optimization", ICLR 2021,
arXiv 2012.08565. Section 3; equation numbers are the paper's.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedem_lightning.aggregate import Means, Models
from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.data.randomness import Purpose, generator
from fedem_lightning.models.components import Backbone
from fedem_lightning.models.personal_models import OwnModels, client_means
from fedem_lightning.module.algorithm import FederatedAlgorithm
from fedem_lightning.settings.ranges import PositiveInt, Share
from fedem_lightning.state.history import Round
from fedem_lightning.state.network import Transmission

DECAY = 0.05
"""The decrease a round of the probability that a download is by chance."""


class FedFOMO(FederatedAlgorithm):
    """theta_i <- theta_i + sum_n w_in (theta_n - theta_i), scaled so that sum_n w_in = 1.

        w_in ~ max(0, L_i(theta_i) - L_i(theta_n)) / |theta_n - theta_i|

    L_i is the loss on client i's validation samples (where it has none, on its training samples), theta_i its model
    before local training and theta_n the trained models that it downloads, its own among them. An unseen client starts
    from the mean of the clients' models, trains once and takes one such step.

    Args:
        n_downloads: models that a client downloads a round, those with the largest affinity; None: the whole cohort's.
        exploration: probability that a download is the model of a random client instead, in the first round.

    """

    sends_models = False
    one_process = True  # clients receive the models of other clients
    affinity: Tensor  # P, the sum of the weights so far [T, T]

    def __init__(
        self,
        backbone: Backbone,
        n_clients: int,
        n_downloads: PositiveInt | None = None,
        exploration: Share = 0.3,
        **options: Any,
    ) -> None:
        super().__init__(backbone, n_clients, n_components=1, **options)
        self.n_downloads, self.exploration = n_downloads, exploration
        self.register_buffer("affinity", torch.zeros(n_clients, n_clients))
        self.models = self.per_client(self.components, held_by="both")  # theta_i, rows [1, ...]
        self.trained = self.per_client(self.components, held_by="both")  # the model that each client sent last

    def client_update(self, batch: Block, round_: int) -> None:
        """theta_i^t = local_sgd(theta_i^{t-1})."""
        self.trained[batch.clients] = self.local_sgd(self.models[batch.clients], batch, round_)

    def server_update(self, means: Means | None, round_: Round) -> None:
        """Every client of the cohort downloads models and combines them."""
        cohort = round_.cohort
        offered = cohort[self.trained.written[cohort]]
        epsilon = max(0.0, self.exploration - DECAY * round_.number)
        downloaded = torch.stack([self._choose(int(i), offered, epsilon, round_.number) for i in cohort])  # [C, N]
        used = downloaded | (offered == cohort.unsqueeze(1))  # a client's own model needs no download
        downloads, distinct = float(downloaded.sum(dim=1).double().mean()), int(downloaded.any(dim=0).sum())
        self.traffic = Transmission(downloads, up=1, streams=distinct)  # each distinct model is broadcast once
        w = self.step(round_.federation, cohort, offered, used)
        self.affinity[cohort.unsqueeze(1), offered] += w.to(self.affinity)

    def _choose(self, client: int, offered: Tensor, epsilon: float, round_: int) -> Tensor:
        """The offered models that a client downloads, bool [N]: by affinity; at random with probability `epsilon`."""
        rng = generator(self.seed, Purpose.DOWNLOADS, round_, client)
        others = np.flatnonzero(offered.cpu().numpy() != client)
        number = len(others) if self.n_downloads is None else min(self.n_downloads, len(others))
        affinity = self.affinity[client, offered].cpu().numpy()[others]
        ranked = others[np.lexsort((rng.random(len(others)), -affinity))]  # equal ones in random order
        chosen = [slot for slot, other in enumerate(ranked[:number]) if rng.random() >= epsilon]
        rest = rng.permutation(np.setdiff1d(others, ranked[chosen]))[: number - len(chosen)]
        taken = np.isin(np.arange(len(offered)), [*ranked[chosen], *rest])
        return torch.from_numpy(taken).to(offered.device)

    def step(self, data: Federation, clients: Tensor, offered: Tensor, used: Tensor) -> Tensor:
        """Updates the models of clients [C] by Eq. 4 and 5, from offered models of clients [N], as `used`, bool [C, N].

        It returns w_in before it is clipped at 0 and scaled, float64 [C, N]; 0 for models that are not used.
        """
        gain = torch.zeros(used.shape, dtype=torch.float64, device=clients.device)
        before = self._losses_of_own(data, clients)  # L_i(theta_i)  [C]
        for n, other in enumerate(offered):
            mine = torch.nonzero(used[:, n]).squeeze(1)
            if len(mine):
                after = self._losses_of(self.trained[other], _judging(data, clients[mine]))
                gain[mine, n] = before[mine] - after
        w = gain / self._distances(clients, offered)
        w = torch.where(used & w.isfinite(), w, 0.0)
        for i, row in zip(clients, w.clamp(min=0), strict=True):
            if row.any():
                helpful = row > 0
                mean = self.trained.mean(offered[helpful], row[helpful])  # theta_i + sum w (theta_n - theta_i)
                self.models[i.view(1)] = {name: rows.unsqueeze(0) for name, rows in mean.items()}
        return w

    def _losses_of_own(self, data: Federation, clients: Tensor) -> Tensor:
        """Every client's mean validation loss under its own model, float64 [C]."""
        batches = [_judging(data, part) for part in clients.split(64)]
        losses = [self.own_models(self.models[batch.clients]).losses(batch).double() for batch in batches]
        return torch.cat([client_means(*pair)[:, 0] for pair in zip(losses, batches, strict=True)])

    def _losses_of(self, model: Models, batch: Block) -> Tensor:
        """Every client's mean loss under one model [1, ...], float64 [C]."""
        everyone = Block(batch.federation, batch.clients[:1], batch.index, torch.zeros_like(batch.owner))
        single = self.own_models({name: rows.unsqueeze(0) for name, rows in model.items()})
        losses = [single.losses(piece) for piece in everyone.pieces()]
        return client_means(torch.cat(losses).double(), batch)[:, 0]

    def _distances(self, clients: Tensor, offered: Tensor) -> Tensor:
        """|theta_n - theta_i| over parameters, float64 [C, N]; a distance of 0 leads to weight 0."""
        total = torch.zeros(len(clients), len(offered), dtype=torch.float64, device=clients.device)
        for part, rows in zip(clients.split(64), total.split(64), strict=True):
            own = self.params_of(self.models[part])
            for n, other in enumerate(offered):
                theirs = self.trained[other]
                rows[:, n] = sum((theirs[name] - own[name]).flatten(1).double().square().sum(dim=1) for name in own)
        return total.sqrt()

    def personal_models(self, clients: Tensor) -> OwnModels:
        """Each client predicts with its own model."""
        return self.own_models(self.models[clients])

    def personalize_clients(self, data: Federation, clients: Tensor) -> None:
        """From the mean model, an unseen client takes one local round, and one step with the clients' last models."""
        known, mean = data.clients(), self.models.mean(data.clients())
        offered = known[self.trained.written[known]]
        for batch in self.batches(data, clients):
            t = batch.clients
            self.models[t] = {name: rows.expand(len(t), *rows.shape) for name, rows in mean.items()}
            self.client_update(batch, self.statistics.rounds)
            own = t[self.trained.written[t]]
            downloaded = torch.stack([self._choose(int(i), offered, 0.0, 0) for i in t])  # [C, N]
            used = torch.cat([downloaded, own == t.unsqueeze(1)], dim=1)
            self.step(data, t, torch.cat([offered, own]), used)


def _judging(data: Federation, clients: Tensor) -> Block:
    """The clients' validation samples; for clients without any, their training samples."""
    val, train = (data.block(clients, split) for split in ("val", "train"))
    instead = (val.counts() == 0)[train.owner]
    index, owner = (torch.cat([a, b[instead]]) for a, b in ((val.index, train.index), (val.owner, train.owner)))
    order = owner.argsort(stable=True)
    return Block(data, clients, index[order], owner[order])
