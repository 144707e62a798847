"""Data files that are broken, senseless or malicious: one line that names the file or the array, soon, without memory.

The real readers read real files, in this process. Nothing that a file holds is executed.
"""

import gzip
import io
import json
import os
import pickle
import struct
import time
import tracemalloc
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

from fedem_lightning import ImageDataModule, NpzDataModule, TableDataModule, TextDataModule
from fedem_lightning.errors import UserError

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


def header(descr: str, shape: Any, extra: str = "") -> bytes:
    """The beginning of a .npy that promises an array, with nothing behind it."""
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}{extra}}}"
    return raw_header(text)


def raw_header(text: str) -> bytes:
    padded = text.encode("latin1") + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(padded)) + padded


def zipped(members: dict[str, bytes], how: int = zipfile.ZIP_STORED) -> Make:
    """Good arrays, and members that are written as they are."""

    def make(folder: Path) -> Path:
        path = npz(**dict.fromkeys(name.removesuffix(".npy") for name in members))(folder)
        with zipfile.ZipFile(path, "a", how) as archive:
            for name, content in members.items():
                archive.writestr(name, content)
        return path

    return make


def with_twice(name: str) -> Make:
    def make(folder: Path) -> Path:
        path = npz()(folder)
        with zipfile.ZipFile(path, "a") as archive, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the second member of this name
            archive.writestr(name, saved(GOOD["x"]))
        return path

    return make


