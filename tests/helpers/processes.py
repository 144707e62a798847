"""What the system says of a process (Linux), and a free port."""

import socket
from pathlib import Path


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def second_process(first: int) -> int:
    """The process that a run in two processes has started."""
    found = Path(f"/proc/{first}/task/{first}/children").read_text().split()
    return next(int(p) for p in found if b"fedem_lightning" in Path(f"/proc/{p}/cmdline").read_bytes())
