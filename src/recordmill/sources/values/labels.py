"""Class labels: the class names of text labels, and class numbers of the input.

A text label becomes an int64 feature. Its classes are the distinct values in the complete input,
sorted by their UTF-8 bytes. So they depend on the data alone, and not on the order of reading.

If the input has class names of its own, its class numbers are matched to the classes of the schema
by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recordmill.base.errors import DataError, UsageError
from recordmill.base.messages import Message
from recordmill.base.option_names import available_names, option
from recordmill.schemas.feature import Feature, Schema
from recordmill.sources.values.casting import (
    CastResult,
    cast_values,
    is_text_type,
    merge_masks,
    to_plain_array,
)

# 65,536 classes: no usual classifier has more. A label with more values is most likely an
# identifier or a sentence.
MAX_CLASSES = 1 << 16
_TEXT_FEATURE, _INTEGER_FEATURE = Feature("", "string"), Feature("", "int64")


class ClassNames:
    """Distinct values of a label as text, collected over an input.

    Collection stops above MAX_CLASSES. Only `sorted_classes` reports this, because a label of
    numbers needs no names.

    Args:
        column: Name of the label.
        names: Values that are known already.
    """

    def __init__(self, column: str, names: Iterable[str] = ()) -> None:
        self.column, self.names = column, set(names)

    def add(self, values: pa.Array, source_classes: Sequence[str] | None = None) -> None:
        """Adds the values of an array of any type. The items of lists are values.

        Values become text as with `--dtype COLUMN=string`. Nulls are ignored.

        Args:
            values: The array.
            source_classes: Class names that the numbers in `values` refer to, or None. The names
                are added then.
        """
        if len(self.names) > MAX_CLASSES:
            return
        values = to_plain_array(values)
        while pa.types.is_nested(values.type):
            values = to_plain_array(values.flatten())
        if values.type == pa.uuid():  # which `unique` does not support
            values = cast_values(values, _TEXT_FEATURE).values
        cast = fit_values(pc.unique(values.drop_null()), _TEXT_FEATURE, source_classes)
        texts = (
            cast.values if cast.bad_mask is None else cast.values.filter(pa.array(~cast.bad_mask))
        )
        self.names.update(texts.to_pylist())

    def __iadd__(self, added: ClassNames) -> ClassNames:
        if len(self.names) <= MAX_CLASSES:
            self.names |= added.names
        return self

    def sorted_classes(self) -> tuple[str, ...]:
        """Returns the classes in the order of their UTF-8 bytes.

        Raises:
            DataError: There are no values, or more than MAX_CLASSES.
        """
        if not self.names:
            raise DataError(
                f"label {self.column!r} has no values, only nulls; choose another column"
            )
        if len(self.names) > MAX_CLASSES:
            raise DataError(
                "label {column} has more than {max_classes} different values, so it names no "
                "classes; leave {label} out or choose another column",
                column=repr(self.column),
                max_classes=f"{MAX_CLASSES:,}",
                label=option("label"),
            )
        return sort_classes(self.names)


def sort_classes(names: Iterable[str]) -> tuple[str, ...]:
    """Returns the distinct names in the order of their UTF-8 bytes.

    >>> sort_classes(["dog", "cat", "dog"])
    ('cat', 'dog')
    """
    return tuple(sorted(set(names), key=str.encode))


def fit_values(
    values: pa.Array,
    feature: Feature,
    source_classes: Sequence[str] | None = None,
    *,
    as_text: bool = False,
) -> CastResult:
    """Casts a column of scalars to a feature, which may have classes.

    Args:
        values: The values.
        feature: The feature.
        source_classes: Class names that the numbers in `values` refer to, or None. The numbers are
            then matched by name to the classes of the feature, or replaced by the names if the
            feature is text.
        as_text: Whether numbers, if there are no `source_classes`, are looked up as class names by
            their text. Otherwise they are class numbers of the feature.
    """
    if feature.classes is not None:
        if not as_text or source_classes is not None or is_text_type(to_plain_array(values).type):
            return to_class_numbers(values, feature.classes, source_classes)
        texts = cast_values(values, _TEXT_FEATURE)
        class_numbers = _look_up_names(_good_values(texts), feature.classes)
        return class_numbers._replace(bad_mask=merge_masks(class_numbers.bad_mask, texts.bad_mask))
    if source_classes is not None and feature.dtype in ("string", "bytes"):
        numbers = _mark_outside(cast_values(values, _INTEGER_FEATURE), len(source_classes))
        names = cast_values(
            pa.array(source_classes, pa.large_string()).take(_good_values(numbers)), feature
        )
        return names._replace(bad_mask=merge_masks(names.bad_mask, numbers.bad_mask))
    return cast_values(values, feature)


def to_class_numbers(
    values: pa.Array, classes: Sequence[str], source_classes: Sequence[str] | None = None
) -> CastResult:
    """Converts class names or class numbers to the numbers of the given classes.

    Booleans are looked up as the names `true` and `false`. A value that is not a class is bad.

    Args:
        values: Names or numbers.
        classes: The classes of the result. The number of a class is its index.
        source_classes: Class names that the numbers in `values` refer to. None means that they
            refer to `classes`.
    """
    values = to_plain_array(values)
    if pa.types.is_boolean(values.type):
        values = cast_values(values, _TEXT_FEATURE).values
    if is_text_type(values.type):
        return _look_up_names(values, classes)
    if source_classes is None or source_classes == classes:
        return _mark_outside(cast_values(values, _INTEGER_FEATURE), len(classes))
    numbers = _mark_outside(cast_values(values, _INTEGER_FEATURE), len(source_classes))
    table = pc.index_in(
        pa.array(source_classes, pa.large_string()), value_set=pa.array(classes, pa.large_string())
    )
    class_numbers = pc.cast(table, pa.int64()).take(_good_values(numbers))
    return CastResult(class_numbers, _unmatched_mask(values, class_numbers))


def _look_up_names(values: pa.Array, classes: Sequence[str]) -> CastResult:
    index = pc.cast(
        pc.index_in(values, value_set=pa.array(classes, values.type), skip_nulls=True), pa.int64()
    )
    unknown = _unmatched_mask(values, index)
    # names are looked up first; only other texts may be class numbers
    if unknown is None or not numbers_may_be_classes(classes):
        return CastResult(index, unknown)
    unmatched = pc.if_else(pa.array(unknown), values, pa.scalar(None, values.type))
    numbers = _mark_outside(cast_values(unmatched, _INTEGER_FEATURE), len(classes))
    return CastResult(pc.coalesce(index, _good_values(numbers)), numbers.bad_mask)


def numbers_may_be_classes(classes: Iterable[str]) -> bool:
    """Returns whether a text such as `7` may be the number of a class.

    The result is False if the name of a class begins with a digit, because the text could be meant
    as that name.

    >>> numbers_may_be_classes(["cat", "dog"]), numbers_may_be_classes(["1", "2"])
    (True, False)
    """
    return not any(name.strip().lstrip("+-")[:1].isdigit() for name in classes)


def _mark_outside(numbers: CastResult, count: int) -> CastResult:
    """Marks numbers outside of [0, count) as bad."""
    outside = pc.or_(pc.less(numbers.values, 0), pc.greater_equal(numbers.values, count))
    mask = pc.fill_null(outside, False).to_numpy(zero_copy_only=False)
    return numbers._replace(bad_mask=merge_masks(numbers.bad_mask, mask if mask.any() else None))


def _good_values(numbers: CastResult) -> pa.Array:
    """Returns the numbers, with nulls for bad ones."""
    if numbers.bad_mask is None:
        return numbers.values
    return pc.if_else(
        pa.array(numbers.bad_mask), pa.scalar(None, numbers.values.type), numbers.values
    )


def _unmatched_mask(values: pa.Array, matches: pa.Array) -> npt.NDArray[np.bool_] | None:
    """Returns a mask of the values that have no match.

    Nulls are not marked. Returns None if no value is marked.
    """
    mask: npt.NDArray[np.bool_] = pc.and_(values.is_valid(), matches.is_null()).to_numpy(
        zero_copy_only=False
    )
    return mask if mask.any() else None


def has_text_classes(label: str | None, schema: Schema, classes: ClassNames | None) -> bool:
    """Returns whether the distinct texts of a label are its classes.

    Args:
        label: Name of the label, or None.
        schema: The schema before a text label becomes a class number.
        classes: The values of the label. None if the schema is declared.
    """
    return (
        label is not None
        and classes is not None
        and label in schema
        and schema[label].dtype == "string"
    )


def with_label(schema: Schema, label: str, classes: ClassNames | None) -> Schema:
    """Returns the schema with a label.

    Args:
        schema: The schema.
        label: Name of the label.
        classes: Distinct values of the label. A text label then becomes an int64 feature with these
            classes. If None, as for a declared schema, the feature is kept as it is.

    Raises:
        UsageError: There is no such column.
        DataError: A text label has no values, or too many.
    """
    if label not in schema:
        raise UsageError(
            "{label}: no such column; {available_names}",
            label=option("label", label),
            available_names=available_names(label, schema.names),
        )
    if classes is None or not has_text_classes(label, schema, classes):
        return replace(schema, label=label)
    names = classes.sorted_classes()
    features = tuple(
        replace(f, dtype="int64", classes=names) if f.name == label else f for f in schema
    )
    return replace(schema, features=features, label=label)


def float_label_notes(schema: Schema, declared_schema: Schema | None) -> tuple[str, ...]:
    """Returns a note if the label is a float, which has no classes.

    There is no note if the user has declared the schema.
    """
    label = None if schema.label is None or declared_schema is not None else schema[schema.label]
    if label is None or not label.dtype.startswith(("float", "bfloat")):
        return ()
    remedy = option("dtypes", {label.name: "string"})
    return (
        Message(
            "label {label} is {dtype}, a number without classes; {remedy} makes its values classes",
            label=repr(label.name),
            dtype=label.dtype,
            remedy=remedy,
        ),
    )
