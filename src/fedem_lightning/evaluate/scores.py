"""Scores of every client's personal model on its own samples, and their summaries over clients (FedEM, Sec. 4)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedem_lightning.data.federation import Block, Federation
from fedem_lightning.data.randomness import Purpose, draw_clients, generator, share_of
from fedem_lightning.data.splits import SPLITS
from fedem_lightning.data.tasks import Task
from fedem_lightning.evaluate.summaries import summarize
from fedem_lightning.method import Method
from fedem_lightning.models.em import add_by_owner
from fedem_lightning.models.personal_models import OwnModels, PersonalModels, SharedModels
from fedem_lightning.settings.measures import HIGHER_IS_BETTER
from fedem_lightning.state.processes import Processes

MOST_NUMBERS = 50_000_000
"""With more scores of test samples than this, none of them is kept."""


class SampleScores:
    """One score of each test sample, client after client in the order of the scored ones."""

    def __init__(self, federation: Federation, clients: Tensor) -> None:
        task = federation.task
        self.measure = task.measures[0] if task.measures[0] != "perplexity" else "loss"  # whose exp it is
        self._right_or_wrong = self.measure == "accuracy" and task.n_targets == 1
        self.n = federation.splits["test"].counts(clients)  # [C]
        self._next = self.n.cumsum(0) - self.n  # where the next sample of each client belongs
        # a process writes the rows of its clients, and the processes add up their bytes or floats
        dtype = torch.uint8 if self._right_or_wrong else torch.float32
        self.values = torch.zeros(int(self.n.sum()), dtype=dtype, device=self.n.device)

    def put(self, row: Tensor, values: Tensor) -> None:
        """Adds the scores [n] of clients' next samples; `row`: each one's client among the scored, int64 [n]."""
        clients, counts = row.unique_consecutive(return_counts=True)  # [c], [c]
        first = self._next[clients] - (counts.cumsum(0) - counts)  # place of a client's first sample, less its index
        places = torch.repeat_interleave(first, counts) + torch.arange(len(row), device=row.device)
        self.values[places] = values.to(self.values.dtype)
        self._next[clients] += counts

    def arrays(self) -> dict[str, np.ndarray]:
        """The content of test_samples.npz: n int64 [C], values bool or float32 [sum n], measure (a str)."""
        values = self.values.bool() if self._right_or_wrong else self.values
        return {"n": self.n.cpu().numpy(), "values": values.cpu().numpy(), "measure": np.array(self.measure)}


class ClientMeans:
    """Mean of each of the task's scores for every client; its perplexity is exp of its mean loss.

    Where samples have a score "n_known", a number of labels, it is their weight, so that a mean is that of all known
    labels.
    """

    def __init__(self, n_clients: int, task: Task, device: torch.device | None = None) -> None:
        self.task = task
        self.totals = torch.zeros(len(task.measures), n_clients, dtype=torch.float64, device=device)
        self.count = torch.zeros(n_clients, dtype=torch.float64, device=device)

    def update(self, scores: Mapping[str, Tensor], client: Tensor) -> None:
        """Adds the task's scores of n samples, by measure [n], of the clients int64 [n]."""
        weight = scores.get("n_known", torch.ones_like(client)).double()  # [n]
        for total, measure in zip(self.totals, self.task.measures, strict=True):
            add_by_owner(total, client, weight * scores[measure].double())
        add_by_owner(self.count, client, weight)

    def compute(self) -> dict[str, np.ndarray]:
        """Means by measure, [T] (losses in nats, accuracies in [0, 1]); NaN for a client without samples."""
        means = dict(zip(self.task.measures, self.totals / self.count, strict=True))
        means |= {"perplexity": means["loss"].exp()} if "perplexity" in means else {}
        return {measure: values.cpu().numpy() for measure, values in means.items()}


class Scores(NamedTuple):
    """Scores of C clients."""

    measures: dict[str, dict[str, np.ndarray]]  # split -> measure -> float64 [C]; NaN without samples
    columns: dict[str, np.ndarray]  # columns that their adaptation adds, float64 [C]
    sizes: dict[str, np.ndarray]  # split -> numbers of samples [C]; NaN: a client of its own that gave no scores
    samples: SampleScores | None = None  # of their test samples; None: the caller wants none, or there are too many


