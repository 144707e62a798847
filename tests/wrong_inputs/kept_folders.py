"""Odd folders of the formats of known data sets, and numbers without bounds."""

import io
import json
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

Files = Mapping[str, bytes | str | None]
"""What a folder holds by name: a file's content, the target of a link, or None for a pipe."""

BOUNDS = [
    f"{dataset} dataset.{key}={value}"
    for dataset, keys in {
        "synthetic": ("n_clients", "dimension", "n_components", "test_size"),
        "density": ("n_clients", "n_symbols", "n_samples", "n_val", "test_size"),
        "population": ("n_clients", "dimension", "n_components"),
        "digits": ("n_clients",),
    }.items()
    for key in keys
    for value in (10**11, 10**12, 10**15, 10**18)
] + [f"population dataset.samples=[{n},1,1]" for n in (10**11, 10**15)]


def leaf(sizes: Mapping[str, int], **more: Any) -> bytes:
    data = {name: {"x": [[0.5] * 784] * n, "y": [i % 62 for i in range(n)]} for name, n in sizes.items()}
    content = {"users": list(sizes), "num_samples": list(sizes.values()), "user_data": data, **more}
    return json.dumps(content).encode()


def leaf_folders() -> dict[str, tuple[Files, tuple[int, int] | None]]:
    good = {"a": 10, "b": 10}
    first, second = leaf(good), leaf({"c": 5, "d": 5})
    twice = first.replace(b'"b": {', b'"a": {')
    return {
        "two-files": ({"0.json": first, "1.json": second}, (4, 30)),
        "train-and-test": ({"train/0.json": first, "test/0.json": leaf({"a": 3})}, (2, 23)),
        "upper-case": ({"0.json": first, "1.JSON": second}, (4, 30)),
        "deep": ({"0.json": first, "a/b/c/1.json": second}, (4, 30)),
        "hidden-folder": ({"0.json": first, ".more/1.json": second}, (4, 30)),
        "dangling-link": ({"0.json": first, "1.json": "nowhere"}, None),
        "link-to-itself": ({"0.json": first, "1.json": "1.json"}, None),
        "link-to-a-copy": ({"0.json": first, "1.json": "0.json"}, None),
        "linked-folder": ({"0.json": first, "more": "../elsewhere"}, None),
        "pipe": ({"0.json": first, "1.json": None}, None),
        "copy": ({"0.json": first, "0 (1).json": first}, None),
        "all-data-and-train": ({"all_data/0.json": first, "train/0.json": second}, None),
        "packed": ({"0.json": first, "1.json.gz": second}, None),
        "half-downloaded": ({"0.json": first, "1.json.part": second}, None),
        "lines": ({"0.json": first, "1.jsonl": second}, None),
        "empty-file": ({"0.json": first, "1.json": b""}, None),
        "cut": ({"0.json": first, "1.json": second[:-10]}, None),
        "user-twice": ({"0.json": twice}, None),
        "key-twice": ({"0.json": first.replace(b'"y":', b'"y": [], "y":', 1)}, None),
        "user-data-twice": ({"0.json": b'{"user_data": {}, ' + first[1:]}, None),
        "user-not-listed": ({"0.json": leaf(good, users=["a"])}, None),
        "user-without-data": ({"0.json": leaf(good, users=["a", "b", "c"])}, None),
        "user-listed-twice": ({"0.json": leaf(good, users=["a", "a"])}, None),
        "numbers-differ": ({"0.json": leaf(good, num_samples=[10, 11])}, None),
        "user-without-samples": ({"0.json": leaf({**good, "c": 0})}, None),
        "other-user-data": ({"0.json": leaf(good, user_data_test={})}, None),
        "x-test": ({"0.json": first.replace(b'"x":', b'"x_test": [], "x":')}, None),
        "splits-of-users": ({"0.json": first.replace(b'"x":', b'"split": [], "x":')}, None),
        "float-labels": ({"0.json": first.replace(b'"y": [0', b'"y": [0.0')}, None),
        "bool-labels": ({"0.json": first.replace(b'"y": [0', b'"y": [true')}, (2, 20)),
        "fewer-labels": ({"0.json": first.replace(b'"y": [0, ', b'"y": [')}, None),
        "negative-labels": ({"0.json": first.replace(b'"y": [0', b'"y": [-1')}, None),
        "mark": ({"0.json": b"\xef\xbb\xbf" + first}, (2, 20)),
        "beside-notes": ({"0.json": first, "README.md": b"hello", "meta.csv": b"a,b"}, (2, 20)),
    }


