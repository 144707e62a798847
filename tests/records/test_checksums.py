"""Checksums of checkpoints: every changed bit is noticed, by whoever reads the file."""

import os
import resource
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedem_lightning import FedAvg, FedEM, UserError
from fedem_lightning.algorithms.checkpoints import read_checkpoint
from fedem_lightning.callbacks import MappedCheckpoints, RoundCheckpoint
from fedem_lightning.records.files import is_intact, seal
from fedem_lightning.run.resuming import find_checkpoint, newest_checkpoint
from fedem_lightning.serving.model_files import load
from helpers.federations import make_data, make_model, make_trainer


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with checkpoints of rounds 1 and 2."""
    folder, data = tmp_path_factory.mktemp("run"), make_data()
    callback = RoundCheckpoint(1, dirpath=folder / "checkpoints")
    options: dict[str, Any] = {"callbacks": [callback], "enable_checkpointing": True, "plugins": [MappedCheckpoints()]}
    make_trainer(2, **options).fit(make_model(FedEM, data), data)
    return folder


def flipped(path: Path, bit: int) -> None:
    """Changes one bit."""
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def test_40_changed_bits_are_noticed_and_the_intact_checkpoint_is_taken(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bits at random places of the whole file, and all those of its last 30 bytes."""
    source = run / "checkpoints" / "round-000002.ckpt"
    size = source.stat().st_size
    bits = [*np.random.default_rng(0).integers(8 * size, size=40).tolist(), *range(8 * size - 240, 8 * size)]
    noticed = 0
    for i, bit in enumerate(bits):
        folder = tmp_path / str(i)
        shutil.copytree(run, folder)
        newest, before = (folder / "checkpoints" / f"round-00000{n}.ckpt" for n in (2, 1))
        flipped(newest, bit)
        assert is_intact(newest) is False
        if i < 40:
            assert newest_checkpoint(folder) == before
            noticed += capsys.readouterr().out.count(f"skipped: ckpt_path: {newest} is no intact checkpoint")
    assert noticed == 40


@pytest.mark.parametrize("use", ["ckpt_path", "load", "Trainer", "load_from_checkpoint"])
def test_whoever_reads_a_changed_checkpoint_refuses_it(use: str, run: Path, tmp_path: Path) -> None:
    path = tmp_path / "round-000002.ckpt"
    shutil.copy(run / "checkpoints" / "round-000002.ckpt", path)
    flipped(path, 8 * (path.stat().st_size // 2))
    data = make_data()
    trainer = make_trainer(3, plugins=[MappedCheckpoints()])
    readers: dict[str, Any] = {
        "ckpt_path": lambda: find_checkpoint(str(path), tmp_path),
        "load": lambda: load(path),
        "Trainer": lambda: trainer.fit(make_model(FedEM, data), data, ckpt_path=path, weights_only=True),
        "load_from_checkpoint": lambda: FedEM.load_from_checkpoint(path),
    }
    with pytest.raises(UserError, match="is no intact checkpoint"):
        readers[use]()


def test_other_readers_read_a_sealed_file(run: Path) -> None:
    path = run / "checkpoints" / "round-000002.ckpt"
    assert is_intact(path)
    with zipfile.ZipFile(path) as file:
        assert file.testzip() is None
        assert file.comment.startswith(b"fedem-lightning sha256 ")
    for mapped in (True, False):
        assert torch.load(path, weights_only=True, mmap=mapped)["statistics"]["planned_rounds"] == 2


def test_a_checkpoint_without_a_checksum_is_used_with_a_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "checkpoints" / "round-000002.ckpt"
    path.parent.mkdir()
    torch.save(torch.load(run / "checkpoints" / path.name, weights_only=True), path)
    assert is_intact(path) is None
    assert find_checkpoint("auto", tmp_path) == path
    assert capsys.readouterr().out.count(f"{path} has no checksum") == 1
    load(tmp_path)  # which may well be of a Trainer without the plugin
    assert capsys.readouterr().out == ""
    os.truncate(path, path.stat().st_size - 1)
    assert is_intact(path) is False


def test_what_is_no_checkpoint_is_named(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Links to nowhere, folders, empty files, other people's files."""
    place = tmp_path / "checkpoints"
    shutil.copytree(run / "checkpoints", place)
    (place / "link.ckpt").symlink_to(tmp_path / "nowhere")
    (place / "folder.ckpt").mkdir()
    (place / "empty.ckpt").touch()
    torch.save({"state_dict": [], "statistics": 3, "federation": None}, place / "other.ckpt")
    torch.save([1], place / "list.ckpt")
    assert newest_checkpoint(tmp_path) == place / "round-000002.ckpt"
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("checkpoints/")[1].split(" ")[0] for line in lines] == [
        f"{name}.ckpt" for name in ("empty", "folder", "link", "list", "other")
    ]
    assert all(line.startswith("skipped: ckpt_path: ") for line in lines)


def test_a_large_file_is_read_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "large.ckpt"
    torch.save({"x": torch.arange(1_000_000)}, path)
    seal(path)
    assert is_intact(path)
    flipped(path, 8 * 7_000_000)
    assert not is_intact(path)


def test_only_the_callbacks_own_files_count(tmp_path: Path) -> None:
    mine = ["round-best.ckpt", "x.ckpt", "round-1.ckpt", "round-000001.ckpt.bak", "round-000099.ckpt"]
    for name in mine:
        (tmp_path / name).write_text("mine")
    (tmp_path / "round-000000.ckpt").mkdir()
    data = make_data()
    trainer = make_trainer(4, callbacks=[RoundCheckpoint(1, keep=2, dirpath=tmp_path)], enable_checkpointing=True)
    trainer.fit(make_model(FedAvg, data), data)
    kept = {"round-000003.ckpt", "round-000004.ckpt"}  # round 99 is not this run's past
    assert {path.name for path in tmp_path.iterdir()} == {*mine, "round-000000.ckpt", *kept}
    assert all((tmp_path / name).read_text() == "mine" for name in mine)


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """Within it the system refuses files larger than this, as a quota or a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "round-000002.ckpt"
    shutil.copy(run / "checkpoints" / "round-000002.ckpt", path)
    content = {**read_checkpoint(path), "more": torch.zeros(100_000)}
    with full_disk(50_000), pytest.raises(UserError) as refusal:
        MappedCheckpoints().save_checkpoint(content, path)
    assert str(refusal.value) == f"cannot write {path} (File too large)"
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert is_intact(path)


def test_a_run_that_was_killed_before_an_old_checkpoint_went_removes_it(tmp_path: Path) -> None:
    """Also if it has no round left to train."""
    callback = RoundCheckpoint(1, keep=9, dirpath=tmp_path)
    data = make_data()
    make_trainer(3, callbacks=[callback], enable_checkpointing=True).fit(make_model(FedAvg, data), data)
    assert len(list(tmp_path.iterdir())) == 3
    again = make_trainer(3, callbacks=[RoundCheckpoint(1, keep=2, dirpath=tmp_path)], enable_checkpointing=True)
    again.fit(make_model(FedAvg, data), data, ckpt_path=tmp_path / "round-000003.ckpt", weights_only=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["round-000002.ckpt", "round-000003.ckpt"]
