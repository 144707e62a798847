"""Starting points of components, trained on the data of single clients."""

import numpy as np
import torch
from sklearn.cluster import KMeans
from torch import Tensor, nn

from fedem_lightning.aggregation import Models, Update, WeightedMean
from fedem_lightning.client_updates import count_special_round
from fedem_lightning.data.federation import Federation
from fedem_lightning.method import Method
from fedem_lightning.models.components import arranged
from fedem_lightning.models.parts import model_bytes
from fedem_lightning.models.personal_models import client_means, component_losses
from fedem_lightning.models.tensors import call_with
from fedem_lightning.randomness import Purpose, draw_clients, generator


def clustered_models(algorithm: Method, federation: Federation, epochs: int) -> tuple[Models, list[int]] | None:
    """M models, each the mean of the models of similar clients, weighted by samples.

    Every candidate trains from component 0. A candidate is described by the losses of its samples under 10 M of these
    models, less their mean; k-means makes M groups of candidates. If a candidate is alone in its group, k-means runs
    again without it, and it joins the nearest group (trimmed k-means, Cuesta-Albertos, Gordaliza and Matran 1997). It
    counts as a special round, in which candidates receive these models, too. 40 M candidates are drawn from the seen
    clients; fewer, but 10 M, if their models would take 1 GB.

    Returns:
        Models [M, ...], and the numbers of candidates in the groups [M]; None: training has lowered no client's loss.

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
    """Groups of P candidates, int64 [P], by their losses [P, R] under the models of the R chosen ones.

    Neither the candidates' order nor that of the models matters.
    """
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
    algorithm.local.observer.begin("starting points", len(candidates))
    for block in algorithm.local.blocks(federation, candidates):
        start = {name: tensor[:, :1] for name, tensor in algorithm.received(block.clients).items()}
        parts.append(algorithm.local_sgd(start, block, 0, epochs=epochs, state=None))
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


@torch.no_grad()
def _mean_losses(algorithm: Method, federation: Federation, candidates: Tensor, trained: Models, which: int) -> Tensor:
    """Every candidate's mean training loss under the model of candidate `which`, [P]."""
    block, network, dtype = (
        federation.block(candidates, "train"),
        algorithm.components[0].eval(),
        algorithm.parameter_dtype,
    )
    sums = torch.zeros(len(candidates), dtype=dtype, device=candidates.device)
    model = {name: arranged(tensor[which, 0], tensor.device) for name, tensor in trained.items()}
    for piece in block.pieces():
        losses = federation.task.losses(call_with(network, model, piece.x(dtype)), piece.y())
        sums.index_add_(0, piece.owner, losses.to(sums))
    return (sums / block.counts()).nan_to_num(torch.inf, torch.inf)
