"""Values against annotations, and the line that says what was expected."""

import datetime
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import pytest
import torch
from annotated_types import Ge, Gt, Le
from omegaconf import OmegaConf
from pydantic import AllowInfNan
from torch import nn

from fedem_lightning import MLP, ClientSGD, FedAvg, Linear, UserError
from fedem_lightning.settings.check import AllowedValues, check_arguments, grouped, parameters
from fedem_lightning.settings.ranges import Fractions, Names, PositiveInt, Seed, Share, ShareOrNumber
from fedem_lightning.settings.recipes import recorded

FITS: list[tuple[Any, list[Any]]] = [
    (float, [0.5, 2, -1]),
    (str | Path | None, ["", "a\nb", Path("x"), None]),
    (Seed, [0, 2**32 - 1]),
    (ShareOrNumber, [0.1, 1, 1.0, 2, 7.0]),
    (float | Literal["auto"], [1, "auto"]),
    (Fractions, [[0.6, 0.2, 0.2], (1, 0, 0)]),
    (Names, [[], ["a", 3], ("a",)]),
    (Sequence[int], [[1], (1, 2), OmegaConf.create([1, 2])]),
    (Mapping[str, float], [{"a": 1}, {}, OmegaConf.create({"a": 0.5})]),
    (Annotated[float, Gt(0), AllowInfNan()], [math.inf, 1]),
    (ClientSGD | None, [None, ClientSGD()]),
    (Callable[..., int] | None, [len, None]),
    ("a name that nothing has", [3, "x", None]),  # an annotation that says nothing
]
DOES_NOT: list[tuple[Any, Any, str]] = [
    (bool, "no", "expected a valid boolean, got 'no'"),
    (int, True, "expected a valid integer, got true"),
    (float, math.nan, "expected a finite number, got nan"),
    (str, None, "expected a valid string, got null"),
    (Annotated[int, Ge(1), Le(10)], 11, "expected a number less than or equal to 10, got 11"),
    (ShareOrNumber, 1.5, "expected a fraction up to 1 or a number from 2 on, got 1.5"),
    (Literal["ring", "star"], "rign", "expected 'ring' or 'star', got 'rign'; did you mean ring?"),
    (ClientSGD | None, ClientSGD, "expected an instance of ClientSGD, got the class ClientSGD; give an object"),
    (str | None, ["x"] * 99, "expected a valid string, got " + str(["x"] * 99)[:80] + "..."),
    (int, "a\nb<script>", "expected a valid integer, got 'a\\nb<script>'"),
]


@pytest.mark.parametrize(("hint", "values"), FITS)
def test_what_an_annotation_allows(hint: Any, values: list[Any]) -> None:
    for value in values:
        AllowedValues(hint).check("key", value)


@pytest.mark.parametrize(("hint", "value", "line"), DOES_NOT)
def test_what_it_does_not(hint: Any, value: Any, line: str) -> None:
    with pytest.raises(UserError) as caught:
        AllowedValues(hint).check("key", value)
    assert str(caught.value).startswith(f"key: {line}")


class Base:
    def __init__(self, kept: int, base: Share = 0.5) -> None: ...


class Passing(Base):
    def __init__(self, own: bool, kept: str = "x", **options: Any) -> None: ...


class Point(NamedTuple):
    x: float


def generator(n: PositiveInt, *rest: int) -> Iterator[int]:
    yield n


@dataclass(frozen=True)
class Size:
    width: PositiveInt = 3
    height: int = 4


@dataclass(frozen=True)
class Colour:
    grey: bool = False


class Drawn:
    def __init__(self, height: float, *, grey: str = "x", **options: Annotated[Any, "text", Size, Colour]) -> None: ...


def test_keywords_may_be_the_fields_of_dataclasses() -> None:
    known, is_open = parameters(Drawn)
    hints = {name: setting.hint for name, setting in known.items()}
    assert hints == {"height": float, "grey": str, "width": PositiveInt}  # what the target says itself counts
    assert list(known) == ["height", "grey", "width"]
    assert known["width"].default == 3
    assert not is_open
    with pytest.raises(UserError, match=r"^width: expected a number greater than or equal to 1, got 0"):
        check_arguments("", Drawn, {"width": 0})
    assert grouped({"grey": True, "width": 1}, Size, Colour) == [Size(1, 4), Colour(True)]
    with pytest.raises(TypeError, match="unexpected keyword argument 'depth'"):
        grouped({"depth": 1}, Size, Colour)


def test_parameters_are_those_of_base_classes_too_as_far_as_they_are_reached() -> None:
    known, is_open = parameters(Passing)
    assert {name: setting.hint for name, setting in known.items()} == {"own": bool, "kept": str, "base": Share}
    assert not is_open
    assert parameters(Linear).known.keys() == {"in_shape", "n_outputs", "bias"}  # nn.Module takes no options
    assert {"strength", "n_components"} - parameters(FedAvg).known.keys() == {"strength"}
    assert parameters(generator).known.keys() == {"n"}
    assert parameters(Point).known["x"].hint is float
    assert parameters(lambda **options: options).open
    assert parameters(dict).open
    assert parameters(datetime.timedelta).open


def test_arguments_are_checked_before_the_constructor_runs() -> None:
    with pytest.raises(UserError, match=r"^MLP\.hidden: expected an instance of Sequence, got 3"):
        MLP((3,), 2, hidden=3)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"^FedAvg\.batch_size: expected a number greater than or equal to 1, got 0"):
        FedAvg(Linear((3,), 2), n_clients=2, batch_size=0)
    with pytest.raises(UserError, match=r"^FedAvg\.n_clients: expected a number greater than or equal to 1, got 0"):
        FedAvg(Linear((3,), 2), n_clients=0)


def test_numbers_and_arrays_of_numpy_count_as_those_of_python() -> None:
    def function(number: int, names: Sequence[str] = (), tensor: torch.Tensor | None = None) -> None: ...

    right = {"number": np.int64(3), "names": np.array(["a"]), "tensor": torch.ones(1), "other": 3}
    check_arguments("key", function, right)
    with pytest.raises(UserError, match=r"^key.number: expected a valid integer, got an object of class ndarray$"):
        check_arguments("key", function, {"number": np.ones(3)})
    with pytest.raises(UserError, match=r"^names: expected a valid string, got \[3\]"):
        check_arguments("", function, {"names": [3]})


def test_a_function_that_makes_a_backbone_is_checked() -> None:
    @recorded
    def body(n_outputs: PositiveInt) -> nn.Module:
        return nn.Linear(1, n_outputs)

    assert body(3).made_with == {"n_outputs": 3}
    with pytest.raises(UserError, match=r"^body\.n_outputs: expected a number greater than or equal to 1, got 0"):
        body(0)
