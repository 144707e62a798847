"""What a server or a client does now, in a file, for health checks."""

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from fedem_lightning.errors import UserError, require
from fedem_lightning.records.files import replacing

NAME = "status.json"
EVERY = 5.0
"""Seconds after which the file is written again."""
FRESH = 30.0
"""Seconds after which a file says nothing of the present."""


class Status:
    """Keeps the file up to date; a context. It is removed if an error or a signal ends the context.

    Args:
        folder: where the file is.
        facts: what it says besides the time and the process; called from another thread.

    """

    def __init__(self, folder: Path, facts: Callable[[], dict[str, Any]]) -> None:
        self.folder, self.facts = folder, facts
        self._ended, self._new = threading.Event(), not folder.exists()
        self._thread = threading.Thread(target=self._keep, daemon=True, name="status")

    def __enter__(self) -> Self:
        self._write(self.facts())
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        if kind is None:
            self._write({**self.facts(), "state": "ended"})
            return
        with suppress(OSError):
            (self.folder / NAME).unlink(missing_ok=True)
            if self._new:
                self.folder.rmdir()  # it may have content

    def _keep(self) -> None:
        while not self._ended.wait(EVERY):
            self._write(self.facts())

    def _write(self, facts: dict[str, Any]) -> None:
        try:
            with replacing(self.folder / NAME) as path:
                process = {"pid": os.getpid(), "host": socket.gethostname()}
                path.write_text(json.dumps({**facts, "time": time.time(), **process}, indent=1))
        except UserError:
            return  # a full disk ends no run here; the file grows old, which is what a health check sees


def show_status(folder: Path) -> None:
    """Prints what a folder's server or client does.

    Args:
        folder: of the run, or of the client's state.

    Raises:
        UserError: it does nothing now: it has ended, its process is gone, or it was not heard of for `FRESH` seconds.

    """
    path = folder / NAME
    require(path.is_file(), f"{folder} has no {NAME}: no server and no client runs there")
    try:
        facts = json.loads(path.read_text())
        age = time.time() - float(facts.pop("time"))
        state, process = str(facts.pop("state")), (facts.pop("host"), facts["pid"])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{path} is no status of a server or a client") from None
    require(state != "ended", f"{folder}: ended {age:.0f} seconds ago")
    require(process[0] != socket.gethostname() or _there(process[1]), f"{folder}: killed; it last said: {state}")
    require(age < FRESH, f"{folder}: not heard of for {age:.0f} seconds; it last said: {state}")
    print(", ".join([state, *(f"{key} {value}" for key, value in facts.items())]))


def _there(pid: Any) -> bool:
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        return True
    return True
