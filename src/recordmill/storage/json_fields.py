"""Parsing and validation of JSON files that anyone may have written.

A file must be UTF-8 and bounded in size, without duplicate keys, NaN or infinity. Every problem is
a DataError with the file, the field and the reason.
"""

from __future__ import annotations

import json
import os
from typing import Any, NoReturn

from recordmill.base.documents import InvalidValueError, convert
from recordmill.base.errors import DataError
from recordmill.storage.files import read_range

# 256 MiB: enough for a manifest of about 900,000 shards, and much more than these files need.
MAX_JSON_BYTES = 256 << 20


def parse_json(data: bytes | str, source: str, *, allow_nan: bool = False) -> Any:
    """Returns the value of a JSON text.

    Args:
        data: The text.
        source: The name of the file, for errors.
        allow_nan: Whether NaN and Infinity, which Python's `json` writes, are accepted as floats.

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
        raise DataError(f"is not JSON: {str(error)[:200]}", source=source) from None


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = set[str]()
        duplicate = next(name for name, _ in pairs if name in names or names.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {duplicate!a} occurs twice")
    return members


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a number in JSON")


def convert_json(kind: Any, value: Any, source: str, place: str = "") -> Any:
    """Checks a parsed JSON value against a type and returns it as that type.

    See `documents.convert` for the types. Unknown fields are dropped.

    Args:
        kind: The type.
        value: The value from `parse_json`.
        source: The name of the file, for errors.
        place: The field that contains the value, for errors.

    Raises:
        DataError: The value has another type, fails a check, or lacks a field. The error names the
            file and the field.
    """
    try:
        return convert(kind, value, place)
    except InvalidValueError as error:
        raise DataError(error.reason, source=source, place=error.place) from None


def load_json(kind: Any, path: str | os.PathLike[str]) -> Any:
    """Reads, parses and converts a JSON file.

    See `read_range`, `parse_json` and `convert_json` for the errors.
    """
    name = os.fspath(path)
    return convert_json(
        kind, parse_json(read_range(path, max_bytes=MAX_JSON_BYTES).tobytes(), name), name
    )
