"""Labels by name: data sets that number their classes differently are one federation; folders of images."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset
from torchvision.datasets import ImageFolder

from fedem_lightning import FolderDataModule, TorchDataModule, UserError
from helpers.folders import COLOURS, save_images

ORDERS = {"a": ("cat", "dog", "fish"), "b": ("fish", "dog"), "c": ("dog", "cat")}


class Named(Dataset[Any]):
    """Ten samples, x is the place of a sample's class in the alphabet."""

    def __init__(self, names: tuple[str, ...], say: str = "classes") -> None:
        self.names = names
        self.classes: list[Any] = list(names) if say == "classes" else []
        if say == "class_to_idx":
            self.class_to_idx = {name: code for code, name in enumerate(names)}

    def __len__(self) -> int:
        return 10

    def __getitem__(self, i: int) -> Any:
        code = i % len(self.names)
        return torch.tensor([float(sorted(COLOURS).index(self.names[code]))]), code


def clients(say: str = "classes") -> dict[str, Any]:
    return {who: Named(names, say) for who, names in ORDERS.items()}


def assert_by_name(data: Any) -> None:
    """Every label is the class that x says."""
    samples = data.federation.samples
    assert torch.equal(samples.y, samples.x[:, 0].long())
    assert data.federation.notes["classes"] == ["cat", "dog", "fish"]
    assert data.federation.task.n_classes == 3


@pytest.mark.parametrize("say", ["classes", "class_to_idx"])
def test_other_numbers_are_mapped_by_name(say: str) -> None:
    assert_by_name(TorchDataModule(clients(say)))
    parts = {"a": DataLoader(Named(ORDERS["a"], say)), "b": Subset(Named(ORDERS["b"], say), range(6))}
    assert_by_name(TorchDataModule({**parts, "c": ConcatDataset([Named(ORDERS["c"], say)] * 2)}))


def test_equal_numbers_stay_as_they_are() -> None:
    """Their order is kept, which need not be that of the alphabet; classes that nobody has are known, too."""
    data = TorchDataModule({who: Named(("fish", "cat")) for who in "ab"})
    assert data.federation.notes["classes"] == ["fish", "cat"]
    alone = TorchDataModule(Named(("fish", "cat", "dog")), client=["a"] * 5 + ["b"] * 5, task="classification")
    assert (alone.federation.notes["classes"], alone.n_outputs) == (["fish", "cat", "dog"], 3)
    transformed = Named(("fish", "cat"))
    transformed.target_transform = lambda y: 1 - y  # type: ignore[attr-defined]
    assert "classes" not in TorchDataModule({"a": transformed}).federation.notes


def test_labels_of_hugging_face_are_joined() -> None:
    datasets = pytest.importorskip("datasets")
    given = {}
    for who, names in ORDERS.items():
        rows = [Named(names)[i] for i in range(10)]
        features = datasets.Features(
            x=datasets.Sequence(datasets.Value("float32")), label=datasets.ClassLabel(names=list(names))
        )
        content = {"x": [x.tolist() for x, _ in rows], "label": [y for _, y in rows]}
        given[who] = datasets.Dataset.from_dict(content, features=features).with_format("torch")
    assert_by_name(TorchDataModule(given, columns=["x", "label"]))


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "names of some": (
        lambda: TorchDataModule({"a": Named(ORDERS["a"]), "b": Named(ORDERS["b"], "nothing")}),
        r"^data: client b: its data set does not name its classes, but that of data: client a does",
    ),
    "too few names": (
        lambda: TorchDataModule({"a": Named(ORDERS["a"]), "b": _short()}),
        r"^data: client b: label 2 at sample 2, but its data set names 2 classes \(cat, dog\)",
    ),
    "another number": (
        lambda: TorchDataModule(clients(), n_classes=4),
        r"^n_classes: the data name 3 classes \(cat, dog, fish\), got 4",
    ),
    "two numberings in one": (
        lambda: TorchDataModule({"a": ConcatDataset([Named(names) for names in ORDERS.values()])}),
        r"^data: client a: the data sets of a ConcatDataset number their classes differently",
    ),
}


def _short() -> Named:
    found = Named(ORDERS["a"])
    found.classes = ["cat", "dog"]
    return found


@pytest.mark.parametrize("case", WRONG)
def test_names_that_do_not_fit_are_one_line(case: str) -> None:
    make, message = WRONG[case]
    with pytest.raises(UserError, match=message):
        make()


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
    same = TorchDataModule({who: ImageFolder(folder / who) for who in ORDERS}, fractions=(0.5, 0.25, 0.25))
    assert same.federation.digest() == data.federation.digest()
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
        "no classes": (lambda folder: (folder / "a").mkdir(parents=True), "Couldn't find any class folder"),
        "broken": (lambda folder: (save_images(folder, ORDERS) / "a/cat/0.png").write_text("no"), "cannot identify"),
        "sizes": (
            lambda folder: Image.new("RGB", (9, 9)).save(save_images(folder, ORDERS) / "a/cat/0.png"),
            "all need the same; size=PIXELS makes them equal",
        ),
    }
    for name, (make, message) in cases.items():
        make(tmp_path / name)
        with pytest.raises(UserError, match=rf"^path: {tmp_path / name}: .*({message})"):
            FolderDataModule(tmp_path / name)
