"""Ctrl-C and SIGTERM, which SLURM, Docker and CI send: a run ends with one line that says how to go on."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import pytorch_lightning as pl

from fedem_lightning.callbacks import FinishRoundOnInterrupt, RoundCheckpoint
from fedem_lightning.callbacks.between_rounds import GRACE_SECONDS, SIGNALS
from fedem_lightning.errors import Interrupted
from fedem_lightning.run.job_folders import sweep_command
from fedem_lightning.run.watchdogs import FORCE_SECONDS, StartedProcesses, Watchdog, kill
from fedem_lightning.startup.loading import say_at_a_stop
from fedem_lightning.startup.rank import in_another_process


class StopSignals:
    """Listens for the length of a run: a context.

    The first signal raises `Interrupted`; while rounds are trained, `FinishRoundOnInterrupt` hears it instead. What
    has not ended some seconds later, or a second after a second signal, is ended by force: `Watchdog`. Once the
    results are written, the run ends by itself, and only a sweep is stopped.

    Args:
        folder: of the run.
        command: what continues the run; its argument says whether the run has a checkpoint of its own.

    """

    def __init__(self, folder: Path, command: Callable[[bool], str]) -> None:
        self.folder, self.command = folder, command
        self.trainer: pl.Trainer | None = None
        self.resumed_rounds = 0
        self._at_once = self._over = False
        self._late: str | None = None  # signal that came after the results
        self._results_before = self._results()
        self._lock = threading.RLock()
        self._watchdog: Watchdog | None = None
        self._previous: dict[int, Any] = {}
        self._others: list[Any] = []  # processes that this one has started
        self._watch: StartedProcesses | None = None

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():  # Python hears signals there alone
            self._watchdog = Watchdog(self._patience, self._end_by_force)
            self._previous = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        say_at_a_stop(None if isinstance(error, Interrupted) else self._between_jobs("stopped"))
        with self._lock:
            self._over = True
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if self._watch is not None:
            self._watch.close()
        first = None
        if self._watchdog is not None:
            self._watchdog.close()
            first = self._watchdog.first
        if isinstance(error, RuntimeError) and self._several():  # an exchange has failed, if another is gone
            if in_another_process():
                time.sleep(FORCE_SECONDS)  # the first process says it, and ends this one
            elif name := first or (self._watch and self._watch.failed(FORCE_SECONDS)):
                raise Interrupted(self.message(name)) from None
        if self._late is not None and (line := self._between_jobs(f"stopped by {self._late}")) is not None:
            raise Interrupted(line)

    def listen_for(self, trainer: pl.Trainer) -> None:
        """Stops `trainer`, too: in place of Lightning, which ends by exit code 0 and waits for any round."""
        self.trainer = trainer
        vars(trainer._signal_connector)["_sigterm_notifier_fn"] = lambda *_: None
        if self._several() and not in_another_process():
            self._watch = StartedProcesses(self._started, self._end_without)

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

    @property
    def at_once(self) -> bool:
        """Whether the run does not wait for the end of its round."""
        return self._at_once

    def end_other_processes(self) -> None:
        """Those that this one has started; after an error, or if they may not finish their round."""
        if self._watch is not None:
            self._watch.close()
        kill(self._started(), FORCE_SECONDS)

    def others_may_end(self) -> None:
        """The others have done their part."""
        if self._watch is not None:
            self._watch.close()

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self._finished():
            self._late = SIGNALS[signum]
        elif not self._at_once:
            self._at_once = True
            raise Interrupted(self.message(SIGNALS[signum]))

    def _patience(self, signum: int) -> float:
        """Seconds to wait after a first signal."""
        if self._finished():
            return float("inf")
        # the first process ends before the others, and says how to go on
        later = 2 * GRACE_SECONDS if in_another_process() else 0.0
        for callback in self._callbacks(FinishRoundOnInterrupt):
            if callback.listening:
                return later + float(callback.grace_seconds) if signum == signal.SIGTERM else float("inf")
        if later:
            return later
        # processes that start do not listen yet: Lightning would see them die, and kill this one before it has spoken
        return 0.2 if self._started() else GRACE_SECONDS

    def _end_by_force(self, name: str) -> None:
        with self._lock:
            if self._over:
                return
            self._at_once = True
            if in_another_process():  # the first one says it
                os._exit(1)
            if sys.stdout.isatty():
                print("\033[?25h")  # the cursor, which a progress bar hides
            line = self._between_jobs(f"stopped by {name}") if self._finished() else self.message(name)
            if line is not None:
                print(line, file=sys.stderr, flush=True)
            self.end_other_processes()
            sys.stdout.flush()
            os._exit(0 if line is None else 1)

    def _end_without(self, name: str) -> None:
        """Another process is gone, and this one has not noticed: it may wait for it."""
        self._end_by_force(self._watchdog.first if self._watchdog and self._watchdog.first else name)

    def _results(self) -> tuple[int, int] | None:
        """Tells one results.json from another."""
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

    def _started(self) -> list[Any]:
        """The processes that this one has started. Lightning forgets them: if one failed, it would kill all."""
        with self._lock:
            new = getattr(self.trainer.strategy.launcher, "procs", []) if self.trainer else []
            self._others += new
            new.clear()
            return self._others
