"""The label in every kind of input: the values of a label of text, of all parts, become the classes of an int64
feature; and names, or numbers of classes that the data brings along, become those of the schema's classes, by name.

The classes are sorted by their UTF-8 bytes, so that they depend on the data alone, not on the order in which it was
read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recordmill.base.errors import DataError, UsageError
from recordmill.base.option_names import option, there_are
from recordmill.schemas.feature import Feature, Schema
from recordmill.sources.values.casting import Cast, cast_values, either, is_text_type, plain

# 65,536: more than any classifier here has; a label with more is most likely an identifier or a sentence
MAX_CLASSES = 1 << 16
_TEXT, _NUMBER = Feature("", "string"), Feature("", "int64")
_SHOWN = 20  # classes in a message


class ClassNames:
    """The distinct values of a label, as text, collected part by part, and added up. More than MAX_CLASSES are not
    counted on: only who asks for them is told, since a label of numbers has no names.
    """

    def __init__(self, column: str, names: Iterable[str] = ()) -> None:
        self.column, self.names = column, set(names)

    def add(self, values: pa.Array, given: Sequence[str] | None = None) -> None:
        """Takes in values of any type, lists too, as `--dtype COLUMN=string` reads them; nulls are no class. given: the
        classes whose numbers they are.
        """
        if len(self.names) > MAX_CLASSES:
            return
        values = plain(values)
        while pa.types.is_nested(values.type):
            values = plain(values.flatten())
        found = fit_values(pc.unique(values.drop_null()), _TEXT, given)
        texts = found.values if found.bad is None else found.values.filter(pa.array(~found.bad))
        self.names.update(texts.to_pylist())

    def __iadd__(self, other: ClassNames) -> ClassNames:
        if len(self.names) <= MAX_CLASSES:
            self.names |= other.names
        return self

    def sorted(self) -> tuple[str, ...]:
        """Returns the classes.

        Raises:
            DataError: there are none, or more than MAX_CLASSES.
        """
        if not self.names:
            raise DataError(
                f"label {self.column!r} has no values, only nulls; choose another column"
            )
        if len(self.names) > MAX_CLASSES:
            raise DataError(
                f"label {self.column!r} has more than {MAX_CLASSES:,} different values, so it names no "
                f"classes; leave {option('label')} out or choose another column"
            )
        return sort_classes(self.names)


def sort_classes(names: Iterable[str]) -> tuple[str, ...]:
    """Returns the names, each once, in the order of their UTF-8 bytes."""
    return tuple(sorted(set(names), key=str.encode))


def show_classes(classes: Sequence[str]) -> str:
    """Returns the classes for a message."""
    return ", ".join(map(repr, classes[:_SHOWN])) + (", ..." if len(classes) > _SHOWN else "")


def fit_values(
    values: pa.Array, feature: Feature, given: Sequence[str] | None = None, *, as_text: bool = False
) -> Cast:
    """Returns the values, none of them a list, as the feature's value type. given: the classes whose numbers they are,
    if the data says so: then they go by name. as_text: so do numbers of no class, by the text that they are.
    """
    if feature.classes is not None:
        if not as_text or given is not None or is_text_type(plain(values).type):
            return to_classes(values, feature.classes, given)
        texts = cast_values(values, _TEXT)
        found = _of_names(_where_good(texts), feature.classes)
        return found._replace(bad=either(found.bad, texts.bad))
    if given is not None and feature.dtype in ("string", "bytes"):
        numbers = _bounded(cast_values(values, _NUMBER), len(given))
        names = cast_values(pa.array(given, pa.large_string()).take(_where_good(numbers)), feature)
        return names._replace(bad=either(names.bad, numbers.bad))
    return cast_values(values, feature)


def to_classes(
    values: pa.Array, classes: Sequence[str], given: Sequence[str] | None = None
) -> Cast:
    """Returns names, or numbers, as the numbers of these classes; what is none is bad. A truth value is a name, true or
    false. given: the classes whose numbers the data has, by its own word; None: numbers are those of the classes
    themselves.
    """
    values = plain(values)
    if pa.types.is_boolean(values.type):
        values = cast_values(values, _TEXT).values
    if is_text_type(values.type):
        return _of_names(values, classes)
    if given is None or given == classes:
        return _bounded(cast_values(values, _NUMBER), len(classes))
    numbers = _bounded(cast_values(values, _NUMBER), len(given))
    table = pc.index_in(
        pa.array(given, pa.large_string()), value_set=pa.array(classes, pa.large_string())
    )
    found = pc.cast(table, pa.int64()).take(_where_good(numbers))
    return Cast(found, _lost(values, found))


def _of_names(values: pa.Array, classes: Sequence[str]) -> Cast:
    index = pc.cast(
        pc.index_in(values, value_set=pa.array(classes, values.type), skip_nulls=True), pa.int64()
    )
    unknown = _lost(values, index)
    if unknown is None or not numbers_may_be_classes(classes):
        return Cast(index, unknown)
    others = pc.if_else(pa.array(unknown), values, pa.scalar(None, values.type))
    numbers = _bounded(cast_values(others, _NUMBER), len(classes))
    return Cast(pc.coalesce(index, _where_good(numbers)), numbers.bad)


def numbers_may_be_classes(classes: Iterable[str]) -> bool:
    """Returns whether text that is a number may be the number of a class: not where a class is called by a number,
    which would be taken for another one's.

    >>> numbers_may_be_classes(["cat", "dog"]), numbers_may_be_classes(["1", "2"])
    (True, False)
    """
    return not any(name.strip().lstrip("+-")[:1].isdigit() for name in classes)


def _bounded(numbers: Cast, count: int) -> Cast:
    """Marks numbers that are not below count as bad."""
    outside = pc.or_(pc.less(numbers.values, 0), pc.greater_equal(numbers.values, count))
    mask = pc.fill_null(outside, False).to_numpy(zero_copy_only=False)
    return numbers._replace(bad=either(numbers.bad, mask if mask.any() else None))


def _where_good(numbers: Cast) -> pa.Array:
    """Returns the numbers, null where they are bad."""
    if numbers.bad is None:
        return numbers.values
    return pc.if_else(pa.array(numbers.bad), pa.scalar(None, numbers.values.type), numbers.values)


def _lost(values: pa.Array, found: pa.Array) -> npt.NDArray[np.bool_] | None:
    """Returns where there was a value, and nothing was found for it."""
    lost: npt.NDArray[np.bool_] = pc.and_(values.is_valid(), found.is_null()).to_numpy(
        zero_copy_only=False
    )
    return lost if lost.any() else None


def is_named(label: str | None, schema: Schema, classes: ClassNames | None) -> bool:
    """Returns whether the label's classes are the texts of its own values, given the schema before it is the label."""
    return (
        label is not None
        and classes is not None
        and label in schema
        and schema[label].dtype == "string"
    )


def with_label(schema: Schema, label: str, classes: ClassNames | None) -> Schema:
    """Returns the schema with that label. classes: what its values are: they make a label of text an int64 feature;
    None: the schema is given and stays as it is.

    Raises:
        UsageError: there is no such column. DataError: a label of text has no values, or too many.
    """
    if label not in schema:
        raise UsageError(
            f"{option('label', label)}: no such column; {there_are(label, schema.names)}"
        )
    if classes is None or not is_named(label, schema, classes):
        return replace(schema, label=label)
    names = classes.sorted()
    features = tuple(
        replace(f, dtype="int64", classes=names) if f.name == label else f for f in schema
    )
    return replace(schema, features=features, label=label)


def note_float_label(schema: Schema, given: Schema | None) -> tuple[str, ...]:
    """Returns a note on a label of floats, which has no classes, unless the user gives the schema."""
    label = None if schema.label is None or given is not None else schema[schema.label]
    if label is None or not label.dtype.startswith(("float", "bfloat")):
        return ()
    remedy = option("dtypes", {label.name: "string"})
    return (
        f"label {label.name!r} is {label.dtype}, a number without classes; {remedy} makes its values classes",
    )
