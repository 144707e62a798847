"""Folders of PFLlib and FL-bench: the same federation as from arrays, no pickle's code runs, mistakes are one line."""

import io
import pickle
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedem_lightning import FederatedDataModule, FLBenchDataModule, PFLlibDataModule, UserError
from fedem_lightning.data.formats.pickles import PickledArray, plain
from helpers.commands import call
from helpers.library_folders import partition, save_flbench, save_object, save_pfllib
from helpers.runs import leave_undrawn

RNG = np.random.default_rng(0)
T, N = 12, 84
X, Y = RNG.normal(size=(N, 1, 4, 4)).astype(np.float32), np.arange(N) % 3
CLIENT = np.repeat(np.arange(T), 7)
TRAIN = np.arange(N) % 7 < 5


def pfllib(folder: Path) -> Path:
    """The samples in PFLlib's files."""
    return save_pfllib(folder, X, Y, CLIENT, TRAIN)


def flbench(folder: Path, protocol: int = 4, **changed: Any) -> Path:
    """The samples in FL-bench's files, of which some have other contents."""
    save_flbench(folder, changed.get("data", X), changed.get("targets", Y.astype(np.int32)), CLIENT, TRAIN)
    held = changed.get("partition", partition(CLIENT, TRAIN))
    (folder / "partition.pkl").write_bytes(pickle.dumps(held, protocol))
    return folder


def digest(**options: Any) -> str:
    """Of the arrays in PFLlib's order."""
    order = np.concatenate([np.flatnonzero(TRAIN), np.flatnonzero(~TRAIN)])
    split = np.where(TRAIN[order], "train", "test")
    return FederatedDataModule.from_arrays(
        X[order], Y[order], CLIENT[order], split=split, **options
    ).federation.digest()


def test_pfllibs_folder_is_the_federation_of_its_arrays(tmp_path: Path) -> None:
    federation = PFLlibDataModule(pfllib(tmp_path / "MNIST")).federation
    assert federation.digest() == digest()
    assert federation.names == tuple(map(str, range(T)))  # 10 after 9
    assert federation.in_shape == (1, 4, 4)
    assert PFLlibDataModule(tmp_path / "MNIST", n_clients=5).n_clients == 5


@pytest.mark.parametrize("change", [np.asarray, np.ndarray.tolist, lambda a: list(a)])
@pytest.mark.parametrize("protocol", range(6))
def test_flbenchs_folder_is_the_federation_of_its_arrays(change: Any, protocol: int, tmp_path: Path) -> None:
    federation = FLBenchDataModule(
        flbench(tmp_path / "a", protocol, partition=partition(CLIENT, TRAIN, change))
    ).federation
    expected = FederatedDataModule.from_arrays(X, Y, CLIENT, split=np.where(TRAIN, 0, 2)).federation
    assert federation.digest() == expected.digest()


def test_flbenchs_samples_may_be_flat_unowned_and_of_either_order_of_bytes(tmp_path: Path) -> None:
    some = partition(CLIENT, TRAIN)
    some["data_indices"] = some["data_indices"][1:]
    changed: dict[str, Any] = {"data": X.reshape(N, 16).astype(">f4"), "targets": Y[:, None], "partition": some}
    federation = FLBenchDataModule(flbench(tmp_path, **changed), shape=[1, 4, 4]).federation
    rows = CLIENT > 0
    split = np.where(TRAIN, 0, 2)[rows]
    expected = FederatedDataModule.from_arrays(X[rows], Y[rows], CLIENT[rows] - 1, split=split).federation
    assert federation.digest() == expected.digest()
    with pytest.raises(UserError, match=r"^shape: \[3, 3\] does not fit samples of \[16\]$"):
        FLBenchDataModule(tmp_path, shape=[3, 3])


@pytest.mark.parametrize("kind", ["pfllib", "flbench"])
def test_a_share_of_the_training_samples_validates(kind: str, tmp_path: Path) -> None:
    read = PFLlibDataModule(pfllib(tmp_path / "a"), val_fraction=0.2) if kind == "pfllib" else None
    federation = (read or FLBenchDataModule(flbench(tmp_path / "b"), val_fraction=0.2)).federation
    assert {part: split.counts().tolist() for part, split in federation.splits.items()} == {
        "train": [4] * T,
        "val": [1] * T,
        "test": [2] * T,
    }


