"""The data sets known by name, and their sources: the path that the user gives, a copy under `data_dir`, a download.

The module imports nothing slow; readers are imported where they are needed.
"""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedem_lightning.settings.errors import UserError, installs, one_line, require
from fedem_lightning.settings.files import write_arrays

if TYPE_CHECKING:
    import numpy as np


class Source(NamedTuple):
    """Facts about a data set that is known by name."""

    n_classes: int
    arrays: tuple[str, ...]  # arrays that its .npz must have
    size: str  # of the download
    hub: str | None = None  # repository on the Hugging Face hub; None: torchvision downloads it
    mark: str | None = None  # a folder by which torchvision's is recognised


SOURCES = {
    "femnist": Source(62, ("x", "y", "client"), "200 MB", "flwrlabs/femnist"),
    "emnist": Source(62, ("x", "y"), "560 MB", mark="EMNIST/raw"),
    "mnist": Source(10, ("x", "y"), "12 MB", mark="MNIST/raw"),
    "cifar10": Source(10, ("x", "y"), "170 MB", mark="cifar-10-batches-py"),
    "cifar100": Source(100, ("x", "y", "coarse"), "170 MB", mark="cifar-100-python"),
    "shakespeare": Source(0, ("text", "client", "names"), "506 MB", "flwrlabs/shakespeare"),
}
SUPERCLASSES = [
    ord(letter) - ord("A")
    for letter in "EBOIAGHHSDDOJSHLDJHLGLFKHGNPDPALBKMOQJLFFTIIPNORSKQERECARESRKDCMMQMBJTCKABQMJNPNQTCEGTFFITSBCPGARION"
]
"""CIFAR-100's superclass of each of its classes, in the order of their names; torchvision leaves them out."""
IMAGES = ("x", "y", "client", "names", "client_names", "coarse", "split")
TEXT = ("text", "client", "names", "client_names", "piece")
"""Arrays that an .npz may have; `split`, the official one, is not used."""


def kept_copy(name: str, folder: Path) -> Path | None:
    """The path of a copy of the data set under `folder`; None if there is no copy."""
    places, mark = [folder / f"{name}.npz", folder / name], SOURCES[name].mark
    if mark is not None and (folder / mark).is_dir():
        places.append(folder)
    return next((place for place in places if place.exists()), None)


def load_arrays(name: str, path: str | Path | None, data_dir: str | Path) -> "tuple[dict[str, np.ndarray], str]":
    """The arrays of a data set (see `formats`), and their source: `path`, else a copy in `data_dir`, else a download.

    UserError if the data is missing and cannot be downloaded, is broken, or is not this data set.
    """
    folder = Path(data_dir).expanduser()
    result = Path(path).expanduser() if path is not None else kept_copy(name, folder) or fetch(name, folder)
    require(result.exists(), f"path: no file or folder {result}")
    arrays = read_arrays(name, result)
    missing = [array for array in SOURCES[name].arrays if array not in arrays]
    require(not missing, f"path: {result} lacks {', '.join(missing)}, which {name} needs")
    return arrays, str(result)


def read_arrays(name: str, path: Path) -> "dict[str, np.ndarray]":
    """Reads the data set at `path` in any of its formats."""
    from fedem_lightning.data import formats

    text, mark = "text" in SOURCES[name].arrays, SOURCES[name].mark
    if path.suffix == ".npz":
        return formats.read_npz(path, TEXT if text else IMAGES)
    if mark is not None and (path / mark).is_dir():
        return read_torchvision(name, path)
    forms = "an .npz file, the hub's .parquet or .csv files" + (f", a folder that holds {mark}" if mark else "")
    fits = bool(formats.files_in(path, ".parquet", ".csv"))
    require(fits, f"path: {path} is nothing that {name} is read from; expected {forms}")
    return formats.read_hub_text(path) if text else formats.read_hub_images(path)


def read_torchvision(name: str, root: Path, download: bool = False) -> "dict[str, np.ndarray]":
    """Pools the official train and test parts. EMNIST is "byclass", turned upright.

    UserError if a file is missing or broken; torchvision knows CIFAR's by their checksums.
    """
    import numpy as np
    from torchvision import datasets

    kind = {"emnist": "EMNIST", "mnist": "MNIST", "cifar10": "CIFAR10", "cifar100": "CIFAR100"}[name]
    more = {"split": "byclass"} if name == "emnist" else {}
    try:
        parts = [getattr(datasets, kind)(root, train=train, download=download, **more) for train in (True, False)]
        x = np.concatenate([np.asarray(part.data) for part in parts])
        y = np.concatenate([np.asarray(part.targets, dtype=np.int64) for part in parts])
    except Exception as error:
        if download:
            raise
        reason = one_line(error)[:200] or type(error).__name__
        raise UserError(f"path: torchvision cannot read {name} from {root} ({reason})") from error
    x = np.ascontiguousarray(x.transpose(0, 2, 1)) if name == "emnist" else x
    coarse = {"coarse": np.array(SUPERCLASSES, dtype=np.int64)[y]} if name == "cifar100" else {}
    return {"x": x, "y": y, **coarse}


def fetch(name: str, data_dir: Path) -> Path:
    """Downloads a data set and saves it as data_dir/NAME.npz, in one step; only this function uses the network."""
    target, source = data_dir / f"{name}.npz", SOURCES[name]
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=data_dir) as scratch:
            if source.hub is None:
                arrays = read_torchvision(name, Path(scratch), download=True)
            else:
                from huggingface_hub import snapshot_download

                wanted = ["*.parquet", "*.csv"]
                snapshot_download(source.hub, repo_type="dataset", allow_patterns=wanted, local_dir=scratch)
                arrays = read_arrays(name, Path(scratch))
            write_arrays(target, arrays, compressed=False)
    except UserError:
        raise
    except (ImportError, OSError, RuntimeError, ValueError) as error:  # each library's own errors without a network
        reason = one_line(error)[:80] or type(error).__name__
        hub = f"{source.hub}; {installs('hub')}" if source.hub else "torchvision"
        message = f"dataset: no {name} in {data_dir}, and the download failed ({reason}); with a network "
        way_out = f"python -m fedem_lightning.data download {name} ({source.size} from {hub}), or give "
        raise UserError(f"{message}{way_out}path=FILE_OR_FOLDER") from error
    return target