def saved(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def encrypted(folder: Path) -> Path:
    """The flag that a zip with a password has, in every place where it stands."""
    path = npz()(folder)
    content = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = content.find(signature)
        while at >= 0:
            content[at + offset] |= 1
            at = content.find(signature, at + 4)
    path.write_bytes(content)
    return path


def lying(folder: Path) -> Path:
    """An array of 3.2 GB, as its header and its entry in the zip say; its few compressed bytes cannot hold it."""
    begun = header("<f8", (4 * 10**7, 10))
    path = zipped({"x.npy": begun}, zipfile.ZIP_DEFLATED)(folder)
    content = bytearray(path.read_bytes())
    size = content.rfind(b"PK\x01\x02") + 24  # of the last entry
    content[size : size + 4] = struct.pack("<I", 32 * 10**8 + len(begun))
    path.write_bytes(content)
    return path


def cut(make: Make, share: float) -> Make:
    def shorter(folder: Path) -> Path:
        path = make(folder)
        path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
        return path

    return shorter


def flipped(folder: Path) -> Path:
    """One byte of x is another: the checksum of the zip notices."""
    path = npz()(folder)
    content = bytearray(path.read_bytes())
    content[content.find(GOOD["x"].tobytes()) + 9] ^= 1
    path.write_bytes(content)
    return path


def written(name: str, content: bytes) -> Make:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return make


def made_by(name: str, command: Callable[[Path], Any]) -> Make:
    def make(folder: Path) -> Path:
        command(folder / name)
        return folder / name

    return make


class Payload:
    """Whoever unpickles it makes the folder `executed`."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("executed",)


def with_pickle(folder: Path) -> Path:
    buffer = io.BytesIO()
    np.save(buffer, np.array([Payload()] * N, dtype=object), allow_pickle=True)
    return zipped({"x.npy": buffer.getvalue()})(folder)


SURROGATE, LONG = "a\ud800", "n" * 10_000
NPZ: dict[str, tuple[Make, str]] = {
    "nothing there": (lambda p: p / "none.npz", "no file .*none.npz"),
    "a folder": (made_by("a.npz", Path.mkdir), "no file .*a.npz"),
    "a pipe": (made_by("a.npz", os.mkfifo), "no file .*a.npz"),
    "a device": (lambda p: Path("/dev/zero"), "no file /dev/zero"),
    "a link to nothing": (made_by("a.npz", lambda path: path.symlink_to("b")), "no file .*a.npz"),
    "empty": (written("a.npz", b""), "a.npz is empty"),
    "text": (written("a.npz", b"hello"), "a.npz is no .npz file"),
    "an empty zip": (written("a.npz", b"PK\5\6" + bytes(18)), "a.npz lacks x, y, client"),
    "half of it": (cut(npz(), 0.5), "a.npz is no .npz file, or only a part of one"),
    "all but the end": (cut(npz(), 0.98), "a.npz is no .npz file, or only a part of one"),
    "a flipped bit": (flipped, "cannot read .*a.npz as .npz without pickle .*Bad CRC-32"),
    "encrypted": (encrypted, "cannot read .*a.npz as .npz .*is encrypted, password required"),
    "a name twice": (with_twice("x.npy"), "a.npz has several arrays of the name x"),
    "a name twice, once without ending": (with_twice("x"), "a.npz has several arrays of the name x"),
    "many members": (
        zipped({f"a{i}.npy": saved(np.zeros(1)) for i in range(1001)}),
        "a.npz has 1004 members, more than 1000",
    ),
    "no array": (zipped({"x.npy": b"hello"}), "a.npz has a member that is no array: x"),
    "half a header": (zipped({"x.npy": header("<f8", (N, 2))[:20]}), "cannot read .*a.npz as .npz"),
    "another version": (zipped({"x.npy": b"\x93NUMPY\x09\x00" + bytes(100)}), "cannot read .*a.npz as .npz"),
    "no values": (
        zipped({"x.npy": header("<f8", (N, 2))}),
        r"array x promises float64 of shape \[12, 2\], 192 bytes, but holds 0",
    ),
    "more than promised": (zipped({"x.npy": saved(GOOD["x"]) + b"more"}), "192 bytes, but holds 196"),
    "a million million rows": (
        zipped({"x.npy": header("<f8", (10**12, 2))}),
        "array x promises float64 of shape .1000000000000, 2., 16000000000000 bytes, but holds 0",
    ),
    "a size that overflows": (zipped({"x.npy": header("<f8", (2**62, 2**62))}), "array x promises .* but holds 0"),
    "a negative shape": (zipped({"x.npy": header("<f8", (-1, 2))}), r"array x promises .* \[-1, 2\]"),
    "a shape of fractions": (zipped({"x.npy": header("<f8", (1.5, 2))}), "cannot read .*a.npz as .npz"),
    "values without bytes": (zipped({"x.npy": header("<U0", (10**12, 2))}), "array x promises <U0"),
    "rows without values": (zipped({"x.npy": header("<f8", (10**12, 0))}), "x: expected features .* at least one"),
    "an unknown dtype": (zipped({"x.npy": header("<q77", (N, 2))}), "cannot read .*a.npz as .npz"),
    "more keys in the header": (zipped({"x.npy": header("<f8", (N, 2), ", 'a': 1")}), "cannot read .*a.npz as .npz"),
    "a header that is code": (
        zipped({"x.npy": raw_header("__import__('os').mkdir('executed')")}),
        "cannot read .*a.npz as .npz",
    ),
    "a nested header": (zipped({"x.npy": raw_header("(" * 9000 + ")" * 9000)}), "cannot read .*a.npz as .npz"),
    "signs in the header": (zipped({"x.npy": raw_header("-" * 9000 + "1")}), "cannot read .*a.npz as .npz"),
    "a pickle": (with_pickle, "a.npz holds Python objects in x; save strings with .astype"),
    "3 GB in few bytes": (lying, "array x promises .* 3200000000 bytes, which .* compressed bytes cannot hold"),
    "a single value": (npz(x=np.array(3.0)), "array x is a single value"),
    "no client array": (npz(client=None), "a.npz lacks client; expected x, y, client"),
    "one axis": (npz(x=np.arange(N * 1.0)), r"x: expected features \[n, ...\], at least one, got shape \(12,\)"),
    "no feature": (npz(x=np.zeros((N, 0))), r"x: expected features .* got shape \(12, 0\)"),
    "no rows": (npz(x=GOOD["x"][:0], y=GOOD["y"][:0], client=GOOD["client"][:0]), "x: expected at least one sample"),
    "complex": (npz(x=GOOD["x"] + 1j), "x: expected numbers, got dtype complex128"),
    "words": (npz(x=np.full((N, 2), "a")), "x: expected numbers, got dtype <U1"),
    "dates": (npz(x=np.zeros((N, 2), "M8[s]")), r"x: expected numbers, got dtype datetime64\[s\]"),
    "named fields": (npz(x=np.zeros((N, 2), [("a", "f4")])), "x: expected numbers, got dtype .*'a'"),
    "long floats": (npz(x=GOOD["x"].astype(np.longdouble)), "x: expected float64 or smaller"),
    "NaN": (
        npz(x=np.where(np.arange(24).reshape(N, 2) >= 20, np.nan, 0)),
        "x: NaN or infinity in 2 samples, the first is number 10, of client 1; 1 of 2 clients have such samples",
    ),
    "infinite": (npz(x=np.full((N, 2), -np.inf)), "number 0, of client 0; 2 of 2 clients have such samples"),
    "infinite in float32": (
        npz(x=np.where(np.arange(24).reshape(N, 2) == 14, 1e300, 0), client=np.repeat(["north", "south"], 6)),
        "x: numbers too large for float32 in 1 sample, the first is number 7, of client south; 1 of 2 clients have",
    ),
    "fewer labels": (npz(y=GOOD["y"][:5]), r"y: expected shape \(12,\) as x has, got \(5,\)"),
    "labels in columns": (npz(y=GOOD["y"].reshape(N, 1)), r"y: expected shape \(12,\)"),
    "labels of 1e9": (
        npz(y=GOOD["y"] * 10**9),
        "y: the largest label, 1000000000, would make 1000000001 classes in 12 samples; .* or set n_classes",
    ),
    "labels beyond int64": (
        npz(y=np.full(N, 2**64 - 1, np.uint64)),
        "y: expected whole numbers, got 18446744073709551",
    ),
    "the largest label": (npz(y=np.full(N, 2**63 - 1)), "y: the largest label, 9223372036854775807, would make"),
    "negative labels": (npz(y=GOOD["y"] - 5), "y: label -5 at sample 0 is outside the 2 classes"),
    "half labels": (npz(y=GOOD["y"] / 2), "y: expected whole numbers, got 0.5 at sample 1"),
    "labels that are NaN": (
        npz(y=np.where(GOOD["y"] > 0, np.nan, 0)),
        "y: expected whole numbers, got nan at sample 1",
    ),
    "infinite labels": (npz(y=np.full(N, np.inf)), "y: expected whole numbers, got inf at sample 0"),
    "labels of 1e30": (npz(y=np.full(N, 1e30)), "y: expected whole numbers, got 1e\\+30 at sample 0"),
    "complex labels": (npz(y=GOOD["y"] * 1j), "y: expected whole numbers, got dtype complex128"),
    "fewer clients": (npz(client=GOOD["client"][:5]), r"client: expected shape \(12,\)"),
    "negative clients": (npz(client=GOOD["client"] - 1), "client: expected ids of 0 or more, got -1"),
    "clients with fractions": (npz(client=GOOD["client"] + 0.5), "client: expected whole numbers or strings"),
    "huge clients beside names": (
        npz(client=GOOD["client"] + 2**62, names=["a", "b"]),
        "client: with names it must be",
    ),
    "too few names": (npz(names=["a"]), r"client: with names it must be whole numbers in 0..0"),
    "names of numbers": (npz(names=np.array([0.5, 1.5])), "names: expected strings"),
    "equal names": (npz(names=["a", "a"]), "names: expected different names, got a twice"),
    "half a character": (npz(names=["b", SURROGATE]), r"names: number 1, 'a\\ud800', has a character that no file"),
    "half a character in an id": (
        npz(client=np.repeat(["b", SURROGATE], 6)),
        "client: number 0.* that no file can hold",
    ),
    "NUL": (npz(names=["b", "a\0b"]), r"names: number 1, 'a\\x00b', has a character that no file can hold"),
    "10,000 letters": (npz(names=["b", LONG]), "names: number 1 has 10000 characters, more than 1000"),
    "bytes that are no text": (npz(names=np.array([b"a", b"\xff"])), "names: bytes that are no UTF-8"),
    "half a character in a class": (npz(y=np.resize([SURROGATE, "b"], N)), "y: number 0, .* that no file can hold"),
    "split of 3": (npz(split=np.arange(N) % 4), "split: expected 0 train, 1 val, 2 test, got 3 at sample 3"),
    "negative split": (npz(split=np.arange(N) - 1), "split: expected 0 train, 1 val, 2 test, got -1 at sample 0"),
    "split of floats": (npz(split=np.zeros(N)), "split: expected 0 train, 1 val, 2 test, got dtype float64"),
    "split of other words": (npz(split=np.full(N, "dev")), "split: expected the words train, val, test, got dev"),
    "shorter split": (npz(split=np.zeros(3, int)), r"split: expected shape \(12,\)"),
    **{
        f"{name} for {read}": (npz(**{name: GOOD["y"]}), f"path: .*a.npz: {name} is not read; {said}")
        for name, read, said in (
            ("Split", "split", r"did you mean split\?"),
            ("splits", "split", r"did you mean split\?"),
            ("test_mask", "split", r"did you mean split\?"),
            ("domains", "domain", r"did you mean domain\?"),
            ("domains_", "domain", r"did you mean domain\?"),
            ("x_test", "x", "all samples belong into x, and split says 0 train, 1 val, 2 test"),
            ("y_test", "y", "all samples belong into y, and split"),
            ("labels", "y", "y is; leave labels out"),
            ("X", "x", "x is; leave X out"),
            ("client_id", "client", "client is; leave client_id out"),
        )
    },
    "clients for client": (npz(client=None, clients=GOOD["client"]), r"clients is not read; did you mean client\?"),
    "names in another folder": (npz(**{"../x": GOOD["x"]}), r"a.npz: ../x is not read; x is; leave ../x out"),
    "two arrays of names": (npz(names=["a", "b"], client_names=["a", "c"]), "names: .* names beside client_names"),
    "a sample of nobody's": (npz(client=np.resize(["a", "", "b"], N)), "client: sample 1 has an empty name"),
    "nobody trains": (npz(split=np.full(N, 2)), "client 0, 1 has no training sample"),
}


@pytest.fixture
def quick_and_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Watches a reading: it takes less than 5 seconds and 64 MB, and executes nothing."""
    monkeypatch.chdir(tmp_path)
    tracemalloc.start()
    start = time.perf_counter()
    yield
    seconds, (_, peak) = time.perf_counter() - start, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seconds < 5
    assert peak < 64e6
    assert not (tmp_path / "executed").exists()


def refused(make: Make, read: Callable[[Path], Any], message: str, folder: Path) -> None:
    with pytest.raises(UserError, match=message) as caught:
        read(make(folder))
    line = str(caught.value)
    assert "\n" not in line
    assert len(line) < 800
    line.encode()  # a terminal can show it


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("name", NPZ)
def test_an_npz_is_refused(name: str, mmap: bool, tmp_path: Path, quick_and_small: None) -> None:
    make, message = NPZ[name]
    refused(make, lambda path: NpzDataModule(path, mmap=mmap), message, tmp_path)


def test_what_looks_odd_but_is_right_is_read(tmp_path: Path, quick_and_small: None) -> None:
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
    one = NpzDataModule(npz(client=np.zeros(N, int))(tmp_path)).federation
    assert one.n_clients == 1
    assert NpzDataModule(npz(y=GOOD["y"] * 61)(tmp_path)).n_outputs == 62  # classes that do not occur here
    assert NpzDataModule(npz(y=GOOD["y"] * 5000)(tmp_path), n_classes=6000).n_outputs == 6000
    np.savez_compressed(tmp_path / "zeros.npz", **{**GOOD, "x": np.zeros((N, 500_000), np.uint8)})
    assert NpzDataModule(tmp_path / "zeros.npz").federation.in_shape == (500_000,)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz", "b.npz", "zeros.npz"]


def test_arrays_larger_than_the_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedem_lightning.settings.check.memory", lambda: 4900)
    path = npz(x=np.zeros((N, 50)))(tmp_path)
    with pytest.raises(UserError, match=r"a.npz: the file would take .* GB, more .* memory, 4.9e-06 GB"):
        NpzDataModule(path)
    np.savez_compressed(path, **{**GOOD, "x": np.zeros((N, 50))})
    with pytest.raises(UserError, match=r"a.npz: its arrays together would take 4.99e-06 GB, more"):
        NpzDataModule(path)


# --- tables -----------------------------------------------------------------------------------------------------------

CSV = "client,age,y\n" + "".join(f"{'ab'[i % 2]},{i}.5,{i % 3 % 2}\n" for i in range(N))


def csv(text: str | bytes) -> Make:
    return written("t.csv", text.encode() if isinstance(text, str) else text)


def parquet(**columns: Any) -> Make:
    table = {"client": ["a", "b"] * 6, "age": [*range(N)], "y": [0, 1, 0] * 4, **columns}
    return made_by("t.parquet", lambda path: pa.parquet.write_table(pa.table(table), path))


def long_run(folder: Path) -> Path:
    """Few bytes that stand for as many rows as the memory holds: all are equal."""
    rows = 3 * 10**6
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array(["a"]))
    pa.parquet.write_table(pa.table({"client": column}), folder / "t.parquet")
    return folder / "t.parquet"


