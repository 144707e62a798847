"""kNN-Per: votes against scikit-learn, the mixture with the model's probabilities, and how clients are served."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from fedem_lightning import (
    KNN,
    MLP,
    ClientSGD,
    DensityDataModule,
    Ditto,
    FedAvg,
    FedEM,
    FederatedDataModule,
    FedGMM,
    UserError,
    load_clients,
)
from fedem_lightning.models.neighbours import votes
from fedem_lightning.models.personal_models import ClientModels
from fedem_lightning.serving.model_files import write_clients
from helpers.federations import block_of, make_data, make_model, table_of, train

SGD = ClientSGD(lr=0.3)
SIZES = (30, 21, 44, 9)


def trained(kind: Any, data: FederatedDataModule, **options: Any) -> Any:
    return train(make_model(kind, data, hidden=True, client_optimizer=SGD, **options), data, 2)


def hidden(network: Any, x: torch.Tensor) -> np.ndarray:
    """The inputs of the last layer of the perceptron of one hidden layer."""
    found: np.ndarray = network.layers[:2](x).detach().numpy()
    return found


def by_sklearn(z: np.ndarray, y: np.ndarray, queries: np.ndarray, k: int, scale: float) -> np.ndarray:
    """p_knn over three classes, [n, 3]."""
    found = KNeighborsClassifier(
        min(k, len(y)), algorithm="brute", weights=lambda d: np.exp(-(d**2) / (z.shape[1] * scale))
    ).fit(z, y)
    p = np.zeros((len(queries), 3))
    p[:, found.classes_] = found.predict_proba(queries)
    return p


@pytest.mark.parametrize(("k", "scale"), [(1, 1.0), (10, 1.0), (7, 0.3), (1000, 5.0)])
def test_at_one_the_votes_are_scikit_learns(k: int, scale: float) -> None:
    """The features are the hidden units; the last client has fewer samples than k."""
    data = make_data(sizes=SIZES)
    model = trained(FedAvg, data)
    served = KNN(k, scale, lambdas=(1.0,)).adapt(model, block_of(data, "train"))
    for t in range(4):
        train_, test = block_of(data, "train", t), block_of(data, "test", t)
        z, queries = (hidden(model.components[0], b.x(torch.float64)) for b in (train_, test))
        expected = by_sklearn(z, train_.y().numpy(), queries, k, scale)
        one = served._replace(models={n: rows[t : t + 1] for n, rows in served.models.items()})
        np.testing.assert_allclose(one.predict(test).exp().numpy(), expected, rtol=1e-9, atol=1e-12)


def test_after_fedem_the_features_are_those_of_the_strongest_component() -> None:
    """lambda p_knn + (1 - lambda) sum_m pi_m p_m, in NumPy."""
    data, share = make_data(sizes=SIZES), 0.3
    model = trained(FedEM, data)
    model.pi.copy_(
        torch.tensor([[0.1, 0.3, 0.6], [0.5, 0.2, 0.3], [0.2, 0.7, 0.1], [0.3, 0.25, 0.45]], dtype=torch.float64)
    )
    served = KNN(5, lambdas=(share,)).adapt(model, block_of(data, "train"))
    test = block_of(data, "test")
    found = served.predict(test).exp().numpy()
    for t, strongest in enumerate((2, 0, 1, 2)):
        own, x = block_of(data, "train", t), block_of(data, "test", t).x(torch.float64)
        z, queries = (hidden(model.components[strongest], inputs) for inputs in (own.x(torch.float64), x))
        p = [torch.softmax(component(x), dim=1).detach().numpy() for component in model.components]
        base = sum(weight * p_m for weight, p_m in zip(model.pi[t].tolist(), p, strict=True))
        expected = share * by_sklearn(z, own.y().numpy(), queries, 5, 1.0) + (1 - share) * base
        np.testing.assert_allclose(found[(test.owner == t).numpy()], expected, rtol=1e-9, atol=1e-12)


def chosen_by_hand(model: Any, data: FederatedDataModule, t: int, split: str, grid: np.ndarray) -> float:
    """The lambda of the lowest mean loss; a training sample does not see itself."""
    own, query = block_of(data, "train", t), block_of(data, split, t)
    z, queries = (hidden(model.components[0], b.x(torch.float64)) for b in (own, query))
    y, labels = own.y().numpy(), query.y().numpy()
    near = np.zeros(len(labels))
    for i in range(len(labels)):
        others = np.ones(len(y), dtype=bool)
        if split == "train":
            others[i] = False
        near[i] = by_sklearn(z[others], y[others], queries[i : i + 1], 5, 1.0)[0, labels[i]]
    base = model.predict(query).exp().numpy()[np.arange(len(labels)), labels]
    with np.errstate(divide="ignore"):
        losses = [-np.log(v * near + (1 - v) * base).mean() for v in grid]
    return float(grid[int(np.argmin(losses))])


def test_lambda_has_the_lowest_loss_of_the_grid() -> None:
    """The last client has no validation samples, and takes its training samples."""
    sizes, grid = (40, 31, 50, 9), np.linspace(0, 1, 11)
    client = np.repeat(np.arange(4), sizes)
    rank = np.concatenate([np.arange(n) for n in sizes])
    split = np.where(rank % 3 == 2, np.where(client == 3, 0, 1), 0)
    rng = np.random.default_rng(3)
    x = rng.normal(size=(len(client), 4))
    y = (x[:, :3] + 0.7 * rng.normal(size=(len(client), 3))).argmax(axis=1)
    data = FederatedDataModule.from_arrays(x, (y + client) % 3, client, split=split, n_classes=3)
    model = trained(FedAvg, data)
    found = KNN(5, lambdas=tuple(grid)).adapt(model, block_of(data, "train")).columns["lambda"]
    splits = ["val"] * 3 + ["train"]
    expected = [chosen_by_hand(model, data, t, s, grid) for t, s in enumerate(splits)]
    assert len(set(expected)) > 1
    np.testing.assert_allclose(found.numpy(), expected)


def test_a_client_without_samples_keeps_the_model() -> None:
    x, y, client = np.random.default_rng(0).normal(size=(60, 4)), np.arange(60) % 3, np.arange(60) % 3
    options: dict[str, Any] = {"unseen_fraction": 1 / 3}
    seen = FederatedDataModule.from_arrays(x, y, client, **options).federation.seen.numpy()
    split = np.where(seen[client], np.arange(60) // 3 % 3, 2)
    data = FederatedDataModule.from_arrays(x, y, client, split=split, **options)
    plain, table = trained(FedEM, data), None
    before = table_of(plain, data)
    table = table_of(trained(FedEM, data, adaptation=KNN(lambdas=(0.5, 1.0))), data)
    np.testing.assert_allclose(table.test_loss[~seen], before.test_loss[~seen], rtol=1e-12)
    assert table["lambda"][~seen].tolist() == [0.0]
    assert (table["lambda"][seen] >= 0.5).all()
    alone = data.federation.block(data.federation.clients(seen=False), "train")
    assert KNN(lambdas=(1.0,)).adapt(plain, alone).columns["lambda"].tolist() == [0.0]


@pytest.mark.parametrize("kind", [FedEM, Ditto, FedGMM])
def test_clients_are_personalised_and_saved(kind: Any, tmp_path: Path) -> None:
    data, rng = make_data(sizes=(30, 21, 44)), np.random.default_rng(1)
    model = trained(kind, data, adaptation=KNN(5, lambdas=(0.4,)))
    x, y = rng.normal(size=(25, 4)), np.arange(25) % 3
    client, split = np.repeat([0, 1], [20, 5]), np.zeros(25, dtype=np.int64)
    many = model.trained_model.personalize_many(model.schema.samples_of(x, y), client, split, ("a", "b"))
    queries = rng.normal(size=(9, 4))
    found = [many.model(name).predict(queries) for name in ("a", "b")]
    np.testing.assert_allclose(model.personalize(x[:20], y[:20], "a").predict(queries), found[0], rtol=1e-6)
    z, own = many.personal.models["features"][0, 0, :20], many.personal.models["labels"][0, 0, :20]
    assert own.tolist() == (y[:20] + 1).tolist()
    write_clients(tmp_path / "two.safetensors", many)
    again = load_clients(tmp_path / "two.safetensors")
    assert isinstance(again, ClientModels)
    for name, expected in zip(("a", "b"), found, strict=True):
        np.testing.assert_allclose(again.model(name).predict(queries), expected, rtol=1e-9)
    assert torch.equal(again.personal.models["features"][0, 0, :20], z)


def test_a_sample_far_from_all_others_has_votes() -> None:
    far = votes(torch.tensor([[1e12]]), torch.tensor([[0.0], [1.0]]), torch.tensor([1, 2]), 2)
    assert far.sum().item() == pytest.approx(1)
    nobody = votes(torch.zeros(1, 1), torch.zeros(2, 1), torch.tensor([0, 0]), 2)
    assert nobody.tolist() == [[0.0, 0.0]]


def test_what_is_refused() -> None:
    for data in (make_data(task="regression"), DensityDataModule(n_clients=3, n_symbols=9, n_samples=20, test_size=5)):
        network = MLP(data.in_shape, data.n_outputs, [5])
        model = FedAvg(network, n_clients=data.n_clients, adaptation=KNN())
        with pytest.raises(UserError, match=r"adaptation: KNN needs (one class for each sample|features)"):
            train(model, data, 1)
