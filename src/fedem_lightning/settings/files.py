"""Files: read only if they are regular, and written whole or not at all."""

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedem_lightning.settings.errors import UserError


def regular(path: Path) -> Path:
    """The same path, if a regular file with content is there; a link counts as what it leads to.

    The system's own files, such as /proc/kmsg, call themselves regular and empty, and may have no end either. OSError:
    there is a folder, a FIFO, a socket, a device or an empty file, or nothing.
    """
    result = path.stat()
    if not stat.S_ISREG(result.st_mode):
        raise OSError(errno.EINVAL, "no regular file", str(path))
    if result.st_size == 0:
        raise OSError(errno.ENODATA, "empty", str(path))
    return path


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Within it a refusal of the system, such as a full disk, becomes a UserError with the path and the reason."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror or error})") from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary file beside `path`, which replaces `path` in one step if all goes well, and else goes.

    So no reader ever sees half a file, and the earlier one stays if the disk is full or the run is killed. Folders that
    were made for the file go as well if it cannot be written (UserError, see `writing`).
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


def write_atomically(path: Path, content: bytes) -> None:
    """Replaces `path` by `content` in one step; see `replacing`."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_arrays(path: Path, arrays: Mapping[str, Any], compressed: bool = True) -> None:
    """Writes NumPy's arrays by name as an .npz, in one step; `numpy.load` reads it without pickle."""
    import numpy as np  # commands that answer at once write files, too

    assert not any(np.asarray(array).dtype.hasobject for array in arrays.values())
    with replacing(path) as temporary, temporary.open("wb") as file:
        (np.savez_compressed if compressed else np.savez)(file, **arrays)
