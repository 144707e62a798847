"""Clustered FL: who is parted from whom, and how unseen clients find their cluster."""

from typing import Any

import numpy as np
import pytest
import torch

from fedem_lightning import ClientSGD, Clustered, FederatedDataModule
from fedem_lightning.methods import clustered
from fedem_lightning.methods.clustered import cosine_similarities
from helpers.by_hand import assert_agree, gradient, row, samples, vector
from helpers.federations import make_data, make_model, train, train_and_test


@pytest.fixture
def one_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """No cluster is split again."""
    monkeypatch.setattr(clustered, "MAX_DEPTH", 1)


SPLITTING: dict[str, Any] = {"eps1": 10.0, "eps2": 0.0, "min_rounds": 2, "batch_size": 1000, "local_epochs": 3}


def two_groups(
    n_clients: int = 6, unseen_fraction: float = 0.0, groups: int = 2, sizes: int | tuple[int, ...] = 100
) -> FederatedDataModule:
    """Clients of a group share a rule; the rules are opposite for two groups, orthogonal pairs for four."""
    rng = np.random.default_rng(0)
    client = np.repeat(np.arange(n_clients), sizes)
    x = rng.normal(size=(len(client), 4))
    group = client % groups
    score = np.where(group % 2 == 0, 1, -1) * np.where(group < 2, x[:, 0], x[:, 1])
    return FederatedDataModule.from_arrays(
        x, (score > 0).astype(np.int64), client, unseen_fraction=unseen_fraction, n_classes=2
    )


def clusters(model: Any) -> list[list[int]]:
    leaf = model.cluster
    return [torch.nonzero(leaf == node).squeeze(1).tolist() for node in leaf.unique()]


def parted(degrees: list[int], **options: Any) -> Any:
    """How updates of length 1 at these angles are bipartitioned, whose mean is said to be zero; None: not at all."""
    n, angle = len(degrees), torch.deg2rad(torch.tensor(degrees, dtype=torch.float64))
    model = make_model(Clustered, make_data(sizes=(9,) * n), eps1=1.0, eps2=0.0, min_rounds=0, **options).double()
    everybody, root = torch.arange(n), torch.tensor(0)
    updates = {name: torch.zeros_like(rows) for name, rows in model.updates[everybody].items()}
    updates["linear.bias"][:, 0, :2] = torch.stack([angle.cos(), angle.sin()], dim=1)
    model.updates[everybody] = updates
    model.update_norms[:] = 1.0
    same = {name: rows[0] for name, rows in model.nodes[root].items()}
    return model._bipartition(root, everybody, same, round_=0)


def test_a_cluster_is_parted_by_complete_linkage() -> None:
    """Updates at 0, 18, 37, 57, 78 and 110 degrees: the largest gap is the last, but 0 to 78 is wider than 0 to 57."""
    side = parted([0, 18, 37, 57, 78, 110])
    assert sorted(torch.nonzero(side == side[5]).flatten().tolist()) == [4, 5]


def test_a_cluster_is_split_only_where_its_nearest_clients_are_apart() -> None:
    """Updates at 0, 40 and 180 degrees: those across are 180 and 140 apart, so sqrt((1 - cos 140) / 2) = 0.94."""
    side = parted([0, 40, 180], gamma_max=0.93)
    assert side[0] == side[1] != side[2]
    assert parted([0, 40, 180], gamma_max=0.95) is None


@pytest.mark.usefixtures("one_split")
def test_in_the_round_of_a_split_each_child_takes_the_mean_of_its_own_members() -> None:
    data, lr = two_groups(sizes=(60, 150, 80, 200, 140, 90)), 0.3
    options = {**SPLITTING, "min_rounds": 0, "local_epochs": 1}
    model = make_model(Clustered, data, client_optimizer=ClientSGD(lr=lr), **options).double()
    start = vector(model.components[0])
    train(model, data, 1)
    assert sorted(clusters(model)) == [[0, 2, 4], [1, 3, 5]]
    sent = [start - lr * gradient(start, *samples(data, t)) for t in range(6)]  # one full batch
    sizes = [len(samples(data, t)[1]) for t in range(6)]
    served = model.personal_models(torch.arange(6)).models
    for members in ([0, 2, 4], [1, 3, 5]):
        mean = np.average([sent[t] for t in members], axis=0, weights=[sizes[t] for t in members])
        for t in members:
            assert_agree(row(served, t), mean)


def test_a_stationary_cluster_of_clients_that_agree_is_not_split() -> None:
    data = two_groups(groups=1)
    model = make_model(Clustered, data, client_optimizer=ClientSGD(lr=0.3), gamma_max=0.5, **SPLITTING)
    train(model, data, 6)
    assert model.n_groups == 1
    few = make_model(Clustered, two_groups(n_clients=2), client_optimizer=ClientSGD(lr=0.3), **SPLITTING)
    train(few, two_groups(n_clients=2), 6)
    assert few.n_groups == 1  # two clients or fewer stay together


def test_four_groups_need_two_levels_and_unseen_clients_find_theirs() -> None:
    data = two_groups(n_clients=16, unseen_fraction=0.25, groups=4)
    model = make_model(Clustered, data, client_optimizer=ClientSGD(lr=0.3), gamma_max=0.5, **SPLITTING)
    train_and_test(model, data, 12)
    assert sorted(clusters(model)) == [[g, g + 4, g + 8, g + 12] for g in range(4)]
    assert model.clients.cluster.tolist() == model.cluster.tolist()


def test_similarities_agree_with_numpy_and_survive_zeros() -> None:
    rng = np.random.default_rng(0)
    updates = {"a": torch.tensor(rng.normal(size=(4, 1, 2, 3))), "b": torch.tensor(rng.normal(size=(4, 1, 5)))}
    updates["a"][2] = updates["b"][2] = 0.0
    flat = np.concatenate([t.numpy().reshape(4, -1) for t in updates.values()], axis=1)
    found = cosine_similarities(updates)
    for s in range(4):
        for t in range(4):
            if s == t:
                assert found[s, t] == 1
            elif 2 in (s, t):
                assert found[s, t] == 0
            else:
                expected = flat[s] @ flat[t] / np.linalg.norm(flat[s]) / np.linalg.norm(flat[t])
                assert found[s, t] == pytest.approx(expected)
