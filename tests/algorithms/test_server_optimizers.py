"""FedAdam and FedYogi against torch and NumPy, and in rounds."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedem_lightning import ClientSGD, FedAdam, FedAvg, FedYogi, UserError
from fedem_lightning.module.checkpoints import recipe_of
from fedem_lightning.run.callbacks import RoundCheckpoint
from fedem_lightning.settings.remaking import make
from helpers.federations import make_data, make_model, make_trainer, parameters, train

LR, BETAS, TAU = 0.03, (0.8, 0.95), 0.01


def stepped(optimizer: Any, p: torch.nn.Parameter, gradients: list[torch.Tensor]) -> torch.Tensor:
    for g in gradients:
        p.grad = g.clone()
        optimizer.step()
    return p.detach()


def some() -> tuple[torch.nn.Parameter, torch.nn.Parameter, list[torch.Tensor]]:
    start = torch.randn(3, 4).double()
    return torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone()), list(torch.randn(12, 3, 4).double())


def test_a_server_optimizer_without_parameters_says_what_is_right() -> None:
    right = (
        r"server_optimizer=FedYogi\(lr=0.1\): expected functools.partial\(FedYogi, lr=0.1\), a function of parameters"
    )
    with pytest.raises(UserError, match=f"^{right}$"):
        FedYogi(lr=0.1)


@pytest.mark.parametrize("kind", [FedAdam, FedYogi])
def test_algorithm_2_in_numpy(kind: Any) -> None:
    """Delta is the mean of the clients' changes, which is minus the gradient that the optimiser takes."""
    own, _, gradients = some()
    beta_1, beta_2 = BETAS
    x, m, v = own.detach().numpy().copy(), np.zeros((3, 4)), np.full((3, 4), TAU**2)
    for g in gradients:
        delta = -g.numpy()
        m = beta_1 * m + (1 - beta_1) * delta
        square = delta**2
        v += (1 - beta_2) * square * np.sign(square - v) if kind is FedYogi else (1 - beta_2) * (square - v)
        x = x + LR * m / (np.sqrt(v) + TAU)
    found = stepped(kind([own], LR, BETAS, TAU), own, gradients)
    np.testing.assert_allclose(found.numpy(), x, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", [FedAdam, FedYogi])
def test_a_round_steps_along_the_pseudo_gradient_and_a_resumed_run_has_the_same_bits(kind: Any, tmp_path: Path) -> None:
    data = make_data()
    options: dict[str, Any] = {"client_optimizer": ClientSGD(0.2)}
    server = {"server_optimizer": functools.partial(kind, lr=LR, tau=TAU)}
    mean = parameters(train(make_model(FedAvg, data, **options), data, 1).components)
    straight, resumed, one = (make_model(FedAvg, data, **options, **server) for _ in range(3))
    before = torch.nn.Parameter(parameters(one.components))
    expected = stepped(kind([before], lr=LR, tau=TAU), before, [before.detach() - mean])
    torch.testing.assert_close(parameters(train(one, data, 1).components), expected, rtol=1e-5, atol=1e-6)
    saving: dict[str, Any] = {
        "callbacks": [RoundCheckpoint(1, keep=9, dirpath=tmp_path)],
        "enable_checkpointing": True,
    }
    train(straight, data, 4, **saving)
    make_trainer(4).fit(resumed, data, ckpt_path=tmp_path / "round-000002.ckpt", weights_only=True)
    assert torch.equal(parameters(straight.components), parameters(resumed.components))
    again = make(recipe_of(straight)["server_optimizer"])
    assert (again.func, again.keywords) == (kind, {"lr": LR, "tau": TAU})
