"""Checkpoints on the disk: a changed bit is noticed, by whoever reads the file; and a full disk leaves the earlier."""

import errno
import os
import resource
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedem_lightning import FedAvg, FedEM, UserError
from fedem_lightning.module.checkpoints import read_checkpoint
from fedem_lightning.run.callbacks import MappedCheckpoints, RoundCheckpoint
from fedem_lightning.run.run_folder import newest_checkpoint
from fedem_lightning.serving.model_files import load
from fedem_lightning.settings.files import replacing
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


def content_bits(path: Path) -> list[int]:
    """40 bits or more at random places of the larger parts that are stored in the file."""
    with zipfile.ZipFile(path) as file:
        stored = [file.read(i) for i in file.infolist() if i.file_size > 30]
    rng, content = np.random.default_rng(0), path.read_bytes()
    starts = {content.find(part): len(part) for part in stored}
    each = 40 // len(starts) + 1
    return [8 * (start + int(rng.integers(size))) for start, size in starts.items() for _ in range(each)]


def test_40_changed_bits_are_noticed_and_the_intact_checkpoint_is_taken(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(run, tmp_path / "run")
    before, newest = (folder / "checkpoints" / f"round-00000{n}.ckpt" for n in (1, 2))
    intact, bits = newest.read_bytes(), content_bits(newest)
    assert len(bits) >= 40
    for bit in bits:
        newest.write_bytes(intact)
        flipped(newest, bit)
        assert newest_checkpoint(folder) == before
        assert f"skipped: ckpt_path: {newest} is no intact checkpoint" in capsys.readouterr().out
    newest.write_bytes(intact[:-1])
    assert newest_checkpoint(folder) == before


@pytest.mark.parametrize("use", ["load", "Trainer", "load_from_checkpoint"])
def test_whoever_reads_a_changed_checkpoint_refuses_it(use: str, run: Path, tmp_path: Path) -> None:
    path = tmp_path / "round-000002.ckpt"
    shutil.copy(run / "checkpoints" / "round-000002.ckpt", path)
    flipped(path, content_bits(path)[0])
    data = make_data()
    trainer = make_trainer(3, plugins=[MappedCheckpoints()])
    readers: dict[str, Any] = {
        "load": lambda: load(path),
        "Trainer": lambda: trainer.fit(make_model(FedEM, data), data, ckpt_path=path, weights_only=True),
        "load_from_checkpoint": lambda: FedEM.load_from_checkpoint(path),
    }
    with pytest.raises(UserError, match="is no intact checkpoint"):
        readers[use]()


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


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "round-000002.ckpt"
    shutil.copy(run / "checkpoints" / "round-000002.ckpt", path)
    content = {**read_checkpoint(path), "more": torch.zeros(100_000)}
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))  # as a quota or a full disk does
    try:
        with pytest.raises(UserError) as refusal:
            MappedCheckpoints().save_checkpoint(content, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert str(refusal.value) == f"cannot write {path} (File too large)"
    assert os.listdir(tmp_path) == [path.name]
    read_checkpoint(path)


def _fill(path: Path) -> None:
    with replacing(path) as temporary:
        temporary.write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_that_cannot_be_written_leaves_no_folder_and_the_earlier_file(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    for path in (tmp_path / "a" / "b" / "new", tmp_path / "old"):
        with pytest.raises(UserError, match=r"cannot write .*No space left"):
            _fill(path)
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert (tmp_path / "old").read_text() == "old"
