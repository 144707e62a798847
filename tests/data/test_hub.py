"""Hugging Face data sets by columns: the same samples, the same clients, one line."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedem_lightning import FederatedDataModule, HubDataModule, UserError
from helpers.encoders import minilm
from helpers.federations import stored

datasets = pytest.importorskip("datasets")

N = 12
ROWS: dict[str, Any] = {
    "text": [f"word{i % 3} and more" * (1 + i % 2) for i in range(N)],
    "a": [float(i) for i in range(N)],
    "b": [i for i in range(N)],
    "vector": [[float(i), 1.0] for i in range(N)],
    "label": [("no", "yes")[i % 2] for i in range(N)],
    "user": [f"u{i // 4}" for i in range(N)],
}


def rows(**more: Any) -> Any:
    return datasets.Dataset.from_dict({**ROWS, **more})


def letters(texts: list[str]) -> dict[str, Any]:
    """A tokenizer: letters by their code."""
    return {"input_ids": [[ord(letter) for letter in text] for text in texts]}


@pytest.mark.filterwarnings("ignore:.*unclosed file")  # of datasets, which reads .csv
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", ["folder", "dictionary", "parquet", "csv", "json"])
def test_all_places_give_the_same_federation(kind: str, tmp_path: Path) -> None:
    data, path = rows().remove_columns(["text", "vector"]), tmp_path / f"rows.{kind}"
    place: Any = path
    if kind == "folder":
        data.save_to_disk(path)
    elif kind == "dictionary":
        datasets.DatasetDict({"train": data}).save_to_disk(path)
    else:
        getattr(data, f"to_{kind}")(path)
    federation = HubDataModule(place, "label", "user").federation
    expected = FederatedDataModule.from_arrays(
        np.stack([ROWS["a"], ROWS["b"]], axis=1).astype(float), np.array(ROWS["label"]), np.array(ROWS["user"])
    ).federation
    assert federation.digest() == expected.digest()
    assert (federation.names, federation.notes["classes"]) == (("u0", "u1", "u2"), ["no", "yes"])


def test_splits_of_a_data_set_and_of_a_column() -> None:
    data = rows(part=["train", "train", "val", "test"] * 3)
    by_column = HubDataModule(data, "label", "user", features=["a"], split="part").federation
    parts = {name: data.filter(lambda row, name=name: row["part"] == name) for name in ("train", "val", "test")}
    named = datasets.DatasetDict({"train": parts["train"], "validation": parts["val"], "test": parts["test"]})
    by_name = HubDataModule(named, "label", "user", features=["a"]).federation
    assert [len(by_name.splits[s]) for s in ("train", "val", "test")] == [6, 3, 3]
    for split in ("train", "val", "test"):
        clients = torch.arange(3)
        found, expected = (f.block(clients, split) for f in (by_name, by_column))
        assert torch.equal(found.x(torch.float32), expected.x(torch.float32))
    with pytest.raises(UserError, match=r"path: expected splits called train, validation .* got train, extra"):
        HubDataModule(datasets.DatasetDict({"train": data, "extra": data}), "label", "user")


def test_class_labels_keep_their_names_and_numbers() -> None:
    data = rows().remove_columns("label").add_column("label", [i % 2 for i in range(N)])
    data = data.cast_column("label", datasets.ClassLabel(names=["yes", "no", "perhaps"]))
    federation = HubDataModule(data, "label", "user", features=["vector"]).federation
    assert (federation.notes["classes"], federation.task.n_outputs) == (["yes", "no", "perhaps"], 3)
    assert stored(federation).y.tolist() == [i % 2 for i in range(N)]
    assert stored(federation).x.tolist() == ROWS["vector"]
    other = data.align_labels_with_mapping({"no": 0, "yes": 1}, "label")  # the same labels by other numbers
    with pytest.raises(UserError, match="path: expected the same columns in all splits"):
        HubDataModule(datasets.DatasetDict(train=data, test=other), "label", "user", features=["vector"])


def test_images_are_decoded_on_the_way() -> None:
    shape = (5, 4, 3)
    pixels = np.random.default_rng(0).integers(0, 256, (N, *shape), dtype=np.uint8)
    features = datasets.Features({"img": datasets.Image(), "label": datasets.Value("int64")})
    data = datasets.Dataset.from_dict({"img": list(pixels), "label": [i % 2 for i in range(N)]}, features=features)
    options: dict[str, Any] = {"partition": "iid", "n_clients": 2}
    federation = HubDataModule(data, "label", image="img", **options).federation
    assert stored(federation).x.numpy().tobytes() == pixels.tobytes()
    wrong = datasets.concatenate_datasets(
        [data, datasets.Dataset.from_dict({"img": [np.zeros((2, 2), np.uint8)], "label": [0]}, features=features)]
    )
    with pytest.raises(UserError, match="image: the images differ in size"):
        HubDataModule(wrong, "label", image="img", **options)


def test_texts_become_tokens() -> None:
    federation = HubDataModule(rows(), "label", "user", text="text", tokenizer=letters).federation
    samples: Any = federation.samples
    lengths = [len(text) for text in ROWS["text"]]
    assert samples.x["attention_mask"].sum(dim=1).tolist() == lengths
    assert samples.x["input_ids"].dtype == torch.int16
    for text, ids in zip(ROWS["text"], samples.x["input_ids"].tolist(), strict=True):
        assert "".join(map(chr, ids[: len(text)])) == text
        assert not any(ids[len(text) :])


def test_the_tokenizer_of_an_encoder() -> None:
    folder = minilm()
    import transformers

    data = HubDataModule(rows(), "label", "user", text="text", tokenizer=folder, max_length=6)
    samples: Any = data.federation.samples
    own = transformers.AutoTokenizer.from_pretrained(folder)
    expected = own(ROWS["text"], truncation=True, max_length=6, padding=True)
    assert samples.x["input_ids"].tolist() == expected["input_ids"]
    assert samples.x["attention_mask"].tolist() == expected["attention_mask"]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"label": None}, "label: expected the name of a column; the data set has text, a, b"),
        ({"text": "words"}, "path: the data set has no column words"),
        ({"text": "text"}, "tokenizer: texts need one, expected a model's folder or its name on the Hub"),
        ({"text": "a", "tokenizer": letters}, "text: column a has no texts, but float64"),
        ({"text": "text", "features": ["a"]}, "text and features: expected one of them, which is x"),
        ({"features": ["ragged"]}, "ragged: expected an array, got a list"),
        ({"features": ["gap"]}, "gap: 1 rows have no value"),
    ],
)
def test_wrong_columns_are_refused_in_one_line(options: Any, line: str) -> None:
    data = rows(
        ragged=[[1.0] * (1 + i % 2) for i in range(N)], gap=[None, *range(N - 1)], a=[i + 0.5 for i in range(N)]
    )
    with pytest.raises(UserError, match=line) as error:
        HubDataModule(data, **{"label": "label", "client": "user", **options})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("no/such_data_set", "path: no file or folder no/such_data_set; datasets.load_dataset downloads"),
        (None, "path: expected a folder, a file, or a Dataset, got null"),
    ],
)
def test_no_data_set(path: Any, line: str) -> None:
    with pytest.raises(UserError, match=line):
        HubDataModule(path, "label", "user")
