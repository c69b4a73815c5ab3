"""Validation of parsed JSON and YAML documents against types.

Manifests, notes of runs, rules and transforms are checked by this one function. `convert` checks a
value against a type, and creates the dataclasses in it. Further conditions are in the types, as
`Annotated[int, between(1, 10)]`.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from types import UnionType
from typing import Annotated, Any, NoReturn, Union, get_args, get_origin, get_type_hints

from recordmill.base.option_names import did_you_mean

MAX_COUNT = 2**63 - 1  # the largest number of records or bytes, which fits an int64
_MAX_VALUE_CHARS = 60  # length of a wrong value in a message
_TYPE_NAMES = {str: "a text", int: "a whole number", bool: "true or false"}


class InvalidValueError(ValueError):
    """A value of a document that does not fit its type.

    Args:
        reason: The error itself.
        place: The field that contains the value, such as `parts[3].folder`, or "".
    """

    def __init__(self, reason: str, place: str) -> None:
        super().__init__(f"{place}: {reason}" if place else reason)
        self.reason, self.place = reason, place

    # The default would pass the message alone to `__init__`, and fail on another process.
    def __reduce__(self) -> tuple[object, ...]:
        return InvalidValueError, (self.reason, self.place)


@dataclass(frozen=True)
class Check:
    """Condition on a converted value, for `Annotated[type, Check(...)]`.

    Attributes:
        predicate: Returns a true value if the condition holds.
        requirement: Text for the message "is VALUE, not REQUIREMENT".
    """

    predicate: Callable[[Any], object]
    requirement: str


@dataclass(frozen=True)
class Parse:
    """Conversion of a value, for `Annotated[type, Parse(...)]`. It replaces the check of the type.

    Attributes:
        function: Returns the converted value, or raises ValueError with the reason.
    """

    function: Callable[[Any], Any]


# Marks a field that is not part of documents, as `Annotated[type, INTERNAL]`.
INTERNAL = object()


def matches(pattern: str, requirement: str) -> Check:
    """Returns a check that a text fully matches a regular expression, with ASCII classes."""
    return Check(re.compile(pattern, re.ASCII).fullmatch, requirement)


def between(minimum: int, maximum: int) -> Check:
    """Returns a check that a number is in [minimum, maximum]."""
    requirement = f"from {minimum} to {'2^63 - 1' if maximum == MAX_COUNT else maximum}"
    return Check(lambda value: minimum <= value <= maximum, requirement)


Count = Annotated[int, between(0, MAX_COUNT)]
PositiveCount = Annotated[int, between(1, MAX_COUNT)]
# An int stays an int, because a float can't represent every int64.
Number = Annotated[int | float, Check(lambda value: math.isfinite(float(value)), "a finite number")]
Share = Annotated[float, Check(lambda value: 0 <= value <= 1, "a share from 0 to 1")]


def convert(kind: Any, value: Any, place: str = "", *, is_closed: bool = False) -> Any:
    """Checks a parsed value against a type and returns it as that type.

    >>> convert(Annotated[int, between(1, 3)], 7, "level")
    Traceback (most recent call last):
    ...
    recordmill.base.documents.InvalidValueError: level: is 7, not from 1 to 3

    Args:
        kind: `Any`, a plain type, `int | float`, `T | None`, a sequence, pair or mapping of such
            types, `Annotated` with a `Check` or a `Parse`, a TypedDict or a dataclass.
        value: The parsed value: None, a bool, number, text, list or mapping.
        place: The field that contains the value, for errors.
        is_closed: Whether an unknown field of a TypedDict or dataclass is an error. Otherwise it is
            dropped.

    Raises:
        InvalidValueError: The value has another type, fails a check, or lacks a field.
    """
    # Plain types come first. Most values of a manifest have one, and `get_origin` takes 1 us.
    if kind is int or kind is str or kind is bool:
        if type(value) is not kind:
            _refuse(f"is {describe_value(value)}, not {_TYPE_NAMES[kind]}", place)
        return value
    if kind is Any:
        return value
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _convert_annotated(inner[0], inner[1:], value, place, is_closed)
    if inner == (int, float):
        if type(value) not in inner:  # not `isinstance`, because a bool is an int
            _refuse(f"is {describe_value(value)}, not a number", place)
        return value
    if origin in (UnionType, Union):
        return None if value is None else convert(inner[0], value, place, is_closed=is_closed)
    if kind is float:
        if type(value) not in (int, float) or not abs(value) <= MAX_COUNT:
            _refuse(f"is {describe_value(value)}, not a number", place)
        return float(value)
    if origin is Sequence or origin is tuple:
        return _convert_list(inner, value, place, is_closed)
    if origin is Mapping:
        if not isinstance(value, Mapping):
            _refuse(f"is {describe_value(value)}, not a mapping", place)
        converted = {}
        for name, item in value.items():
            item_place = _join_place(place, name)
            key = convert(inner[0], name, item_place)
            converted[key] = convert(inner[1], item, item_place, is_closed=is_closed)
        return converted
    return _convert_fields(kind, value, place, is_closed)


def _convert_annotated(
    kind: Any, conditions: Sequence[Any], value: Any, place: str, is_closed: bool
) -> Any:
    parse = next((item for item in conditions if isinstance(item, Parse)), None)
    if parse is None:
        converted = convert(kind, value, place, is_closed=is_closed)
    else:
        try:
            converted = parse.function(value)
        except InvalidValueError as error:
            # The function has converted a part of the value, at a place relative to it.
            inner_place = error.place if error.place.startswith("[") else f".{error.place}"
            _refuse(error.reason, f"{place}{inner_place if error.place else ''}".lstrip("."))
        except ValueError as error:
            _refuse(str(error), place)
    for check in (item for item in conditions if isinstance(item, Check)):
        if not _holds(check, converted):
            _refuse(f"is {describe_value(value)}, not {check.requirement}", place)
    return converted


def _holds(check: Check, value: Any) -> bool:
    try:
        return bool(check.predicate(value))
    except OverflowError:  # an int beyond float64
        return False


def _convert_list(inner: Sequence[Any], value: Any, place: str, is_closed: bool) -> tuple[Any, ...]:
    is_fixed = len(inner) > 1 and inner[-1] is not Ellipsis
    if not isinstance(value, list | tuple):
        length = f" of {len(inner)} values" if is_fixed else ""
        _refuse(f"is {describe_value(value)}, not a list{length}", place)
    kinds = inner if is_fixed else [inner[0]] * len(value)
    if len(kinds) != len(value):
        _refuse(f"has {len(value)} values, not {len(kinds)}", place)
    return tuple(
        [
            convert(kind, item, f"{place}[{index}]", is_closed=is_closed)
            for index, (kind, item) in enumerate(zip(kinds, value, strict=True))
        ]
    )


def _convert_fields(kind: Any, value: Any, place: str, is_closed: bool) -> Any:
    """Converts a mapping to a TypedDict or a dataclass."""
    types, required = _field_types(kind)
    if not isinstance(value, Mapping):
        allowed_text = f" of {', '.join(types)}" if is_closed else ""
        _refuse(f"is {describe_value(value)}, not a mapping{allowed_text}", place)
    if is_closed and (unknown := [name for name in value if name not in types]):
        name = str(unknown[0])
        _refuse(
            f"has no {describe_value(unknown[0])}: one of {', '.join(types)}{did_you_mean(name, types)}",
            place,
        )
    if missing := next((name for name in types if name in required and name not in value), None):
        _refuse("is missing", _join_place(place, missing))
    converted = {
        name: convert(types[name], value[name], _join_place(place, name), is_closed=is_closed)
        for name in types
        if name in value
    }
    try:
        return kind(**converted)
    except ValueError as error:  # from a dataclass that checks its fields against each other
        _refuse(str(error), place)


@functools.cache
def _field_types(kind: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """Returns the type of each field and the names of the required ones."""
    types = {
        name: field_type
        for name, field_type in get_type_hints(kind, include_extras=True).items()
        if INTERNAL not in get_args(field_type)
    }
    if not is_dataclass(kind):
        return types, kind.__required_keys__
    return types, frozenset(
        item.name for item in fields(kind) if item.default is item.default_factory is MISSING
    )


def _join_place(place: str, name: object) -> str:
    text = str(name)
    short_name = (text if text.isprintable() else ascii(text)[1:-1])[:_MAX_VALUE_CHARS]
    return f"{place}.{short_name}" if place else short_name


def _refuse(reason: str, place: str) -> NoReturn:
    raise InvalidValueError(reason, place)


def describe_value(value: Any) -> str:
    r"""Returns an invalid value as ASCII text for an error message.

    Long texts are shortened to 60 characters. Lists and mappings are not shown.

    >>> describe_value(None), describe_value([1, 2]), describe_value("Zürich")
    ('null', 'a list', "'Z\\xfcrich'")
    """
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 200:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, Mapping | list | tuple):
        return "a mapping" if isinstance(value, Mapping) else "a list"
    text = "null" if value is None else ascii(value)
    return text if len(text) <= _MAX_VALUE_CHARS else f"{text[:_MAX_VALUE_CHARS]}..."
