"""`... | head -1`: the reader goes away, and the command goes on without it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.commands import TINY

PRINTS = """
import sys
from fedem_lightning.run.commands import survive_closed_output
survive_closed_output()
survive_closed_output()  # a second time changes nothing
for stream in (sys.stdout, sys.stderr):
    print("one", file=stream, flush=True)
sys.stdin.readline()  # until the reader has gone
for _ in range(3):
    print("two " * 9999, file=stream, flush=True)
    print("two " * 9999)
print("é", end="")
open(sys.argv[1], "w").write("done")
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_what_is_printed_after_the_reader_has_gone_is_lost_and_nothing_else(unbuffered: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    command = [sys.executable, "-c", PRINTS, str(tmp_path / "file")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, env=environment, text=True, **pipes)  # type: ignore[call-overload]
    assert process.stdout.readline() == process.stderr.readline() == "one\n"
    process.stdout.close()
    process.stderr.close()
    process.stdin.write("\n")
    process.stdin.close()
    assert process.wait(60) == 0
    assert (tmp_path / "file").read_text() == "done"


def test_text_is_written_as_before() -> None:
    code = PRINTS.split("for stream")[0] + "print('aé\\nb', end='')\nprint('c', file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "aé\nb".encode(), b"c\n")


@pytest.mark.slow
def test_a_run_whose_output_nobody_reads_ends_with_its_results(tmp_path: Path) -> None:
    """As `| head -1`, but closed even before the first line."""
    short = [*TINY, "trainer.max_epochs=1", "trainer.check_val_every_n_epoch=1", "run_dir=run"]
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.run(
        [sys.executable, "-m", "fedem_lightning", *short],
        cwd=tmp_path,
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writer)
    assert (process.returncode, process.stderr) == (0, "")
    assert (tmp_path / "run" / "results.json").is_file()


@pytest.mark.parametrize("arguments", [["fedem_lightning", "--cfg", "job"], ["fedem_lightning.data", "list"]])
def test_other_commands_end_well_too(arguments: list[str], tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, cwd=tmp_path, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=100)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


FULL = """
import os, sys
from fedem_lightning.run.commands import one_line_for_mistakes
os.dup2(os.open("/dev/full", os.O_WRONLY), int(sys.argv[1]))
with one_line_for_mistakes():
    print("lost")
    if sys.argv[2:]:
        raise SystemExit(0)  # of --help
    require = __import__("fedem_lightning.errors", fromlist=["require"]).require
    require(sys.argv[1] == "1", "x: a mistake")
"""


@pytest.mark.parametrize("words", [["1"], ["1", "--help"], ["2"]])
def test_a_full_disk_ends_a_command_with_a_line_if_there_is_anybody_to_read_it(words: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", FULL, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr == (
        "error: stdout: the system refuses it (No space left on device)\n" if words[0] == "1" else ""
    )
