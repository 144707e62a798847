"""What may lie at the place of a file and is none: whoever opens or reads it may wait without end."""

import os
import socket
from collections.abc import Callable
from pathlib import Path


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # a socket's name has 108 bytes at most
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def _link_to_a_fifo(path: Path) -> None:
    os.mkfifo(path.with_name(f"of-{path.name}"))
    path.symlink_to(f"of-{path.name}")


def _link_to_a_link(path: Path) -> None:
    os.mkfifo(path.with_name(f"of-{path.name}"))
    path.with_name(f"to-{path.name}").symlink_to(f"of-{path.name}")
    path.symlink_to(f"to-{path.name}")


def _folder_of_fifos(path: Path) -> None:
    path.mkdir()
    for name in ("a.parquet", "a.json", "a.csv", "a.txt", "x.npy", path.name):
        os.mkfifo(path / name)


def _device(name: str, path: Path) -> None:
    path.symlink_to(name)


FEW: dict[str, Callable[[Path], None]] = {
    "fifo": _fifo,
    "socket": _socket,
    "link-to-a-fifo": _link_to_a_fifo,
    "dev-zero": lambda path: _device("/dev/zero", path),
}
SPECIAL = FEW | {
    "link-to-a-link": _link_to_a_link,
    "folder-of-fifos": _folder_of_fifos,
    "dev-random": lambda path: _device("/dev/urandom", path),
    "dev-full": lambda path: _device("/dev/full", path),
    "dev-null": lambda path: _device("/dev/null", path),
    "dev-tty": lambda path: _device("/dev/tty", path),
    "dev-stdin": lambda path: _device("/dev/stdin", path),
    "kernel-log": lambda path: _device("/proc/kmsg", path),
    "memory": lambda path: _device("/proc/self/mem", path),
    "link-to-itself": lambda path: path.symlink_to(path.name),
    "dangling": lambda path: path.symlink_to("nowhere"),
    "empty": lambda path: path.touch(),
}
