"""Folders that hold a federation: images by client and class (`dataset=folder`), and PFLlib's (`dataset=pfllib`)."""

import pickle
import zipfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from PIL import Image

from fedem_lightning.data.arrays import listed
from fedem_lightning.data.datamodule import FederatedDataModule
from fedem_lightning.data.formats import files_in, reading
from fedem_lightning.data.own_data import OwnArrays, OwnOptions, TaskOptions, checked_federation
from fedem_lightning.data.splits import SPLITS, HoldOut
from fedem_lightning.data.torch_data import arrays_of_clients
from fedem_lightning.settings.check import grouped
from fedem_lightning.settings.errors import UserError, require
from fedem_lightning.settings.ranges import BelowOne, PositiveInt, ShareOrNumber

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".webp")


class FolderDataModule(FederatedDataModule):
    """Reads images in PATH/CLIENT/CLASS; or in PATH/train/CLIENT/CLASS, PATH/test/CLIENT/CLASS and, if there, PATH/val.

    A client may lack some classes. Pillow reads the files, as red, green, blue.

    Args:
        path: the folder.
        size: images become squares of so many pixels; None: all have the same size.
        options: those of `TaskOptions`, `Partitioning` and `OwnSplitting`.

    """

    def __init__(
        self, path: str | Path | None, size: PositiveInt | None = None, **options: Annotated[Any, OwnOptions]
    ) -> None:
        (own,) = grouped(options, OwnOptions)
        require(path is not None, "path: expected a folder, e.g. path=shops with shops/CLIENT/CLASS/IMAGE")
        folder = Path(str(path)).expanduser()
        message = f"path: {folder}: expected images in CLIENT/CLASS"
        files = {file: file.relative_to(folder).parts for file in files_in(folder, *IMAGES)}
        files = {file: parts for file, parts in files.items() if not any(part.startswith(".") for part in parts)}
        first = int((folder / "test").is_dir())  # the client's place in the parts
        if first:
            files = {file: parts for file, parts in files.items() if parts[0] in SPLITS}
        odd = [str(file) for file, parts in files.items() if len(parts) < first + 3]
        require(bool(files) and not odd, f"{message}, got {odd[0] if odd else 'none'}")
        images = []
        for file in files:
            with reading(file, "an image"), Image.open(file) as opened:
                image = opened.convert("RGB")
                image = image if size is None else image.resize((size, size), Image.Resampling.BILINEAR)
            images.append(np.asarray(image))
        alike = len({image.shape for image in images}) == 1
        require(alike, f"{message} of one size; dataset.size=PIXELS makes them equal")
        split, client, label = (np.array([parts[at] for parts in files.values()]) for at in (0, first, first + 1))
        arrays = OwnArrays(np.stack(images), label, client, split if first else None)
        super().__init__(checked_federation(arrays, own, notes={"source": str(folder)}))


class PFLlibDataModule(FederatedDataModule):
    """Reads a data set of PFLlib: a folder with train/0.npz, test/0.npz and so on, as its generators write it.

    Args:
        path: the folder.
        val_fraction: share of each client's training samples that are for validation instead.
        n_clients: up to 1 the share of the clients to keep, from 2 on their number; None: all.
        options: those of `TaskOptions` and `HoldOut`.

    """

    def __init__(
        self,
        path: str | Path | None,
        *,
        val_fraction: BelowOne = 0.0,
        n_clients: ShareOrNumber | None = None,
        **options: Annotated[Any, TaskOptions, HoldOut],
    ) -> None:
        task, hold_out = grouped(options, TaskOptions, HoldOut)
        require(path is not None, "path: expected a folder, e.g. path=PFLlib/dataset/MNIST")
        folder = Path(str(path)).expanduser()
        arrays, fractions = read_pfllib(folder), (1 - val_fraction, val_fraction, 0.0)
        own = OwnOptions(**vars(task), **vars(hold_out), n_clients=n_clients, fractions=fractions)
        if val_fraction > 0:
            train = np.flatnonzero(arrays.split == 0)
            arrays.split[train] = own.split(np.unique(arrays.client[train], return_inverse=True)[1])
        super().__init__(checked_federation(arrays, own, notes={"source": str(folder)}))


def read_pfllib(folder: Path) -> OwnArrays:
    """The samples of train/0.npz, test/0.npz, ...: first those for training, client by client, then the others."""
    result = {part: {file.stem: file for file in files_in(folder / part, ".npz")} for part in ("train", "test")}
    expected = "expected PFLlib's folder of a data set, with a file for each client in train and in test"
    require(bool(result["train"]), f"path: no .npz file in {folder / 'train'}; {expected}")
    single = sorted(result["train"].keys() ^ result["test"].keys())
    require(not single, f"path: {folder}: {listed(single)}.npz is not in both train and test; {expected}")
    number = all(name.isdecimal() for name in result["train"])  # 10 follows 9
    names = {name: int(name) if number else name for name in result["train"]}
    order = sorted(names, key=lambda name: names[name])
    train, test = ({names[name]: _client(files[name]) for name in order} for files in result.values())
    try:
        return arrays_of_clients(train, None, test)
    except UserError as error:
        raise UserError(f"path: {folder}: {error}") from error


def _client(file: Path) -> dict[str, Any]:
    """The dictionary x, y that NumPy has pickled under `data`."""
    with reading(file, "PFLlib's file of a client: data, a dictionary x, y of arrays"):
        with zipfile.ZipFile(file) as archive, archive.open("data.npy") as opened:
            np.lib.format.read_magic(opened)
            np.lib.format.read_array_header_1_0(opened)
            content = _Arrays(opened).load().array()
        return {n: content[n].array() if isinstance(content[n], _Part) else content[n] for n in ("x", "y")}


class _Part:
    """Stands for a pickled array or its type; NumPy's own code would trust what the file says of types and memory."""

    def __init__(self, *made_of: Any) -> None:
        self.made_of = made_of

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state

    def array(self) -> Any:
        """The array, or the object that is all of it."""
        _, shape, dtype, fortran, content = self.state
        if dtype.made_of[0].startswith("O"):
            return content[0]
        flat = np.frombuffer(content, np.dtype(dtype.state[1] + dtype.made_of[0]))
        return flat.reshape(shape, order="F" if fortran else "C")


class _Arrays(pickle.Unpickler):
    """Makes dictionaries, lists, numbers and parts of arrays; nothing that a file names is called."""

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] != "numpy" or name not in ("ndarray", "dtype", "_reconstruct"):
            raise pickle.UnpicklingError(f"the file asks for {module}.{name}, which is no part of an array")
        return _Part
