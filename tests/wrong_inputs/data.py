"""Wrong data files: .npz federations, tables, and what is called a file and is none."""

import io
import struct
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from wrong_inputs.case import Case
from wrong_inputs.special_files import SPECIAL

RUN = (
    *("trainer.max_epochs=1", "trainer.accelerator=cpu", "trainer.enable_progress_bar=false"),
    *("backbone=linear", "run_dir=out"),
)
_N = 40


def federation(**changed: Any) -> dict[str, np.ndarray]:
    """Four clients of ten samples of three features."""
    random = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {
        "x": random.normal(size=(_N, 3)).astype(np.float32),
        "y": np.arange(_N) % 2,
        "client": np.repeat(np.arange(4), 10),
    }
    arrays |= {name: np.asarray(value) for name, value in changed.items()}
    return {name: array for name, array in arrays.items() if name not in changed or changed[name] is not None}


def cases() -> Iterator[Case]:
    """Every wrong data file, for training and for `data describe`."""
    for name, write in _npz_files().items():
        yield _training(f"data/npz/{name}", "data.npz", write, "npz")
        yield _describing(f"data/describe/{name}", write)
    for name, write in _tables().items():
        suffix = ".parquet" if name.startswith("parquet") else ".csv"
        yield _training(f"data/table/{name}", f"data{suffix}", write, "table")
    for source in ("cifar10", "femnist", "shakespeare", "mnist"):
        for name, write in _files().items():
            yield _training(f"data/{source}/{name}", "data.npz", write, source)
    yield from _commands()


def _training(name: str, file: str, write: Callable[[Path], None], dataset: str) -> Case:
    words: tuple[str, ...] = (*RUN, f"dataset={dataset}", f"dataset.path={file}")
    if dataset == "table":
        words += ("dataset.label=y", "dataset.client=client")
    return Case(name, words, prepare=lambda place: write(place / file))


def _describing(name: str, write: Callable[[Path], None]) -> Case:
    words = ("describe", "npz", "dataset.path=data.npz")
    return Case(name, words, "fedem_lightning.data", lambda place: write(place / "data.npz"))


def _npz_files() -> dict[str, Callable[[Path], None]]:
    made = {name: partial(_write_npz, arrays) for name, arrays in _wrong_arrays().items()}
    return made | _files() | _zips()


def _wrong_arrays() -> dict[str, dict[str, np.ndarray]]:
    x, y, client = (federation()[name] for name in ("x", "y", "client"))
    bad, dates = x.copy(), np.array(["2020-01-01"] * _N, "M8[D]")
    bad[3, 1] = np.nan
    infinite = x.astype(np.float64)
    infinite[15:18] = 1e300
    return {
        **{f"without-{name}": federation(**{name: None}) for name in ("x", "y", "client")},
        **{f"{name}-short": federation(**{name: federation()[name][:-1]}) for name in ("x", "y", "client")},
        **{f"{name}-empty": federation(**{name: federation()[name][:0]}) for name in ("x", "y", "client")},
        **{f"{name}-scalar": federation(**{name: 1}) for name in ("x", "y", "client")},
        "x-text": federation(x=np.array(["a"] * _N)),
        **{f"{name}-dates": federation(**{name: dates}) for name in ("x", "y", "client")},
        **{f"{name}-complex": federation(**{name: np.ones(_N) * 1j}) for name in ("x", "y", "client")},
        **{f"{name}-bytes": federation(**{name: np.array([b"\xff"] * _N)}) for name in ("x", "y")},
        **{f"{name}-records": federation(**{name: np.zeros(_N, "i4,f4")}) for name in ("x", "y", "client")},
        **{f"{name}-two-axes": federation(**{name: np.zeros((_N, 2), int)}) for name in ("client",)},
        "x-one-axis": federation(x=x[:, 0]),
        "x-no-features": federation(x=x[:, :0]),
        "x-nan": federation(x=bad),
        "x-infinite-in-float32": federation(x=infinite),
        "x-all-nan": federation(x=x * np.nan),
        "y-nan": federation(y=np.where(np.arange(_N) == 3, np.nan, y)),
        "y-infinite": federation(y=np.where(np.arange(_N) == 3, np.inf, y)),
        "y-fractional": federation(y=y + 0.5),
        "y-negative": federation(y=y - 1),
        "y-huge": federation(y=np.where(np.arange(_N) == 3, 10**9, y)),
        "y-2-63": federation(y=np.where(np.arange(_N) == 3, 2**63, y.astype(np.uint64))),
        "client-fractional": federation(client=client + 0.5),
        "client-nan": federation(client=np.where(client == 1, np.nan, client)),
        "client-negative": federation(client=client - 1),
        "split-3": federation(split=np.full(_N, 3)),
        "split-negative": federation(split=np.full(_N, -1)),
        "split-text": federation(split=np.array(["tset"] * _N)),
        "split-short": federation(split=np.zeros(3, int)),
        "split-nan": federation(split=np.full(_N, np.nan)),
        "split-no-train": federation(split=np.full(_N, 2)),
        "names-short": federation(names=np.array(["a", "b"])),
        "names-equal": federation(names=np.array(["a", "a", "b", "c"])),
        "names-numbers": federation(names=np.arange(4) + 0.5),
        "names-surrogate": federation(names=np.array(["a", "b", "c", "\ud800"])),
        "domain-short": federation(domain=np.zeros(3, int)),
        "domain-nan": federation(domain=np.full(_N, np.nan)),
    }


