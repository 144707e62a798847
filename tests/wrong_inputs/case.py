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
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HANG_SECONDS = 20.0
MEMORY = 4 * 10**9
"""Bytes that a command may have beside what is loaded."""
IMPORT_SECONDS = 40.0
"""What a process that has imported nothing may take beside these, on a machine with other work."""
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
        within: changes the process of the command, or its environment, before the command begins.
        flags: of Python, such as -O. The command then runs in a process that has imported nothing; () does as well,
            None does not.
        heard: whether anybody can read what the command says.
        leaves: whether a command that has begun its work may keep what it has written (a run on a full disk).

    """

    name: str
    words: tuple[str, ...]
    command: str = MAIN
    prepare: Callable[[Path], None] | None = None
    says: str = ""
    refused: bool = True
    holds: tuple[int, int] | None = None
    told: bool = False
    within: Callable[[], object] | None = None
    flags: tuple[str, ...] | None = None
    heard: bool = True
    leaves: bool = False


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
    pipes = [os.pipe(), os.pipe()]  # no files: a limit to the size of files would be one to what the command says
    child = os.fork()
    if child == 0:
        _become(case, place, [write for _, write in pipes])
    for _, write in pipes:
        os.close(write)
    code, (out, err) = _wait(child, [read for read, _ in pipes], start + _patience(case))
    seconds, after = time.monotonic() - start, snapshot(place)
    changed = sorted(name for name in before if after.get(name) != before[name])
    return Outcome(code, seconds, out, err, changed, sorted(after.keys() - before.keys()))


def faults(case: Case, outcome: Outcome) -> list[str]:
    """What is held against the command; empty: it met the wrong input well."""
    found = []
    lines = [line for line in outcome.err.splitlines() if line and not line.startswith(_BESIDE)]
    if outcome.seconds >= _patience(case):
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
        if case.heard and (len(lines) != 1 or not lines[0].startswith("error: ")):
            found.append("not one line")
        elif case.heard and case.says.lower() not in lines[0].lower():
            found.append("another line")
        if outcome.left and not case.leaves:
            found.append("left " + ", ".join(outcome.left[:3]))
    own = case.command == MAIN and (case.leaves or not outcome.code)  # a run that goes on writes its own files
    if outcome.changed and not own:
        found.append("changed " + ", ".join(outcome.changed[:3]))
    return found


def _read(out: str) -> tuple[int, ...]:
    """The clients and samples that `data describe` printed."""
    found = (re.search(rf"^\W*{what}\W+(\d+)\W*$", out, re.MULTILINE) for what in ("clients", "samples"))
    return tuple(int(match[1]) for match in found if match)


_BESIDE = ("warning: ", "job ", "Error executing job ")
"""Lines beside that of the error; the last two are of a job of a sweep, ours and Hydra's."""


def _patience(case: Case) -> float:
    return HANG_SECONDS + IMPORT_SECONDS * (case.flags is not None)


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


def _become(case: Case, place: Path, outputs: list[int]) -> None:
    """Turns this fork into the command; it never returns."""
    code = 1
    try:
        os.setsid()
        os.dup2(outputs[0], 1)
        os.dup2(outputs[1], 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
        os.chdir(place)
        if case.within is not None:
            case.within()
        if case.flags is not None:
            os.execv(sys.executable, [sys.executable, *case.flags, "-m", case.command, *case.words])
        for number, name, on_error in ((1, "stdout", "strict"), (2, "stderr", "backslashreplace")):
            vars(sys)[name] = vars(sys)[f"__{name}__"] = _stream(number, on_error)
        sys.argv = [case.command, *case.words]
        for module in (f"{case.command}.__main__", case.command if case.command != MAIN else ""):
            sys.modules.pop(module, None)  # runpy warns of a module that is there already
        try:
            runpy.run_module(case.command, run_name="__main__", alter_sys=True)
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        except BaseException:
            traceback.print_exc()
        code = _flushed(code)
    finally:
        os._exit(code)


def _stream(number: int, errors: str) -> Any:
    """What Python makes of an output; None if it is closed."""
    try:
        return open(number, "w", encoding="utf-8", errors=errors, buffering=1 if number == 2 else -1, closefd=False)
    except OSError:
        return None


def _flushed(code: int) -> int:
    """The exit code of Python, which flushes stdout and stderr at its end."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            code = 120
    return code


def _wait(child: int, outputs: list[int], deadline: float) -> tuple[int, list[str]]:
    """The child's exit code, and what it wrote to each output; it is killed at the deadline."""
    said = [bytearray() for _ in outputs]
    for output in outputs:
        os.set_blocking(output, False)
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        for output, text in zip(outputs, said, strict=True):
            with suppress(BlockingIOError):
                while part := os.read(output, 1 << 16):
                    text += part
        if done or time.monotonic() > deadline:
            break
        time.sleep(0.01)
    if not done:
        os.killpg(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    for output in outputs:
        os.close(output)
    return os.waitstatus_to_exitcode(status), [text.decode(errors="replace") for text in said]
