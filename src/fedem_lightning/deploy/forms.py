"""Forms of values that come from elsewhere: what each must be, and how it is read."""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedem_lightning.errors import one_line
from fedem_lightning.rejections import INVALID, NOT_FINITE

LARGEST = 1e15
"""Largest magnitude of a number: sums of squares of such numbers fit into float32."""
MOST_SAMPLES = 10**9
"""Largest number of samples that a client may say it has."""
LONGEST_LINE = 200
"""Characters that are kept of a text."""
LONGEST_JSON = 10**6
"""Largest number of characters of plain values of any form, written as JSON."""
REAL = (torch.float32, torch.float64, torch.int64)


class Refused(ValueError):
    """What came does not count; the message is one line, `reason` one of `rejections`."""

    def __init__(self, line: str, reason: str = INVALID) -> None:
        super().__init__(as_line(line))
        self.reason = reason


class Whole(NamedTuple):
    """A whole number."""

    low: int = 0
    high: int = MOST_SAMPLES

    def read(self, value: Any, where: str) -> int:
        """The number."""
        fits = type(value) is int and self.low <= value <= self.high
        _expect(fits, where, f"a whole number from {self.low} to {self.high}", value)
        return int(value)


class Number(NamedTuple):
    """A finite number, or NaN where that is allowed."""

    low: float = -LARGEST
    high: float = LARGEST
    or_nan: bool = False

    def read(self, value: Any, where: str) -> float:
        """The number."""
        known = type(value) in (int, float)
        fits = known and (self.low <= value <= self.high or (self.or_nan and math.isnan(value)))
        _expect(fits, where, f"a number from {self.low:g} to {self.high:g}", value)
        return float(value)


class AsItIs(NamedTuple):
    """A value that stays as it is, if it fits."""

    fits: Callable[[Any], bool]
    what: str

    def read(self, value: Any, where: str) -> Any:
        """The value."""
        _expect(self.fits(value), where, self.what, value)
        return value


class Line(NamedTuple):
    """A text, of which `as_line` is kept."""

    or_empty: bool = False

    def read(self, value: Any, where: str) -> str:
        """The line."""
        line = as_line(value) if type(value) is str else ""
        _expect(type(value) is str and (self.or_empty or bool(line)), where, "a text", value)
        return line


def _is_plain(value: Any) -> bool:
    try:
        return len(json.dumps(value)) <= LONGEST_JSON
    except (ValueError, TypeError, RecursionError):
        return False


NAN = AsItIs(lambda value: type(value) is float and math.isnan(value), "NaN, as there are no samples")
FLAG = AsItIs(lambda value: type(value) is bool, "true or false")
TEXT = AsItIs(lambda value: type(value) is str and len(value) <= LONGEST_JSON, "a text")
PLAIN = AsItIs(_is_plain, f"plain values, at most {LONGEST_JSON} characters")


class Maybe(NamedTuple):
    """A value of this form, or null."""

    form: Any

    def read(self, value: Any, where: str) -> Any:
        """The value."""
        return None if value is None else read(self.form, value, where)


class Many(NamedTuple):
    """A list of values of one form."""

    form: Any
    most: int

    def read(self, value: Any, where: str) -> list[Any]:
        """The values."""
        _expect(type(value) is list and len(value) <= self.most, where, f"a list of at most {self.most}", value)
        return [read(self.form, part, f"{where}[{i}]") for i, part in enumerate(value)]


class Named(NamedTuple):
    """Values of one form, by names that nobody knows before."""

    form: Any
    most: int

    def read(self, value: Any, where: str) -> dict[str, Any]:
        """The values by name."""
        fits = type(value) is dict and len(value) <= self.most
        fits = fits and all(type(name) is str and name and as_line(name) == name for name in value)
        _expect(fits, where, f"values by at most {self.most} names", value)
        return {name: read(self.form, part, f"{where}.{name}") for name, part in value.items()}


class Rows(NamedTuple):
    """A tensor of the shape and dtype of another, whose entries are in a range."""

    like: Tensor
    low: Tensor | float = -LARGEST
    high: Tensor | float = LARGEST
    or_nan: bool = False
    dtypes: tuple[torch.dtype, ...] = ()  # those that are allowed; none: that of `like`

    def read(self, value: Any, where: str) -> Tensor:
        """The tensor."""
        shape, dtypes = self.like.shape, self.dtypes or (self.like.dtype,)
        fits = isinstance(value, Tensor) and value.shape == shape and value.dtype in dtypes
        _expect(fits, where, f"{' or '.join(map(str, dtypes))} {list(shape)}", value)
        unknown = value.isnan() if value.is_floating_point() else torch.zeros((), dtype=torch.bool)
        if bool(unknown.any()) and not self.or_nan:
            raise Refused(f"{where}: NaN", NOT_FINITE)
        if value.is_floating_point() and bool(value.isinf().any()):
            raise Refused(f"{where}: infinite", NOT_FINITE)
        inside = (value >= self.low) & (value <= self.high) | unknown
        _expect(bool(inside.all()), where, f"numbers from {_least(self.low)} to {_least(self.high)}", "others")
        return value


def read(form: Any, value: Any, where: str = "") -> Any:
    """A value of this form.

    Args:
        form: an object of a class above; a dictionary of forms: a dictionary with these keys and no others; a tuple of
            forms: a list of this length.
        value: from JSON: a number, a text, None, or lists and dictionaries of them; or tensors by name.
        where: names the value in messages.

    Raises:
        Refused: it has another form.

    """
    if isinstance(form, dict):
        _expect(isinstance(value, Mapping), where, "values by name", value)
        for what, names in (("lacks", form.keys() - value.keys()), ("has also", value.keys() - form.keys())):
            if names:
                raise Refused(f"{where or 'reply'} {what} {', '.join(sorted(map(str, names)))}")
        return {key: read(part, value[key], f"{where}.{key}".lstrip(".")) for key, part in form.items()}
    if type(form) is tuple:
        _expect(type(value) is list and len(value) == len(form), where, f"a list of {len(form)}", value)
        return [read(part, value[i], f"{where}[{i}]") for i, part in enumerate(form)]
    return form.read(value, where)


def as_line(text: str) -> str:
    """A text as one line of at most `LONGEST_LINE` characters, without control characters."""
    line = one_line(text[: 10 * LONGEST_LINE])
    return line if len(line) <= LONGEST_LINE else line[: LONGEST_LINE - 1] + "…"


def _least(bound: Tensor | float) -> str:
    return f"{float(bound.min()) if isinstance(bound, Tensor) else bound:g}"


def _expect(fits: bool, where: str, what: str, got: Any) -> None:
    if not fits:
        raise Refused(f"{where or 'reply'}: expected {what}, got {_shown(got)}")


def _shown(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{value.dtype} {list(value.shape)[:8]}"
    if isinstance(value, int) and abs(value) > MOST_SAMPLES:  # Python may refuse to write a long one
        return "a larger number" if value > 0 else "a smaller number"
    return str(value)[:60] if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"
