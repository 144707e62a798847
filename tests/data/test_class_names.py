"""Names of classes that data sets and folders of images have."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, Subset

from fedem_lightning import FolderDataModule, TorchDataModule, UserError
from helpers.folders import COLOURS, save_images

ORDERS = {"a": ("cat", "dog", "fish"), "b": ("fish", "dog"), "c": ("dog", "cat")}


class Named(Dataset[Any]):
    """Ten samples of classes with names."""

    def __init__(self, *names: str) -> None:
        self.classes = list(names)

    def __len__(self) -> int:
        return 10

    def __getitem__(self, i: int) -> Any:
        return torch.ones(1), i % len(self.classes)


def test_data_sets_name_their_classes() -> None:
    """Their order is kept, which need not be that of the alphabet; classes that nobody has are known, too."""
    data = TorchDataModule({who: Subset(Named("fish", "cat"), range(6)) for who in "ab"})
    assert data.federation.notes["classes"] == ["fish", "cat"]
    alone = TorchDataModule(Named("fish", "cat", "dog"), client=["a"] * 5 + ["b"] * 5, n_classes=3)
    assert (alone.federation.notes["classes"], alone.n_outputs) == (["fish", "cat", "dog"], 3)
    transformed = Named("fish", "cat")
    transformed.target_transform = lambda y: 1 - y  # type: ignore[attr-defined]
    assert "classes" not in TorchDataModule({"a": transformed}).federation.notes
    with pytest.raises(UserError, match=r"^n_classes: the data name 2 classes"):
        TorchDataModule({"a": Named("fish", "cat")}, n_classes=4)


def test_labels_of_hugging_face_have_names() -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(x=datasets.Value("float32"), label=datasets.ClassLabel(names=["dog", "cat"]))
    rows = datasets.Dataset.from_dict({"x": [1.0, 2.0] * 5, "label": [0, 1] * 5}, features=features)
    samples = rows.map(lambda row: {"x": [row["x"]]}).cast_column("label", features["label"])
    assert TorchDataModule({"a": samples}).federation.notes["classes"] == ["dog", "cat"]


@pytest.mark.parametrize("other", [Named("dog", "cat"), [(torch.ones(1), 0)]])
def test_other_numbers_are_refused(other: Any) -> None:
    with pytest.raises(UserError, match=r"^data: the clients' data sets number their classes differently; give words"):
        TorchDataModule({"a": Named("cat", "dog"), "b": other})


def colours(data: Any) -> list[str]:
    """The class that each image's colour says."""
    found = data.federation.samples.x.float().mean(dim=(1, 2)).numpy()  # [n, 3]
    distance = [np.abs(found - np.array(colour)).sum(axis=1) for colour in COLOURS.values()]
    return [list(COLOURS)[i] for i in np.argmin(distance, axis=0)]


def test_a_folder_of_images_is_a_federation(tmp_path: Path) -> None:
    folder = save_images(tmp_path / "shops", ORDERS)
    data = FolderDataModule(folder, fractions=(0.5, 0.25, 0.25))
    names = data.federation.notes["classes"]
    assert (names, data.federation.names, data.in_shape) == (["cat", "dog", "fish"], ("a", "b", "c"), (3, 6, 6))
    assert [names[y] for y in data.federation.samples.y.tolist()] == colours(data)
    assert FolderDataModule(folder, size=4).in_shape == (3, 4, 4)


def test_a_folder_may_have_its_splits(tmp_path: Path) -> None:
    save_images(tmp_path / "train", ORDERS)
    save_images(tmp_path / "test", {"a": ("fish",), "c": ("dog",)})
    data = FolderDataModule(tmp_path)
    assert data.federation.splits["test"].counts().tolist() == [4, 0, 4]
    assert [data.federation.notes["classes"][y] for y in data.federation.samples.y.tolist()] == colours(data)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_mistakes_in_a_folder_are_one_line(tmp_path: Path) -> None:
    cases: dict[str, tuple[Callable[[Path], Any], str]] = {
        "none": (lambda folder: folder.mkdir(), "got none"),
        "no classes": (lambda folder: save_images(folder.parent, {folder.name: ("cat",)}), "got .*cat/0.png"),
        "broken": (lambda folder: (save_images(folder, ORDERS) / "a/cat/0.png").write_text("no"), "cannot identify"),
        "sizes": (
            lambda folder: Image.new("RGB", (9, 9)).save(save_images(folder, ORDERS) / "a/cat/0.png"),
            "of one size; dataset.size=PIXELS makes them equal",
        ),
    }
    for name, (make, message) in cases.items():
        make(tmp_path / name)
        with pytest.raises(UserError, match=rf"^path: .*{tmp_path / name}.*({message})"):
            FolderDataModule(tmp_path / name)
