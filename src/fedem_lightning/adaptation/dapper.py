"""Dapper: data interpolation, a client's own samples mixed with samples of the central distribution.

Mansour, Mohri, Ro, Suresh: "Three Approaches for Personalization with Applications to Federated Learning", 2020, arXiv
2002.10619. Section 5, Figure 3; sources of global data: Appendix D.3.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from fedem_lightning.adaptation.base import GRID, Adaptation, Best, Grid, SelectionSamples, selection_losses
from fedem_lightning.client_optimizers import AnyClientOptimizer
from fedem_lightning.data.arrays import check_features, check_labels
from fedem_lightning.data.block import Block
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.formats import read_npz
from fedem_lightning.data.samples import Arrays, as_tensor
from fedem_lightning.data.splits import Positions
from fedem_lightning.errors import UserError, require
from fedem_lightning.models.personal_models import OwnModels
from fedem_lightning.randomness import Purpose, fold
from fedem_lightning.settings.ranges import Count, Positive
from fedem_lightning.tasks import Classification

if TYPE_CHECKING:
    from fedem_lightning.algorithms.base import FederatedAlgorithm


class Dapper(Adaptation):
    """Minimises lambda L_k + (1 - lambda) L_C (Eq. 5), starting at the central model, for each lambda of a grid.

    A client draws r n_k samples of C once. For each lambda it makes a pass over r n_k samples: each is one of its own
    with probability lambda (drawn with replacement), else the next sample of C. The client predicts with the model of
    the best lambda; "lambda" is a column of the clients' table.

    Args:
        ratio: r; each client receives r n_k samples of C.
        source: of the samples of C: "pool": training samples of the clients that train (after HypCluster and Clustered:
            of those in the client's cluster). "proxy": a public file. "model": labels drawn from the client's personal
            model, for density estimation, where all samples have the same x.
        proxy: an .npz file with x and y like the federation's; for "proxy".
        lambdas: the grid, in [0, 1]; 1 alone is Finetune on resampled data, 0 alone never uses a client's own samples.
        selection: "val": lambda has the lowest loss on validation samples; "train": on training samples (Fig. 3 as
            printed, which favours 1).
        epochs: passes over the drawn samples; the paper's is 1.
        client_optimizer: None: the algorithm's, at the learning rate of its first round.

    """

    columns = ("lambda",)

    def __init__(
        self,
        ratio: Positive = 5.0,
        source: Literal["pool", "proxy", "model"] = "pool",
        proxy: str | Path | None = None,
        lambdas: Grid = GRID,
        selection: SelectionSamples = "val",
        epochs: Count = 1,
        client_optimizer: AnyClientOptimizer | None = None,
    ) -> None:
        super().__init__(epochs, client_optimizer)
        require((proxy is not None) == (source == "proxy"), "proxy: expected a file with source=proxy only")
        self.ratio, self.source, self.proxy, self.selection = ratio, source, proxy, selection
        self.lambdas = tuple(sorted(float(value) for value in lambdas))
        self._public: Arrays | None = None
        self.released = ("other clients' training samples",) * (source == "pool")

    def prepare(self, federation: Federation) -> None:
        """Reads the proxy file; checks for "model" that labels alone can be drawn."""
        if self.source == "pool":
            return
        require(
            isinstance(federation.samples, Arrays), f"adaptation.source: {self.source} needs a federation of arrays"
        )
        assert isinstance(federation.samples, Arrays)
        if self.proxy is not None:
            self._public = read_proxy(self.proxy, federation)
        else:
            one_label = isinstance(federation.task, Classification) and federation.task.n_targets == 1
            x = federation.samples.x
            alike = one_label and bool((x == x[:1]).all())
            require(alike, "adaptation.source: model draws labels alone, so all samples must have the same x")

    def adapt(self, algorithm: "FederatedAlgorithm", block: Block) -> OwnModels:
        """h_lambda for each lambda, then the best of them."""
        best, central = Best(), algorithm.personal_models(block.clients)
        h_c, samples = central.models, self._central_samples(algorithm, block)
        for value in self.lambdas:
            interpolated = self._interpolated(algorithm.seed, block, samples, value)
            h = self.tune(algorithm, h_c, interpolated, central.sample_weights(interpolated))
            tuned = algorithm.own_models(h, central.mixture)
            losses = selection_losses(tuned, block, self.selection)
            best.offer(losses, models=h, share=torch.full_like(losses, value, dtype=torch.float64))
        models, share = best.value["models"], best.value["share"]
        tuned = algorithm.own_models(models, central.mixture)  # type: ignore[arg-type]
        return tuned._replace(columns={"lambda": share})  # type: ignore[dict-item]

    def _interpolated(self, seed: int, block: Block, central: Block, value: float) -> Block:
        """Replaces samples of `central`, each with probability `value`, by the client's own; lambdas share draws."""
        rank, counts = central.ranks(), block.counts()
        keys = fold(seed, Purpose.DAPPER, block.keys)[central.owner]  # [r n]
        own = fold(keys, 0, rank) < value * 2**32  # bool [r n]
        first = (counts.cumsum(0) - counts)[central.owner]
        place = first + fold(keys, 1, rank) % counts[central.owner]
        chosen = block.index[place] if central.federation is block.federation else place  # see `_beside`
        return Block(central.federation, block.clients, torch.where(own, chosen, central.index), central.owner)

    def _central_samples(self, algorithm: "FederatedAlgorithm", block: Block) -> Block:
        """The samples C': round(r n_k) for each client k, r n in all."""
        sizes = (self.ratio * block.counts()).round().long()  # [C]
        owner = torch.repeat_interleave(torch.arange(len(sizes), device=sizes.device), sizes)
        empty = Block(block.federation, block.clients, owner, owner)
        draws = fold(fold(algorithm.seed, Purpose.DAPPER, block.keys)[owner], 2, empty.ranks())  # in [0, 2^32)
        if self.source == "pool":
            return Block(block.federation, block.clients, _pooled(algorithm, block, owner, draws), owner)
        if self.source == "proxy":
            assert self._public is not None  # since `prepare`
            public = self._public = self._public.to(owner.device)
            return _beside(block, public, draws % len(public.y), owner)
        return _drawn_from_model(algorithm, block, owner, draws)


def _pooled(algorithm: "FederatedAlgorithm", block: Block, owner: Tensor, draws: Tensor) -> Tensor:
    """Positions of training samples of the clients that train, in the owner's group: int64 [r n]."""
    federation, found = block.federation, torch.zeros_like(owner)
    trained, groups = federation.clients(), algorithm.states.groups_of(block.clients)
    for group in groups.unique():
        members = trained[algorithm.states.groups_of(trained) == group]
        mine = groups[owner] == group
        found[mine] = _nth_samples(federation.splits["train"], members if len(members) else trained, draws[mine])
    return found


def _nth_samples(split: Positions, clients: Tensor, draws: Tensor) -> Tensor:
    """Positions of the clients' samples number `draws` (modulo the number of samples), int64."""
    ends = split.counts(clients).cumsum(0)  # [C]
    number = draws % ends[-1]
    which = torch.searchsorted(ends, number, right=True)
    drawn, where = which.unique(return_inverse=True)  # only these clients' samples are looked up
    index, counts = split.positions(clients[drawn])[0], split.counts(clients[drawn])
    first = counts.cumsum(0) - counts
    return index[first[where] + number - (ends[drawn] - counts)[where]]


def _beside(block: Block, more: Arrays, chosen: Tensor, owner: Tensor) -> Block:
    """A block of the samples `chosen` of `more`, in a federation of the block's samples and, after them, these."""
    own = block.federation.samples
    assert isinstance(own, Arrays)
    x, y = torch.cat([own.x[block.index], more.x[chosen]]), torch.cat([own.y[block.index], more.y[chosen]])
    both = block.federation.with_samples(Arrays(x, y, own.mean, own.std, own.invert))
    return Block(both, block.clients, len(block.index) + torch.arange(len(chosen), device=owner.device), owner)


def _drawn_from_model(algorithm: "FederatedAlgorithm", block: Block, owner: Tensor, draws: Tensor) -> Block:
    """Labels drawn from the clients' personal models; x is the value that all samples share."""
    samples, task = block.federation.samples, block.federation.task
    assert isinstance(samples, Arrays)  # since `prepare`
    personal = algorithm.personal_models(block.clients)
    first = block.counts().cumsum(0) - block.counts()
    has = torch.nonzero(block.counts() > 0).squeeze(1)  # clients with a sample  [C']
    one = Block(block.federation, block.clients, block.index[first[has]], has)
    y = torch.zeros_like(owner)
    if len(has):
        p = personal.predict(one).double().exp().cpu()  # [C', Y]
        ladder = (p.cumsum(dim=1).clamp(max=1) + torch.arange(len(has)).unsqueeze(1)).flatten()  # row c: [c, c + 1]
        row = torch.searchsorted(has, owner).cpu()
        y = torch.searchsorted(ladder, row + (draws.cpu() + 0.5) / 2**32) - row * task.n_outputs
        y = y.clamp(0, task.n_outputs - 1).to(owner.device)
    x = samples.x[:1].expand(len(y), *samples.x.shape[1:])
    return _beside(block, Arrays(x, y, samples.mean, samples.std, samples.invert), torch.arange(len(y)), owner)


def read_proxy(path: str | Path, federation: Federation) -> Arrays:
    """The file's x and y, prepared like the federation's own samples.

    Raises:
        UserError: the file, x or y is missing, or samples have another shape or other labels than the federation's.

    """
    file = Path(path).expanduser()
    try:
        arrays = read_npz(file, ("x", "y"))
    except UserError as error:
        raise UserError(re.sub("^path:", "adaptation.proxy:", str(error))) from error
    require("x" in arrays and "y" in arrays, f"adaptation.proxy: {path} lacks x or y")
    own = federation.samples
    n_classes = getattr(federation.task, "n_classes", None)
    classes = n_classes is not None and federation.task.n_targets == 1
    require(classes and isinstance(own, Arrays), "adaptation.proxy: expected a federation with labels")
    assert isinstance(own, Arrays)
    y, _ = check_labels(arrays["y"], n_classes, len(arrays["x"]))
    public = Arrays(as_tensor(check_features(arrays["x"])), as_tensor(y), own.mean, own.std, own.invert)
    fits = public.in_shape == own.in_shape
    require(fits, f"adaptation.proxy: expected samples of shape {own.in_shape}, got {public.in_shape}")
    return public
