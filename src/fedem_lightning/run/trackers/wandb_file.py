"""Reads the files that W&B writes, `wandb/*run-*/run-ID.wandb`: records of protobuf in LevelDB's log format."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedem_lightning.records.files import regular

_HEADER = 7
"""Bytes before the first record of a file, and before every piece of a record."""
_BLOCK = 32768
_FULL, _LAST = 1, 4
"""Kinds of pieces that end a record."""


def records(path: Path) -> Iterator[Any]:
    """The records of a file, as `wandb.proto.wandb_internal_pb2.Record`, up to where it was cut off."""
    try:
        data = regular(path).read_bytes()
    except OSError:  # something else has the name
        return
    from google.protobuf.message import DecodeError
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

    position, pieces = _HEADER, b""
    while position + _HEADER <= len(data):
        if (left := _BLOCK - position % _BLOCK) < _HEADER:
            position += left
            continue
        _, length, kind = struct.unpack("<IHB", data[position : position + _HEADER])
        position += _HEADER
        if kind == 0 or position + length > len(data):
            return
        pieces += data[position : position + length]
        position += length
        if kind in (_FULL, _LAST):
            record = Record()
            try:
                record.ParseFromString(pieces)
            except DecodeError:
                return
            yield record
            pieces = b""


def files_of(folder: Path, id_: str) -> list[Path]:
    """The files of the W&B run `id_` in a run's folder, oldest first."""
    return sorted((folder / "wandb").glob(f"*run-*-{id_}/run-{id_}.wandb"))


def last_step(path: Path) -> int:
    """The step of the file's last row of history; 0: it has none."""
    return max((r.history.step.num for r in records(path) if r.WhichOneof("record_type") == "history"), default=0)
