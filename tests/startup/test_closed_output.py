"""`... | head -1`: the reader goes away, and the command ends without a word; a full disk is a mistake with a line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    "arguments", [["fedem_lightning", "--cfg", "job"], ["fedem_lightning.data", "describe", "digits"]]
)
def test_a_command_that_nobody_reads_ends_without_a_trace(arguments: list[str], tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, cwd=tmp_path, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=100)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_full_disk_ends_a_command_with_a_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedem_lightning.data", "describe", "digits"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (2, "error: [Errno 28] No space left on device\n")