def _write_npz(arrays: dict[str, np.ndarray], path: Path) -> None:
    np.savez(path, **arrays)  # type: ignore[arg-type]


def _files() -> dict[str, Callable[[Path], None]]:
    """What any reader of files may meet."""
    content = io.BytesIO()
    np.savez(content, **federation())  # type: ignore[arg-type]
    whole = content.getvalue()
    flipped = bytearray(whole)
    flipped[len(whole) // 3] ^= 0x10
    written = {
        "text": b"hello\n",
        "html": b"<!DOCTYPE html><html><body>404</body></html>",
        "random": np.random.default_rng(1).bytes(3000),
        "half": whole[: len(whole) // 2],
        "without-end": whole[:-30],
        "flipped-bit": bytes(flipped),
        "npy": _npy((3, 3), 9),
        "pickle": b"cos\nsystem\n(S'touch touched'\ntR.",
        "zip-magic": b"PK\x03\x04" + bytes(100),
        "gzip-magic": b"\x1f\x8b\x08" + bytes(50),
        "nul": bytes(1000),
    }
    found: dict[str, Callable[[Path], None]] = {name: partial(_write, content) for name, content in written.items()}
    places: dict[str, Callable[[Path], None]] = {"missing": lambda path: None, "folder": lambda path: path.mkdir()}
    return found | places | SPECIAL


def _write(content: bytes, path: Path) -> None:
    path.write_bytes(content)


def _npy(shape: tuple[int, ...], values: int, dtype: str = "<f4", extra: bytes = b"") -> bytes:
    """A .npy file that promises `shape` and holds so many values."""
    header = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape!r}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(4 * values) + extra


def _zips() -> dict[str, Callable[[Path], None]]:
    """Archives that are made to harm."""
    y, client = (_member(federation()[name]) for name in ("y", "client"))
    rest = {"y.npy": y, "client.npy": client}
    promised = {
        "promises-10-12-rows": _npy((10**12, 3), 3),
        "promises-10-10-rows": _npy((10**10, 3), 3),
        "negative-shape": _npy((-5, 3), 3),
        "shape-of-text": _npy((40, 3), 3).replace(b"(40, 3)", b"('a',) "),
        "header-calls": _npy((40, 3), 120).replace(b"(40, 3)", b"open(3)"),
        "objects": _npy((40, 3), 120, "|O"),
        "unknown-dtype": _npy((40, 3), 120, "<q9"),
        "deep-header": b"\x93NUMPY\x02\x00" + struct.pack("<I", 60_000) + b"(" * 60_000,
        "header-promises-4-gb": b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 1) + b"{}",
        "version-9": b"\x93NUMPY\x09\x00" + bytes(200),
        "trailing-bytes": _npy((40, 3), 120, extra=b"more"),
        "no-npy": b"hello",
    }
    found: dict[str, Callable[[Path], None]] = {
        name: partial(_zip, {"x.npy": member, **rest}) for name, member in promised.items() if name != "trailing-bytes"
    }
    found["bomb"] = partial(_zip, {"x.npy": _npy((3 * 10**7, 3), 9 * 10**7), **rest}, compression=zipfile.ZIP_DEFLATED)
    found["encrypted"] = _encrypted
    found["parent-names"] = partial(_zip, {"../x.npy": _npy((40, 3), 120), **rest})
    found["no-members"] = partial(_zip, {})
    return found