def hub(writers: Any, **more: Any) -> bytes:
    picture, content = io.BytesIO(), io.BytesIO()
    Image.fromarray(np.zeros((28, 28), np.uint8)).save(picture, "PNG")
    n = len(writers)
    columns = {"image": [picture.getvalue()] * n, "character": np.arange(n) % 62, "writer_id": list(writers)}
    pd.DataFrame(columns | more).to_parquet(content)
    return content.getvalue()


def hub_folders() -> dict[str, tuple[Files, tuple[int, int] | None]]:
    first, second = hub(["a", "b"] * 10), hub(["c", "d"] * 10)
    return {
        "train-and-test": ({"train.parquet": first, "test.parquet": second}, (4, 40)),
        "upper-case": ({"0.parquet": first, "1.PARQUET": second}, (4, 40)),
        "numbers": ({"0.parquet": hub([1, 2**62, 2**62 + 1, 2**53] * 10)}, (4, 40)),
        "unsigned": ({"0.parquet": hub(np.array([2**63, 2**63 + 1] * 10, np.uint64))}, (2, 20)),
        "floats": ({"0.parquet": hub([1.0, 1.5] * 10)}, None),
        "missing-writer": ({"0.parquet": hub(["a", None] * 10)}, None),
        "bytes": ({"0.parquet": hub([b"a", b"a\0"] * 10)}, None),
        "booleans": ({"0.parquet": hub([True, False] * 10)}, None),
        "copy": ({"0.parquet": first, "1.parquet": first}, None),
        "csv-beside": ({"0.parquet": first, "1.csv": b"image,character,writer_id\n"}, None),
        "dangling-link": ({"0.parquet": first, "1.parquet": "nowhere"}, None),
        "linked-folder": ({"0.parquet": first, "more": "../elsewhere"}, None),
        "half-downloaded": ({"0.parquet": first, "1.parquet.incomplete": second}, None),
        "split-column": ({"0.parquet": hub(["a", "b"] * 10, Split=0)}, None),
        "other-writers": ({"0.parquet": hub(["a", "b"] * 10, writer_ids="x")}, None),
        "other-column": ({"0.parquet": hub(["a", "b"] * 10, hsf_id=1)}, (2, 20)),
    }


def play_folders() -> dict[str, tuple[Files, tuple[int, int] | None]]:
    """Plays."""
    play = b"HAMLET. To be, or not to be: that is the question.\nGHOST. List, list, O list! Swear it.\n"
    return {
        "dangling": ({"a.txt": play, "b.txt": "nowhere"}, None),
        "nested": ({"a.txt": play, "more/b.txt": play + b"GHOST. More."}, None),
        "packed": ({"a.txt": play, "b.txt.gz": play}, None),
        "copy": ({"a.txt": play, "b.txt": play}, None),
    }


def cifar_folders() -> dict[str, tuple[Files, tuple[int, int] | None]]:
    """CIFAR-10 as torchvision has it, with four images in each batch."""
    image = {b"data": np.zeros((4, 3072), np.uint8), b"labels": [0, 1, 2, 3]}
    names = [f"cifar-10-batches-py/{name}" for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")]
    plain = {name: pickle.dumps(image | {b"filenames": [name]}, 2) for name in names}
    return {
        "plain": (plain, (2, 24)),
        "more": (plain | {"cifar-10-batches-py/data_batch_6": plain[names[0]]}, None),
        "fewer": ({name: plain[name] for name in names[1:]}, None),
        "two-labels": (plain | {names[-1]: pickle.dumps(image | {b"Labels": [0] * 4}, 2)}, None),
    }


def folder(files: Files, path: Path) -> None:
    """Makes the folder, and beside it one that a link may lead to."""
    (path.parent / "elsewhere").mkdir()
    (path.parent / "elsewhere" / "more.json").write_bytes(leaf({"z": 3}))
    for name, content in files.items():
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            os.mkfifo(file)
        elif isinstance(content, str):
            file.symlink_to(content)
        else:
            file.write_bytes(content)
