import numpy as np
import pytest
import scipy.special
import torch

from fedem_lightning.models.em import mixture_losses, mixture_weights, responsibilities
from helpers.by_hand import e_step

pytestmark = pytest.mark.fast


def test_responsibilities_of_a_worked_example() -> None:
    pi = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
    losses = torch.tensor([[0.1, 1.0, 2.0]], dtype=torch.float64)
    owner = torch.zeros(1, dtype=torch.int64)
    expected = torch.tensor([[0.7670069, 0.18710504, 0.04588806]], dtype=torch.float64)
    torch.testing.assert_close(responsibilities(pi, losses, owner), expected, atol=1e-7, rtol=0)
    assert mixture_losses(pi, losses, owner).item() == pytest.approx(0.5278876932, abs=1e-10)


def test_equations_8_and_9_agree_with_numpy() -> None:
    rng = np.random.default_rng(0)
    counts = [5, 1, 9]
    pi, losses = rng.dirichlet(np.ones(4), size=3), rng.exponential(2.0, size=(15, 4))
    owner = np.repeat(np.arange(3), counts)
    q = responsibilities(torch.tensor(pi), torch.tensor(losses), torch.tensor(owner))
    expected = [e_step(pi[t], losses[owner == t]) for t in range(3)]
    np.testing.assert_allclose(q.numpy(), np.concatenate(expected), rtol=1e-9)
    new_pi = mixture_weights(q, torch.tensor(owner), torch.tensor(pi))
    np.testing.assert_allclose(new_pi.numpy(), [e.mean(axis=0) for e in expected], rtol=1e-9)


def test_a_client_without_samples_keeps_its_weights() -> None:
    previous = torch.tensor([[0.3, 0.7], [0.5, 0.5]])
    q = torch.tensor([[1.0, 0.0]])
    assert torch.equal(mixture_weights(q, torch.tensor([1]), previous), torch.tensor([[0.3, 0.7], [1.0, 0.0]]))


@pytest.mark.parametrize("scale", [1.0, 1e2, 1e4])
@pytest.mark.parametrize("zeros", [0, 1, 3])
def test_large_losses_and_zero_weights_stay_finite_and_close_to_float64(scale: float, zeros: int) -> None:
    """The rounding of losses of 1e4 to float32 (steps of 0.001) is all that may separate the two."""
    random = np.random.default_rng(zeros)
    weights = random.dirichlet(np.full(4, 0.3), size=5)
    weights[:, :zeros] = 0.0
    weights[0, 3] = 1e-30
    losses = (random.uniform(0, scale, size=(200, 1)) + random.uniform(0, 8, size=(200, 4))).astype(np.float32)
    losses[:20] = random.uniform(0, scale, size=(20, 4))
    owner = random.integers(0, 5, size=200)
    pi = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
    with np.errstate(divide="ignore"):
        joint = np.log(pi.astype(np.float64))[owner] - losses.astype(np.float64)
    exact = np.exp(joint - joint.max(axis=1, keepdims=True))
    exact /= exact.sum(axis=1, keepdims=True)
    q = responsibilities(torch.tensor(pi), torch.tensor(losses), torch.tensor(owner))
    updated = mixture_weights(q, torch.tensor(owner), torch.tensor(pi))
    tolerance = 1e-6 + 2e-7 * scale
    np.testing.assert_allclose(q.numpy(), exact, atol=tolerance)
    np.testing.assert_allclose(updated.sum(dim=1).numpy(), 1.0, atol=1e-5)
    assert q.isfinite().all()
    assert (q[:, :zeros] == 0).all()
    assert (updated[:, :zeros] == 0).all()
    found = mixture_losses(torch.tensor(pi), torch.tensor(losses), torch.tensor(owner))
    np.testing.assert_allclose(found.numpy(), -scipy.special.logsumexp(joint, axis=1), rtol=2e-7, atol=2e-6)


def test_a_sample_that_no_component_can_explain_does_not_spoil_the_client() -> None:
    """Its losses are infinite under every component with a weight: the client keeps its weights."""
    pi = torch.tensor([[0.25, 0.75, 0.0], [0.5, 0.5, 0.0]])
    losses = torch.tensor([[float("inf"), float("inf"), 1.0], [1.0, 2.0, 3.0], [1.0, 1.0, 1.0]])
    owner = torch.tensor([0, 0, 1])
    updated = mixture_weights(responsibilities(pi, losses, owner), owner, pi)
    assert updated.tolist() == [[0.25, 0.75, 0.0], [0.5, 0.5, 0.0]]