def _member(array: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


def _zip(members: dict[str, bytes], path: Path, compression: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def _encrypted(path: Path) -> None:
    _write_npz(federation(), path)
    content = bytearray(path.read_bytes())
    for magic, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = content.find(magic)
        while at >= 0:
            content[at + offset] |= 1  # the flag of encryption
            at = content.find(magic, at + 4)
    path.write_bytes(bytes(content))


def _tables() -> dict[str, Callable[[Path], None]]:
    """Wrong CSV and Parquet files."""
    arrays = federation()
    table = pd.DataFrame(arrays["x"], columns=["a", "b", "c"]).assign(y=arrays["y"], client=arrays["client"])
    text = table.to_csv(index=False)
    lines = text.splitlines()
    csv = {
        "header-alone": lines[0],
        "no-header": "\n".join(lines[1:]),
        "ragged": "\n".join([*lines[:5], lines[5] + ",7,8", *lines[6:]]),
        "semicolons": text.replace(",", ";"),
        "decimal-commas": text.replace(",", ";").replace(".", ","),
        "equal-columns": text.replace("a,b,c", "a,a,c"),
        "no-label": text.replace("y,client", "z,client"),
        "no-client": text.replace("y,client", "y,site"),
        "label-everywhere-empty": "\n".join(
            [lines[0], *(",".join([*line.split(",")[:3], "", "1"]) for line in lines[1:])]
        ),
        "label-missing-once": "\n".join([*lines[:4], "1,2,3,,0", *lines[4:]]),
        "client-missing-once": "\n".join([*lines[:4], "1,2,3,0,", *lines[4:]]),
        "infinite": "\n".join([*lines[:4], "inf,2,3,0,0", *lines[4:]]),
        "too-large": "\n".join([*lines[:4], "1e300,2,3,0,0", *lines[4:]]),
        "one-row": "\n".join(lines[:2]),
        "blank-lines": "\n\n\n",
        "labels-and-clients-only": "y,client\n" + "\n".join(",".join(line.split(",")[3:]) for line in lines[1:]),
        "open-quote": text.replace(lines[3], '"' + lines[3]),
    }
    written = {name: content.encode() for name, content in csv.items()}
    written |= {"nul-bytes": text.encode().replace(b"0", b"\0"), "utf-16": text.encode("utf-16")}
    found: dict[str, Callable[[Path], None]] = {name: partial(_write, content) for name, content in written.items()}
    found |= {f"file-{name}": write for name, write in _files().items() if name != "npy"}
    found |= {f"parquet-file-{name}": write for name, write in _files().items()}
    nested = pd.DataFrame({"a": [[1.0, 2.0]] * _N, "y": arrays["y"], "client": arrays["client"]})
    dated = table.assign(a=pd.Timestamp("2020-01-01"))
    whole = io.BytesIO()
    table.to_parquet(whole)
    return found | {
        "parquet-nested": lambda path: nested.to_parquet(path),
        "parquet-no-rows": lambda path: table.iloc[:0].to_parquet(path),
        "parquet-half": partial(_write, whole.getvalue()[:500]),
        "parquet-middle-lost": partial(_write, whole.getvalue()[:200] + whole.getvalue()[400:]),
        "parquet-no-label": lambda path: table.drop(columns="y").to_parquet(path),
        "parquet-infinite": lambda path: table.assign(a=np.inf).to_parquet(path),
        "parquet-bytes": lambda path: table.assign(a=[b"\xff"] * _N).to_parquet(path),
        "parquet-dates-as-label": lambda path: dated.rename(columns={"a": "y", "y": "a"}).to_parquet(path),
    }


def _commands() -> Iterator[Case]:
    """Wrong arguments of `python -m fedem_lightning.data`."""
    command = "fedem_lightning.data"
    wrong: tuple[tuple[str, ...], ...] = (
        *(
            (),
            ("describe",),
            ("describe", "no_such"),
            ("no_such_command",),
            ("list", "data_dir"),
            ("--what",),
            ("convert",),
        ),
        *(("convert", "cifar10", "missing", "out.npz"), ("convert", "no_such", "a", "b"), ("download",)),
        *(("download", "no_such"), ("describe", "npz"), ("describe", "npz", "dataset.path=5")),
        *(("describe", "synthetic", "dataset.n_clients=abc"), ("describe", "synthetic", "dataset.n_client=3")),
        *(("describe", "synthetic", "seed=-1"), ("describe", "synthetic", "--figure")),
        *(("describe", "npz", "dataset.path="), ("describe", "table", "dataset.path=a.csv")),
    )
    for words in wrong:
        yield Case(f"data/command/{' '.join(words) or 'nothing'}", words, command)
