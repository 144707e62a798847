"""Odd circumstances that a user meets: no docstrings, a full disk, a backend that does not exist, wrong addresses."""

import errno
import os
import sys
from pathlib import Path

import pytest

from fedem_lightning import UserError
from fedem_lightning.records.files import replacing
from fedem_lightning.run.cli import main as run
from fedem_lightning.run.commands import user_message


def test_a_working_directory_that_is_gone_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.setattr(sys, "argv", ["fedem-lightning"])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    with pytest.raises(SystemExit, match="2"):
        run()
    assert capsys.readouterr().err.startswith("error: the working directory is gone")
    monkeypatch.chdir(tmp_path)


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


def test_what_the_system_refuses_is_one_line_with_the_file() -> None:
    with pytest.raises(OSError, match="too long") as caught:
        Path("x" * 5000).stat()
    line = user_message(caught.value) or ""
    assert line.endswith(": the system refuses it (File name too long)")
    assert len(line) < 1100
