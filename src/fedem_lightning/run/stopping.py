"""Ctrl-C and SIGTERM, which SLURM, Docker and CI send, and the end of another process: one line says how to go on."""

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import pytorch_lightning as pl

from fedem_lightning.callbacks import FinishRoundOnInterrupt, RoundCheckpoint
from fedem_lightning.callbacks.between_rounds import GRACE_SECONDS, SIGNALS
from fedem_lightning.errors import Interrupted
from fedem_lightning.run.job_folders import sweep_command
from fedem_lightning.startup.process import PARENT, is_worker_rank, say_at_a_stop

FORCE_SECONDS = 1.0
"""What a run has to end by itself after a second signal."""
_EVERY = 0.2
"""Seconds between two looks at the child ranks."""
_WITHOUT_ANOTHER = 5.0
"""What the first process has to end by itself once another is gone: its next exchange fails."""


class StopSignals:
    """Context manager for the signals of a run.

    | the run | the first signal | what has not ended then is ended by force |
    |---|---|---|
    | before and after the rounds | raises `Interrupted` | `GRACE_SECONDS` later |
    | trains rounds | `FinishRoundOnInterrupt` hears it | after SIGTERM `grace_seconds` later, after Ctrl-C never |
    | has written its results | stops only a sweep | never |

    A second signal ends it by force a second later. A thread does so, because Python's handlers run in the main one,
    and wait while that waits for another process. It also watches the child ranks, in place of
    Lightning, which would kill all, itself included, without a word.

    Args:
        folder: of the run.
        command: what continues the run; its argument says whether the run has a checkpoint of its own.

    """

    def __init__(self, folder: Path, command: Callable[[bool], str]) -> None:
        self.folder, self.command = folder, command
        self.trainer: pl.Trainer | None = None
        self.resumed_rounds = 0
        self.at_once = False  # whether the run does not wait for the end of its round
        self._over = False
        self._first: str | None = None  # signal that came first
        self._late: str | None = None  # signal that came after the results
        self._results_before = self._results()
        self._lock = threading.RLock()
        self._previous: dict[int, Any] = {}
        self._others: list[subprocess.Popen[bytes]] = []  # child ranks
        self._watches_others = False
        self._gone: str | None = None  # what became of one of them that has failed

    def __enter__(self) -> "StopSignals":
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        if threading.current_thread() is threading.main_thread():  # Python hears signals there alone
            self._wakeup = signal.set_wakeup_fd(self._writer)
            self._previous = {number: signal.signal(number, self._handle) for number in SIGNALS}
        threading.Thread(target=self._watch, daemon=True, name="stop-signals").start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        say_at_a_stop(None if isinstance(error, Interrupted) else self._between_jobs("stopped"))
        with self._lock:
            self._over = True
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if self._previous:
            signal.set_wakeup_fd(self._wakeup)
        os.close(self._writer)
        if isinstance(error, RuntimeError) and self._several():  # an exchange has failed, if another is gone
            if is_worker_rank():
                time.sleep(FORCE_SECONDS)  # the first process says it, and ends this one
            elif name := self._first or self._gone:
                raise Interrupted(self.message(name)) from None
        if self._late is not None and (line := self._between_jobs(f"stopped by {self._late}")) is not None:
            raise Interrupted(line)

    def listen_for(self, trainer: pl.Trainer) -> None:
        """Stops `trainer`, too: in place of Lightning, which ends by exit code 0 and waits for any round."""
        self.trainer = trainer
        vars(trainer._signal_connector)["_sigterm_notifier_fn"] = lambda *_: None
        if self._several() and not is_worker_rank():
            os.environ[PARENT] = str(os.getpid())
            self._watches_others = True

    def message(self, name: str) -> str:
        """The line that a run ends with after a signal called `name`."""
        sweep = sweep_command()
        more = "" if sweep is None else f"; continue the whole sweep with: {sweep}"
        if not (self.folder / ".hydra").exists():
            return f"stopped by {name} before the run began; nothing was written{more}"
        own = max((c.saved_rounds for c in self._callbacks(RoundCheckpoint)), default=0)
        saved, begun = max(own, self.resumed_rounds), self.trainer.current_epoch if self.trainer else 0
        command = self.command(own > 0) + more
        if saved == 0:
            return f"stopped by {name} before the first checkpoint; start again with: {command}"
        if begun <= saved:
            return f"stopped by {name} after round {saved}; continue with: {command}"
        return f"stopped by {name} in round {begun + 1}; continue after round {saved} with: {command}"

    def end_other_processes(self) -> None:
        """Ends the child ranks; after an error, or if they may not finish their round."""
        if self._watches_others and self._gone is None:  # an exchange that fails is sooner than the system's word
            self._gone = self._failed(FORCE_SECONDS if isinstance(sys.exception(), RuntimeError) else 0.0)
        self._watches_others = False
        for process in self._started():
            process.kill()
        for process in self._started():
            with suppress(subprocess.TimeoutExpired):
                process.wait(FORCE_SECONDS)

    def others_may_end(self) -> None:
        """The others have done their part."""
        self._watches_others = False

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self._finished():
            self._late = SIGNALS[signum]
        elif not self.at_once:
            self.at_once = True
            raise Interrupted(self.message(SIGNALS[signum]))

    def _watch(self) -> None:
        """Waits for signals, then for the run's end or the deadline; and looks for processes that have failed."""
        deadline = without_another = float("inf")
        while True:
            if select.select([self._reader], [], [], _EVERY)[0]:
                received = os.read(self._reader, 1)
                if not received:  # the run is over
                    break
                if received[0] in SIGNALS:
                    patience = FORCE_SECONDS if self._first else self._patience(received[0])
                    self._first = self._first or SIGNALS[received[0]]
                    deadline = min(deadline, time.monotonic() + patience)
            if self._watches_others and self._gone is None and (gone := self._failed()) is not None:
                self._gone, without_another = gone, time.monotonic() + _WITHOUT_ANOTHER
            if time.monotonic() >= min(deadline, without_another if self._watches_others else float("inf")):
                self._end_by_force(str(self._first or self._gone))
                break
        os.close(self._reader)

    def _patience(self, signum: int) -> float:
        """Seconds to wait after a first signal."""
        if self._finished():
            return float("inf")
        # the first process ends before the others, and says how to go on
        later = 2 * GRACE_SECONDS if is_worker_rank() else 0.0
        for callback in self._callbacks(FinishRoundOnInterrupt):
            if callback.listening:
                return later + float(callback.grace_seconds) if signum == signal.SIGTERM else float("inf")
        # processes that start do not listen yet: Lightning would see them die, and kill this one before it has spoken
        return later or (0.2 if self._started() else GRACE_SECONDS)

    def _end_by_force(self, name: str) -> None:
        with self._lock:
            if self._over:
                return
            self.at_once = True
            if is_worker_rank():  # the first one says it
                os._exit(1)
            if sys.stdout.isatty():
                print("\033[?25h")  # the cursor, which a progress bar hides
            line = self._between_jobs(f"stopped by {name}") if self._finished() else self.message(name)
            if line is not None:
                print(line, file=sys.stderr, flush=True)
            self.end_other_processes()
            sys.stdout.flush()
            os._exit(0 if line is None else 1)

    def _failed(self, patience: float = 0.0) -> str | None:
        """What became of a process that has failed; None: none has, for `patience` seconds."""
        deadline = time.monotonic() + patience
        while True:
            processes = list(self._started())
            for rank, process in enumerate(processes, start=1):
                if code := process.poll():
                    how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
                    return f"the end of process {rank + 1} of {len(processes) + 1} (pid {process.pid}, {how})"
            if time.monotonic() >= deadline:
                return None
            time.sleep(_EVERY / 4)

    def _results(self) -> tuple[int, int] | None:
        """Inode and time of results.json, which change when it is written anew; None: there is none."""
        try:
            found = (self.folder / "results.json").stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    def _finished(self) -> bool:
        """Whether this run has written its results, which it does last."""
        return self._results() not in (None, self._results_before)

    def _between_jobs(self, stopped: str) -> str | None:
        """The line for a stop after this run; None if no other follows."""
        sweep = sweep_command()
        return None if sweep is None else f"{stopped} after a job; continue the sweep with: {sweep}"

    def _callbacks(self, kind: type) -> list[Any]:
        callbacks = self.trainer.callbacks if self.trainer else []  # type: ignore[attr-defined]
        return [c for c in callbacks if isinstance(c, kind)]

    def _several(self) -> bool:
        return self.trainer is not None and self.trainer.world_size > 1

    def _started(self) -> list["subprocess.Popen[bytes]"]:
        """The child ranks. Lightning forgets them: if one failed, it would kill all."""
        with self._lock:
            new = getattr(self.trainer.strategy.launcher, "procs", []) if self.trainer else []
            self._others += new
            new.clear()
            return self._others
