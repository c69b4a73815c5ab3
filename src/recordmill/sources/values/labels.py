"""A text column as the label: its distinct values, in order, become the classes of an int64 feature; and which texts
may be the number of a class.

The classes are sorted by their UTF-8 bytes, so that they depend on the data alone, not on the order in which it was
read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from recordmill.base.errors import DataError, UsageError
from recordmill.base.option_names import option
from recordmill.base.suggestions import there_are
from recordmill.schemas.feature import Feature, Schema

# 65,536: more than any classifier here has; a label with more is most likely an identifier or a sentence
MAX_CLASSES = 1 << 16


class ClassNames:
    """The distinct values of a text column, collected batch by batch; two of them add up.

    Raises:
        DataError: there are more than MAX_CLASSES.
    """

    def __init__(self, column: str, names: Iterable[str] = ()) -> None:
        self.column, self.names = column, set(names)

    def add(self, values: pa.Array) -> None:
        """Take in the values of a text column; nulls are no class."""
        self.names.update(pc.unique(values.drop_null()).to_pylist())
        self._check()

    def __add__(self, other: ClassNames) -> ClassNames:
        both = ClassNames(self.column, self.names | other.names)
        both._check()
        return both

    def _check(self) -> None:
        if len(self.names) > MAX_CLASSES:
            raise DataError(
                f"label {self.column!r} has more than {MAX_CLASSES:,} different values, so it names no "
                f"classes; leave {option('label')} out or choose another column"
            )

    def sorted(self) -> tuple[str, ...]:
        return tuple(sorted(self.names, key=str.encode))


def numbers_may_be_classes(classes: Iterable[str]) -> bool:
    """Whether text that is a number may be the number of a class: not where a class is called by a number, which would
    be taken for another one's.

    >>> numbers_may_be_classes(["cat", "dog"]), numbers_may_be_classes(["1", "2"])
    (True, False)
    """
    return not any(name.strip().lstrip("+-")[:1].isdigit() for name in classes)


def check_label(schema: Schema, label: str) -> Feature:
    """The label's feature.

    Raises:
        UsageError: there is no such column; the message lists them.
    """
    if label not in schema:
        raise UsageError(f"{option('label', label)}: no such column; {there_are(label, schema.names)}")
    return schema[label]


def with_label(schema: Schema, label: str, classes: tuple[str, ...] | None) -> Schema:
    """The schema with that label; classes make it an int64 feature, None leaves it as it is (a number)."""
    if classes is None:
        return replace(schema, label=label)
    features = tuple(replace(f, dtype="int64", classes=classes) if f.name == label else f for f in schema)
    return replace(schema, features=features, label=label)
