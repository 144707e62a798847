"""Reading of files that may come from elsewhere: of regular files alone, because a FIFO or a device may have no end."""

import errno
import stat
from pathlib import Path


def regular(path: Path) -> Path:
    """The same path, if a regular file with content is there; a link counts as what it leads to.

    The system's own files, such as /proc/kmsg, call themselves regular and empty, and may have no end either.

    Raises:
        OSError: there is a folder, a FIFO, a socket, a device or an empty file, or nothing.

    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "no regular file", str(path))
    if found.st_size == 0:
        raise OSError(errno.ENODATA, "empty", str(path))
    return path
