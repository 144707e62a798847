"""Sources of a data set: the path that the user gives, else a copy under `data_dir`, else a download."""

import tempfile
from pathlib import Path

import numpy as np

from fedem_lightning.data.catalogue import MARKS, SOURCES, kept_copy
from fedem_lightning.data.formats.hub import read_hub_images, read_hub_text
from fedem_lightning.data.formats.leaf import read_leaf_images, read_leaf_text
from fedem_lightning.data.formats.npz import read_npz, write_npz
from fedem_lightning.data.formats.plays import read_plays
from fedem_lightning.data.formats.torchvision import read_torchvision
from fedem_lightning.errors import UserError, require

IMAGES = ("x", "y", "client", "names", "client_names", "coarse", "split")
TEXT = ("text", "client", "client_names", "piece")
"""Arrays that an .npz may have. The official split is kept in it, and not used."""


def load(
    name: str, path: str | Path | None, data_dir: str | Path, mmap: bool = False
) -> tuple[dict[str, np.ndarray], str]:
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
    arrays = read(name, found, mmap)
    missing = [array for array in SOURCES[name].arrays if array not in arrays]
    require(not missing, f"path: {found} lacks {', '.join(missing)}, which {name} needs")
    return arrays, str(found)


def read(name: str, path: Path, mmap: bool = False) -> dict[str, np.ndarray]:
    """Reads the data set at `path` in any of its formats."""
    text = "text" in SOURCES[name].arrays
    if path.suffix == ".npz":
        return read_npz(path, TEXT if text else IMAGES, mmap)
    require(not mmap, f"mmap: only an .npz file can be mapped, not {path}")
    if name in MARKS and path.is_dir() and (path / MARKS[name]).is_dir():
        return read_torchvision(name, path)
    inside = (
        {path.suffix.lower()} if path.is_file() else {file.suffix.lower() for file in path.rglob("*") if file.is_file()}
    )
    if ".json" in inside:
        return read_leaf_text(path) if text else read_leaf_images(path)
    if inside & {".parquet", ".csv"}:
        return read_hub_text(path) if text else read_hub_images(path)
    if text and ".txt" in inside:
        return read_plays(path)
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
            write_npz(target, read(name, Path(scratch)))
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
