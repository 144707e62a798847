"""The data sets known by name, and their sources: the path that the user gives, a copy under `data_dir`, a download.

The module imports nothing slow; readers are imported where they are needed.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedem_lightning.errors import UserError, require
from fedem_lightning.records.files import write_arrays

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Source:
    """Facts about a data set that is known by name."""

    about: str
    n_classes: int
    arrays: tuple[str, ...]  # arrays that its .npz must have
    hub: str | None = None  # repository on the Hugging Face hub; None: torchvision downloads it
    size: str = ""  # size of the download


SOURCES = {
    "femnist": Source("handwritten characters by writer", 62, ("x", "y", "client"), "flwrlabs/femnist", "200 MB"),
    "emnist": Source("handwritten characters, byclass", 62, ("x", "y"), size="560 MB"),
    "mnist": Source("handwritten digits", 10, ("x", "y"), size="12 MB"),
    "cifar10": Source("colour images", 10, ("x", "y"), size="170 MB"),
    "cifar100": Source("colour images with coarse labels", 100, ("x", "y", "coarse"), size="170 MB"),
    "shakespeare": Source(
        "plays by role, next character", 0, ("text", "client", "client_names"), "flwrlabs/shakespeare", "506 MB"
    ),
}
MARKS = {
    "emnist": "EMNIST/raw",
    "mnist": "MNIST/raw",
    "cifar10": "cifar-10-batches-py",
    "cifar100": "cifar-100-python",
}
"""A file or folder by which torchvision's folder of each data set is recognised."""
IMAGES = ("x", "y", "client", "names", "client_names", "coarse", "split")
TEXT = ("text", "client", "client_names", "piece")
"""Arrays that an .npz may have. The official split is kept in it, and not used."""


def kept_copy(name: str, folder: Path) -> Path | None:
    """The path of a copy of the data set under `folder`; None if there is no copy."""
    places = [folder / f"{name}.npz", folder / name]
    if name in MARKS and (folder / MARKS[name]).is_dir():
        places.append(folder)
    return next((place for place in places if place.exists()), None)


def load_arrays(
    name: str, path: str | Path | None, data_dir: str | Path, mmap: bool = False
) -> "tuple[dict[str, np.ndarray], str]":
    """Loads the arrays of a data set (see `formats`); returns them with their source.

    Args:
        name: one of `SOURCES`.
        path: the user's file or folder; None: a copy in `data_dir`, or else a download into it.
        data_dir: folder of copies, NAME.npz.
        mmap: map large arrays from the file.

    Raises:
        UserError: the data is missing and cannot be downloaded, is broken, or is not this data set.

    """
    folder = Path(data_dir).expanduser()
    if path is not None:
        found = Path(path).expanduser()
        require(found.exists(), f"path: no file or folder {found}")
    else:
        found = kept_copy(name, folder) or fetch(name, folder)
    arrays = read_arrays(name, found, mmap)
    missing = [array for array in SOURCES[name].arrays if array not in arrays]
    require(not missing, f"path: {found} lacks {', '.join(missing)}, which {name} needs")
    return arrays, str(found)


def read_arrays(name: str, path: Path, mmap: bool = False) -> "dict[str, np.ndarray]":
    """Reads the data set at `path` in any of its formats."""
    text = "text" in SOURCES[name].arrays
    if path.suffix == ".npz":
        from fedem_lightning.data.formats.npz import read_npz

        return read_npz(path, TEXT if text else IMAGES, mmap)
    require(not mmap, f"mmap: only an .npz file can be mapped, not {path}")
    if name in MARKS and path.is_dir() and (path / MARKS[name]).is_dir():
        from fedem_lightning.data.formats.torchvision import read_torchvision

        return read_torchvision(name, path)
    from fedem_lightning.data.formats import leaf, plays

    inside = (
        {path.suffix.lower()} if path.is_file() else {file.suffix.lower() for file in path.rglob("*") if file.is_file()}
    )
    if ".json" in inside:
        return leaf.read_leaf_text(path) if text else leaf.read_leaf_images(path)
    if inside & {".parquet", ".csv"}:
        return leaf.read_hub_text(path) if text else leaf.read_hub_images(path)
    if text and ".txt" in inside:
        return plays.read_plays(path)
    forms = "an .npz file, LEAF's .json or the hub's .parquet files" + (", .txt plays" if text else "")
    forms += f", a folder that holds {MARKS[name]}" if name in MARKS else ""
    raise UserError(f"path: {path} is nothing that {name} is read from; expected {forms}")


def fetch(name: str, data_dir: Path) -> Path:
    """Downloads a data set and saves it as data_dir/NAME.npz, in one step.

    Raises:
        UserError: there is no network, or a package is missing.

    """
    target = data_dir / f"{name}.npz"
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=data_dir) as scratch:
            download(name, Path(scratch))
            write_arrays(target, read_arrays(name, Path(scratch)), compressed=False)
    except UserError:
        raise
    except (ImportError, OSError, RuntimeError, ValueError) as error:  # each library's own errors without a network
        reason = "".join(str(error).strip().splitlines()[:1])[:80] or type(error).__name__
        source = SOURCES[name]
        hub = f'{source.hub}; pip install "fedem-lightning[hub]"' if source.hub else "torchvision"
        raise UserError(
            f"dataset: no {name} in {data_dir}, and the download failed ({reason}); with a network python -m "
            f"fedem_lightning.data download {name} ({source.size} from {hub}), or give path=FILE_OR_FOLDER"
        ) from error
    return target


def download(name: str, folder: Path) -> None:
    """Downloads the original files into `folder` and checks them; no other function uses the network."""
    source = SOURCES[name]
    if source.hub is not None:
        from huggingface_hub import snapshot_download

        snapshot_download(source.hub, repo_type="dataset", allow_patterns=["*.parquet", "*.csv"], local_dir=folder)
        return
    import torchvision

    if name == "emnist":
        torchvision.datasets.EMNIST(folder, split="byclass", download=True)
    else:
        kind = {"mnist": "MNIST", "cifar10": "CIFAR10", "cifar100": "CIFAR100"}[name]
        getattr(torchvision.datasets, kind)(folder, download=True)
