"""The data sets known by name, and the search for a local copy; the module imports nothing slow."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Source:
    """Facts about a data set that is known by name."""

    about: str
    n_classes: int
    arrays: tuple[str, ...]  # arrays that its .npz must have
    hub: str | None = None  # repository on the Hugging Face hub; None: torchvision downloads it
    size: str = ""  # size of the download


IMAGES, TEXT = ("x", "y"), ("text", "client", "client_names")
SOURCES = {
    "femnist": Source("handwritten characters by writer", 62, (*IMAGES, "client"), "flwrlabs/femnist", "200 MB"),
    "emnist": Source("handwritten characters, byclass", 62, IMAGES, size="560 MB"),
    "mnist": Source("handwritten digits", 10, IMAGES, size="12 MB"),
    "cifar10": Source("colour images", 10, IMAGES, size="170 MB"),
    "cifar100": Source("colour images with coarse labels", 100, (*IMAGES, "coarse"), size="170 MB"),
    "shakespeare": Source("plays by role, next character", 0, TEXT, "flwrlabs/shakespeare", "506 MB"),
}
MARKS = {
    "emnist": "EMNIST/raw",
    "mnist": "MNIST/raw",
    "cifar10": "cifar-10-batches-py",
    "cifar100": "cifar-100-python",
}
"""A file or folder by which torchvision's folder of each data set is recognised."""


def kept_copy(name: str, folder: Path) -> Path | None:
    """The path of a copy of the data set under `folder`; None if there is no copy."""
    places = [folder / f"{name}.npz", folder / name]
    if name in MARKS and (folder / MARKS[name]).is_dir():
        places.append(folder)
    return next((place for place in places if place.exists()), None)