# --- pickles ----------------------------------------------------------------------------------------------------------


class Payload:
    """Whoever unpickles it makes the folder `executed`."""

    def __reduce__(self) -> Any:
        import os

        return os.mkdir, ("executed",)


class Module:
    """Whoever looks up its function imports a module of the folder, which makes `executed`."""

    def __reduce__(self) -> Any:
        return _named, ()


def _named() -> None: ...


ATTACKS: dict[str, Callable[[], bytes]] = {
    "a call": lambda: pickle.dumps(Payload()),
    "a call in an array": lambda: pickle.dumps(np.array([Payload()], dtype=object)),
    "an import": lambda: pickle.dumps(Module(), 0).replace(_named.__module__.encode(), b"payload"),
    "eval": lambda: b'c__builtin__\neval\n(S\'__import__("os").mkdir("executed")\'\ntR.',
    "getattr through numpy": lambda: b"cnumpy\nsys.modules\n.",
    "a name with dots": lambda: b"\x80\x04\x8c\x05numpy\x8c\x0dndarray.tofile\x93.",
    "a changed stand-in": lambda: b"cnumpy\ndtype\n}S'_make'\ncnumpy\nndarray\nsb.",
    "a changed class": lambda: b"cnumpy\ndtype\nN}S'__init__'\nI1\ns\x86b.",
    "a numpy function": lambda: b"cnumpy\nfromfile\n(S'x'\ntR.",
    "another class of numpy": lambda: pickle.dumps(np.ma.masked_array([1.0])),
    "persistent": lambda: b"Pexecuted\n.",
}


