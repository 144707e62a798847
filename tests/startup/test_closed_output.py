"""`... | head -1`: the reader goes away, and the command ends without a word; a full disk is a mistake with a line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

DOWNLOAD = ["fedem_lightning.data", "download", "mnist", "data_dir=."]


@pytest.mark.parametrize("arguments", [["fedem_lightning", "--cfg", "job"], DOWNLOAD])
def test_a_command_that_nobody_reads_ends_without_a_trace(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "mnist.npz").touch()  # a copy, so that nothing is downloaded
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, cwd=tmp_path, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=100)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_full_disk_ends_a_command_with_a_line(tmp_path: Path) -> None:
    (tmp_path / "mnist.npz").touch()
    command = [sys.executable, "-m", *DOWNLOAD]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (2, "error: [Errno 28] No space left on device\n")
