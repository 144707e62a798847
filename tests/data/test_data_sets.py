"""The known data sets as federations: images with shifts, text as windows, regression."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from fedem_lightning import (
    CharLSTM,
    ClientSGD,
    FedEM,
    ImageDataModule,
    LoopEngine,
    TextDataModule,
    UserError,
    VmapEngine,
)
from fedem_lightning.data.__main__ import main
from fedem_lightning.data.samples import Windows
from fedem_lightning.data.tasks import Classification
from fedem_lightning.data.text import split_in_order, window_starts
from fedem_lightning.local.engine.base import Engine
from helpers.federations import stored, train
from helpers.folders import save_text

RNG = np.random.default_rng(0)
N = 300
PIXELS = RNG.integers(256, size=(N, 8, 8, 3)).astype(np.uint8)
LABELS = RNG.integers(10, size=N)


@pytest.fixture
def colour(tmp_path: Path) -> Path:
    np.savez(tmp_path / "colour.npz", x=PIXELS, y=LABELS, split=np.zeros(N, dtype=np.int8))
    return tmp_path / "colour.npz"


def test_images_are_normalised_in_their_batch(colour: Path) -> None:
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.3, 0.1)
    data = ImageDataModule("cifar10", "iid", n_clients=3, path=colour, mean=mean, std=std)
    assert stored(data.federation).x.dtype == torch.uint8
    block = data.federation.block(torch.tensor([1]), "train")
    expected = (PIXELS[block.index] / 255 - np.array(mean)) / np.array(std)
    assert_allclose(block.x(torch.float64), np.moveaxis(expected, -1, 1))
    assert data.federation.notes == {"source": str(colour), "partition": "iid"}
    with pytest.raises(UserError, match=r"mean: expected 3 numbers"):
        ImageDataModule("cifar10", "iid", n_clients=3, path=colour, mean=(0.5, 0.5))


def test_true_groups_are_kept_and_labels_shifted(colour: Path) -> None:
    plain = ImageDataModule("cifar10", "iid", n_clients=6, path=colour)
    shifted = ImageDataModule("cifar10", "iid", n_clients=6, path=colour, shift="labels", n_groups=3)
    group = shifted.federation.truth["group"]
    assert np.bincount(group).tolist() == [2, 2, 2]
    for t in range(6):
        for split in ("train", "val", "test"):
            before, after = (d.federation.block(torch.tensor([t]), split) for d in (plain, shifted))
            assert torch.equal(before.index, after.index)
            assert torch.equal(before.y(), after.y()) == (group[t] == 0)
    assert plain.federation.digest() != shifted.federation.digest()


def test_a_share_of_the_samples_and_inverted_pixels(colour: Path) -> None:
    data = ImageDataModule("cifar10", "iid", n_clients=3, path=colour, sample_fraction=0.1, invert=True)
    assert sum(len(s) for s in data.federation.splits.values()) == 30
    assert data.federation.notes["sample_fraction"] == 0.1
    whole = ImageDataModule("cifar10", "iid", n_clients=3, path=colour, invert=True)
    block = whole.federation.block(torch.tensor([0]), "train")
    assert_allclose(block.x(torch.float64), np.moveaxis(1 - PIXELS[block.index] / 255, -1, 1))
    assert np.array_equal(stored(whole.federation).x, PIXELS)  # nothing is copied
    number = ImageDataModule("cifar10", "iid", n_clients=3, path=colour, sample_fraction=30, invert=True)
    assert number.federation.digest() == data.federation.digest()
    with pytest.raises(UserError, match="sample_fraction: 301 samples, but there are only 300"):
        ImageDataModule("cifar10", "iid", n_clients=3, path=colour, sample_fraction=301)


SCHOOLS = {"high_school": r"f2[1-5]", "census": r"f(?!2[1-5])"}  # as configs/dataset/femnist.yaml has them
WRITERS = ("f2099_01", "f2100_02", "f2599_03", "f2600_04")


@pytest.fixture
def writers(tmp_path: Path) -> Path:
    np.savez(tmp_path / "writers.npz", x=PIXELS[..., 0], y=LABELS, client=np.arange(N) % 4, client_names=WRITERS)
    return tmp_path / "writers.npz"


def test_clients_names_tell_their_domain(writers: Path) -> None:
    data = ImageDataModule("femnist", path=writers, domains=SCHOOLS, sample_fraction=0.5, label_smoothing=0.1)
    federation = data.federation
    assert federation.domains.names == ("high_school", "census")
    assert federation.task == Classification(62, label_smoothing=0.1)
    for t, name in enumerate(WRITERS):
        block = federation.block(torch.tensor([t]), "train")
        assert set(block.domain().tolist()) == {0 if name in ("f2100_02", "f2599_03") else 1}
    own, n_own = federation.domains.of_sample, {s: len(split) for s, split in federation.splits.items()}
    assert (int((own >= 0).sum()), int((own == -1).sum())) == (sum(n_own.values()), N // 2)  # the others are nobody's


@pytest.mark.parametrize(
    ("domains", "message"),
    [
        ({"a": "f2", "b": "f20"}, "domains: expected every client's name to match one of a, b; f2099_01 matches 2"),
        ({"a": "f2("}, "domains: expected regular expressions"),
    ],
)
def test_domains_that_do_not_part_the_clients_are_named(writers: Path, domains: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match="^" + message):
        ImageDataModule("femnist", path=writers, domains=domains)


def test_smoothed_labels_in_the_loss_only() -> None:
    """(1 - eps) l_y + (eps / Y) sum_c l_c, where l_c = -log p_c."""
    z, y, eps = torch.randn(7, 3, dtype=torch.float64), torch.tensor([0, 2, 1, 1, 0, 2, 2]), 0.3
    smoothed, plain = Classification(3, 1, eps), Classification(3)
    odds = np.exp(z.numpy())
    each = -np.log(odds / odds.sum(axis=1, keepdims=True))  # l_c  [n, Y]
    losses = smoothed.losses(z, y)
    assert_allclose(losses, (1 - eps) * each[np.arange(7), y] + eps * each.mean(axis=1))
    for a, b in zip(*(task.scores(task.predict(z), y).values() for task in (smoothed, plain)), strict=True):
        assert torch.equal(a, b)
    text = Classification(3, 7, eps)  # a sequence of seven
    assert_allclose(text.losses(z.unsqueeze(0), y.unsqueeze(0)), losses.sum().view(1))


SPOKEN = {
    "HAMLET": "To be. Or not to be? That is it. " * 4,
    "GHOST": "Swear it. Swear. By his sword. " * 3,
    "BOY": "Ho.",
}


@pytest.fixture
def play(tmp_path: Path) -> Path:
    return save_text(tmp_path / "text.npz", SPOKEN)


def test_windows_are_views_on_the_text(play: Path) -> None:
    data = TextDataModule(play, window=10)
    federation, symbols = data.federation, data.federation.notes["vocabulary"]
    assert federation.names == ("HAMLET", "GHOST")
    assert federation.notes["left_out_clients"] == 1
    assert isinstance(federation.samples, Windows)
    assert federation.samples.codes.dtype == torch.uint8
    assert symbols == "".join(sorted(set("".join(SPOKEN.values()))))
    text = SPOKEN["HAMLET"]
    parts = {"train": text[: int(0.6 * len(text))], "test": text[int(0.8 * len(text)) :]}
    for split, part in parts.items():
        block = federation.block(torch.tensor([0]), split)
        x, y = block.x(torch.float32), block.y()
        assert len(x) == len(part) - 10
        for i in (0, len(x) - 1):
            assert "".join(symbols[c] for c in x[i]) == part[i : i + 10]
            assert "".join(symbols[c] for c in y[i]) == part[i + 1 : i + 11]


def test_windows_stay_within_client_piece_and_split() -> None:
    client = np.repeat([0, 1], [20, 12])
    piece = np.repeat([0, 1, 2], [8, 12, 12])
    split = split_in_order(client, (0.5, 0.25, 0.25))
    assert split.tolist() == [0] * 10 + [1] * 5 + [2] * 5 + [0] * 6 + [1] * 3 + [2] * 3
    expected = [
        i
        for i in range(32 - 2)
        if len({(client[j], piece[j], split[j]) for j in range(i, i + 3)}) == 1  # window 2 and its last target
    ]
    assert window_starts(client, piece, split, window=2, stride=1).tolist() == expected
    strided = window_starts(client, piece, split, window=2, stride=3)
    assert set(strided) < set(expected)
    assert strided[:3].tolist() == [0, 3, 10]  # counted anew in every run


@pytest.mark.parametrize("engine", [LoopEngine(), VmapEngine()], ids=["loop", "vmap"])
def test_fedem_on_characters_follows_the_equations(play: Path, engine: Engine) -> None:
    data = TextDataModule(play, window=8, stride=2, seed=0)
    torch.manual_seed(0)
    optimizer = ClientSGD(lr=0.5)
    model = FedEM(
        CharLSTM(data.n_outputs, hidden=5),
        2,
        2,
        initialization="random",
        client_optimizer=optimizer,
        batch_size=1000,
        engine=engine,
    ).double()
    block = data.federation.block(torch.arange(2), "train")
    x, y = block.x(torch.float64), block.y()
    nll = functools.partial(torch.nn.functional.cross_entropy, reduction="none")
    losses = torch.stack([nll(component(x).movedim(-1, 1), y).sum(dim=1) for component in model.components])
    q = torch.softmax(-losses, dim=0).detach()  # uniform pi; Eq. 8 with the sum over positions
    counts = block.counts()
    expected = []
    for m, component in enumerate(model.components):
        mean = torch.zeros(())
        for t in range(2):
            mine = block.owner == t
            loss = (q[m] * losses[m])[mine].sum() / counts[t] / 8  # Eq. 10; divided by the targets of a window
            gradients = torch.autograd.grad(loss, list(component.parameters()), retain_graph=True)
            start = torch.cat([p.detach().flatten() for p in component.parameters()])
            stepped = start - 0.5 * torch.cat([g.flatten() for g in gradients])
            mean = mean + stepped * counts[t] / counts.sum()
        expected.append(mean)
    train(model, data, 1)
    for m in range(2):
        found = torch.cat([p.detach().flatten() for p in model.components[m].parameters()])
        assert_allclose(found, expected[m], rtol=1e-9, atol=1e-12)
    for t in range(2):
        assert_allclose(model.pi[t], q[:, block.owner == t].mean(dim=1), rtol=1e-9)


def test_the_data_command(colour: Path, capsys: pytest.CaptureFixture[str]) -> None:
    colour.with_name("cifar10.npz").write_bytes(colour.read_bytes())
    main(["download", "cifar10", f"data_dir={colour.parent}"])
    assert capsys.readouterr().out == f"already there: {colour.with_name('cifar10.npz')}\n"
