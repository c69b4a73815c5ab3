"""Reads a file of YAML that anybody may have written as a mapping: plain values only, no key twice, bounded in depth
and in what its aliases repeat.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from recordmill.base.errors import DataError, MissingExtraError, UsageError
from recordmill.storage.json_fields import read_bounded

_TAG = "tag:yaml.org,2002:"
_PLAIN_TYPES = (  # values of the core schema of YAML 1.2, with the characters that they begin with
    ("bool", "true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
)
_REPLACED_TAGS = {f"{_TAG}{name}" for name in ("bool", "int", "float", "timestamp")}
_MAX_BYTES = 16 << 20  # 16 MiB: of what people write; a file of holes may say that it has 30 GB
_MAX_DEPTH = 16  # of what people write: steps in a list in a mapping need 5
_MAX_VALUES = 1 << 20  # each as often as an alias repeats it


def read_yaml(path: str, label: str, expected: str) -> Mapping[str, Any]:
    """The mapping that a YAML file holds, of which `check_nesting` says whether it can be walked.

    named: what messages call the file, an option's mark mostly. wants: what the mapping is of, for messages.

    Raises:
        UsageError: it can't be read, or holds no mapping. MissingExtraError: PyYAML is not installed.
    """
    try:
        import yaml
    except ImportError:
        raise MissingExtraError(label, "tft", "yaml") from None
    try:
        content = yaml.load(read_bounded(path, _MAX_BYTES).decode(), _make_loader(yaml))
    except RecursionError:
        raise UsageError(
            f"{label}: is nested too deep, or holds itself; write {expected}"
        ) from None
    except DataError as error:
        raise UsageError(f"{label}: {error.reason}") from None
    except OSError as error:
        raise UsageError(f"{label}: can't be read: {error.strerror or error}") from None
    except (
        ValueError,
        yaml.YAMLError,
    ) as error:  # of values: text that is no UTF-8, a date that is none
        mark = getattr(error, "problem_mark", None)
        reason = (
            str(error).splitlines()[0]
            if mark is None
            else f"line {mark.line + 1}: {getattr(error, 'problem', '')}"
        )
        raise UsageError(f"{label}: can't be read: {reason}") from None
    if not isinstance(content, Mapping):
        raise UsageError(f"{label}: is no mapping of {expected}")
    return content


def check_nesting(value: Any) -> None:
    """Raises ValueError for what is nested too deep to be walked, as what holds itself is, and for too much of it."""
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
    """Returns YAML's safe loader, changed in two ways: of two equal keys the last would win without a word, and plain
    values are those of YAML 1.2: NO is a country, 1e-3 a number, 010 ten and 12:30 a text.
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
                        None, None, f"{key.value!r} stands twice", key.start_mark
                    )
                keys.add(key.value)
            return super().construct_mapping(node, deep)

        def construct_yaml_int(self, node: Any) -> int:
            text = self.construct_scalar(node)
            return int(text, {"0x": 16, "0o": 8}.get(text[:2], 10))

    for name, pattern, first in _PLAIN_TYPES:
        Loader.add_implicit_resolver(f"{_TAG}{name}", re.compile(f"^(?:{pattern})$"), list(first))
    Loader.add_constructor(f"{_TAG}int", Loader.construct_yaml_int)
    return Loader
