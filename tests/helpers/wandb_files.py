"""What W&B has written offline: the records of its files, in LevelDB's log format."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

HEADER, BLOCK = 7, 32768
FULL, LAST = 1, 4  # kinds of pieces that end a record


def records(path: Path) -> Iterator[Any]:
    """The records of a file, up to where it was cut off."""
    data, position, pieces = path.read_bytes(), HEADER, b""
    while position + HEADER <= len(data):
        if (left := BLOCK - position % BLOCK) < HEADER:
            position += left
            continue
        _, length, kind = struct.unpack("<IHB", data[position : position + HEADER])
        position += HEADER
        if kind == 0 or position + length > len(data):
            return
        pieces += data[position : position + length]
        position += length
        if kind in (FULL, LAST):
            record = Record()
            record.ParseFromString(pieces)
            yield record
            pieces = b""


class WandbRun:
    """The run in a folder, over all its files: runs, history, configuration, summary and exit codes."""

    def __init__(self, folder: Path) -> None:
        self.runs: list[Any] = []
        self.history: list[dict[str, Any]] = []
        self.config: dict[str, Any] = {}
        self.summary: dict[str, Any] = {}
        self.exits: list[int] = []
        for path in sorted((folder / "wandb").glob("offline-run-*/run-*.wandb")):
            for record in records(path):
                self._add(record)

    def _add(self, record: Any) -> None:
        kind = record.WhichOneof("record_type")
        if kind == "run":
            self.runs.append(record.run)
        elif kind == "history":
            self.history.append(_items(record.history.item))
        elif kind == "config":
            self.config.update(_items(record.config.update))
        elif kind == "summary":
            self.summary.update(_items(record.summary.update))
        elif kind == "exit":
            self.exits.append(record.exit.exit_code)


def _items(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
