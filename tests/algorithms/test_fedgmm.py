"""FedGMM against NumPy, SciPy and scikit-learn, its degenerate case, and how clients are served."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from fedem_lightning import ClientSGD, FederatedDataModule, FedGMM, Finetune, UserError, load_clients
from fedem_lightning.data.randomness import sample_cohort
from fedem_lightning.module.fitting import prepare
from fedem_lightning.serving.model_files import write_clients
from fedem_lightning.serving.onnx_files import measured, write_onnx
from helpers.by_hand import ALL_TRAIN, assert_agree, batches, descend, losses, samples, vector
from helpers.federations import make_data, make_model, make_trainer, stored, train

SGD = ClientSGD(lr=0.3)
SIZES = (9, 17, 6, 13, 21)
REGULARIZATION = 0.05


def log_n(z: np.ndarray, means: np.ndarray, covariances: np.ndarray) -> np.ndarray:
    """log N(z_i; mu_m, Sigma_m), [n, M]; covariances [M, d]."""
    parts = [multivariate_normal(mu, c).logpdf(z) for mu, c in zip(means, covariances, strict=True)]
    return np.stack(parts, axis=1).reshape(len(z), len(means))


def responsibilities(joint: np.ndarray, log_z: np.ndarray, loss: np.ndarray) -> np.ndarray:
    """q [n, M1, M2] for one client: joint [M1, M2], log N [n, M1], losses [n, M2]."""
    logs = np.log(joint) + log_z[:, :, None] - loss[:, None, :]
    return np.asarray(np.exp(logs - logsumexp(logs, axis=(1, 2), keepdims=True)))


def started(data: FederatedDataModule, **options: Any) -> Any:
    """A model that knows its federation, before the first round."""
    options = {"client_optimizer": SGD, "regularization": REGULARIZATION, **options}
    model = make_model(FedGMM, data, **options).double()
    prepare(model, data.federation)
    return model


def m_step(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Means and covariances of all samples of the cohort: pairs of z [n, d] and q [n, M1]."""
    z, q = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    means = np.stack([np.average(z, axis=0, weights=w) for w in q.T])
    found = []
    for mean, w in zip(means, q.T, strict=True):
        found.append(np.average((z - mean) ** 2, axis=0, weights=w) + REGULARIZATION)
    return means, np.stack(found)


def test_four_rounds_agree_with_numpy() -> None:
    """Cohorts of three of five clients of unequal sizes, two passes in batches of four."""
    data = make_data(sizes=SIZES, fractions=ALL_TRAIN)
    options: dict[str, Any] = {"n_components": 2, "n_gaussians": 3, "participation": 3}
    model = started(data, local_epochs=2, **options)
    thetas = [vector(component) for component in model.components]
    means, covariances = model.means.numpy().copy(), model.covariances.numpy().copy()
    joint, n = np.full((5, 3, 2), 1 / 6), np.array(SIZES)
    train(model, data, 4)
    for round_ in range(4):
        cohort, parts, trained = sample_cohort(data.federation.clients(), 3, 0, round_).tolist(), [], []
        for t in cohort:
            x, y = samples(data, t)
            loss = np.stack([losses(theta, x, y) for theta in thetas], axis=1)
            q = responsibilities(joint[t], log_n(x, means, covariances), loss)
            joint[t] = q.mean(axis=0)
            parts.append((x, q.sum(axis=2)))
            rows = batches(data, t, size=4, epochs=2, round_=round_)
            trained.append([descend(theta, x, y, rows, 0.3, q.sum(axis=1)[:, m]) for m, theta in enumerate(thetas)])
        means, covariances = m_step(parts)
        thetas = [np.average([own[m] for own in trained], axis=0, weights=n[cohort]) for m in range(2)]
    assert_agree(model.joint.view(5, 3, 2).numpy(), joint)
    assert_agree(model.means.numpy(), means)
    assert_agree(model.covariances.numpy(), covariances)
    for component, theta in zip(model.components, thetas, strict=True):
        assert_agree(vector(component), theta)
    weights = model.pi.numpy()
    assert 0.1 < weights.min() < weights.max() < 0.9
    block = data.federation.block(torch.tensor([1, 4]), "train")  # what clients serve
    found = model.predict(block).exp().numpy()
    expected = []
    for t in (1, 4):
        x, _ = samples(data, t)
        log_x = np.log(joint[t]) + log_n(x, means, covariances)[:, :, None]
        p_m2 = np.exp(logsumexp(log_x, axis=1) - logsumexp(log_x, axis=(1, 2))[:, None])
        p = np.stack([np.exp(-np.stack([losses(th, x, np.full(len(x), c)) for c in range(3)], 1)) for th in thetas])
        expected.append(np.einsum("nm,mny->ny", p_m2, p))
    assert_agree(found, np.concatenate(expected))


