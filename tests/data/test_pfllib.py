"""PFLlib's folder: the same federation as from arrays, no pickle's code runs, mistakes are one line."""

import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedem_lightning import FederatedDataModule, PFLlibDataModule, UserError
from helpers.pfllib import save_object, save_pfllib

T, N = 12, 84
X, Y = np.random.default_rng(0).normal(size=(N, 1, 4, 4)).astype(np.float32), np.arange(N) % 3
CLIENT, TRAIN = np.repeat(np.arange(T), 7), np.arange(N) % 7 < 5


def pfllib(folder: Path, x: np.ndarray = X) -> Path:
    """The samples in PFLlib's files."""
    return save_pfllib(folder, x, Y, CLIENT, TRAIN)


@pytest.mark.parametrize("change", [np.asarray, np.asfortranarray, lambda x: x.astype(">f4")])
def test_the_folder_is_the_federation_of_its_arrays(change: Callable[[np.ndarray], np.ndarray], tmp_path: Path) -> None:
    federation = PFLlibDataModule(pfllib(tmp_path, change(X))).federation
    order = np.concatenate([np.flatnonzero(TRAIN), np.flatnonzero(~TRAIN)])
    split = np.where(TRAIN[order], "train", "test")
    expected = FederatedDataModule.from_arrays(X[order], Y[order], CLIENT[order], split=split).federation
    assert federation.digest() == expected.digest()
    assert federation.names == tuple(map(str, range(T)))  # 10 after 9
    assert PFLlibDataModule(tmp_path, n_clients=5).n_clients == 5


def test_a_share_of_the_training_samples_validates(tmp_path: Path) -> None:
    federation = PFLlibDataModule(pfllib(tmp_path), val_fraction=0.2).federation
    counts = {part: split.counts().tolist() for part, split in federation.splits.items()}
    assert counts == {"train": [4] * T, "val": [1] * T, "test": [2] * T}


class Payload:
    """Whoever unpickles it makes the folder `executed`."""

    def __reduce__(self) -> Any:
        import os

        return os.mkdir, ("executed",)


ATTACKS: dict[str, Callable[[], bytes]] = {
    "a call": lambda: pickle.dumps(Payload()),
    "a call in an array": lambda: pickle.dumps(np.array([Payload()], dtype=object)),
    "eval": lambda: b'c__builtin__\neval\n(S\'__import__("os").mkdir("executed")\'\ntR.',
    "a numpy function": lambda: b"cnumpy\nfromfile\n(S'x'\ntR.",
    "a changed stand-in": lambda: b"cnumpy\ndtype\n}S'order'\nS'x'\nsb.",
    "objects as numbers": lambda: pickle.dumps(np.array([1, "a"], dtype=object)).replace(b"O8", b"f8"),
    "an array of 10^12": lambda: pickle.dumps(np.zeros(3, "f4"), 2).replace(b"K\x03\x85", b"\x8a\x05\0\0\0\0\1\x85"),
}


def wrapped(raw: bytes) -> bytes:
    """An .npz with `raw` as the pickle of `data`."""
    header, made = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|O", "fortran_order": False, "shape": ()})
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("data.npy", header.getvalue() + raw)
    return made.getvalue()


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_code_of_a_pickle_runs(attack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (pfllib(tmp_path / "data") / "train" / "3.npz").write_bytes(wrapped(ATTACKS[attack]()))
    with pytest.raises(UserError, match=r"^path: .*3.npz") as found:
        PFLlibDataModule(tmp_path / "data")
    assert "\n" not in str(found.value)
    assert not (tmp_path / "executed").exists()


def replaced(content: Any) -> Callable[[Path], Any]:
    """A folder in which a client's file has another content."""
    return lambda folder: save_object(pfllib(folder) / "train/3.npz", content)


WRONG: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no test file": (
        lambda folder: (pfllib(folder) / "test/3.npz").unlink(),
        "^path: .*: 3.npz is not in both train and test; exp",
    ),
    "an empty client": (replaced({"x": X[:0], "y": Y[:0]}), "^path: .*data: client 3: no samples$"),
    "no y": (replaced({"x": X}), "^path: cannot read .*3.npz as PFLlib's file of a client.* (KeyError: 'y')"),
    "our .npz": (lambda folder: np.savez(pfllib(folder) / "train/3.npz", x=X, y=Y), "^path: cannot read .*3.npz"),
    "nan": (replaced({"x": X[:2] * np.nan, "y": Y[:2]}), "^x: NaN or infinity in 2 samples, .* of client 3"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_every_mistake_is_one_line(mistake: str, tmp_path: Path) -> None:
    change, line = WRONG[mistake]
    change(tmp_path / "data")
    with pytest.raises(UserError, match=line.replace("(KeyError: 'y')", r"\(KeyError: 'y'\)")) as found:
        PFLlibDataModule(tmp_path / "data")
    assert "\n" not in str(found.value)
