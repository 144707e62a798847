"""Odd data files of every format: as many clients and samples are read as were written, or a line says what was not."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from wrong_inputs.case import Case
from wrong_inputs.data import RUN, federation
from wrong_inputs.kept_folders import BOUNDS, cifar_folders, folder, hub, hub_folders, leaf, leaf_folders, play_folders

_N = 40
_DATA = "fedem_lightning.data"
NAMES: dict[str, tuple[Any, Any]] = {
    "leading-zero": ("01", "1"),
    "two-zeros": ("001", "01"),
    "plus": ("+1", "1"),
    "point": ("1.0", "1"),
    "exponent": ("1e0", "1"),
    "hexadecimal": ("0x1", "1"),
    "underscore": ("1_0", "10"),
    "minus-zero": ("-0", "0"),
    "2-53": (str(2**53), str(2**53 + 1)),
    "2-62": (str(2**62), str(2**62 + 1)),
    "2-63": (str(2**63), str(2**63 + 1)),
    "2-64": (str(2**64), str(2**64 + 1)),
    "10-30": (str(10**30), str(10**30 + 1)),
    "case": ("a", "A"),
    "space-after": ("a", "a "),
    "no-break-space": ("a", "a\u00a0"),
    "zero-width": ("a", "a\u200b"),
    "tab-inside": ("a b", "a\u2003b"),
    "unicode-forms": ("\u00e9", "e\u0301"),
    "full-width": ("A", "\uff21"),
    "ligature": ("fi", "\ufb01"),
    "sharp-s": ("ss", "\u00df"),
    "booleans": ("true", "True"),
    "yes": ("yes", "Yes"),
    "nan": ("nan", "b"),
    "NA": ("NA", "b"),
    "None": ("None", "b"),
    "null": ("null", "b"),
    "empty": ("", "b"),
    "blank": (" ", "b"),
    "nul": ("a", "a\0"),
    "dates": ("2020-01-01", "2020-1-1"),
    "newline": ("a\nb", "a b"),
    "comma": ("a,b", "a b"),
    "quote": ('a"b', "a b"),
    "slash": ("a/b", "a_b"),
    "long": ("a" * 1001, "b"),
}
"""Two names of clients that a reader may take for one, or for none."""

UNKNOWN = re.findall(
    r"\S+",
    "Split SPLIT splits split_ spilt data_split fold subset is_test train test test_mask train_index X Y xs x_test "
    "x_train y_test test_y xTest label labels target targets features images Client clients client_id clientId user "
    "users user_ids writer owner domains Domain domaine coarses coarse_labels Names client_name clientNames ../x "
    "sub/y group weights seed version classes info z theta x2 feature_names",
)
"""Names of arrays beside those that are read."""


def cases() -> Iterator[Case]:
    """Every odd file, for `data describe`; and numbers without bounds."""
    yield from _npz_cases()
    yield from _client_cases()
    for separator, kind in ((",", "csv"), ("\t", "tsv")):
        for name, (content, held) in _texts(separator).items():
            yield _case(f"{kind}/text/{name}", "table", f"a.{kind}", partial(_write, content), held)
    for room, dataset, folders in (
        ("leaf", "femnist", leaf_folders()),
        ("hub", "femnist", hub_folders()),
        ("plays", "shakespeare", play_folders()),
        ("cifar", "cifar10", cifar_folders()),
    ):
        for name, (files, held) in folders.items():
            yield _case(f"{room}/{name}", dataset, "folder", partial(folder, files), held)
    for bound in BOUNDS:
        yield Case(f"data/bounds/{bound}", ("describe", *bound.split()), _DATA)
    for devices in ("99", "1000000", "'\"99\"'", "7"):
        words = (*RUN, "dataset=digits", "dataset.n_clients=6", f"trainer.devices={devices}")
        yield Case(f"data/devices/{devices}", words, says="trainer.devices")


def _npz_cases() -> Iterator[Case]:
    for name in UNKNOWN:
        arrays = federation() | {name: np.arange(_N) % 3}
        yield _case(f"npz/unknown/{name}", "npz", "a.npz", partial(_npz, arrays), None)
    for name, change in _odd_arrays().items():
        yield _case(f"npz/array/{name}", "npz", "a.npz", partial(_npz, federation() | change), (4, _N))
    both = {"names": np.array(list("abcd")), "client_names": np.array(list("efgh"))}
    yield _case("npz/two-names", "npz", "a.npz", partial(_npz, federation() | both), None)


def _client_cases() -> Iterator[Case]:
    """Two names of clients in every format."""
    for name, two in NAMES.items():
        for kind, write in _formats([two[i % 2] for i in range(_N)]).items():
            if (kind, name) != ("npz", "nul"):  # NumPy drops it before it is written
                dataset = {"leaf": "femnist", "hub": "femnist", "npz": "npz"}.get(kind, "table")
                yield _case(f"{kind}/clients/{name}", dataset, f"a.{kind}", write, (2, _N))


def _case(name: str, dataset: str, file: str, write: Callable[[Path], None], holds: tuple[int, int] | None) -> Case:
    """A file with so many clients and samples; None: with something that a line must say."""
    words: tuple[str, ...] = ("describe", dataset, f"dataset.path={file}")
    if dataset == "table":
        words += ("dataset.label=y", "dataset.client=client")
    if dataset == "cifar10":
        words += ("dataset.partition=iid", "dataset.n_clients=2")
    if dataset == "shakespeare":
        words += ("dataset.window=5", "dataset.min_sentences=0")
    return Case(
        f"data/{name}", words, _DATA, lambda place: write(place / file), refused=False, holds=holds, told=holds is None
    )


def _odd_arrays() -> dict[str, dict[str, np.ndarray]]:
    """Arrays in forms that NumPy can write; each says the same as before, or nothing that could be read."""
    plain = federation(split=np.tile([0, 0, 0, 1, 2], 8), domain=np.arange(_N) % 2, coarse=np.arange(_N) % 2)
    forms: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "fortran": np.asfortranarray,
        "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
        "strided": lambda a: np.repeat(a, 2, axis=0)[::2],
        "int8": lambda a: a.astype(np.int8),
        "uint64": lambda a: np.abs(a).astype(np.uint64),
        "float16": lambda a: a.astype(np.float16),
        "float64": lambda a: a.astype(np.float64),
        "longdouble": lambda a: a.astype(np.longdouble),
        "half": lambda a: a + 0.5,
        "bool": lambda a: a > 0,
        "negative": lambda a: -1 - np.abs(a),
        "2-62": lambda a: 2**62 + np.arange(a.size).reshape(a.shape) % 4,
        "uint64-max": lambda a: (
            np.full(a.shape, 2**64 - 1, np.uint64) - (np.arange(a.size).reshape(a.shape) % 4).astype(np.uint64)
        ),
        "complex": lambda a: a.astype(complex),
        "nan": lambda a: np.where(np.arange(a.size).reshape(a.shape) == 3, np.nan, a),
        "infinite": lambda a: np.where(np.arange(a.size).reshape(a.shape) == 3, np.inf, a),
        "dates": lambda a: np.abs(a).astype("int64").astype("M8[D]"),
        "strings": lambda a: a.astype(int).astype(str),
        "bytes": lambda a: a.astype(int).astype(bytes),
        "objects": lambda a: a.astype(object),
        "records": lambda a: a.astype([("a", float)]),
        "single": lambda a: np.array(1),
        "empty": lambda a: a[:0],
        "short": lambda a: a[:-1],
        "twice": lambda a: np.concatenate([a, a]),
        "column": lambda a: a.reshape(len(a), -1)[:, :1],
    }
    found = {}
    for name, array in plain.items():
        for form, change in forms.items():
            if (name, form) != ("client", "bool"):  # makes two clients of four
                found[f"{name}/{form}"] = {name: change(array)}
    return found


def _formats(clients: Sequence[str]) -> dict[str, Callable[[Path], None]]:
    """Files with these clients; a .csv quotes what needs it."""
    arrays = federation()
    frame = pd.DataFrame(arrays["x"], columns=["a", "b", "c"]).assign(y=arrays["y"], client=list(clients))
    users = {name: clients.count(name) for name in dict.fromkeys(clients)}
    return {
        "npz": lambda path: _npz(arrays | {"client": np.array(clients)}, path),
        "csv": lambda path: frame.to_csv(path, index=False),
        "tsv": lambda path: frame.to_csv(path, index=False, sep="\t"),
        "parquet": lambda path: frame.to_parquet(path),
        "leaf": lambda path: folder({"all_data.json": leaf(users)}, path),
        "hub": lambda path: folder({"a.parquet": hub(clients)}, path),
    }


def _texts(separator: str) -> dict[str, tuple[bytes, tuple[int, int] | None]]:
    """Texts of tables, with the clients and samples that they hold; None: something that a line must say."""
    rows = [["a", "b", "y", "client"], *([f"{i}", f"{i % 7}", f"{i % 2}", f"c{i % 4}"] for i in range(_N))]
    lines = [separator.join(row) for row in rows]
    text = "\n".join(lines) + "\n"
    split = "\n".join(separator.join([line, "Split" if i == 0 else str(i % 3)]) for i, line in enumerate(lines))
    whole: tuple[int, int] = (4, _N)
    found: dict[str, tuple[str | bytes, tuple[int, int] | None]] = {
        "plain": (text, whole),
        "mark": ("\ufeff" + text, whole),
        "two-marks": ("\ufeff\ufeff" + text, whole),
        "crlf": (text.replace("\n", "\r\n"), whole),
        "cr": (text.replace("\n", "\r"), whole),
        "mixed-ends": (text.replace("\n", "\r\n", 9), whole),
        "mixed-cr": (text.replace("\n", "\r", 9), whole),
        "no-last-end": (text.rstrip(), whole),
        "blank-lines": (text.replace("\n", "\n\n"), whole),
        "blank-first": ("\n\n" + text, whole),
        "line-separator": (text.replace("c1", "c\u20281"), whole),
        "next-line": (text.replace("c1", "c\x851"), whole),
        "form-feed": (text.replace("c1", "c\x0c1"), whole),
        "quoted": ("\n".join(separator.join(f'"{v}"' for v in line.split(separator)) for line in lines), whole),
        "quoted-newline": (text.replace("c1", '"c\n1"'), whole),
        "stray-quote": (text.replace("c1", '"c1', 1), None),
        "two-stray-quotes": (text.replace("c1", '"c1', 1).replace("c2\n37", 'c2"\n37'), None),
        "apostrophe": (text.replace("c1", "'c1"), whole),
        "comment": (text.replace("c1", "#c1"), whole),
        "comment-line": ("# a comment\n" + text, None),
        "sep-line": (f"sep={separator}\n" + text, None),
        "trailing-column": (text.replace("\n", separator + "\n"), None),
        "trailing-in-rows": (lines[0] + "\n" + "\n".join(line + separator for line in lines[1:]), whole),
        "long-row": (text + separator.join("12345"), None),
        "short-row": (text + separator.join("12") + "\n", None),
        "missing-client": (text.replace("c1", "", 1), None),
        "missing-label": (text.replace(f"{separator}1{separator}c1", f"{separator}{separator}c1", 1), None),
        "equal-columns": (text.replace("a" + separator + "b", "a" + separator + "a", 1), None),
        "equal-after-space": (text.replace("a" + separator + "b", "a" + separator + " a", 1), None),
        "two-clients": (text.replace("a" + separator + "b", "a" + separator + "client", 1), None),
        "index": ("\n".join(separator.join([str(i - 1) if i else "", x]) for i, x in enumerate(lines)), None),
        "split": (split, None),
        "splits": (split.replace("Split", "splits"), None),
        "words-of-splits": (split.replace("Split", "part").replace("\n0", "\n0"), whole),
        "nul": (text.replace("c1", "c\x001", 1), None),
        "latin-1": (text.replace("c1", "c\u00e4").encode("latin-1"), None),
        "utf-16": (text.encode("utf-16"), None),
        "half-character": (text.encode() + b"\xc3", None),
        "no-header": (text.partition("\n")[2], None),
        "twice": (text + text.partition("\n")[2], (4, 2 * _N)),
        "header-twice": (text + text, None),
        "million-columns": (separator.join(f"f{i}" for i in range(10**6)) + "\n", None),
    }
    return {name: (t if isinstance(t, bytes) else t.encode(), holds) for name, (t, holds) in found.items()}


def _npz(arrays: Mapping[str, np.ndarray], path: Path) -> None:
    np.savez(path, **arrays)  # type: ignore[arg-type]


def _write(content: bytes, path: Path) -> None:
    path.write_bytes(content)