def test_a_client_without_labels_agrees_with_numpy() -> None:
    """EM on p_t(x) = sum over m1, m2 of pi(m1, m2) N(x; mu_m1, Sigma_m1) leaves p(m2 | m1) as others have it."""
    data = make_data(sizes=SIZES, fractions=ALL_TRAIN)
    model = train(started(data, n_components=2), data, 3)
    x, _ = samples(data, 1)
    joint = start = model.joint.numpy().mean(axis=0).reshape(3, 2)
    log_z = log_n(x, model.means.numpy(), model.covariances.numpy())
    for _ in range(20):
        joint = responsibilities(joint, log_z, np.zeros((len(x), 2))).mean(axis=0)
    network: Any = model.personalize(x).networks[0]
    found = network.joint.numpy()
    np.testing.assert_allclose(found, joint, rtol=1e-12, atol=1e-12)
    assert np.abs(joint - start).max() > 0.02
    np.testing.assert_allclose(joint / joint.sum(axis=1)[:, None], start / start.sum(axis=1)[:, None], rtol=1e-9)


def test_gaussians_start_at_samples_with_the_variances_of_all() -> None:
    data = make_data(sizes=SIZES, fractions=ALL_TRAIN)
    model, x = started(data), stored(data.federation).x.numpy()
    for mean in model.means.numpy():
        assert np.isclose(x, mean).all(axis=1).sum() == 1
    assert len({tuple(mean) for mean in model.means.numpy()}) == 3
    for found in model.covariances.numpy():
        assert_agree(found, x.var(axis=0) + REGULARIZATION)
    other = started(data, seed=1)
    assert not torch.equal(other.means, model.means)


def test_novel_inputs_have_a_low_density() -> None:
    """Client 2's test inputs lie elsewhere."""
    rng, client = np.random.default_rng(0), np.repeat(np.arange(4), 40)
    split = np.where(np.arange(160) % 4 == 0, 2, 0)
    x = rng.normal(size=(160, 4)) + 8.0 * ((client == 2) & (split == 2))[:, None]
    data = FederatedDataModule.from_arrays(x, np.arange(160) % 3, client, split=split, n_classes=3)
    model = train(make_model(FedGMM, data), data, 2)
    novelty = []
    for t in range(4):
        density = model.client(str(t)).networks[0].log_density(torch.from_numpy(x[client == t])).numpy()
        novelty.append(density[split[client == t] == 0].mean() - density[split[client == t] == 2].mean())
    assert novelty[2] > 20 > 5 > max(map(abs, novelty[:2]))
    make_trainer(0).test(model, data, verbose=False)
    assert model.clients[["pi_0", "pi_1", "pi_2"]].sum(axis=1).to_numpy() == pytest.approx(1)
    assert model.clients[["gaussian_0", "gaussian_1", "gaussian_2"]].sum(axis=1).to_numpy() == pytest.approx(1)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # of torch and onnx
def test_clients_are_personalised_saved_and_exported(tmp_path: Path) -> None:
    data, rng = make_data(sizes=(30, 21, 44)), np.random.default_rng(1)
    model = train(make_model(FedGMM, data, n_gaussians=2), data, 2)
    x, y, queries = rng.normal(size=(20, 4)), np.arange(20) % 3, rng.normal(size=(9, 4))
    new = model.personalize(x, y, "new")
    seen = model.trained_model.clients_models()
    write_clients(tmp_path / "all.safetensors", seen)
    again = load_clients(tmp_path / "all.safetensors")
    for name in seen.names:
        np.testing.assert_array_equal(again.model(name).predict(queries), model.client(name).predict(queries))
    write_onnx(new, tmp_path / "one.onnx")
    assert measured(tmp_path / "one.onnx", new) < 1e-5


def test_what_is_refused() -> None:
    data = make_data()
    for options, message in (
        ({"adaptation": Finetune()}, r"adaptation: FedGMM's clients weigh models by input"),
        ({"n_gaussians": 99}, r"algorithm\.n_gaussians: expected at most \d+, the number of samples, got 99"),
    ):
        with pytest.raises(UserError, match=message):
            train(make_model(FedGMM, data, **options), data, 1)