TABLES: dict[str, tuple[Make, str]] = {
    "a folder": (made_by("t.csv", Path.mkdir), "no file .*t.csv"),
    "a pipe": (made_by("t.csv", os.mkfifo), "no file .*t.csv"),
    "empty": (csv(""), "t.csv is empty"),
    "blank lines": (csv("\n\n"), "t.csv is empty"),
    "a header alone": (csv("client,age,y\n"), "t.csv has no rows"),
    "no header": (csv(CSV.split("\n", 1)[1]), "no column 'y'"),
    "semicolons": (csv(CSV.replace(",", ";")), "separated by ';'; save it with commas"),
    "too many values": (csv(CSV + "a,1,1,1\n"), "cannot read .*t.csv as .csv .*saw 4"),
    "too few values": (csv(CSV + "a\n"), "missing values: column 'y' in 1 of 13 rows; fill them in"),
    "an empty field": (csv(CSV + "a,,1\n"), "missing values: column 'age' in 1 of 13 rows"),
    "a column twice": (csv(CSV.replace("age", "y", 1)), "several columns of the name y"),
    "a column without a name": (csv(CSV.replace("age", "", 1)), "column 2 has no name"),
    "a long name": (csv(CSV.replace("age", "n" * 10_000, 1)), "columns: number 1 has 10000 characters"),
    "a huge field": (csv(CSV + f"a,{'9' * 10**6},1\n"), "column 'age'.*infinite"),
    "a huge word": (
        csv(CSV.replace(".5,", ".5x,") + f"a,{'x' * 10**6},1\n"),
        "column 'age': number .* characters, more",
    ),
    "numbers and words": (csv(CSV + "a,old,1\n"), "column 'age' holds numbers and other words, such as 'old'"),
    "an open quote": (csv(CSV + 'a,"1,1\n'), "cannot read .*t.csv as .csv .*EOF inside string"),
    "an open quote at the start": (csv('"' + CSV), "no column 'y'|cannot read"),
    "latin-1": (csv(CSV.replace("a,", "ä,").encode("latin-1")), "t.csv is no UTF-8 text"),
    "UTF-16": (csv(CSV.encode("utf-16")), "t.csv is no UTF-8 text"),
    "a picture": (csv(b"\x89PNG\r\n\x1a\n" + bytes(1000)), "t.csv is no UTF-8 text"),
    "NUL in the header": (csv(CSV.replace("age", "a\0ge", 1)), "columns: number 1, .* no file can hold"),
    "NUL in a client": (csv(CSV.replace("a,", "a\0b,")), "t.csv|client: number 0, .* no file can hold"),
    "NUL alone": (csv(bytes(1000)), "t.csv"),
    "infinite": (csv(CSV.replace(",0.5,", ",inf,")), "column 'age': 1 of 12 rows are infinite"),
    "infinite in float64": (csv(CSV.replace(",0.5,", ",1e999,")), "column 'age': 1 of 12 rows are infinite"),
    "far from the others": (
        csv(CSV.replace(",0.5,", ",1e300,")),
        "column 'age': numbers of up to 1e\\+300 are too large",
    ),
    "clients with fractions": (
        csv(CSV.replace("a,", "1.5,").replace("b,", "2,")),
        "client: expected whole numbers or strings, got 1.5",
    ),
    "huge clients": (csv(CSV.replace("a,", "1e30,").replace("b,", "2,")), "client: expected .* got 1e30"),
    "one label": (csv(CSV.replace(",1\n", ",0\n")), "column 'y' holds one class only"),
    "no parquet": (written("t.parquet", b"hello"), "cannot read .*t.parquet as .parquet"),
    "half a parquet": (cut(parquet(), 0.5), "cannot read .*t.parquet as .parquet"),
    "a parquet's ends alone": (
        written("t.parquet", b"PAR1" + bytes(8) + b"\xff\xff\xff\x7fPAR1"),
        "cannot read .*parquet",
    ),
    "nested columns": (parquet(age=[{"a": 1}] * N), "column 'age' holds values of the type dict"),
    "lists": (parquet(age=[[1, 2]] * N), "column 'age' holds"),
    "dates": (parquet(age=pd.date_range("2024", periods=N)), "column 'age' holds dates"),
    "nothing": (parquet(age=pa.nulls(N)), "missing values: column 'age' in 12 of 12"),
    "bytes": (parquet(age=[b"a\xff"] * N), "column 'age' holds bytes"),
    "labels of 1e300": (parquet(y=[1e300, 0.0] * 6), "y: numbers too large for float32|column 'y'"),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_refused(name: str, tmp_path: Path, quick_and_small: None) -> None:
    make, message = TABLES[name]
    task: Any = "regression" if name == "labels of 1e300" else None
    refused(make, lambda path: TableDataModule(path, "y", "client", task=task), message, tmp_path)


def test_a_table_of_too_many_rows_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = long_run(tmp_path)
    assert path.stat().st_size < 20_000
    monkeypatch.setattr("fedem_lightning.settings.check.memory", lambda: 10**7)
    with pytest.raises(UserError, match=r"t.parquet: the table would take 0.024 GB, more .* memory, 0.01 GB"):
        TableDataModule(path, "y", "client")


# --- the formats of known data sets -----------------------------------------------------------------------------------


def leaf(text: str) -> Make:
    return written("a.json", text.encode())


def user(name: str = "f1", x: Any = ((0.5,) * 784,), y: Any = (1,)) -> str:
    return json.dumps({"user_data": {name: {"x": x, "y": y}}})


DATA = {"x": [[0.5] * 784], "y": [1]}


def leaf_of(data: Any = DATA, **more: Any) -> Make:
    return leaf(json.dumps({"user_data": {"a": data}, **more}))


def folder_with(files: dict[str, str | None], target: str = "nowhere") -> Make:
    """A folder with these files; None is a link to `target`."""

    def make(folder: Path) -> Path:
        for name, content in files.items():
            path = folder / "data" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                path.symlink_to(target)
            else:
                path.write_text(content)
        return folder / "data"

    return make


def hub(**columns: Any) -> Make:
    image = io.BytesIO()
    Image.fromarray(np.zeros((28, 28), np.uint8)).save(image, "PNG")
    table = {"image": [image.getvalue()] * 4, "writer_id": list("aabb"), "character": [0, 1, 2, 3], **columns}
    return made_by("t.parquet", lambda path: pa.parquet.write_table(pa.table(table), path))


def picture(size: tuple[int, int], kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.new("L", size).save(buffer, kind)
    return buffer.getvalue()


def promising(width: int, height: int) -> bytes:
    """A PNG whose header promises another size than it has."""
    content = bytearray(picture((28, 28)))
    content[16:24] = struct.pack(">II", width, height)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    return bytes(content)


def mnist(**change: bytes) -> Make:
    """torchvision's folder, some of its files changed."""

    def make(folder: Path) -> Path:
        raw = folder / "MNIST" / "raw"
        raw.mkdir(parents=True)
        for part in ("train", "t10k"):
            images = change.get(f"{part}_images", struct.pack(">4I", 0x803, 2, 28, 28) + bytes(2 * 784))
            labels = change.get(f"{part}_labels", struct.pack(">2I", 0x801, 2) + bytes(2))
            (raw / f"{part}-images-idx3-ubyte").write_bytes(images)
            (raw / f"{part}-labels-idx1-ubyte").write_bytes(labels)
        return folder

    return make


def cifar(content: bytes) -> Make:
    """torchvision's folder; the first batch is `content`."""

    def make(folder: Path) -> Path:
        inside = folder / "cifar-10-batches-py"
        inside.mkdir()
        (inside / "data_batch_1").write_bytes(content)
        return folder

    return make


def nested(depth: int) -> list[Any]:
    """Few objects, each in the next ten times: as an array 10^depth numbers."""
    found: list[Any] = [0] * 10
    for _ in range(depth):
        found = [found] * 10
    return found


def doubled(times: int) -> bytes:
    """A pickle that asks for `times` times the digits of its bytes: 2^times times as many."""
    begun = b"\x80\x02" + b"c_codecs\nencode\n" * times + b"U\x04aaaa"
    return begun + b"U\x03hex\x86R" * times + b"."


PIXELS = np.zeros((1, 3072), np.uint8)
FORMATS: dict[str, tuple[str, Make, str]] = {
    "nested JSON": ("femnist", leaf("[" * 10**6), "a.json is no whole JSON file"),
    "JSON with a mark": ("femnist", written("a.json", b"\xef\xbb\xbf{}"), "a.json is no whole JSON file"),
    "JSON in latin-1": ("femnist", written("a.json", '{"ä": 1}'.encode("latin-1")), "a.json is no whole JSON file"),
    "JSON with NaN": ("femnist", leaf(user().replace("0.5", "NaN")), "pixels outside"),
    "pixels that are infinite": ("femnist", leaf(user().replace("0.5", "1e999")), "pixels outside"),
    "JSON with large labels": ("femnist", leaf(user(y=[2**70])), "labels are no whole numbers"),
    "labels that are words": ("femnist", leaf(user(y=["1"])), "labels are no whole numbers"),
    "a label of 62": ("femnist", leaf(user(y=[62])), "y: label 62 at sample 0 is outside the 62 classes"),
    "half a character in a writer": ("femnist", leaf(user("\ud800")), "users: number 0, .* no file can hold"),
    "a long writer": ("femnist", leaf(user(LONG)), "users: number 0 has 10000 characters"),
    "pipes in a folder": (
        "femnist",
        lambda p: made_by("a.json", os.mkfifo)(p).parent,
        "no user with samples|nothing that",
    ),
    "a link to nothing among users": (
        "femnist",
        folder_with({"a.json": user("a"), "b.json": None}),
        "b.json is no file that could be read, or a link to none",
    ),
    "a link to a folder of users": (
        "femnist",
        folder_with({"a.json": user("a"), "b": None}, target="."),
        "b is a link to a folder; give the folder itself",
    ),
    "packed users": ("femnist", folder_with({"a.json": user("a"), "b.json.gz": "x"}), "b.json.gz is not read"),
    "users twice": (
        "femnist",
        folder_with({"a.json": user("a"), "a (1).json": user("a")}),
        r"a.json has the same content as .*a \(1\).json",
    ),
    "a user twice": (
        "femnist",
        leaf('{"user_data": {"a": ' + json.dumps(DATA) + ', "a": ' + json.dumps(DATA) + "}}"),
        r"a.json is no whole JSON file \(the name a stands there twice\)",
    ),
    "users without data": ("femnist", leaf_of(users=["a", "b"]), "the list of users has other names than user_data"),
    "numbers of samples": ("femnist", leaf_of(num_samples=[2]), "num_samples are not the numbers of samples"),
    "another split of users": ("femnist", leaf_of(data=DATA | {"x_test": []}), "user a: x_test is not read"),
    "a user without a name": ("femnist", leaf(user("")), "users: number 0 is empty"),
    "labels alone": ("femnist", leaf(user(x=[], y=[1])), "user f1: expected x with 784 numbers"),
    "tables of two kinds": (
        "femnist",
        folder_with({"a.parquet": "x", "b.csv": "y"}),
        "has .parquet beside .csv files, the same samples twice",
    ),
    "writers that end in NUL": ("femnist", hub(writer_id=["a", "a\0", "b", "b"]), "writer_id: number 1.* no file can"),
    "writers of fractions": ("femnist", hub(writer_id=[0.5, 1, 1, 1]), "writer_id: expected strings or whole numbers"),
    "a writer without a name": ("femnist", hub(writer_id=["a", "", "b", "b"]), "writer_id: number 0 is empty"),
    "another column of writers": (
        "femnist",
        hub(writer_ids=list("aabb")),
        "t.parquet: writer_ids is not read; writer_id is; leave writer_ids out",
    ),
    "a play in a folder": (
        "shakespeare",
        folder_with({"a.txt": "HAMLET. Be.", "b/c.txt": "GHOST. Swear."}),
        "c.txt is in a folder of its own; all plays belong into",
    ),
    "a large picture": ("femnist", hub(image=[promising(9000, 9000)] * 4), "image 0 is 9000 x 9000, not 28 x 28"),
    "a huge picture": ("femnist", hub(image=[promising(60_000, 60_000)] * 4), "sample 0 is no image"),
    "a torn picture": ("femnist", hub(image=[picture((28, 28))[:50]] * 4), "sample 0 is no image"),
    "PostScript": ("femnist", hub(image=[b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 28 28\n"] * 4), "is no image"),
    "no picture": ("femnist", hub(image=[None] * 4), "sample 0 is no image"),
    "pictures of numbers": ("femnist", hub(image=[1, 2, 3, 4]), "sample 0 is no image"),
    "nested writers": ("femnist", hub(writer_id=[[1], [1, 2], [3], [4]]), "writer_id: expected an array, got a list"),
    "fractions of a class": ("femnist", hub(character=[0.5] * 4), "y: expected whole numbers, got 0.5"),
    "an empty parquet": ("femnist", hub(image=[], writer_id=[], character=[]), "no samples in"),
    "a parquet of noise": ("femnist", written("t.parquet", b"PAR1" + bytes(100) + b"PAR1"), "cannot read .*t.parquet"),
    "images of floats": ("mnist", npz(x=np.zeros((N, 28, 28))), "x: expected uint8 images"),
    "images without pixels": ("mnist", npz(x=np.zeros((N, 0, 28), np.uint8)), "x: no image in"),
    "images and a pickle": ("mnist", with_pickle, "holds Python objects in x"),
    "another IDX": (
        "mnist",
        mnist(train_images=b"\0\0\x0d\3" + bytes(20)),
        "train-images.* expected bytes in IDX format",
    ),
    "a packed IDX": (
        "mnist",
        mnist(train_images=gzip.compress(bytes(100))),
        "train-images.* expected bytes in IDX format",
    ),
    "an IDX of 2 bytes": ("mnist", mnist(t10k_labels=b"\0\0"), "cannot read mnist"),
    "an IDX that promises": (
        "mnist",
        mnist(train_images=struct.pack(">4I", 0x803, 2**32 - 1, 28, 28) + bytes(784)),
        r"its header says \[4294967295, 28, 28\], 3367254359296 bytes; it has 800",
    ),
    "an IDX of many axes": ("mnist", mnist(train_images=b"\0\0\x08\xff" + bytes(100)), "cannot read mnist"),
    "fewer labels than images": (
        "mnist",
        mnist(train_labels=struct.pack(">2I", 0x801, 1) + b"\1"),
        "2 images, but 1 lab",
    ),
    "an empty batch": ("cifar10", cifar(b""), "data_batch_1 is empty"),
    "half a pickle": ("cifar10", cifar(pickle.dumps({b"data": PIXELS}, 2)[:60]), "cannot read cifar10"),
    "a pickle of a list": ("cifar10", cifar(pickle.dumps([1], 2)), "expected a dictionary, got list"),
    "a pickle that acts": ("cifar10", cifar(pickle.dumps({b"data": Payload()}, 2)), "posix.mkdir, which is no part"),
    "pixels that are no array": (
        "cifar10",
        cifar(pickle.dumps({b"data": [[0] * 3072]}, 2)),
        "expected `data`, an array",
    ),
    "no labels": ("cifar10", cifar(pickle.dumps({b"data": PIXELS}, 2)), "expected `labels`, a list of whole numbers"),
    "labels in labels": (
        "cifar10",
        cifar(pickle.dumps({b"data": PIXELS, b"labels": nested(20)}, 2)),
        "expected `labels`, a list of whole numbers",
    ),
    "a coding that grows": ("cifar10", cifar(doubled(40)), "the file asks for the coding .*hex"),
    "a memory of 2^31 objects": (
        "cifar10",
        cifar(b"\x80\x02]r\xff\xff\xff\x7f."),
        "object number 2147483647 in 9 bytes",
    ),
    "a nested pickle": (
        "cifar10",
        cifar(b"\x80\x02" + b"]" * 10**5 + b"a" * (10**5 - 1) + b"."),
        "got list|cannot read",
    ),
    "an array of 10^12": (
        "cifar10",
        cifar(pickle.dumps({b"data": PIXELS}, 2).replace(b"K\x01M\x00\x0c\x86", b"\x8a\x06\0\0\0\0\1\0K\1\x86")),
        "cannot read cifar10 .*an array that is not as long as its shape says",
    ),
    "plays in latin-1": ("shakespeare", written("a.txt", "HAMLET. Ä".encode("latin-1")), "a.txt is no UTF-8 text"),
    "no speech": ("shakespeare", written("a.txt", b"\0" * 1000), "no speeches in"),
    "open brackets": ("shakespeare", written("a.txt", b"HAMLET. " + b"[" * 10**6), "no role in .* has 201 characters"),
    "numbers as text": (
        "shakespeare",
        npz(x=None, y=None, text=np.zeros(N), client_names=["a", "b"]),
        "text: expected uint8 characters",
    ),
    "half a text": (
        "shakespeare",
        npz(x=None, y=None, text=np.zeros(5, np.uint8), client_names=["a", "b"]),
        r"client: expected shape \(5,\)",
    ),
    "a text's odd pieces": (
        "shakespeare",
        npz(x=None, y=None, text=np.full(N, 97, np.uint8), client_names=["a", "b"], piece=np.zeros(3)),
        r"piece: expected shape \(12,\)",
    ),
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_known_format_is_refused(name: str, tmp_path: Path, quick_and_small: None) -> None:
    data, make, message = FORMATS[name]

    def read(path: Path) -> Any:
        return TextDataModule(path) if data == "shakespeare" else ImageDataModule(cast(Any, data), "iid", 1, path=path)

    refused(make, read, message, tmp_path)
