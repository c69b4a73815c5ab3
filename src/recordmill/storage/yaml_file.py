"""Parsing of YAML files that anyone may have written.

Only plain values are permitted, keys must be unique, and the depth and the repetitions by aliases
are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from recordmill.base.errors import DataError, UsageError
from recordmill.storage.files import read_range

_TAG = "tag:yaml.org,2002:"
# (type, pattern, first characters) of the plain values in the core schema of YAML 1.2.
_PLAIN_TYPES = (
    ("bool", "true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
)
_REPLACED_TAGS = {f"{_TAG}{name}" for name in ("bool", "int", "float", "timestamp")}
# 16 MiB: more than anyone writes by hand. A sparse file may report a size of 30 GB.
_MAX_BYTES = 16 << 20
_MAX_DEPTH = 16  # hand-written files are flat: the steps of a transform need 5
_MAX_VALUES = 1 << 20  # values repeated by an alias count each time


def read_yaml(path: str, label: str, expected: str) -> Mapping[str, Any]:
    """Returns the mapping in a YAML file. `check_nesting` checks its depth.

    Args:
        path: The file to read.
        label: The name of the file in messages, mostly an option with its value.
        expected: The expected contents of the mapping, for messages.

    Raises:
        UsageError: The file can't be read, or is not a mapping.
    """
    # Imported here, because few commands read YAML.
    import yaml

    try:
        content = yaml.load(
            read_range(path, max_bytes=_MAX_BYTES).tobytes().decode(), _make_loader(yaml)
        )
    except RecursionError:
        raise UsageError(
            "{label}: is nested too deep, or holds itself; write {expected}",
            label=label,
            expected=expected,
        ) from None
    except DataError as error:
        raise UsageError("{label}: {reason}", label=label, reason=error.reason) from None
    except OSError as error:
        raise UsageError(
            "{label}: can't be read: {error}", label=label, error=error.strerror or error
        ) from None
    # ValueError: text that is not UTF-8, or a date that does not exist.
    except (ValueError, yaml.YAMLError) as error:
        mark = getattr(error, "problem_mark", None)
        reason = (
            str(error).splitlines()[0]
            if mark is None
            else f"line {mark.line + 1}: {getattr(error, 'problem', '')}"
        )
        raise UsageError("{label}: can't be read: {reason}", label=label, reason=reason) from None
    if not isinstance(content, Mapping):
        raise UsageError("{label}: is not a mapping of {expected}", label=label, expected=expected)
    return content


def check_nesting(value: Any) -> None:
    """Raises ValueError if a value is nested too deeply or contains too many values.

    A value that contains itself is always too deep.
    """
    pending, count = [(value, 0)], 0
    while pending:
        node, depth = pending.pop()
        count += 1
        if depth > _MAX_DEPTH or count > _MAX_VALUES:
            raise ValueError("is nested too deep, or holds itself")
        if isinstance(node, Mapping | list | tuple):
            pending.extend(
                (item, depth + 1) for item in (node.values() if isinstance(node, Mapping) else node)
            )


def _make_loader(yaml: Any) -> Any:
    """Returns PyYAML's safe loader with two changes.

    * A duplicate key is an error. PyYAML would use the last one.
    * Plain values follow YAML 1.2: NO is a country, 1e-3 is a number, 010 is ten and 12:30 is a
      text.
    """

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        yaml_implicit_resolvers = {  # noqa: RUF012
            first: [(tag, pattern) for tag, pattern in resolvers if tag not in _REPLACED_TAGS]
            for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = set()
            for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
                if key.value in keys:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"{key.value!r} occurs twice", key.start_mark
                    )
                keys.add(key.value)
            return super().construct_mapping(node, deep)

        def construct_yaml_int(self, node: Any) -> int:
            # PyYAML's own function reads 010 as octal and 12:30 as base 60.
            text = self.construct_scalar(node)
            return int(text, {"0x": 16, "0o": 8}.get(text[:2], 10))

    for name, pattern, first in _PLAIN_TYPES:
        Loader.add_implicit_resolver(f"{_TAG}{name}", re.compile(f"^(?:{pattern})$"), list(first))
    Loader.add_constructor(f"{_TAG}int", Loader.construct_yaml_int)
    return Loader
