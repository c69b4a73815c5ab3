"""Collations: how the values of a feature are combined into a batch.

"ragged": Lists as they are (`Ragged`). This is the default.

"dense": An array [rows, items, ...]. Rows of different lengths are an error.

`Padded`: An array [rows, length, ...] that is filled up. With `lengths=True` also `name/length`
[rows], the number of items of each row before it was cut. "padded" is `Padded()`.

`Bucketed`: Like `Padded`, and records of similar length form a batch. "bucketed" is `Bucketed()`.

`Packed`: The lists of several records, one after the other, in a row of fixed length.

`OneHot`: An integer as float32 [rows, depth]. "one_hot" is `OneHot()`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from recordmill.base.arguments import suggest_fields
from recordmill.base.errors import UsageError
from recordmill.base.option_names import available_names, did_you_mean
from recordmill.records.columns.numpy_arrays import is_bytes, numpy_dtype
from recordmill.schemas.feature import Feature, Schema

# Steps that are sorted by length together: 16,384 records in batches of 256.
_SORTED_STEPS = 64


@suggest_fields
@dataclass(frozen=True)
class Padded:
    """Collation of lists to an array in which shorter rows are filled up.

    Args:
        length: Length of the rows of all batches. Longer rows are cut. None means the length of the
            longest row of each batch.
        multiple: Without `length`, the length is rounded up to a multiple of this.
        value: The value that fills up rows.
        lengths: If True, batches also contain `name/length`, the original number of items of each
            row.

    Raises:
        UsageError: A number is below 1, or both `length` and `multiple` are set.

    Examples:
        >>> ds = recordmill.open("shards")
        >>> batches = ds.batches(3, shuffle=False, collate={"tokens": Padded(4)})
        >>> next(batches)["tokens"].tolist()
        [[1, 1, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]]
    """

    length: int | None = None
    multiple: int = 1
    value: Any = 0
    lengths: bool = False

    def __post_init__(self) -> None:
        if self.multiple < 1 or (self.length is not None and self.length < 1):
            raise UsageError(f"Padded: length and multiple must be at least 1: {self}")
        if self.length is not None and self.multiple > 1:
            raise UsageError(f"Padded: give a length or a multiple, not both: {self}")


@suggest_fields
@dataclass(frozen=True)
class Bucketed:
    """Collation of lists like `Padded`, with records of similar length in each batch.

    The records of some steps are sorted by the length of this list and divided into batches again,
    so that little is filled up. The batches are in random order, or sorted if nothing is shuffled.
    Only one feature may be bucketed.

    Args:
        boundaries: Lengths in ascending order. A batch is padded to the smallest boundary that its
            longest row fits in. Rows beyond the last boundary are padded to the longest one. If
            None, one pass over the feature determines boundaries, so that the buckets contain
            equally many records.
        buckets: Number of buckets, if `boundaries` is None.
        length: Longer rows are cut to this length. If None, no row is cut.
        value: The value that fills up rows.
        steps: Number of steps that are sorted together.
        lengths: If True, batches also contain `name/length`, the original number of items of each
            row.

    Raises:
        UsageError: The boundaries are not ascending lengths, or a number is below 1.
    """

    boundaries: tuple[int, ...] | None = None
    buckets: int = 8
    length: int | None = None
    value: Any = 0
    steps: int = _SORTED_STEPS
    lengths: bool = False

    def __post_init__(self) -> None:
        if self.boundaries is not None:
            lengths = () if isinstance(self.boundaries, str) else tuple(self.boundaries)
            if not lengths or list(lengths) != sorted({*lengths}) or lengths[0] < 1:
                raise UsageError(
                    f"Bucketed: boundaries are lengths from 1 on, ascending, not {self.boundaries!r}"
                )
            object.__setattr__(self, "boundaries", lengths)
        if min(self.buckets, self.steps, 1 if self.length is None else self.length) < 1:
            raise UsageError(f"Bucketed: buckets, length and steps must be at least 1: {self}")


@suggest_fields
@dataclass(frozen=True)
class Packed:
    """Collation of the lists of several records to rows of a fixed length.

    A batch has `batch_size` rows. Each record is added to the first row that has room for it, in
    the order of the epoch. If no row has room, the next batch begins. A record that is longer than
    a row is cut, and counted.

    A batch contains the feature as [rows, length]. `name/segment` is int32 [rows, length] with 1,
    2, ... for the records of a row, and 0 for the end of the row. `name/position` is int32 [rows,
    length] with the index in each record, from 0. Other features become one list per row.

    Args:
        length: Length of the rows.
        value: The value that fills up rows.

    Raises:
        UsageError: The length is below 1.
    """

    length: int
    value: Any = 0

    def __post_init__(self) -> None:
        if self.length < 1:
            raise UsageError(f"Packed: length must be at least 1: {self}")


@suggest_fields
@dataclass(frozen=True)
class OneHot:
    """Collation of an integer to a one-hot vector.

    Args:
        depth: Number of classes. None means the number of class names in the schema.

    Raises:
        UsageError: `depth` is below 1.

    Examples:
        >>> ds = recordmill.open("shards")
        >>> batches = ds.batches(2, shuffle=False, collate={"animal": OneHot(2)})
        >>> next(batches)["animal"].tolist()
        [[0.0, 1.0], [1.0, 0.0]]
    """

    depth: int | None = None

    def __post_init__(self) -> None:
        if self.depth is not None and self.depth < 1:
            raise UsageError(f"OneHot: depth must be at least 1: {self}")


Collation = Padded | Bucketed | Packed | OneHot | Literal["ragged", "dense"]
Collate = Collation | Literal["padded", "bucketed", "one_hot"]
_COLLATIONS_BY_NAME: Mapping[str, Collation] = {
    "ragged": "ragged",
    "dense": "dense",
    "padded": Padded(),
    "bucketed": Bucketed(),
    "one_hot": OneHot(),
}
_COLLATIONS_TEXT = '"ragged", "dense", "padded", "bucketed", "one_hot", Padded(...), Bucketed(...), Packed(length) or OneHot(...)'


def resolve_collations(
    collate: Mapping[str, Collate] | Collate, schema: Schema
) -> dict[str, Collation]:
    """Returns the collation of each feature, except features that remain ragged.

    Args:
        collate: A collation for all lists, or collations by feature name.
        schema: The features that are read.

    Raises:
        UsageError: A feature or a collation is unknown, does not fit, or excludes another one.
    """
    if isinstance(collate, str) and collate not in _COLLATIONS_BY_NAME:
        raise UsageError(
            f"collate is {_COLLATIONS_TEXT}, not {collate!r}{did_you_mean(collate, _COLLATIONS_BY_NAME)}"
        )
    if isinstance(collate, str | Padded | Bucketed | Packed | OneHot):
        mode, collate = collate, {f.name: collate for f in schema if f.ragged_rank}
        if not collate:
            raise UsageError(
                f"collate={mode!r}: none of the selected features is a list. To convert one feature only, "
                "pass {name: mode}"
            )
    if not isinstance(collate, Mapping):
        raise UsageError(
            f"collate is one of these for all lists, or a dict of them by feature name: {_COLLATIONS_TEXT}; "
            f"not {collate!r}"
        )
    collations: dict[str, Collation] = {}
    for name, choice in collate.items():
        if name not in schema:
            raise UsageError(
                f"collate: {name!r} is not a selected feature; "
                f"{available_names(name, schema.names)}"
            )
        collation = _COLLATIONS_BY_NAME.get(choice) if isinstance(choice, str) else choice
        if collation is None or not isinstance(
            collation, str | Padded | Bucketed | Packed | OneHot
        ):
            raise UsageError(f"collate: {name} is {_COLLATIONS_TEXT}, not {choice!r}")
        collation = (
            _resolve_one_hot(collation, schema[name])
            if isinstance(collation, OneHot)
            else _check_list_collation(collation, schema[name], schema)
        )
        if collation != "ragged":
            collations[name] = collation
    _check_compatible(collations)
    return collations


def _check_list_collation(collation: Collation, feature: Feature, schema: Schema) -> Collation:
    if not feature.ragged_rank:
        lists = ", ".join(feature.name for feature in schema if feature.ragged_rank)
        raise UsageError(
            f"collate: {feature.name!r} is not a selected list; there are {lists or 'none'}"
        )
    if isinstance(collation, Packed) and (feature.ragged_rank > 1 or is_bytes(feature)):
        raise UsageError(
            f"collate: {feature.name!r} is {feature.describe()}: Packed takes lists of numbers"
        )
    return (
        collation
        if isinstance(collation, str | OneHot)
        else replace(collation, value=_check_fill_value(collation.value, feature))
    )


def _check_fill_value(value: Any, feature: Feature) -> Any:
    """Returns the value that fills up rows, with the type of the feature.

    For texts, 0 means the empty text.
    """
    if is_bytes(feature):
        kind = str if feature.dtype == "string" else bytes
        # compares the type, because False == 0, but only the number 0 means the empty text
        value = kind() if type(value) is int and value == 0 else value
        if isinstance(value, kind):
            return value
    else:
        with contextlib.suppress(ValueError, TypeError, OverflowError):
            return cast_fill_value(value, numpy_dtype(feature))
    raise UsageError(
        f"collate: {feature.name!r} is {feature.describe()}, which can't be padded with {value!r}"
    )


def _resolve_one_hot(collation: OneHot, feature: Feature) -> OneHot:
    if feature.shape or "int" not in feature.dtype:
        raise UsageError(
            f"collate: {feature.name!r} is {feature.describe()}: one_hot takes one "
            "whole number per record"
        )
    if collation.depth is None and feature.classes is None:
        raise UsageError(
            f"collate: the number of classes of {feature.name!r} is unknown: use OneHot(depth)"
        )
    return OneHot(len(feature.classes or ()) if collation.depth is None else collation.depth)


def _check_compatible(collations: Mapping[str, Collation]) -> None:
    bucketed = [name for name, collation in collations.items() if isinstance(collation, Bucketed)]
    packed = [name for name, collation in collations.items() if isinstance(collation, Packed)]
    if len(bucketed) > 1:
        raise UsageError(
            f"collate: only one feature can be bucketed, not {' and '.join(bucketed)}"
            ": pad the others"
        )
    if bucketed and packed:
        raise UsageError(
            f"collate: {bucketed[0]!r} is bucketed and {packed[0]!r} packed: choose one"
        )
    if packed and (
        collated := [
            name
            for name, collation in collations.items()
            if name not in packed and collation != "ragged"
        ]
    ):
        raise UsageError(
            f"collate: {collated[0]!r} becomes a list for each packed row, which can't be {collations[collated[0]]} as well"
        )


def cast_fill_value(value: Any, dtype: np.dtype[Any]) -> Any:
    """Returns a value as a scalar of a dtype.

    0 is the zero of each dtype, including timestamps.

    Raises:
        ValueError: The dtype can't represent the value.
        TypeError: The value has the wrong type.
        OverflowError: The value is too large.

    >>> str(cast_fill_value(0, np.dtype("datetime64[s]")))
    '1970-01-01T00:00:00'
    """
    array = np.asarray(value).astype(dtype)
    # `astype` truncates numbers without an error
    if array.shape or (dtype.kind in "iub" and array != value):
        raise ValueError(f"{value!r} is not {dtype}")
    return array[()]
