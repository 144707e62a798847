"""How the components of a mixture begin: the warm-up of one model, and starting points trained on single clients."""

from typing import Any

import numpy as np
import torch
from pytorch_lightning.utilities import rank_zero_only
from torch import Tensor, nn

from fedem_lightning.aggregate import Mean, Means, Models, Update, WeightedMean
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.randomness import Purpose, draw_clients, generator
from fedem_lightning.method import Method
from fedem_lightning.models.components import arranged
from fedem_lightning.models.parts import model_bytes
from fedem_lightning.models.personal_models import client_means, component_losses
from fedem_lightning.models.tensors import call_with
from fedem_lightning.module.client_updates import count_special_round
from fedem_lightning.settings.ranges import Initialization
from fedem_lightning.state.history import Round


def clustered_models(algorithm: Method, federation: Federation, epochs: int) -> tuple[Models, list[int]] | None:
    """M models [M, ...], the means of the models of similar clients, and the sizes of the groups [M].

    Every candidate trains from component 0. A candidate is described by the losses of its samples under 10 M of these
    models, less their mean; k-means makes M groups of candidates. If a candidate is alone in its group, k-means runs
    again without it, and it joins the nearest group (trimmed k-means, Cuesta-Albertos, Gordaliza and Matran 1997). It
    counts as a special round. 40 M candidates are drawn from the seen clients; fewer, but 10 M, if their models would
    take 1 GB. None: training has lowered no client's loss.
    """
    rng, n_models = generator(algorithm.seed, Purpose.INITIAL), len(algorithm.components)
    n_candidates = max(10 * n_models, min(40 * n_models, 2**30 // model_bytes(algorithm.components[0])))
    candidates = draw_clients(federation.clients(), n_candidates, rng)
    work = epochs * federation.splits["train"].counts(candidates)
    count_special_round(algorithm, candidates, work, down=1 + min(len(work), 10 * n_models), up=1)
    trained = train_on_each(algorithm, federation, candidates, epochs)
    block = federation.block(candidates, "train")
    before = client_means(component_losses(algorithm.components[:1], block), block)  # [P, 1]
    lower = (client_means(algorithm.own_models(trained).losses(block), block) <= before).squeeze(1)  # NaN is not
    if not lower.any():
        return None
    candidates, trained = candidates[lower], {name: rows[lower] for name, rows in trained.items()}
    chosen = np.sort(rng.permutation(len(candidates))[: 10 * n_models])
    each = [_mean_losses(algorithm, federation, candidates, trained, int(s)) for s in chosen]
    group = _groups(torch.stack(each, dim=1).double().cpu().numpy(), chosen, n_models, algorithm.seed)
    mean, counts = WeightedMean(), federation.splits["train"].counts(candidates)
    mean.add(Update(trained, counts, {}, group=torch.from_numpy(group).to(candidates), n_groups=n_models))
    means = mean.compute()
    assert means is not None  # the candidates' models are finite
    models = {name: rows[torch.arange(n_models) % int(group.max() + 1)] for name, rows in means.models.items()}
    return models, np.bincount(group, minlength=n_models).tolist()


def _groups(losses: np.ndarray, chosen: np.ndarray, n_groups: int, seed: int) -> np.ndarray:
    """Groups of P candidates, int64 [P], by their losses [P, R] under the models of R of them; no order matters."""
    from sklearn.cluster import KMeans  # slow, and of no use to other methods

    losses = np.minimum(losses, losses[np.isfinite(losses)].max(initial=0.0))
    own = np.zeros(losses.shape, dtype=bool)
    own[chosen, np.arange(len(chosen))] = True
    lowest = np.where(own, np.inf, losses).min(axis=1, keepdims=True, initial=losses.max())  # under others' models
    losses = np.where(own, lowest, losses)  # its own model would part a candidate from all others
    losses = losses[:, np.argsort(losses.mean(axis=0))]
    profiles = losses - losses.mean(axis=1, keepdims=True)
    if len(np.unique(profiles, axis=0)) <= n_groups:
        return np.arange(len(profiles)) % n_groups
    kept = np.lexsort(profiles.T)
    while True:
        kmeans = KMeans(n_groups, n_init=10, random_state=seed % 2**32).fit(profiles[kept])
        single = np.bincount(kmeans.labels_)[kmeans.labels_] == 1
        if not single.any() or (~single).sum() < 2 * n_groups:
            return kmeans.predict(profiles)
        kept = kept[~single]  # a group of one client would be a component that hardly another client uses


def load_models(components: nn.ModuleList, models: Models) -> None:
    """Component m <- models[m], each tensor [M, ...]."""
    for m, component in enumerate(components):
        component.load_state_dict({name: t[m] for name, t in models.items()}, strict=False)


def train_on_each(algorithm: Method, federation: Federation, candidates: Tensor, epochs: int) -> Models:
    """Component 0 after training on each of the candidates [P], [P, 1, ...]."""
    parts = []
    for block in algorithm.local.blocks(federation, candidates):
        start = {name: tensor[:, :1] for name, tensor in algorithm.received(block.clients).items()}
        parts.append(algorithm.local_sgd(start, block, 0, epochs=epochs, state=None))
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


@torch.no_grad()
def _mean_losses(algorithm: Method, federation: Federation, candidates: Tensor, trained: Models, which: int) -> Tensor:
    """Every candidate's mean training loss under the model of candidate `which`, [P]."""
    block, dtype = federation.block(candidates, "train"), algorithm.parameter_dtype
    network = algorithm.components[0].eval()
    sums = torch.zeros(len(candidates), dtype=dtype, device=candidates.device)
    model = {name: arranged(tensor[which, 0], tensor.device) for name, tensor in trained.items()}
    for piece in block.pieces():
        losses = federation.task.losses(call_with(network, model, piece.x(dtype)), piece.y())
        sums.index_add_(0, piece.owner, losses.to(sums))
    return (sums / block.counts()).nan_to_num(torch.inf, torch.inf)


PATIENCE, LEAST_GAIN, LONGEST = 3, 0.03, 0.2
"""A warm-up ends when the validation loss has fallen by less than this share within so many rounds, or after this share
of the run's rounds."""

UNPLANNED = 100
"""In place of the number of a run's rounds that is not known."""

EPOCHS, SHARE = 20, 0.1
"""With "clusters" each candidate trains for `EPOCHS` passes over its samples, but for at most this share of the passes
of the whole run, and for at least one."""


class WarmUp:
    """The start of a mixture: rounds in which one model stands for all components, then different components.

    Args:
        algorithm: the mixture.
        initialization: "clusters": one model in a warm-up, then each component is the mean of the models of similar
            clients, which trained longer from there. "auto": "clusters", but "random" where clients are processes of
            their own or the aggregation is more than a mean. "random": each from its own seed, pi uniform, as in the
            paper. "shared": equal components and a random pi for every client, so that components differ by clients,
            not by labels.

    In the warm-up the components are one FedAvg model, which is sent and trained once (q = 1); pi does not change.
    It lasts until the loss of the validation samples (without them: of the training samples) hardly falls, for at most
    a fifth of the rounds.

    """

    def __init__(self, algorithm: Any, initialization: Initialization) -> None:
        self.algorithm, several = algorithm, len(algorithm.components) > 1
        self.is_auto = initialization == "auto" and several
        if initialization == "auto":
            initialization = "clusters" if type(algorithm.aggregation) is Mean else "random"
        self.initialization = initialization if several or initialization == "shared" else "random"
        algorithm.register_buffer("warmup_end", torch.tensor(-1 if self.initialization == "clusters" else 0))
        algorithm.register_buffer("warmup_losses", torch.zeros(PATIENCE + 1, dtype=torch.float64))  # of its last rounds
        if self.initialization == "clusters":
            algorithm.private_ok = False  # models of single clients are where components start
            algorithm.one_process = not self.is_auto  # which takes another start there

    @property
    def end(self) -> Tensor:
        """The number of rounds of the warm-up, int64 []; -1 until it is known."""
        return self.algorithm.get_buffer("warmup_end")

    def is_warming_up(self) -> bool:
        """Whether this round belongs to the warm-up."""
        return bool(self.end < 0) or self.algorithm.statistics.rounds < int(self.end)

    def of_all(self, means: Means | None) -> Means | None:
        """The means of all components, where clients may have sent one model for all."""
        if means is None:
            return None
        m = len(self.algorithm.components)
        models = {name: rows.expand(m, *rows.shape[1:]) for name, rows in means.models.items()}
        return means._replace(models=models, nonempty=means.nonempty.expand(m))

    def begin(self, federation: Federation) -> None:
        """The components of the first round, and the mixture weights."""
        algorithm, components = self.algorithm, self.algorithm.components
        if algorithm.tied is not None:
            algorithm.tied.tie()
        if self.is_auto:
            self._take_auto()
        if self.initialization == "random":
            Method.initialize(algorithm, federation)  # which refuses components that are equal
            return
        for component in components:
            component.load_state_dict(components[0].state_dict())
        if self.initialization != "clusters":
            self._draw_pi(federation)
        if self._is_over(0):
            self.differ(federation, 0)

    def _take_auto(self) -> None:
        """Says which start "auto" takes."""
        line = "start: components with random values, because the aggregation is no plain mean"
        if self.algorithm.remote is not None:
            self.initialization = "random"
            self.end.clamp_(min=0)
            line = "start: components with random values, because clients are processes of their own"
        elif self.initialization == "clusters":
            m = len(self.algorithm.components)
            line = f"start: one FedAvg model, then a component for each of {m} groups of similar clients"
        rank_zero_only(print)(line)

    def after(self, round_: Round) -> None:
        """Ends the warm-up after its last round, by which `server_update` has averaged."""
        losses, data, number = self.algorithm.get_buffer("warmup_losses"), round_.federation, round_.number + 1
        flat = False
        if self.end < 0:
            val, train = (data.block(data.clients(), split) for split in ("val", "train"))
            one = component_losses(self.algorithm.components[:1], val if len(val.index) else train)  # [n, 1]
            losses.copy_(torch.cat([losses[1:], one.double().mean().view(1)]))
            flat = round_.number >= PATIENCE and not losses[-1] < (1 - LEAST_GAIN) * losses[0]
        if flat or self._is_over(number):
            self.differ(data, number)

    def differ(self, federation: Federation, n_rounds: int) -> None:
        """Makes the components different after a warm-up of so many rounds; "shared" ones differ by pi."""
        self.end.fill_(n_rounds)
        if self.initialization != "clusters":
            return
        algorithm, local = self.algorithm, self.algorithm.local
        whole = SHARE * self._planned() * (local.epochs if local.steps is None else 1)  # passes
        result = clustered_models(algorithm, federation, min(EPOCHS, max(1, int(whole))))
        if result is None:
            line = "training on its own lowers no client's loss, so components get random mixture weights"
            self._draw_pi(federation)
        else:
            models, sizes = result
            if algorithm.tied is not None:
                models = algorithm.tied.mean_of_shared(models, torch.tensor(sizes))
            load_models(algorithm.components, models)
            if algorithm.tied is not None:
                algorithm.tied.tie()  # counters are no means
            algorithm.diagnostics["start"] = {"warmup_rounds": n_rounds, "group_sizes": sizes}
            line = f"after {n_rounds} rounds of one model, groups of {', '.join(map(str, sizes))} clients"
        rank_zero_only(print)(f"start: {line}")

    def _draw_pi(self, federation: Federation) -> None:
        """A random pi for every seen client, from a flat Dirichlet distribution."""
        pi, m = self.algorithm.pi, len(self.algorithm.components)
        drawn = generator(self.algorithm.seed, Purpose.INITIAL).dirichlet(np.ones(m), size=len(pi))  # [T, M]
        pi[federation.seen] = torch.from_numpy(drawn).to(pi)[federation.seen]

    def _is_over(self, n_rounds: int) -> bool:
        """Whether a warm-up of so many rounds has been as long as it may be."""
        return n_rounds >= int(LONGEST * self._planned()) if self.end < 0 else n_rounds == self.end

    def _planned(self) -> int:
        return max(0, self.algorithm.statistics.planned_rounds) or UNPLANNED