@torch.inference_mode(False)
@torch.no_grad()
def score(
    algorithm: Method,
    federation: Federation,
    clients: Tensor,
    own_data: Federation | None = None,
    by_sample: bool = False,
) -> Scores:
    """Scores `clients` (int64 [C]) on every split; each process its share of them, and their sums are added.

    An adaptation tunes on the training samples of `own_data`. `by_sample` keeps the scores of the test samples.
    """
    if algorithm.remote is not None:
        result: Scores = algorithm.remote.scores(algorithm, federation, clients)
        return result
    task, processes = federation.task, Processes.of(algorithm.trainer)
    small = int(federation.splits["test"].counts(clients).sum()) <= MOST_NUMBERS
    samples = SampleScores(federation, clients) if by_sample and small else None
    means = {split: ClientMeans(len(clients), task, clients.device) for split in SPLITS}
    zeros = torch.zeros(len(clients), dtype=torch.float64, device=clients.device)
    columns = {name: zeros.clone() for name in scored_columns(algorithm)}
    mine = torch.arange(len(clients), device=clients.device)[processes.rank :: processes.size]
    for rows, personal in models_scored(algorithm, own_data or federation, clients, mine):
        for name, column in columns.items():
            assert isinstance(personal, OwnModels)  # an adaptation's
            column[rows] = personal.columns[name].double()
        for split in SPLITS:
            block = federation.block(clients[rows], split)
            for piece in block.pieces() if len(block.index) else ():
                scores = task.scores(personal.predict(piece), piece.y())
                means[split].update(scores, rows[piece.owner])
                if samples is not None and split == "test":
                    samples.put(rows[piece.owner], scores[samples.measure])
    kept = [] if samples is None else [samples.values]
    processes.sum([*columns.values(), *kept, *(sums for m in means.values() for sums in (m.totals, m.count))])
    measures = {split: result.compute() for split, result in means.items()}
    sizes = {split: federation.splits[split].counts(clients).cpu().numpy() for split in SPLITS}
    return Scores(measures, {name: column.cpu().numpy() for name, column in columns.items()}, sizes, samples)


def scored_columns(algorithm: Method) -> tuple[str, ...]:
    """Names of the columns that an adaptation brings to the clients' table."""
    return () if algorithm.adaptation is None else algorithm.adaptation.columns


def scored_models(algorithm: Method, block: Block) -> PersonalModels:
    """The models with which the block's clients are scored: their personal models after the adaptation."""
    if algorithm.adaptation is None:
        return algorithm.personal_models(block.clients)
    adapted: PersonalModels = algorithm.adaptation.adapt(algorithm, block)
    return adapted


def models_scored(
    algorithm: Method, federation: Federation, clients: Tensor, mine: Tensor
) -> Iterator[tuple[Tensor, PersonalModels]]:
    """Indices in `clients`, and the models of these clients: all at once, or in blocks if clients have own models."""
    if not len(mine):
        return
    first = torch.zeros(1, dtype=torch.int64, device=algorithm.device)
    if algorithm.adaptation is None and isinstance(algorithm.personal_models(first), SharedModels):
        yield mine, algorithm.personal_models(clients[mine])
        return
    start = 0
    for block in algorithm.local.blocks(federation, clients[mine]):
        rows = mine[start : start + len(block.clients)]
        yield rows, scored_models(algorithm, block)
        start += len(block.clients)


def scores_of(personal: PersonalModels, federation: Federation) -> dict[str, dict[str, float]]:
    """The mean scores of the only client of a federation, by split and measure; NaN without samples."""
    task, single, result = federation.task, torch.zeros(1, dtype=torch.int64), {}
    for split in SPLITS:
        means, block = ClientMeans(1, task), federation.block(single, split)
        for piece in block.pieces() if len(block.index) else ():
            means.update(task.scores(personal.predict(piece), piece.y()), piece.owner)
        result[split] = {measure: float(value[0]) for measure, value in means.compute().items()}
    return result


def scored_clients(algorithm: Method, federation: Federation, seen: bool = True) -> Tensor:
    """The clients that are scored, ascending; they are the same at every evaluation of a run."""
    clients = federation.clients(seen)
    number = share_of(algorithm.scored_clients, len(clients))
    return draw_clients(clients, number, generator(algorithm.seed, Purpose.SCORED, int(seen)))


def all_scored_clients(algorithm: Method, federation: Federation) -> Tensor:
    """The scored clients, seen and unseen, ascending."""
    return torch.cat([scored_clients(algorithm, federation, seen) for seen in (True, False)]).sort().values


def curve_metrics(
    algorithm: Method, federation: Federation, result: Scores, splits: Sequence[str] = SPLITS
) -> dict[str, float]:
    """Metrics logged during training: scores of the seen clients on the splits, weighted by training samples.

    The first measure also pooled, each sample once, and of the worst tenth of the clients; see `summarize`.
    """
    n_train = result.sizes["train"]
    metrics = {} if algorithm.remote is None else {"scored_clients": float(np.isfinite(n_train).sum())}
    for split in splits:
        for measure, values in result.measures[split].items():
            sums = summarize(values, n_train, result.sizes[split], HIGHER_IS_BETTER[measure])
            if sums:
                metrics[f"{split}/{measure}"] = sums["weighted"]
            if sums and measure == federation.task.measures[0]:
                metrics |= {f"{split}/{measure}_{kind}": sums[kind] for kind in ("pooled", "bottom_decile")}
    return metrics
