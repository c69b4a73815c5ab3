"""Parsing and validation of JSON files that anyone may have written.

A file must be UTF-8 and bounded in size, without duplicate keys, NaN or infinity. `convert_json`
checks a value against a type and creates the dataclasses in it. Every problem is a DataError with
the file, the field and the reason.
"""

from __future__ import annotations

import functools
import json
import os
import re
import stat as modes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from types import UnionType
from typing import Annotated, Any, NoReturn, get_args, get_origin, get_type_hints

from recordmill.base.errors import DataError
from recordmill.storage.archives import is_archive_member
from recordmill.storage.files import is_remote, read_object_or_member

# 256 MiB: enough for a manifest of about 900,000 shards, and much more than these files need.
MAX_JSON_BYTES = 256 << 20
_MIN_READ_BYTES = 64 << 10  # 64 KiB: for files without a size, such as files of the kernel
_MAX_VALUE_CHARS = 60  # length of a wrong value in a message
MAX_COUNT = 2**63 - 1  # the largest number of records or bytes, which fits an int64


def read_bounded(path: str | os.PathLike[str], max_bytes: int = MAX_JSON_BYTES) -> bytes:
    """Returns the content of a regular file of at most `max_bytes`.

    Does not wait for a pipe. The path may be in a store or an archive.

    Raises:
        OSError: The file can't be opened or read. FileNotFoundError if it is missing.
        DataError: The file is not regular, or too large.
    """
    if is_remote(os.fspath(path)) or is_archive_member(os.fspath(path)):
        return read_object_or_member(os.fspath(path), max_bytes)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        file_stat = os.fstat(descriptor)
        if not modes.S_ISREG(file_stat.st_mode):
            raise DataError("is no regular file", source=os.fspath(path))
        # `read` allocates this many bytes. The extra byte shows whether the file is larger.
        request_bytes = min(max_bytes, max(file_stat.st_size, _MIN_READ_BYTES)) + 1
        try:
            data = file.read(request_bytes) if file_stat.st_size <= max_bytes else b""
        except OSError as error:  # it does not name the file
            raise OSError(error.errno, error.strerror, os.fspath(path)) from None
        if len(data) == request_bytes <= max_bytes:
            raise DataError("grows while it is read", source=os.fspath(path))
        if file_stat.st_size > max_bytes or len(data) > max_bytes:
            raise DataError(
                f"has {file_stat.st_size:,} bytes, above the {max_bytes:,} allowed",
                source=os.fspath(path),
            )
        return data


