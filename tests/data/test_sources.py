"""Every form that a data set comes in, read from tiny files; nothing here uses the network."""

import functools
import io
import json
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig
from PIL import Image

from fedem_lightning import ImageDataModule, UserError
from fedem_lightning.data import sources
from fedem_lightning.data.formats.npz import read_npz
from fedem_lightning.data.sources import load_arrays, read_arrays
from fedem_lightning.records.files import write_arrays
from fedem_lightning.run.failures import user_message
from helpers.commands import CONFIG_DIR, call

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(256, size=(12, 28, 28)).astype(np.uint8)
LABELS = np.arange(12) % 4


def leaf(folder: Path) -> Path:
    """LEAF's FEMNIST: a train and a test folder, two writers."""
    for part, rows in (("train", range(8)), ("test", range(8, 12))):
        data: dict[str, Any] = {"f1": {"x": [], "y": []}, "f2": {"x": [], "y": []}}
        for i in rows:
            data[f"f{i % 2 + 1}"]["x"].append((PIXELS[i].flatten() / 255).tolist())
            data[f"f{i % 2 + 1}"]["y"].append(int(LABELS[i]))
        (folder / part).mkdir(parents=True)
        content = {"users": list(data), "num_samples": [len(d["y"]) for d in data.values()], "user_data": data}
        (folder / part / "all_data_0.json").write_text(json.dumps(content))
    return folder


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
    pa.parquet.write_table(pa.table({**columns, **changes}), folder / "train-00000.parquet")
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
    files = ["train", "test"] if coarse else [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    colours = RNG.integers(256, size=(2 * len(files), 32, 32, 3)).astype(np.uint8)
    folder = root / ("cifar-100-python" if coarse else "cifar-10-batches-py")
    folder.mkdir(parents=True)
    for i, file in enumerate(files):
        flat = colours[2 * i : 2 * i + 2].transpose(0, 3, 1, 2).reshape(2, 3072)
        names = {b"fine_labels": [i, 7], b"coarse_labels": [1, 2]} if coarse else {b"labels": [i, 7]}
        (folder / file).write_bytes(pickle.dumps({b"data": flat, **names}, protocol=2))
    return root, colours


# --- images -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [leaf, parquet])
def test_femnist_by_writer(form: Callable[[Path], Path], tmp_path: Path) -> None:
    arrays = read_arrays("femnist", form(tmp_path / "femnist"))
    assert arrays["x"].dtype == np.uint8
    assert arrays["client_names"].tolist() == ["f1", "f2"]
    for writer in (0, 1):
        mine = arrays["client"] == writer
        order = np.argsort(arrays["x"][mine][:, 0, 0])  # of two files, the order is nobody's business
        expected = np.argsort(PIXELS[writer::2, 0, 0])
        assert np.array_equal(arrays["x"][mine][order], PIXELS[writer::2][expected])
        assert np.array_equal(arrays["y"][mine][order], LABELS[writer::2][expected])


@pytest.mark.parametrize(("name", "form"), [("emnist", emnist), ("mnist", mnist)])
def test_torchvisions_idx_files(name: str, form: Callable[[Path], Path], tmp_path: Path) -> None:
    arrays = read_arrays(name, form(tmp_path))
    assert np.array_equal(arrays["x"], PIXELS)  # EMNIST's files hold transposed images
    assert np.array_equal(arrays["y"], LABELS)
    assert arrays["split"].tolist() == [0] * 8 + [2] * 4


@pytest.mark.parametrize("coarse", [False, True])
def test_torchvisions_cifar_batches(coarse: bool, tmp_path: Path) -> None:
    root, colours = cifar(tmp_path, coarse)
    arrays = read_arrays("cifar100" if coarse else "cifar10", root)
    assert np.array_equal(arrays["x"], colours)
    assert arrays["y"][:4].tolist() == [0, 7, 1, 7]
    assert ("coarse" in arrays) == coarse


def test_a_pickle_that_is_no_array_is_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return print, ("executed",)

    root, _ = cifar(tmp_path, coarse=False)
    (root / "cifar-10-batches-py" / "data_batch_1").write_bytes(pickle.dumps({b"data": Evil()}, protocol=2))
    with pytest.raises(UserError, match="no part of an array"):
        read_arrays("cifar10", root)


# --- text -------------------------------------------------------------------------------------------------------------

TEXT = "To be, or not to be: that is the question. Whether 'tis nobler in the mind to suffer. " * 3


def windows(text: str, length: int = 80) -> tuple[list[str], list[str]]:
    starts = range(len(text) - length)
    return [text[i : i + length] for i in starts], [text[i + length] for i in starts]


def test_leafs_windows_are_put_together_again(tmp_path: Path) -> None:
    x, y = windows(TEXT)
    hamlet = {"x": x[:50] + x[90:], "y": y[:50] + y[90:]}  # a gap: two pieces
    content = {"user_data": {"HAMLET": hamlet, "GHOST": {"x": x[:3], "y": y[:3]}, "NOBODY": {"x": [], "y": []}}}
    (tmp_path / "all_data.json").write_text(json.dumps(content))
    with pytest.warns(UserWarning, match="1 users have no samples and are left out: NOBODY"):
        arrays = read_arrays("shakespeare", tmp_path)
    assert arrays["client_names"].tolist() == ["HAMLET", "GHOST"]
    pieces = [arrays["text"][arrays["piece"] == p].tobytes().decode() for p in range(3)]
    assert pieces == [TEXT[:130], TEXT[90:], TEXT[:83]]


def test_the_hubs_csv_is_put_together_again(tmp_path: Path) -> None:
    x, y = windows(TEXT.replace(" that", "\nthat"))
    table = pa.table({"character_id": ["HAMLET"] * len(x), "x": x, "y": y})
    pa.csv.write_csv(table, tmp_path / "shakespeare.csv")
    arrays = read_arrays("shakespeare", tmp_path)
    assert arrays["text"].tobytes().decode() == TEXT.replace(" that", "\nthat")


def test_plays_in_plain_text(tmp_path: Path) -> None:
    (tmp_path / "hamlet.txt").write_text(
        "A tragedy\n\nHAMLET. To be, [aside] or not.\nThat is it.\n\nGHOST.\nSwear.\n\nHAMLET.\nRest.\n"
    )
    (tmp_path / "other.txt").write_text("First Citizen:\nBefore we proceed: hear.\nAll: Speak.\n")
    arrays = read_arrays("shakespeare", tmp_path)
    spoken = {
        str(name): arrays["text"][arrays["client"] == t].tobytes().decode()
        for t, name in enumerate(arrays["client_names"])
    }
    assert spoken == {
        "hamlet/HAMLET": "To be,  or not.\nThat is it.\nRest.",
        "hamlet/GHOST": "Swear.",
        "other/First Citizen": "Before we proceed: hear.",
        "other/All": "Speak.",
    }


# --- where data comes from --------------------------------------------------------------------------------------------


@pytest.fixture
def fake_download(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    asked = []

    def download(name: str, folder: Path) -> None:
        asked.append(name)
        (parquet if name == "femnist" else emnist)(folder)

    monkeypatch.setattr(sources, "download", download)
    return asked


def test_path_then_copy_then_download(tmp_path: Path, fake_download: list[str]) -> None:
    kept = tmp_path / "kept"
    downloaded, origin = load_arrays("femnist", None, kept)
    assert (fake_download, origin) == (["femnist"], str(kept / "femnist.npz"))
    assert [p.name for p in kept.iterdir()] == ["femnist.npz"]  # nothing else is left behind
    again, _ = load_arrays("femnist", None, kept)
    assert fake_download == ["femnist"]  # the copy is used
    assert np.array_equal(again["x"], downloaded["x"])
    _, origin = load_arrays("femnist", leaf(tmp_path / "mine"), kept)
    assert origin == str(tmp_path / "mine")  # the given path comes first
    assert load_arrays("emnist", None, emnist(tmp_path / "torchvision"))[1] == str(tmp_path / "torchvision")


def test_no_network_and_no_file_is_one_line_with_two_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(name: str, folder: Path) -> None:
        (folder / "half").write_text("half a file")
        raise ConnectionError("no route to host")

    monkeypatch.setattr(sources, "download", no_network)
    with pytest.raises(UserError) as error:
        ImageDataModule("femnist", data_dir=tmp_path)
    assert str(error.value) == (
        f"dataset: no femnist in {tmp_path}, and the download failed (no route to host); with a network python -m "
        'fedem_lightning.data download femnist (200 MB from flwrlabs/femnist; pip install "fedem-lightning[hub]"), or '
        "give path=FILE_OR_FOLDER"
    )
    assert list(tmp_path.iterdir()) == []  # nothing half done


def test_an_npz_may_be_mapped(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {"x": RNG.integers(256, size=(2000, 28, 28)).astype(np.uint8), "y": np.arange(2000) % 4}
    write_arrays(tmp_path / "a.npz", {**arrays, "client": np.arange(2000) % 5}, compressed=False)
    assert [p.name for p in tmp_path.iterdir()] == ["a.npz"]
    mapped = read_npz(tmp_path / "a.npz", ("x", "y", "client"), mmap=True)
    assert isinstance(mapped["x"], np.memmap)
    assert np.array_equal(mapped["x"], arrays["x"])
    one, two = (ImageDataModule("femnist", path=tmp_path / "a.npz", mmap=mmap) for mmap in (False, True))
    block = [d.federation.block(torch.arange(5), "train").x(torch.float32) for d in (one, two)]
    assert torch.equal(*block)
    np.savez_compressed(tmp_path / "b.npz", **arrays)
    with pytest.raises(UserError, match="compressed and cannot be mapped"):
        read_npz(tmp_path / "b.npz", ("x", "y"), mmap=True)


# --- what is broken ---------------------------------------------------------------------------------------------------


def truncated(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


def savez(path: Path, **arrays: Any) -> Path:
    defaults: dict[str, Any] = {"x": PIXELS, "y": LABELS, "client": np.arange(12) % 3}
    np.savez(path, **{**defaults, **arrays})
    return path


def corrupt(path: Path) -> Path:
    content = bytearray(path.read_bytes())
    content[len(content) // 4] ^= 255  # inside the pixels: the archive's checksum no longer fits
    path.write_bytes(bytes(content))
    return path


def folder_of(path: Path, name: str, content: bytes) -> Path:
    path.mkdir()
    (path / name).write_bytes(content)
    return path


def half_json(path: Path) -> Path:
    truncated(leaf(path) / "train" / "all_data_0.json")
    return path


def leaf_with(path: Path, user: object) -> Path:
    return folder_of(path, "a.json", json.dumps({"user_data": {"f1": user}}).encode())


def short_idx(root: Path) -> Path:
    truncated(emnist(root) / "EMNIST/raw/emnist-byclass-train-images-idx3-ubyte")
    return root


def missing_idx(root: Path) -> Path:
    (emnist(root) / "EMNIST/raw/emnist-byclass-test-labels-idx1-ubyte").unlink()
    return root


def short_cifar(root: Path) -> Path:
    truncated(cifar(root, coarse=False)[0] / "cifar-10-batches-py" / "test_batch")
    return root


BROKEN: dict[str, tuple[str, Callable[[Path], Path], str]] = {
    "no such file": ("femnist", lambda p: p / "none.npz", "no file or folder"),
    "truncated npz": ("femnist", lambda p: truncated(savez(p / "a.npz")), "no .npz file, or only a part"),
    "corrupt npz": ("femnist", lambda p: corrupt(savez(p / "a.npz")), "cannot read"),
    "object array": ("femnist", lambda p: savez(p / "a.npz", y=np.array([{}] * 12)), "holds Python objects"),
    "object images": ("femnist", lambda p: savez(p / "a.npz", x=np.array([None] * 12)), "holds Python objects"),
    "float images": ("femnist", lambda p: savez(p / "a.npz", x=PIXELS / 255), "expected uint8 images"),
    "flat images": ("femnist", lambda p: savez(p / "a.npz", x=PIXELS.reshape(12, -1)), "expected uint8 images"),
    "no images": ("femnist", lambda p: savez(p / "a.npz", x=PIXELS[:0], y=LABELS[:0], client=LABELS[:0]), "no image"),
    "string labels": ("femnist", lambda p: savez(p / "a.npz", y=np.array(["a"] * 12)), "y: expected whole numbers"),
    "label out of range": ("femnist", lambda p: savez(p / "a.npz", y=LABELS + 60), "outside the 62 classes"),
    "too few labels": ("femnist", lambda p: savez(p / "a.npz", y=LABELS[:5]), "y: expected shape"),
    "negative clients": (
        "femnist",
        lambda p: savez(p / "a.npz", client=np.arange(12) - 1, client_names=np.array(list("abcdefghijkl"))),
        "client: with names it must be whole numbers in 0..11",
    ),
    "negative client": ("femnist", lambda p: savez(p / "a.npz", client=np.arange(12) - 1), "expected ids of 0 or more"),
    "no array": ("femnist", lambda p: raw_member(savez(p / "a.npz")), "a member that is no array: notes"),
    "all_data and train": ("femnist", lambda p: leaf_twice(p / "a"), "the same samples twice"),
    "leaf labels ragged": (
        "femnist",
        lambda p: leaf_with(p / "a", {"x": [[0.5] * 784], "y": [[1]]}),
        "a label for each",
    ),
    "cifar of a list": ("cifar10", lambda p: list_cifar(p / "a"), "cannot read cifar10"),
    "null in parquet": ("femnist", lambda p: parquet(p / "a", writer_id=[None] * 12), "writer_id is missing"),
    "clients missing": ("femnist", lambda p: savez_without(p / "a.npz", "client"), "lacks client"),
    "empty folder": ("femnist", lambda p: p, "nothing that femnist is read from"),
    "other files": ("femnist", lambda p: folder_of(p / "a", "notes.txt", b"hello"), "nothing that femnist is read"),
    "half a json": ("femnist", lambda p: half_json(p / "a"), "no whole JSON file"),
    "json of something else": ("femnist", lambda p: folder_of(p / "a", "a.json", b"[1, 2]"), "no LEAF file"),
    "leaf user without x": ("femnist", lambda p: leaf_with(p / "a", {"y": [1]}), "lacks x or y"),
    "leaf user not a dict": ("femnist", lambda p: leaf_with(p / "a", [1]), "lacks x or y"),
    "leaf x a number": ("femnist", lambda p: leaf_with(p / "a", {"x": 3, "y": [1]}), "x or y is no list"),
    "leaf short image": ("femnist", lambda p: leaf_with(p / "a", {"x": [[0.5] * 9], "y": [1]}), "784 numbers an image"),
    "leaf ragged": (
        "femnist",
        lambda p: leaf_with(p / "a", {"x": [[0.5], [1, 2]], "y": [1, 2]}),
        "no array of numbers",
    ),
    "leaf bright": ("femnist", lambda p: leaf_with(p / "a", {"x": [[7] * 784], "y": [1]}), "pixels outside"),
    "leaf nobody": ("femnist", lambda p: leaf_with(p / "a", {"x": [], "y": []}), "no user with samples"),
    "parquet columns": ("femnist", lambda p: parquet_without(p / "a"), "lacks the columns character, writer_id"),
    "parquet images": ("femnist", lambda p: parquet(p / "a", image=[{"bytes": b"no"}] * 12), "is no image"),
    "truncated parquet": ("femnist", lambda p: truncated(parquet(p / "a") / "train-00000.parquet"), "cannot read"),
    "short idx": ("emnist", lambda p: short_idx(p / "a"), "cannot read emnist"),
    "missing idx": ("emnist", lambda p: missing_idx(p / "a"), "cannot read emnist"),
    "short cifar": ("cifar10", lambda p: short_cifar(p / "a"), "cannot read cifar10"),
    "no coarse labels": ("cifar100", lambda p: savez(p / "a.npz"), "lacks coarse"),
    "text of another kind": ("shakespeare", lambda p: only_clients(p / "a.npz"), "lacks text, client_names"),
    "no speech": ("shakespeare", lambda p: folder_of(p / "a", "a.txt", b"nothing is said\n"), "no speeches"),
    "no text": ("shakespeare", lambda p: folder_of(p / "a", "a.txt", b"\xff\xfe\x00HAMLET"), "no UTF-8 text"),
    "windows of numbers": ("shakespeare", lambda p: leaf_with(p / "a", {"x": [1], "y": [2]}), "expected strings x"),
    "short roles": ("shakespeare", lambda p: folder_of(p / "a", "a.txt", b"HAMLET. Die. Sleep.\n"), "no role in"),
}


def only_clients(path: Path) -> Path:
    np.savez(path, client=np.arange(4))
    return path


def raw_member(path: Path) -> Path:
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("notes.txt", "hello")
    return path


def leaf_twice(path: Path) -> Path:
    leaf(path)
    shutil.copytree(path / "train", path / "all_data")
    return path


def list_cifar(root: Path) -> Path:
    (cifar(root, coarse=False)[0] / "cifar-10-batches-py" / "test_batch").write_bytes(pickle.dumps([1, 2], protocol=2))
    return root


def savez_without(path: Path, name: str) -> Path:
    arrays: dict[str, Any] = {"x": PIXELS, "y": LABELS, "client": np.arange(12) % 3}
    np.savez(path, **{key: value for key, value in arrays.items() if key != name})
    return path


def parquet_without(folder: Path) -> Path:
    folder.mkdir()
    pa.parquet.write_table(pa.table({"image": [1]}), folder / "a.parquet")
    return folder


@functools.cache
def configuration(name: str) -> DictConfig:
    """A data set's, composed once, which takes longer than everything else here."""
    with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
        return compose("config", [f"dataset={name}"])


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


@pytest.mark.parametrize("case", ["truncated npz", "short roles"])
def test_the_command_line_says_what_is_broken(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name, make, message = BROKEN[case]
    path = make(tmp_path)
    assert call(tmp_path, monkeypatch, f"dataset={name}", f"dataset.path={path}", "run_dir=run") == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()
