"""Checks values against annotations, one set of rules for configurations and for Python."""

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, GenericAlias, MethodType
from typing import Any, NamedTuple, Self, get_args, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from fedem_lightning.settings.errors import UserError, given, meant

STRICT = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)
"""True is no number, 1 is not true, and no text is either; a whole number may stand for a number."""


class AllowedValues:
    """What a parameter may be: its annotation, and its default (`inspect.Parameter.empty`: it has none).

    A text among the limits of an `Annotated` is what a message says in their place.
    """

    def __init__(self, hint: Any, default: Any = inspect.Parameter.empty) -> None:
        self.hint, self.default = hint, default

    @functools.cached_property
    def _adapter(self) -> TypeAdapter[Any] | None:
        try:
            one: Any = GenericAlias(tuple, (self.hint,))  # a dataclass by itself takes no `config`
            return TypeAdapter(one, config=STRICT)
        except Exception:  # whatever somebody's annotation makes pydantic raise: it says nothing that can be checked
            return None

    def check(self, key: str, value: Any) -> None:
        """Raises UserError, which names the key, unless the annotation allows `value`."""
        errors = self._errors(value) and self._errors(_plain(value))
        if not errors:
            return
        limits = [limit for part in (self.hint, *get_args(self.hint)) for limit in getattr(part, "__metadata__", ())]
        words = [limit for limit in limits if isinstance(limit, str)]
        says = dict.fromkeys(words or [re.sub("^(Input|Value) should (be |have )?", "", error) for error in errors])
        text = re.sub(r"\b(greater|less) than", r"a number \1 than", " or ".join(says), count=1)
        choices = re.findall(r"'([^']+)'", text)
        named = isinstance(value, type) and any(f"instance of {kind.__name__}" in text for kind in value.__mro__)
        made = f"; give an object, {value.__name__}(...)" if named else ""
        near = meant(value, choices) if isinstance(value, str) else made
        raise UserError(f"{key}: expected {text}, got {given(value)}{near}")

    def _errors(self, value: Any) -> list[str]:
        """What pydantic says of a value; nothing of one that is allowed."""
        try:
            if self._adapter is not None:
                self._adapter.validate_python((value,))
        except ValidationError as error:
            return [part["msg"] for part in error.errors(include_url=False, include_context=False)]
        return []


class Parameters(NamedTuple):
    """The parameters of a target."""

    known: dict[str, AllowedValues]
    open: bool  # whether it hands other arguments on to something unknown


@functools.cache
def parameters(target: Callable[..., Any]) -> Parameters:
    """The parameters of a function or a class, with those of its base classes as far as it hands arguments on.

    `**options: Annotated[Any, GROUP, ...]` stands for the fields of these dataclasses.
    """
    known: dict[str, AllowedValues] = {}
    for call in _calls(target):
        if call is object.__init__ or getattr(call, "__module__", "") == "torch.nn.modules.module":
            return Parameters(known, open=False)  # they accept **kwargs, and refuse all of them
        if not isinstance(call, FunctionType | MethodType):
            return Parameters(known, open=True)  # written in C, or an object that can be called
        hints, result = _hints(call), inspect.signature(call).parameters
        for name, parameter in result.items():
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY) and name != "self":
                known.setdefault(name, AllowedValues(hints.get(name, Any), parameter.default))
        others = [name for name, parameter in result.items() if parameter.kind == parameter.VAR_KEYWORD]
        if others and call.__module__.startswith("pytorch_lightning.loggers"):
            return Parameters(known, open=True)  # they are options of W&B's and TensorBoard's own calls
        message = getattr(hints.get(others[0]), "__metadata__", ()) if others else ()
        groups: list[Any] = [group for group in message if dataclasses.is_dataclass(group)]
        for group in groups:
            known |= parameters(group).known | known  # the target's own come first
        if groups or not others:
            return Parameters(known, open=False)
    return Parameters(known, open=True)


def check_arguments(key: str, target: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Checks the arguments of a call; UserError: the first that its annotation does not allow, as KEY.NAME.

    A function begins with `check_arguments(KEY, itself, locals())`; a class has the base `Checked`.
    """
    known = parameters(target).known
    for name, value in arguments.items():
        setting = known.get(name)
        if setting is not None and value is not setting.default:
            setting.check(f"{key}.{name}" if key else name, value)


def arguments_of(function: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name; none if they do not fit, which the call itself reports."""
    signature = inspect.signature(function)
    try:
        bound = signature.bind_partial(*args, **options).arguments
    except TypeError:
        return {}
    rest = [name for name, p in signature.parameters.items() if p.kind is inspect.Parameter.VAR_KEYWORD]
    return {k: v for k, v in bound.items() if k not in rest} | (bound.get(rest[0], {}) if rest else {})


def grouped(options: Mapping[str, Any], *groups: Callable[..., Any]) -> list[Any]:
    """The keywords of a call as objects of these dataclasses; TypeError for one that is a field of none."""
    fields = [parameters(group).known.keys() for group in groups]
    for name in options.keys() - set().union(*fields):
        raise TypeError(f"got an unexpected keyword argument {name!r}")
    return [
        group(**{name: options[name] for name in options.keys() & own})
        for group, own in zip(groups, fields, strict=True)
    ]


class Checked:
    """Base of classes whose arguments are checked against the annotations before their constructor runs.

    Messages name an argument as CLASS.ARGUMENT, to who calls the constructor; a configuration has been checked before.
    """

    def __new__(cls, *args: Any, **options: Any) -> Self:  # noqa: D102
        if cls.__init__ is object.__init__ and (args or options):  # Python would drop them
            raise TypeError(f"{cls.__name__} takes no arguments")
        arguments = arguments_of(cls.__init__, (None, *args), options)
        check_arguments(cls.__name__, cls, {k: v for k, v in arguments.items() if k != "self"})
        return super().__new__(cls)


def _calls(target: Callable[..., Any]) -> list[Callable[..., Any]]:
    """The functions that take a target's arguments, one after the other: constructors, those of base classes last."""
    if not isinstance(target, type):
        return [target]
    spaces = [vars(kind) for kind in target.__mro__]
    inits, news = ([names[name] for names in spaces if name in names] for name in ("__init__", "__new__"))
    made = len(inits) == 1 < len(news) and not issubclass(target, Checked)  # such as a NamedTuple
    return [target.__new__] if made else inits


def _hints(call: Callable[..., Any]) -> dict[str, Any]:
    """Annotations; not those in quotes where a name in one is unknown at run time, as after `if TYPE_CHECKING`."""
    try:
        return get_type_hints(call, include_extras=True)
    except (NameError, TypeError, AttributeError):
        return {name: hint for name, hint in call.__annotations__.items() if not isinstance(hint, str)}


def _plain(value: Any) -> Any:
    """Numbers, lists and dictionaries of Python's own, for any kind of them, such as NumPy's and OmegaConf's."""
    library = type(value).__module__.partition(".")[0]
    if library in ("numpy", "pandas") or (library == "torch" and bool(getattr(value, "ndim", False))):
        return value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | tuple):
        return [_plain(part) for part in value]
    return value