def parse_json(data: bytes | str, source: str, *, allow_nan: bool = False) -> Any:
    """Returns the value of a JSON text.

    Args:
        data: The text.
        source: The name of the file, for errors.
        allow_nan: NaN and Infinity, which Python's `json` writes, are floats instead of errors.

    Raises:
        DataError: The text is not JSON or UTF-8, has a duplicate key, or is nested too deeply.
    """
    try:
        text = data.decode("utf-8") if isinstance(data, bytes) else data
        parse_constant = float if allow_nan else _refuse_constant
        return json.loads(text, object_pairs_hook=_make_object, parse_constant=parse_constant)
    except UnicodeDecodeError as error:
        raise DataError(f"is not UTF-8 (byte {error.start})", source=source) from None
    except RecursionError:
        raise DataError("is nested too deeply", source=source) from None
    except ValueError as error:
        raise DataError(f"is no JSON: {str(error)[:200]}", source=source) from None


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = set[str]()
        duplicate = next(name for name, _ in pairs if name in names or names.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {duplicate!a} stands there twice")
    return members


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON")


@dataclass(frozen=True)
class Check:
    """Condition on a value, for `Annotated[type, Check(...)]`.

    Attributes:
        predicate: Returns a true value if the condition holds.
        requirement: Text for the message "is VALUE, not REQUIREMENT".
    """

    predicate: Callable[[Any], object]
    requirement: str


def matches(pattern: str, requirement: str) -> Check:
    """Returns a check that a text fully matches a regular expression, with ASCII classes."""
    return Check(re.compile(pattern, re.ASCII).fullmatch, requirement)


def between(minimum: int, maximum: int) -> Check:
    """Returns a check that a number is in [minimum, maximum]."""
    return Check(lambda value: minimum <= value <= maximum, f"from {minimum} to {maximum}")


Count = Annotated[int, between(0, MAX_COUNT)]
_TYPE_NAMES = {str: "a string", int: "a whole number", bool: "true or false"}


def convert_json(kind: Any, value: Any, source: str, place: str = "") -> Any:
    """Checks a parsed JSON value against a type and returns it as that type.

    Args:
        kind: `Any`, a plain type, `T | None`, a sequence or mapping of such types, `Annotated` with
            `Check`s, a TypedDict or a dataclass. Unknown fields of the latter two are dropped.
        value: The value from `parse_json`.
        source: The name of the file, for errors.
        place: The field that contains the value, for errors.

    Raises:
        DataError: The value has another type, fails a check, or lacks a field. The error names the
            file and the field.
    """
    if kind is Any:
        return value
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        converted = convert_json(inner[0], value, source, place)
        for check in inner[1:]:
            if not check.predicate(converted):
                _refuse(f"is {format_json_value(value)}, not {check.requirement}", source, place)
        return converted
    if origin is UnionType:
        return None if value is None else convert_json(inner[0], value, source, place)
    if kind in _TYPE_NAMES:
        if type(value) is not kind:  # not `isinstance`, because a bool is an int
            _refuse(f"is {format_json_value(value)}, not {_TYPE_NAMES[kind]}", source, place)
        return value
    if kind is float:
        if type(value) not in (int, float) or abs(value) > MAX_COUNT:
            _refuse(f"is {format_json_value(value)}, not a number", source, place)
        return float(value)
    if origin is Sequence or origin is tuple:
        if not isinstance(value, list):
            _refuse(f"is {format_json_value(value)}, not a list", source, place)
        return tuple(
            [
                convert_json(inner[0], item, source, f"{place}[{index}]")
                for index, item in enumerate(value)
            ]
        )
    if not isinstance(value, dict):
        _refuse(f"is {format_json_value(value)}, not an object", source, place)
    if origin is Mapping:
        return {
            convert_json(
                inner[0], name, source, child_place := _child_place(place, name)
            ): convert_json(inner[1], item, source, child_place)
            for name, item in value.items()
        }
    types, required = _field_types(kind)
    if missing := next((name for name in types if name in required and name not in value), None):
        _refuse("is missing", source, _child_place(place, missing))
    converted = {
        name: convert_json(types[name], value[name], source, _child_place(place, name))
        for name in types
        if name in value
    }
    return kind(**converted)


def load_json(kind: Any, path: str | os.PathLike[str]) -> Any:
    """Reads, parses and converts a JSON file.

    See `read_bounded`, `parse_json` and `convert_json` for the errors.
    """
    name = os.fspath(path)
    return convert_json(kind, parse_json(read_bounded(path), name), name)


@functools.cache
def _field_types(kind: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """Returns the type of each field and the names of the required ones."""
    types = get_type_hints(kind, include_extras=True)
    if not is_dataclass(kind):
        return types, kind.__required_keys__
    return types, frozenset(
        item.name for item in fields(kind) if item.default is item.default_factory is MISSING
    )


def _child_place(place: str, name: str) -> str:
    short_name = name if name.isprintable() else ascii(name)[1:-1]
    return f"{place}.{short_name[:_MAX_VALUE_CHARS]}" if place else short_name[:_MAX_VALUE_CHARS]


def _refuse(reason: str, source: str, place: str) -> NoReturn:
    raise DataError(reason, source=source, place=place)


def format_json_value(value: Any) -> str:
    r"""Returns a wrong value in ASCII for a message, shortened to 60 characters.

    >>> format_json_value(None), format_json_value([1, 2]), format_json_value("Zürich")
    ('null', 'a list', "'Z\\xfcrich'")
    """
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 200:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, dict | list):
        return "a list" if isinstance(value, list) else "a JSON object"
    text = "null" if value is None else ascii(value)
    return text if len(text) <= _MAX_VALUE_CHARS else f"{text[:_MAX_VALUE_CHARS]}..."
