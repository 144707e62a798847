"""Data files that are broken, senseless or malicious: one line that names the file or the array, soon, without memory.

The real readers read real files, in this process. Nothing that a file holds is executed.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedem_lightning import NpzDataModule, TableDataModule
from fedem_lightning.settings.errors import UserError

Make = Callable[[Path], Path]

N = 12
GOOD: dict[str, Any] = {
    "x": np.arange(24.0).reshape(N, 2),
    "y": np.arange(N) % 2,
    "client": np.repeat([0, 1], 6),
}


def npz(**change: Any) -> Make:
    """A file of good arrays, some of them changed; None leaves one out."""

    def make(folder: Path) -> Path:
        arrays = {name: value for name, value in {**GOOD, **change}.items() if value is not None}
        np.savez(folder / "a.npz", **arrays)
        return folder / "a.npz"

    return make


def written(name: str, content: bytes) -> Make:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return make


class Payload:
    """Whoever unpickles it makes the folder `executed`."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("executed",)


def with_pickle(folder: Path) -> Path:
    np.savez(folder / "a.npz", **{**GOOD, "x": np.array([Payload()] * N, dtype=object)})
    return folder / "a.npz"


NPZ: dict[str, tuple[Make, str]] = {
    "nothing there": (lambda p: p / "none.npz", "no file .*none.npz"),
    "empty": (written("a.npz", b""), "a.npz is no .npz file, or only a part of one"),
    "a pickle": (with_pickle, "cannot read .*a.npz as .npz without Python objects: save strings with .astype"),
    "a single value": (npz(x=np.array(3.0)), "x: expected at least one sample"),
    "no client array": (npz(client=None), "a.npz lacks client; expected x, y, client"),
    "one axis": (npz(x=np.arange(N * 1.0)), r"x: expected features \[n, ...\], at least one, got shape \(12,\)"),
    "words": (npz(x=np.full((N, 2), "a")), "x: expected numbers, got dtype <U1"),
    "NaN": (
        npz(x=np.where(np.arange(24).reshape(N, 2) >= 20, np.nan, 0)),
        "x: NaN or infinity in 2 samples, the first is number 10, of client 1",
    ),
    "infinite in float32": (
        npz(x=np.where(np.arange(24).reshape(N, 2) == 14, 1e300, 0), client=np.repeat(["north", "south"], 6)),
        "x: numbers too large for float32 in 1 sample, the first is number 7, of client south",
    ),
    "fewer labels": (npz(y=GOOD["y"][:5]), r"y: expected shape \(12,\) as x has, got \(5,\)"),
    "labels of 1e9": (
        npz(y=GOOD["y"] * 10**9),
        "y: the largest label, 1000000000, would make 1000000001 classes in 12 samples; .* or set n_classes",
    ),
    "negative labels": (npz(y=GOOD["y"] * 2 - 1), "y: label -1 at sample 0 is outside the 2 classes"),
    "half labels": (npz(y=GOOD["y"] / 2), "y: label 0.5 at sample 1 is no whole number"),
    "huge clients beside names": (
        npz(client=GOOD["client"] + 2**62, names=["a", "b"]),
        "client: with names it must be",
    ),
    "equal names": (npz(names=["a", "a"]), "names: expected different names, got a twice"),
    "NUL": (npz(names=["b", "a\0b"]), r"names: number 1, 'a\\x00b', has a character that no file can hold"),
    "split of 3": (npz(split=np.arange(N) % 4), "split: expected 0 train, 1 val, 2 test, got 3 at sample 3"),
    "split of other words": (npz(split=np.full(N, "dev")), "split: expected the words train, val, test, got dev"),
    "nobody trains": (npz(split=np.full(N, 2)), "client 0, 1 has no training sample"),
}


@pytest.fixture
def nothing_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Nothing in a file is executed."""
    monkeypatch.chdir(tmp_path)
    yield
    assert not (tmp_path / "executed").exists()


def refused(make: Make, read: Callable[[Path], Any], message: str, folder: Path) -> None:
    with pytest.raises(UserError, match=message) as caught:
        read(make(folder))
    line = str(caught.value)
    assert "\n" not in line
    assert len(line) < 800
    line.encode()  # a terminal can show it


@pytest.mark.parametrize("name", NPZ)
def test_an_npz_is_refused(name: str, tmp_path: Path, nothing_runs: None) -> None:
    make, message = NPZ[name]
    refused(make, NpzDataModule, message, tmp_path)


def test_what_looks_odd_but_is_right_is_read(tmp_path: Path, nothing_runs: None) -> None:
    """Other orders of bytes and axes, compression, one client, names with markup, members that a line names."""
    names = np.array(["<b>[red]", "$\\frac{$", "a\nb", "n" * 300, "", "Zoë 好"])
    x, client = np.arange(36).reshape(N, 3), np.arange(N) % 6
    plain = NpzDataModule(npz(x=x.astype(np.float32), client=client, names=names)(tmp_path)).federation
    assert plain.names == tuple(names)
    for odd in (np.asfortranarray(x.astype(np.float32)), x.astype(">f4"), x.astype(np.float16)):
        arrays: dict[str, Any] = {
            "x": odd,
            "y": GOOD["y"].astype(float),
            "client": client.astype(np.uint64),
            "names": names,
        }
        arrays["../../etc/passwd"] = x
        np.savez_compressed(tmp_path / "b.npz", **arrays)
        with pytest.warns(UserWarning, match="b.npz: not read: ../../etc/passwd"):
            assert NpzDataModule(tmp_path / "b.npz").federation.digest() == plain.digest()
    assert NpzDataModule(npz(y=GOOD["y"] * 61)(tmp_path)).n_outputs == 62  # classes that do not occur here
    assert NpzDataModule(npz(y=GOOD["y"] * 5000)(tmp_path), n_classes=6000).n_outputs == 6000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz", "b.npz"]


CSV = "client,age,y\n" + "".join(f"{'ab'[i % 2]},{i}.5,{i % 3 % 2}\n" for i in range(N))


def csv(text: str | bytes) -> Make:
    return written("t.csv", text.encode() if isinstance(text, str) else text)


TABLES: dict[str, tuple[Make, str]] = {
    "blank lines": (csv("\n\n"), "t.csv is empty"),
    "semicolons": (csv(CSV.replace(",", ";")), "separated by ';'; save it with commas"),
    "too many values": (csv(CSV + "a,1,1,1\n"), "cannot read .*t.csv as .csv in UTF-8 .*saw 4"),
    "a column twice": (csv(CSV.replace("age", "y", 1)), "several columns of the name y"),
    "a column without a name": (csv(CSV.replace("age", "", 1)), "column 2 has no name"),
    "latin-1": (csv(CSV.replace("a,", "ä,").encode("latin-1")), "t.csv as .csv in UTF-8 .*can.t decode byte"),
    "one label": (csv(CSV.replace(",1\n", ",0\n")), "column 'y' holds one class only"),
    "no parquet": (written("t.parquet", b"hello"), "cannot read .*t.parquet as .parquet"),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_refused(name: str, tmp_path: Path, nothing_runs: None) -> None:
    make, message = TABLES[name]
    refused(make, lambda path: TableDataModule(path, "y", "client"), message, tmp_path)