def wrapped(raw: bytes) -> bytes:
    """An .npz with `raw` as the pickle of `data`."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|O", "fortran_order": False, "shape": ()})
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("data.npy", header.getvalue() + raw)
    return made.getvalue()


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("kind", ["pfllib", "flbench"])
def test_no_code_of_a_pickle_runs(kind: str, attack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "payload.py").write_text("import os\nos.mkdir('executed')\n_named = dict\n")
    raw, folder = ATTACKS[attack](), tmp_path / "data"
    if kind == "pfllib":
        (pfllib(folder) / "train" / "3.npz").write_bytes(wrapped(raw))
    else:
        (flbench(folder) / "partition.pkl").write_bytes(raw)
    with pytest.raises(UserError, match=r"^path: ") as found:
        (PFLlibDataModule if kind == "pfllib" else FLBenchDataModule)(folder)
    assert "\n" not in str(found.value)
    assert not (tmp_path / "executed").exists()
    assert "payload" not in sys.modules
    assert PFLlibDataModule(pfllib(tmp_path / "good")).federation.digest() == digest()  # nothing has been changed


def test_the_attacks_are_attacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ordinary unpickler runs them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "payload.py").write_text("import os\nos.mkdir('executed')\n_named = dict\n")
    for attack in ("a call", "a call in an array", "an import", "eval"):
        pickle.loads(ATTACKS[attack]())
        (tmp_path / "executed").rmdir()
    sys.modules.pop("payload")


@pytest.mark.parametrize("kind", ["b1", "i1", "<i2", ">i4", "u8", "f2", "<f4", ">f8"])
@pytest.mark.parametrize("protocol", range(6))
def test_arrays_of_all_numbers_are_read(kind: str, protocol: int) -> None:
    array = np.asfortranarray((np.arange(12).reshape(3, 4) % 2).astype(kind))
    read = plain(pickle.dumps(array, protocol), "a")
    assert isinstance(read, PickledArray)
    np.testing.assert_array_equal(read.array("a"), array)
    assert read.array("a").dtype == array.dtype
    assert plain(pickle.dumps(array[1, 1], protocol), "a") == array[1, 1]


# --- mistakes ---------------------------------------------------------------------------------------------------------

Change = Callable[[Path], Any]


def replaced(file: str, content: Any) -> Change:
    """A folder of PFLlib in which a file has another content."""
    return lambda folder: save_object(pfllib(folder) / file, content)


WRONG_PFLLIB: dict[str, tuple[Change, str]] = {
    "no folder": (lambda folder: None, "^path: no folder .*data$"),
    "an empty folder": (lambda folder: folder.mkdir(), "^path: .* has no folder train and no test; expected PFLlib's"),
    "its part": (lambda folder: (folder / "train").mkdir(parents=True), "^path: .* has no folder test; expected"),
    "no files": (
        lambda folder: list(map(Path.unlink, pfllib(folder).glob("*/*.npz"))),
        "^path: no .npz file in .*train; expected PFLlib's folder",
    ),
    "no test file": (lambda folder: (pfllib(folder) / "test/3.npz").unlink(), "^path: .*test lacks 3.npz, which train"),
    "no train file": (
        lambda folder: (pfllib(folder) / "train/3.npz").unlink(),
        "^path: .*train lacks 3.npz, which test",
    ),
    "an empty client": (
        replaced("train/3.npz", {"x": X[:0], "y": Y[:0]}),
        r"^path: .*train/3.npz: no samples$",
    ),
    "lengths": (replaced("train/3.npz", {"x": X, "y": Y[1:]}), "^path: .*3.npz: x has 84 samples, y has 83$"),
    "shapes": (
        replaced("train/3.npz", {"x": X[:, 0], "y": Y}),
        r"^path: .*train/3.npz: x of shape \[n, 4, 4\] and float32, but path: .*0.npz: of shape \[n, 1, 4, 4\]",
    ),
    "no y": (replaced("train/3.npz", {"x": X}), "^path: .*3.npz: expected a dictionary with x and y under data$"),
    "a list": (replaced("train/3.npz", [1, 2]), "^path: .*3.npz: data is an array; expected a dictionary x, y$"),
    "objects": (
        replaced("train/3.npz", {"x": np.array([[1], [1, 2]], dtype=object), "y": Y[:2]}),
        "^path: .*3.npz: x: expected an array of numbers, got type 'O8'$",
    ),
    "nested lists": (
        replaced("train/3.npz", {"x": [[1.0]], "y": [0]}),
        "^path: .*3.npz: x: expected an array or",
    ),
    "our .npz": (
        lambda folder: np.savez(pfllib(folder) / "train/3.npz", x=X, y=Y),
        "^path: .*3.npz has x, y; expected data alone$",
    ),
    "half a file": (
        lambda folder: (pfllib(folder) / "train/3.npz").write_bytes(wrapped(pickle.dumps(X)[:50])),
        "^path: cannot read .*3.npz as .npz with a Python object data",
    ),
    "no zip": (lambda folder: (pfllib(folder) / "train/3.npz").write_bytes(b"hello"), "^path: .*3.npz is no .npz file"),
    "an empty file": (lambda folder: (pfllib(folder) / "train/3.npz").write_bytes(b""), "^path: .*3.npz is empty$"),
    "nan": (
        replaced("train/3.npz", {"x": X[:2] * np.nan, "y": Y[:2]}),
        r"^x: NaN or infinity in 2 samples, .* of client 3; 1 of 12",
    ),
}


def positions(change: Callable[[list[Any]], Any]) -> Change:
    """A folder of FL-bench in which the clients' positions are changed."""

    def write(folder: Path) -> None:
        content = partition(CLIENT, TRAIN, np.ndarray.tolist)
        change(content["data_indices"])
        flbench(folder, partition=content)

    return write


