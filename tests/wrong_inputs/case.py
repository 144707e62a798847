"""A wrong input, the command that meets it in a process of its own, and what is held against the command."""

import hashlib
import os
import re
import resource
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HANG_SECONDS = 20.0
MEMORY = 4 * 10**9
"""Bytes that a command may have beside what is loaded."""
MAIN = "fedem_lightning"


@dataclass(frozen=True)
class Case:
    """One wrong input.

    Args:
        name: what is wrong, "room/...".
        words: of the command line, after the command.
        command: the module that `python -m` runs.
        prepare: puts files into the empty folder in which the command runs.
        says: what its line must contain.
        refused: whether exit code 2 is expected; else the command may also do its work (a report shows other runs).
        holds: clients and samples of the data; `data describe` must print these numbers, refuse, or warn.
        told: whether the command must refuse or warn.

    """

    name: str
    words: tuple[str, ...]
    command: str = MAIN
    prepare: Callable[[Path], None] | None = None
    says: str = ""
    refused: bool = True
    holds: tuple[int, int] | None = None
    told: bool = False


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    code: int
    seconds: float
    out: str
    err: str
    changed: list[str]  # files that were there and are no longer the same
    left: list[str]  # files and folders that were not there


def meet(case: Case, folder: Path) -> Outcome:
    """Runs the case's command in `folder`, in a fork of this process, which has imported everything."""
    place = folder / "work"
    place.mkdir(parents=True)
    if case.prepare is not None:
        case.prepare(place)
    before, start = snapshot(place), time.monotonic()
    child = os.fork()
    if child == 0:
        _become(case, place, folder)
    code = _wait(child, start + HANG_SECONDS)
    seconds, after = time.monotonic() - start, snapshot(place)
    changed = sorted(name for name in before if after.get(name) != before[name])
    out, err = ((folder / name).read_text(errors="replace") for name in ("out", "err"))
    return Outcome(code, seconds, out, err, changed, sorted(after.keys() - before.keys()))


def faults(case: Case, outcome: Outcome) -> list[str]:
    """What is held against the command; empty: it met the wrong input well."""
    found = []
    lines = [line for line in outcome.err.splitlines() if line and not line.startswith("warning: ")]
    if outcome.seconds >= HANG_SECONDS:
        found.append("hang")
    if "Traceback" in outcome.err or outcome.code not in (0, 2):
        found.append("traceback" if "Traceback" in outcome.err else f"exit {outcome.code}")
    if case.refused and outcome.code == 0:
        found.append("accepted")
    if outcome.code == 0 and "warning: " not in outcome.err:
        if case.holds is not None and _read(outcome.out) != case.holds:
            found.append(f"lost {_read(outcome.out)} of {case.holds}")
        if case.told:
            found.append("silent")
    if outcome.code == 2:
        if len(lines) != 1 or not lines[0].startswith("error: "):
            found.append("not one line")
        elif case.says.lower() not in lines[0].lower():
            found.append("another line")
        if outcome.left:
            found.append("left " + ", ".join(outcome.left[:3]))
    if outcome.changed and (outcome.code or case.command != MAIN):  # a run that goes on writes its own files
        found.append("changed " + ", ".join(outcome.changed[:3]))
    return found


def _read(out: str) -> tuple[int, ...]:
    """The clients and samples that `data describe` printed."""
    found = (re.search(rf"^\W*{what}\W+(\d+)\W*$", out, re.MULTILINE) for what in ("clients", "samples"))
    return tuple(int(match[1]) for match in found if match)


def snapshot(folder: Path) -> dict[str, str]:
    """Every file by its content, every folder and link by its name."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"link {os.readlink(path)}"
        elif path.is_file():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            found[name] = "folder" if path.is_dir() else "special"
    return found


def _become(case: Case, place: Path, folder: Path) -> None:
    """Turns this fork into the command; it never returns."""
    code = 1
    try:
        os.setsid()
        for number, name in ((1, "out"), (2, "err")):
            file = os.open(folder / name, os.O_WRONLY | os.O_CREAT)
            os.dup2(file, number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
        os.chdir(place)
        sys.argv = [case.command, *case.words]
        sys.modules.pop(f"{case.command}.__main__", None)
        try:
            runpy.run_module(case.command, run_name="__main__", alter_sys=True)
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _wait(child: int, deadline: float) -> int:
    """The child's exit code; it is killed at the deadline."""
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return -signal.SIGKILL
        time.sleep(0.01)
