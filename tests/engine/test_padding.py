"""Padded batches of clients of very different sizes, against torch alone: one client and one model at a time."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from fedem_lightning import MLP, ClientSGD, FedEM, VmapEngine
from fedem_lightning.local.engine import vmap
from fedem_lightning.local.training import shuffled_batches
from fedem_lightning.models import stacked
from helpers.by_hand import by_torch
from helpers.federations import make_data

pytestmark = pytest.mark.fast

SIZES, BATCH = (2, 23, 4, 11, 40), 16  # the last batches of a pass have 2, 7, 4, 11 and 8 samples


def with_layer_norm() -> nn.Module:
    """Has a layer that only torch.func stacks."""
    return nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 3))


def with_batch_norm() -> nn.Module:
    """Padding would enter its statistics."""
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def with_batch_norm_of_images() -> nn.Module:
    """It has a momentum of its own, and no weights."""
    norm = nn.BatchNorm2d(2, momentum=0.3, affine=False)
    return nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 2, 1), norm, nn.Flatten(), nn.Linear(8, 3))


def without_statistics() -> nn.Module:
    """It keeps none, so that rows of equal size alone are stepped together."""
    norm = nn.BatchNorm1d(6, track_running_stats=False)
    return nn.Sequential(nn.Linear(4, 6), norm, nn.Linear(6, 3))


@pytest.mark.parametrize(
    ("backbone", "padded"),
    [
        (lambda: MLP((4,), 3, (5,)), True),
        (with_layer_norm, True),
        (with_batch_norm, True),
        (with_batch_norm_of_images, True),
        (without_statistics, False),
    ],
)
@pytest.mark.parametrize("weighted", [False, True])
def test_padding_counts_for_nothing(
    backbone: Callable[[], nn.Module], padded: bool, weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in the loss, nor in the gradient of a bias, nor in what BatchNorm learns."""
    computed = real = 0

    def group_rows(sizes: list[int], padding: float, limit: int) -> list[slice]:
        nonlocal computed, real
        groups = original(sizes, padding, limit)
        computed += sum(sizes[rows.start] * (rows.stop - rows.start) for rows in groups)
        real += sum(sizes)
        return groups

    original = stacked.group_rows
    monkeypatch.setattr(vmap, "group_rows", group_rows)
    monkeypatch.setattr(vmap, "PADDING", 100.0)  # all clients together
    data = make_data(SIZES, fractions=(1.0, 0.0, 0.0))
    sgd = ClientSGD(lr=0.3, momentum=0.9)
    options: dict[str, Any] = {"batch_size": BATCH, "local_epochs": 2, "client_optimizer": sgd, "engine": VmapEngine()}
    model = FedEM(backbone(), len(SIZES), 2, **options).double()
    block = data.federation.block(torch.arange(len(SIZES)), "train")
    weights = torch.rand(sum(SIZES), 2, dtype=torch.float64) if weighted else None
    with torch.no_grad():  # as in a round
        found = model.local_sgd(model.received(block.clients), block, 0, weights)
    assert (computed > 1.3 * real) if padded else (computed == real)

    x, y = block.x(torch.float64), block.y()
    order = shuffled_batches(block, BATCH, 2, seed=0, round_=0).order
    for c in range(len(SIZES)):
        for m in range(2):
            net = backbone().double()
            net.load_state_dict(model.components[m].state_dict())
            rows = [part for one in order for part in one[block.owner[one] == c].split(BATCH)]
            by_torch(net, x, y, rows, None if weights is None else weights[:, m], lr=0.3, momentum=0.9)
            for name, expected in net.state_dict().items():
                torch.testing.assert_close(found[name][c, m], expected, rtol=1e-9, atol=1e-12)