WRONG_FLBENCH: dict[str, tuple[Change, str]] = {
    "no folder": (lambda folder: None, "^path: no folder .*data$"),
    "no data": (lambda folder: (flbench(folder) / "data.npy").unlink(), "^path: .* lacks data.npy; FL-bench writes"),
    "PFLlib's": (pfllib, "^path: .* lacks data.npy, targets.npy, partition.pkl; FL-bench writes"),
    "objects": (lambda folder: flbench(folder, data=np.array([{}], dtype=object)), "data.npy holds Python objects"),
    "half": (
        lambda folder: (flbench(folder) / "data.npy").write_bytes((folder / "data.npy").read_bytes()[:-9]),
        "^path: .*data.npy promises float32 of shape",
    ),
    "lengths": (lambda folder: flbench(folder, targets=Y[1:]), "^path: .*data: x has 84 samples, y has 83$"),
    "a list": (lambda folder: flbench(folder, partition=[1]), "^path: .*partition.pkl: expected a dictionary with a l"),
    "no clients": (lambda folder: flbench(folder, partition={"data_indices": []}), "with a list data_indices$"),
    "old": (positions(lambda of: of.__setitem__(0, [1, 2])), "client 0: expected a dictionary with train, test and"),
    "an empty client": (positions(lambda of: of.append({"train": [], "test": []})), "client 12: no samples$"),
    "no training": (
        positions(lambda of: of[3].update(train=[])),
        "^client 3 has no training sample: every client that trains needs at least one$",
    ),
    "beyond": (positions(lambda of: of[0]["train"].append(N)), r"client 0: train: expected positions in 0..83$"),
    "negative": (positions(lambda of: of[0]["train"].append(-1)), r"client 0: train: expected positions in 0..83$"),
    "halves": (positions(lambda of: of[0]["train"].append(0.5)), r"client 0: train: expected positions in 0..83$"),
    "words": (positions(lambda of: of[0]["train"].append("a")), r"client 0: train: expected an array or a flat list"),
    "twice": (positions(lambda of: of[0]["train"].append(0)), r"client 0: train: sample \[0\] stands there and else"),
    "in two clients": (positions(lambda of: of[5]["test"].append(0)), r"client 5: test: sample \[0\] stands there and"),
}
ALL = [("pfllib", name) for name in WRONG_PFLLIB] + [("flbench", name) for name in WRONG_FLBENCH]


@pytest.mark.parametrize(("kind", "mistake"), ALL)
def test_every_mistake_is_one_line(kind: str, mistake: str, tmp_path: Path) -> None:
    change, line = (WRONG_PFLLIB if kind == "pfllib" else WRONG_FLBENCH)[mistake]
    change(tmp_path / "data")
    with pytest.raises(UserError, match=line) as found:
        (PFLlibDataModule if kind == "pfllib" else FLBenchDataModule)(tmp_path / "data")
    assert "\n" not in str(found.value)


def test_a_pickle_cannot_make_much_of_little(tmp_path: Path) -> None:
    array = pickle.dumps(np.zeros(3, dtype="f4"), 2)
    grown = array.replace(b"K\x03\x85", b"\x8a\x05\0\0\0\0\1\x85")
    assert grown != array
    with pytest.raises(UserError, match=r"^a: an array that is not as long as its shape says$"):
        plain(grown, "a").array("a")
    (flbench(tmp_path) / "partition.pkl").write_bytes(b"(r\xff\xff\xff\x7f.")
    with pytest.raises(UserError, match="object number 2147483647 in 7 bytes"):
        FLBenchDataModule(tmp_path)


SHORT = ("trainer.max_epochs=1", "trainer.accelerator=cpu", "backbone=linear", "algorithm=fedavg", "run_dir=out")


@pytest.mark.parametrize("kind", ["pfllib", "flbench"])
def test_the_command_line_reads_a_folder_or_says_why_not(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    leave_undrawn(monkeypatch)
    folder = (pfllib if kind == "pfllib" else flbench)(tmp_path / "mine")
    words = (f"dataset={kind}", "dataset.path=mine", *SHORT)
    assert call(tmp_path, monkeypatch, *words) == 0
    assert "data: 12 clients, 84 samples of shape (1, 4, 4)" in capsys.readouterr().out
    (folder / ("test/0.npz" if kind == "pfllib" else "partition.pkl")).write_bytes(pickle.dumps(Payload()))
    assert call(tmp_path, monkeypatch, *words, "run_dir=other") == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: dataset.path: ")
    assert call(tmp_path, monkeypatch, f"dataset={kind}", *SHORT, "run_dir=third") == 2
    assert "path: expected a folder, e.g. dataset.path=" in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "executed").exists()
