"""The data sets that are known by name, and whether a copy is here; imports nothing that takes long."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Source:
    """What is known of a data set by name."""

    about: str
    n_classes: int
    arrays: tuple[str, ...]  # that its .npz needs
    hub: str | None = None  # repository on the Hugging Face hub; else torchvision downloads
    size: str = ""  # of the download


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
"""What a folder has to hold to be torchvision's folder of a data set."""


def kept_copy(name: str, folder: Path) -> Path | None:
    """A copy of the data set under `folder`, if there is one."""
    places = [folder / f"{name}.npz", folder / name]
    if name in MARKS and (folder / MARKS[name]).is_dir():
        places.append(folder)
    return next((place for place in places if place.exists()), None)
