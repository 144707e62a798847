"""Writing of files: whole or not at all, and what the system refuses in one line."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedem_lightning.errors import UserError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Within it a refusal of the system becomes a line that names the path and the system's reason.

    Raises:
        UserError: the disk is full, the folder cannot be written to, and the like.

    """
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror or error})") from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary file beside `path`, which replaces `path` in one step if all goes well, and else goes.

    So no reader ever sees half a file, and the earlier one stays if the disk is full or the run is killed. Folders that
    were made for the file go as well if it cannot be written.

    Raises:
        UserError: see `writing`.

    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with writing(path):
        new = [folder for folder in path.parents if not os.path.lexists(folder)]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            yield temporary
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):  # also if the folder was never made, or has something else in it by now
                temporary.unlink(missing_ok=True)
                for folder in new:
                    folder.rmdir()
            raise
