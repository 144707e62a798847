"""Samples of several arrays: what a batch has, padding, and how they are read from a user's data sets."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedem_lightning import FedAvg, FederatedDataModule, TorchDataModule, UserError
from fedem_lightning.data.samples import Fields
from fedem_lightning.models.tensors import call_with, called
from helpers.federations import make_trainer

MASK = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 0, 0]])
IDS = torch.tensor([[5, 6, 0, 0], [7, 8, 9, 0], [4, 0, 0, 0]], dtype=torch.int16)
Y = torch.tensor([0, 1, 0])


def test_a_batch_is_as_long_as_its_longest_sequence() -> None:
    other = torch.rand(3, 5)
    samples = Fields({"input_ids": IDS, "attention_mask": MASK, "other": other}, Y)
    assert samples.in_shape == {"input_ids": (4,), "attention_mask": (4,), "other": (5,)}
    batch = samples.features(torch.tensor([[0, 2]]), torch.float64)
    assert batch["input_ids"].tolist() == [[[5, 6], [4, 0]]]
    assert (batch["input_ids"].dtype, batch["other"].dtype) == (torch.int64, torch.float64)
    assert batch["other"].shape == (1, 2, 5)
    assert samples.features(torch.tensor([1]), torch.float32)["attention_mask"].tolist() == [[1, 1, 1]]
    assert samples.features(torch.zeros(0, dtype=torch.int64), torch.float32)["input_ids"].shape == (0, 4)


def test_padding_stays_where_labels_are_sequences() -> None:
    samples = Fields({"input_ids": IDS, "attention_mask": MASK}, IDS.long())
    assert samples.features(torch.tensor([2]), torch.float32)["input_ids"].shape == (1, 4)


def test_digests_see_names_and_values() -> None:
    def digest(**x: Any) -> str:
        return FederatedDataModule.from_arrays(x, Y.numpy(), np.zeros(3, int), fractions=(1, 0, 0)).federation.digest()  # type: ignore[arg-type]

    first = digest(a=IDS.numpy(), b=MASK.numpy())
    assert first == digest(b=MASK.numpy(), a=IDS.numpy())
    assert first != digest(c=IDS.numpy(), b=MASK.numpy())
    assert first != digest(a=IDS.numpy() + 1, b=MASK.numpy())


class Calls(nn.Module):
    """Remembers how it was called."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.weight, self.answer = nn.Parameter(torch.ones(1)), answer

    def forward(self, *args: Tensor, **named: Tensor) -> Any:
        self.seen = (len(args), sorted(named))
        return self.answer


WRAPS = [lambda z: (z, 1), lambda z: {"loss": 0, "logits": z}]


@pytest.mark.parametrize(
    ("x", "seen"),
    [
        (torch.ones(2), (1, [])),
        ({"b": torch.ones(2), "a": torch.ones(2)}, (0, ["a", "b"])),
        ({"1": torch.ones(2), "0": torch.ones(2), "a": torch.ones(2)}, (2, ["a"])),
    ],
)
@pytest.mark.parametrize("wrap", WRAPS)
def test_how_a_network_is_called(x: Any, seen: Any, wrap: Any) -> None:
    z = torch.arange(2.0)
    network = Calls(wrap(z))
    assert called(network, x) is z
    assert network.seen == seen
    assert call_with(network, {"weight": torch.zeros(1)}, x) is z


def test_data_sets_of_dictionaries_have_several_arrays() -> None:
    rows = [{"input_ids": IDS[i], "attention_mask": MASK[i], "labels": i % 2} for i in range(3)]
    samples: Any = TorchDataModule({"a": rows}, fractions=(1, 0, 0)).federation.samples
    assert torch.equal(samples.x["input_ids"], IDS)
    assert torch.equal(samples.x["attention_mask"], MASK)
    assert samples.y.tolist() == [0, 1, 0]


def test_a_sample_may_be_a_tuple() -> None:
    class TwoInputs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(2, 2), nn.Linear(3, 2)

        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return self.left(left) + self.right(right)

    data = TorchDataModule({k: [((torch.rand(2), torch.rand(3)), i % 2) for i in range(10)] for k in "ab"})
    assert data.in_shape == {"0": (2,), "1": (3,)}
    model = FedAvg(TwoInputs, n_clients=2)
    trainer = make_trainer(1)
    trainer.fit(model, data)
    found = model.client("a").predict({"0": np.zeros((4, 2)), "1": np.ones((4, 3))})
    assert found.shape == (4, 2)
    assert str(data.federation) == "2 clients, 20 samples of 0 [2], 1 [3], classification"


@pytest.mark.parametrize(
    ("x", "line"),
    [
        ({"a": np.ones((3, 2)), "b": np.ones((2, 2))}, "x: expected as many samples in every array, got a 3, b 2"),
        ({"a": np.full((3, 2), np.nan)}, "x: a: NaN or infinity in 3 samples, the first is number 0, of client 0"),
    ],
)
def test_wrong_dictionaries_are_refused(x: Any, line: str) -> None:
    with pytest.raises(UserError, match=line):
        FederatedDataModule.from_arrays(x, Y.numpy(), np.zeros(3, int))


def test_a_model_refuses_other_dictionaries() -> None:
    x = {"input_ids": np.ones((6, 4), int), "attention_mask": np.ones((6, 4), int), "age": np.ones((6, 1))}

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(1, 2)

        def forward(self, input_ids: Tensor, attention_mask: Tensor, age: Tensor) -> Tensor:
            return self.linear(age) + input_ids.sum(dim=1, keepdim=True)

    data = FederatedDataModule.from_arrays(x, np.arange(6) % 2, np.zeros(6, int), fractions=(1, 0, 0))  # type: ignore[arg-type]
    model = FedAvg(Net, n_clients=1)
    make_trainer(1).fit(model, data)
    client = model.client("0")
    longer = {"input_ids": np.ones((2, 9), int), "attention_mask": np.ones((2, 9), int), "age": np.ones((2, 1))}
    assert client.predict(longer).shape == (2, 2)
    for change, line in (
        ({"age": np.ones((2, 2))}, r"x: age: expected shape \[n, 1\] as in training, got \[2, 2\]"),
        ({"input_ids": np.ones((2, 9))}, "x: input_ids: expected whole numbers, got float64"),
    ):
        with pytest.raises(UserError, match=line):
            client.predict(longer | change)
    with pytest.raises(UserError, match="x: expected a dictionary of arrays, got"):
        client.predict(np.ones((2, 9)))


def test_whole_numbers_reach_networks_of_the_package_and_embeddings() -> None:
    x = np.arange(24).reshape(12, 2) % 5
    data = FederatedDataModule.from_arrays(x, np.arange(12) % 2, np.arange(12) % 2)
    network = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 2))
    make_trainer(1).fit(FedAvg(network, n_clients=2), data)
    line = (
        r"it does not take samples of shape \(2,\) .*; x are whole numbers, which stay so: give floats if the network"
    )
    with pytest.raises(UserError, match=line):
        make_trainer(1).fit(FedAvg(nn.Linear(2, 2), n_clients=2), data)
