"""Agnostic over domains: the rule in NumPy, its degenerate cases, and what is refused."""

from typing import Any

import numpy as np
import pytest
import torch

from fedem_lightning import Agnostic, ClientSGD, FedAvg, UserError
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.randomness import sample_cohort
from helpers.by_hand import ALL_TRAIN, assert_agree, gradient, losses, samples, vector
from helpers.federations import make_data, make_model, make_trainer, parameters, train

LR, GAMMA = 0.3, 0.7


@pytest.mark.parametrize("participation", [1.0, 2, 0.34])
def test_three_rounds_agree_with_numpy(participation: float) -> None:
    """Client 0 has samples of both domains, client 1 of the first, client 2 of the second: a cohort may lack one."""
    domain = np.array([0, 1, 1, 0, 1, 0] + [0] * 11 + [1] * 5)
    data = make_data(sizes=(6, 11, 5), fractions=ALL_TRAIN, domain=domain)
    blocks = [data.federation.block(torch.tensor([k]), "train") for k in range(3)]
    clients = [(*samples(data, k), block.domain().numpy()) for k, block in enumerate(blocks)]
    options: dict[str, Any] = {"local_epochs": 2, "batch_size": 100, "participation": participation}
    model = make_model(Agnostic, data, domain_lr=GAMMA, client_optimizer=ClientSGD(lr=LR), **options).double()
    theta = vector(model.components)
    train(model, data, 3)

    lam, history = np.array([0.5, 0.5]), []
    cohorts = [sample_cohort(torch.arange(3), participation, 0, k).tolist() for k in range(3)]
    mean = np.bincount(domain) * len(cohorts[0]) / 3
    for cohort in cohorts:
        a, total_b, mean_model = lam / mean, 0.0, np.zeros(15)
        loss_sums, counts = np.zeros(2), np.zeros(2)
        for k in cohort:
            x, y, d = clients[k]
            each = losses(theta, x, y)
            b = 0.0
            for i in range(2):
                loss_sums[i] += each[d == i].sum()
                counts[i] += (d == i).sum()
                b += a[i] * (d == i).sum()
            own = theta
            for _ in range(2):
                own = own - LR * gradient(own, x, y, len(y) * a[d] / b)
            total_b, mean_model = total_b + b, mean_model + b * own
        theta = mean_model / total_b
        loss = np.array([loss_sums[i] / counts[i] if counts[i] else 0.0 for i in range(2)])
        lam = lam * np.exp(GAMMA * loss) / (lam * np.exp(GAMMA * loss)).sum()
        history.append(counts)
        mean = np.where(counts > 0, counts, mean)
    assert_agree(vector(model.components), theta)
    assert_agree(model.weights.numpy(), lam)
    assert_agree(model.mean_counts.numpy(), mean)
    assert participation != 0.34 or any(0 in counts for counts in history)


class Proportional(Agnostic):
    """Domains weigh by their samples before the first round."""

    def initialize(self, federation: Federation) -> None:
        super().initialize(federation)
        self.weights = self.mean_counts / self.mean_counts.sum()


MINIBATCHES: dict[str, Any] = {"client_optimizer": ClientSGD(lr=0.5, momentum=0.9), "local_epochs": 2}


def test_fixed_weights_in_proportion_to_the_samples_are_fedavg() -> None:
    """From the first round on: the first counts are those of the clients that train."""
    data = make_data(sizes=(30, 14, 20, 9), domain=np.arange(73) % 5 // 2, unseen_fraction=0.25)
    options: dict[str, Any] = {"domain_lr": 0.0, **MINIBATCHES}
    for rounds in (1, 5):
        agnostic = train(make_model(Proportional, data, **options), data, rounds)
        fedavg = train(make_model(FedAvg, data, **MINIBATCHES), data, rounds)
        expected = parameters(fedavg.components)
        torch.testing.assert_close(parameters(agnostic.components), expected, rtol=1e-12, atol=1e-12)
        assert len(agnostic.weights) == 3


def test_weights_are_logged() -> None:
    data = make_data(domain=np.array(["large", "small", "large"] * 14))
    trainer, model = make_trainer(2), make_model(Agnostic, data, domain_lr=0.5)
    trainer.fit(model, data)
    logged = [float(trainer.callback_metrics[f"lambda_{name}"]) for name in ("large", "small")]
    np.testing.assert_allclose(logged, model.weights, rtol=1e-6)


def test_a_domain_that_nobody_trains_on_fades() -> None:
    data = make_data(sizes=(9, 9, 9), domain=np.arange(27) // 9, unseen_fraction=1 / 3)
    unseen = int(data.federation.clients(seen=False))
    model = train(make_model(Agnostic, data, domain_lr=100.0), data, 3)
    assert parameters(model).isfinite().all()
    assert model.weights[unseen] == pytest.approx(1e-12)  # never 0: it might come back


def test_mistakes_are_named() -> None:
    bare = make_data(domain=None)
    with pytest.raises(UserError, match=r"dataset.domains: Agnostic needs the domain of every sample"):
        train(make_model(Agnostic, bare), bare, 1)
