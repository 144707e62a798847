"""The process itself: its rank among those of a run, its tie to the first, and what stops it outside of a run.

RANK, LOCAL_RANK or SLURM_PROCID alone say nothing: `salloc`, Kubeflow and old shells leave them to runs of their own.
This module handles Ctrl-C and SIGTERM while packages load, while Hydra composes, and between the jobs of a sweep;
`run/stopping.py` does so in a run. The module imports nothing slow.
"""

import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

PARENT = "FEDEM_LIGHTNING_PARENT"
"""Environment variable by which the first process tells the others its process id."""
_EVERY = 0.2
"""Seconds between two looks."""

_LAUNCHERS = (  # in Lightning's order: rank, number of processes, and what else is set
    ("RANK", "WORLD_SIZE", ("TORCHELASTIC_RUN_ID", "MASTER_ADDR")),  # torchrun
    ("SLURM_PROCID", "SLURM_NTASKS", ()),  # srun
    ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", ()),  # jsrun
    ("LOCAL_RANK", "WORLD_SIZE", ("MASTER_ADDR",)),  # Lightning's own, and by hand
    ("NODE_RANK", "WORLD_SIZE", ("MASTER_ADDR",)),  # the first process of another machine
)
_RANKS = ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")
_OF_A_GROUP = ("TORCHELASTIC_RUN_ID", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SLURM_NTASKS", "JSM_NAMESPACE_SIZE")

_line: str | None = None  # see `say_at_a_stop`
_clean_up: Callable[[], None] = lambda: None  # noqa: E731


def started_by_the_first() -> bool:
    """Whether the first process of a run has started this one, and no launcher such as torchrun."""
    return PARENT in os.environ and os.environ.get("LOCAL_RANK", "0") != "0"


_is_another = started_by_the_first()  # until `decide` is called, which knows what the run asks for


def is_worker_rank() -> bool:
    """Whether this is not the first process of a run."""
    return _is_another


def end_with_the_first() -> None:
    """In every process but the first: from here on it ends, without a word, once the process that started it is gone.

    A process that torchrun or SLURM started ends with those.
    """
    parent = int(os.environ[PARENT]) if started_by_the_first() else os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_EVERY)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="first-process").start()


def decide(processes: int | None) -> int:
    """Decides whether this process belongs to a group of processes, and whether it is the first of them.

    It belongs to one if the first process of a run has started it, or if a launcher has started as many processes as
    the run asks for. Otherwise it is a run of its own. The variables are then removed: Lightning would read them.

    Args:
        processes: that the run asks for; None: as many as a launcher has started.

    Returns:
        The number of processes of the group; 1: there is none.

    """
    global _is_another
    rank, size = _launched()
    belongs = size > 1 and (started_by_the_first() or processes in (None, size))
    was_another, _is_another = _is_another, belongs and rank > 0
    if _is_another and not was_another:
        end_with_the_first()
    if not belongs:
        for name in (*_RANKS, *(_OF_A_GROUP if size > 1 else ())):
            os.environ.pop(name, None)
    lightnings = sys.modules.get("lightning_utilities.core.rank_zero")
    if lightnings is not None:  # it has guessed, from the variables
        lightnings.rank_zero_only.rank = int(_is_another)
    return size if belongs else 1


def _launched() -> tuple[int, int]:
    """A rank and the number of processes, as a launcher has set them; (0, 1): none has."""
    by_hand = os.environ.get("SLURM_JOB_NAME") in ("bash", "interactive")  # as Lightning reads it
    for name, of, more in _LAUNCHERS:
        known = {name, of, *more} <= os.environ.keys()
        if known and not (name == "SLURM_PROCID" and by_hand):
            machine = _number("NODE_RANK") or _number("GROUP_RANK") if name == "LOCAL_RANK" else 0
            return _number(name) + machine, _number(of)
    return 0, 1


def _number(name: str) -> int:
    value = os.environ.get(name, "")
    return int(value) if value.isascii() and value.isdigit() else 0


@contextmanager
def listening(line: str) -> Iterator[None]:
    """Within it Ctrl-C and SIGTERM end the process at once, with this line and exit code 1."""
    global _line
    earlier, before = _line, _ours()
    _line = line
    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        _line = earlier
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def loading() -> Iterator[None]:
    """Within it Ctrl-C and SIGTERM end the process at once, with one line and exit code 1.

    Warnings then have the form that they had before: Lightning puts its own in its place.
    """
    form = warnings.formatwarning
    os.environ["MPLBACKEND"] = "agg"  # commands draw into files; Matplotlib would fail with an unknown name here
    with listening("stopped while Python packages were loading; nothing has been done"):
        yield
    warnings.formatwarning = form


def say_at_a_stop(line: str | None) -> None:
    """What the command says if it is stopped from here on; None: the signal is ignored."""
    global _line
    _line = line


def clean_up_at_a_stop(clean_up: Callable[[], None]) -> None:
    """What is called first if the command is stopped from here on."""
    global _clean_up
    _clean_up = clean_up


def stop(*_: Any) -> None:
    """Handles both signals.

    It ends the process itself. An exception would not do: some packages catch whatever happens while they import
    others, Python drops what is raised while it collects garbage, and the command would go on.
    """
    if _line is None:
        return
    if not is_worker_rank():  # the first one says it
        _clean_up()
        with suppress(RuntimeError):  # the signal came while something was printed
            sys.stdout.flush()
        os.write(2, f"{_line}\n".encode())
    os._exit(1)


def raise_at_a_stop() -> None:
    """From here on both signals raise KeyboardInterrupt: a launcher that has workers then ends them."""
    for number in _ours():
        signal.signal(number, signal.default_int_handler)


def ignore_stops() -> None:
    """Ignores both signals while the process shuts down."""
    for number in _ours():
        signal.signal(number, signal.SIG_IGN)


def _ours() -> dict[int, Any]:
    """The handlers that may be replaced: none under nohup, and none in other threads, where Python hears no signal."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    return {n: h for n, h in handlers.items() if h in (signal.default_int_handler, signal.SIG_DFL, stop)}
