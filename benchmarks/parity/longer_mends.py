"""Mends of PFLlib's APFL, FedALA, FedAS, FedDBE, FedFomo and Per-FedAvg; see `mends.py`."""

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from mends import MENDS as MENDS
from mends import Shared, client, mend, restored, there
from torch import Tensor, nn


@mend("apfl", "clientapfl.py 36-72")
def apfl_algorithm(shared: Shared) -> None:
    """Alg. 1: v <- v - eta alpha grad f(alpha v + (1 - alpha) w), alpha moves once a round."""
    kind = client("APFL")
    test = kind.test_metrics

    def mixture(self: Any) -> nn.Module:
        mixed = copy.deepcopy(self.model)
        for p, v in zip(mixed.parameters(), self.model_per.parameters(), strict=True):
            p.data = self.alpha * v.data + (1 - self.alpha) * p.data
        return mixed

    def train(self: Any) -> None:
        loader, first = self.load_train_data(), True
        w, v = list(self.model.parameters()), list(self.model_per.parameters())
        for x, y in (batch for _ in range(self.local_epochs) for batch in loader):
            mixed = mixture(self)
            g_w = torch.autograd.grad(self.loss(self.model(x), y), w)
            g_mixed = torch.autograd.grad(self.loss(mixed(x), y), list(mixed.parameters()))
            slope = sum(float(((b.data - a.data) * g).sum()) for a, b, g in zip(w, v, g_mixed, strict=True))
            for a, b, g_a, g in zip(w, v, g_w, g_mixed, strict=True):
                a.data -= self.learning_rate * g_a
                b.data -= self.learning_rate * self.alpha * g
            if first:
                self.alpha, first = float(np.clip(self.alpha - self.learning_rate * slope, 0, 1)), False

    def scored(self: Any) -> Any:
        own, self.model_per = self.model_per, mixture(self)  # with the newest w
        found = test(self)
        self.model_per = own
        return found

    kind.train, kind.test_metrics = train, scored


@mend("fedala", "ALA.py 47, 142-151")
def fedala_first_learning(shared: Shared) -> None:
    """The first learning ends when ten losses, over all samples, deviate by under 0.01."""
    kind = there("utils.ALA", "ALA")
    once = kind.adaptive_local_aggregation

    def learn(self: Any, w: nn.Module, own: nn.Module) -> None:
        same = all(torch.equal(a, b) for a, b in zip(w.parameters(), own.parameters(), strict=True))
        if same or not self.start_phase:
            return once(self, w, own)
        self.start_phase, losses = False, list[float]()
        x, y = (torch.stack(part) for part in zip(*self.train_data, strict=True))
        while True:
            start = copy.deepcopy(own.state_dict())
            once(self, w, own)  # a pass, as in later rounds
            losses.append(float(self.loss(own(x), y)))
            if len(losses) == 100 or (len(losses) >= 10 and np.std(losses[-10:]) < 0.01):
                return None
            own.load_state_dict(start)

    kind.adaptive_local_aggregation = learn


@mend("fedfomo", "serverfomo.py 39, clientfomo.py 28")
def fedfomo_scores(shared: Shared) -> None:
    """Theta_i predicts after Eq. 5, not before it is combined."""
    kind = client("Fomo")
    test = kind.test_metrics

    def scored(self: Any) -> Any:
        with restored(self.model):
            self.aggregate_parameters(self.load_train_data()[1])
            return test(self)

    kind.test_metrics = scored


@mend("fedfomo", "clientfomo.py 143, 157-165")
def fedfomo_start(shared: Shared) -> None:
    """Eq. 4 starts at theta_i^{t-1}, which stays where no model helps."""
    kind = client("Fomo")
    combine = kind.aggregate_parameters

    def combined(self: Any, val_loader: Any) -> None:
        if self.received_models:
            self.clone_model(self.old_model, self.model)
        combine(self, val_loader)

    kind.aggregate_parameters = combined


@mend("fedfomo", "clientfomo.py 97, 130-135")
def fedfomo_weights(shared: Shared) -> None:
    """W_in = (L_i(theta_i) - L_i(theta_n)) / |theta_n - theta_i|, of mean losses."""

    @torch.no_grad()
    def loss(self: Any, model: nn.Module, val_loader: Any) -> float:
        pairs = [(float(self.loss(model(x), y)), len(y)) for x, y in val_loader]
        return sum(mean * n for mean, n in pairs) / sum(n for _, n in pairs)

    def weights(self: Any, val_loader: Any) -> Tensor:
        before, found = loss(self, self.old_model, val_loader), list[Tensor]()
        for other in self.received_models:
            away = [(a - b).flatten() for a, b in zip(other.parameters(), self.old_model.parameters(), strict=True)]
            found.append((before - loss(self, other, val_loader)) / torch.cat(away).detach().norm())
        self.weight_vector_update(found)
        return torch.tensor(found)

    client("Fomo").weight_cal = weights


class Halves:
    """Batches of a loader, whose halves a client tells apart by its `batch_size`; a single sample has no halves."""

    def __init__(self, of: Any, loader: Any) -> None:
        self.of, self.loader = of, loader

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Batch after batch."""
        for x, y in self.loader:
            if len(y) > 1:
                self.of.batch_size = -(-len(y) // 2)
                yield x, y


@mend("per_fedavg", "clientperavg.py 24-59")
def perfedavg_halves(shared: Shared) -> None:
    """D and D' are halves of every batch, also of the last, short one."""
    kind = client("PerAvg")
    train = kind.train

    def halved(self: Any) -> None:
        size, load = self.batch_size, self.load_train_data
        self.load_train_data = lambda both: Halves(self, load(both))
        train(self)
        self.batch_size = size
        del self.load_train_data

    kind.train = halved


@mend("dbe", "clientdbe.py 38-71, serverdbe.py 15-37")
def dbe_start(shared: Shared) -> None:
    """The consensus zbar is the mean over all samples of the clients after one epoch, not a running mean of batches."""
    kind = client("DBE")
    train = kind.train

    def trained(self: Any) -> None:
        if self.global_mean is not None:
            return train(self)
        epochs, self.local_epochs = self.local_epochs, 1
        train(self)
        self.local_epochs = epochs
        x = torch.stack([x for x, _ in self.load_train_data().dataset])
        self.running_mean = self.model.base(x).detach().mean(dim=0)
        return None

    kind.train = trained


@mend("fedas", "clientas.py 118-166")
def fedas_alignment(shared: Shared) -> None:
    """The body that a client receives is aligned with the one it had, so not in its first round; in batches of B."""
    kind = client("AS")
    receive, load = kind.set_parameters, kind.load_train_data

    def received(self: Any, model: nn.Module, progress: float) -> None:
        if not self.fim_trace_history:
            for p, new in zip(self.model.base.parameters(), model.base.parameters(), strict=True):
                p.data = new.data.clone()
            return
        self.load_train_data = lambda batch_size: list(load(self))  # instead of 16
        receive(self, model, progress)
        del self.load_train_data

    kind.set_parameters = received
