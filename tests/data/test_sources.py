"""Every form that a known data set comes in, read from tiny files, also broken ones; nothing here uses the network."""

import functools
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig
from PIL import Image
from torchvision import datasets

from fedem_lightning import ImageDataModule, UserError
from fedem_lightning.data import sources
from fedem_lightning.data.sources import load_arrays, read_arrays
from fedem_lightning.run.commands import user_message
from helpers.commands import composed

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(256, size=(12, 28, 28)).astype(np.uint8)
LABELS = np.arange(12) % 4


def png(image: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def parquet(folder: Path, **changes: list[Any]) -> Path:
    """The hub's FEMNIST."""
    columns = {
        "image": [{"bytes": png(image), "path": None} for image in PIXELS],
        "writer_id": [f"f{i % 2 + 1}" for i in range(12)],
        "hsf_id": [0] * 12,
        "character": LABELS.tolist(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    kept = {name: column for name, column in {**columns, **changes}.items() if column}
    pa.parquet.write_table(pa.table(kept), folder / "train-00000.parquet")
    return folder


def idx(path: Path, array: np.ndarray) -> None:
    header = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header + array.astype(np.uint8).tobytes())


def emnist(root: Path) -> Path:
    for part, rows in (("train", slice(0, 8)), ("test", slice(8, 12))):
        idx(root / f"EMNIST/raw/emnist-byclass-{part}-images-idx3-ubyte", PIXELS[rows].transpose(0, 2, 1))
        idx(root / f"EMNIST/raw/emnist-byclass-{part}-labels-idx1-ubyte", LABELS[rows])
    return root


def mnist(root: Path) -> Path:
    for part, rows in (("train", slice(0, 8)), ("t10k", slice(8, 12))):
        idx(root / f"MNIST/raw/{part}-images-idx3-ubyte", PIXELS[rows])
        idx(root / f"MNIST/raw/{part}-labels-idx1-ubyte", LABELS[rows])
    return root


def cifar(root: Path, coarse: bool) -> tuple[Path, np.ndarray]:
    """torchvision's folder; its checksums are not those of the real files."""
    files = ["train", "test"] if coarse else [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    colours = RNG.integers(256, size=(2 * len(files), 32, 32, 3)).astype(np.uint8)
    folder = root / ("cifar-100-python" if coarse else "cifar-10-batches-py")
    folder.mkdir(parents=True)
    for i, file in enumerate(files):
        flat = colours[2 * i : 2 * i + 2].transpose(0, 3, 1, 2).reshape(2, 3072)
        labels = {"fine_labels" if coarse else "labels": [i, 7]}
        (folder / file).write_bytes(pickle.dumps({"data": flat, **labels}, protocol=2))
    return root, colours


def test_femnist_by_writer(tmp_path: Path) -> None:
    arrays = read_arrays("femnist", parquet(tmp_path / "femnist"))
    assert arrays["x"].dtype == np.uint8
    assert arrays["names"].tolist() == ["f1", "f2"]
    for writer in (0, 1):
        mine = arrays["client"] == writer
        assert np.array_equal(arrays["x"][mine], PIXELS[writer::2])
        assert np.array_equal(arrays["y"][mine], LABELS[writer::2])


@pytest.mark.parametrize(("name", "form"), [("emnist", emnist), ("mnist", mnist)])
def test_torchvisions_idx_files(name: str, form: Callable[[Path], Path], tmp_path: Path) -> None:
    arrays = read_arrays(name, form(tmp_path))
    assert np.array_equal(arrays["x"], PIXELS)  # EMNIST's files hold transposed images
    assert np.array_equal(arrays["y"], LABELS)


@pytest.mark.parametrize("coarse", [False, True])
def test_torchvisions_cifar_batches(coarse: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, colours = cifar(tmp_path, coarse)
    monkeypatch.setattr(datasets.CIFAR10, "_check_integrity", lambda self: True)
    monkeypatch.setattr(datasets.CIFAR10, "_load_meta", lambda self: None)
    arrays = read_arrays("cifar100" if coarse else "cifar10", root)
    assert np.array_equal(arrays["x"], colours)
    assert arrays["y"][:4].tolist() == [0, 7, 1, 7]
    if coarse:  # apple is a fruit or vegetable, beetle and aquarium fish
        assert arrays["coarse"].tolist() == [4, 7, 1, 7]
        assert np.bincount(sources.SUPERCLASSES).tolist() == [5] * 20


TEXT = "To be, or not to be: that is the question. Whether 'tis nobler in the mind to suffer. " * 3


def windows(text: str, length: int = 80) -> tuple[list[str], list[str]]:
    starts = range(len(text) - length)
    return [text[i : i + length] for i in starts], [text[i + length] for i in starts]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_the_hubs_windows_are_put_together_again(ending: str, tmp_path: Path) -> None:
    text = TEXT.replace(" that", "\nthat").replace("question", "NA null")  # no missing values
    x, y = windows(text)
    x, y, n = x[:50] + x[90:] + x[:3], y[:50] + y[90:] + y[:3], len(x) - 40  # a gap: two pieces
    write: Any = pa.csv.write_csv if ending == "csv" else pa.parquet.write_table
    write(
        pa.table({"character_id": ["HAMLET"] * n + ["GHOST"] * 3, "x": x, "y": y}), tmp_path / f"shakespeare.{ending}"
    )
    arrays = read_arrays("shakespeare", tmp_path)
    assert arrays["names"].tolist() == ["HAMLET", "GHOST"]
    pieces = [arrays["text"][arrays["piece"] == p].tobytes().decode() for p in range(3)]
    assert pieces == [text[:130], text[90:], text[:83]]


def test_path_then_copy_then_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def snapshot_download(name: str, local_dir: str, **_: Any) -> None:
        asked.append(name)
        parquet(Path(local_dir))

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    kept = tmp_path / "kept"
    downloaded, origin = load_arrays("femnist", None, kept)
    assert (asked, origin) == (["flwrlabs/femnist"], str(kept / "femnist.npz"))
    assert [p.name for p in kept.iterdir()] == ["femnist.npz"]  # nothing else is left behind
    again, _ = load_arrays("femnist", None, kept)
    assert len(asked) == 1  # the copy is used
    assert np.array_equal(again["x"], downloaded["x"])
    _, origin = load_arrays("femnist", parquet(tmp_path / "mine"), kept)
    assert origin == str(tmp_path / "mine")  # the given path comes first
    assert load_arrays("emnist", None, emnist(tmp_path / "torchvision"))[1] == str(tmp_path / "torchvision")


def test_no_network_and_no_file_is_one_line_with_two_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(name: str, local_dir: str, **_: Any) -> None:
        (Path(local_dir) / "half").write_text("half a file")
        raise ConnectionError("no route to host")

    monkeypatch.setattr("huggingface_hub.snapshot_download", no_network)
    with pytest.raises(UserError) as error:
        ImageDataModule("femnist", data_dir=tmp_path)
    assert str(error.value) == (
        f"dataset: no femnist in {tmp_path}, and the download failed (no route to host); with a network python -m "
        "fedem_lightning.data download femnist (200 MB from flwrlabs/femnist; in the clone of fedem-"
        'lightning: pip install -e ".[hub]"), or '
        "give path=FILE_OR_FOLDER"
    )
    assert list(tmp_path.iterdir()) == []  # nothing half done


def truncated(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


def savez(path: Path, **arrays: Any) -> Path:
    """An .npz; None leaves an array out."""
    changed: dict[str, Any] = {"x": PIXELS, "y": LABELS, "client": np.arange(12) % 3, **arrays}
    np.savez(path, **{name: array for name, array in changed.items() if array is not None})
    return path


def text_npz(path: Path, **arrays: Any) -> Path:
    text: dict[str, Any] = {"text": np.full(12, 97, np.uint8), "client_names": ["a", "b", "c"], **arrays}
    return savez(path, x=None, y=None, **text)


def half_of(folder: Path, file: str) -> Path:
    truncated(folder / file)
    return folder


BROKEN: dict[str, tuple[str, Callable[[Path], Path], str]] = {
    "no such file": ("femnist", lambda p: p / "none.npz", "no file or folder"),
    "float images": ("femnist", lambda p: savez(p / "a.npz", x=PIXELS / 255), "expected uint8 images"),
    "label out of range": ("femnist", lambda p: savez(p / "a.npz", y=LABELS + 60), "outside the 62 classes"),
    "empty folder": ("femnist", lambda p: p, "nothing that femnist is read from"),
    "parquet columns": (
        "femnist",
        lambda p: parquet(p / "a", character=[]),
        "a table with image, character, writer_id",
    ),
    "parquet images": ("femnist", lambda p: parquet(p / "a", image=[{"bytes": b"no"}] * 12), "images of 28 x 28"),
    "short idx": (
        "emnist",
        lambda p: half_of(emnist(p / "a"), "EMNIST/raw/emnist-byclass-train-images-idx3-ubyte"),
        "torchvision cannot read emnist",
    ),
    "other cifar": ("cifar10", lambda p: cifar(p / "a", coarse=False)[0], "torchvision cannot read cifar10"),
    "floats as text": ("shakespeare", lambda p: text_npz(p / "a.npz", text=np.zeros(12)), "expected uint8 characters"),
}


@functools.cache
def configuration(name: str) -> DictConfig:
    """A data set's, composed once, which takes longer than everything else here."""
    return composed(f"dataset={name}")


@pytest.mark.parametrize("case", BROKEN)
def test_broken_data_is_one_line_and_code_2(case: str, tmp_path: Path) -> None:
    """The command line exits with code 2 if `user_message` has a line for an error."""
    name, make, message = BROKEN[case]
    with pytest.raises(InstantiationException) as raised:
        instantiate(configuration(name).dataset, path=str(make(tmp_path)))
    line = user_message(raised.value)
    assert line is not None
    assert message in line
    assert "\n" not in line
