"""Collations: the ways in which a feature can be given.

"ragged"    a list as it is (`Ragged`), the default
"dense"     an array [rows, items, ...]; a row of another length than the others is an error
Padded      an array [rows, length, ...], filled up; with `lengths=True` also `name/length` [rows]: how many items each
            row really has, also where it was cut; "padded" is Padded()
Bucketed    as Padded, and rows of about the same length come together; "bucketed" is Bucketed()
Packed      the lists of several records one after the other in a row of a fixed length
OneHot      an integer as float32 [rows, depth]; "one_hot" is OneHot()
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from recordmill.base.errors import UsageError
from recordmill.base.option_names import available_names
from recordmill.records.columns.numpy_arrays import is_bytes, numpy_dtype
from recordmill.schemas.feature import Feature, Schema

_SORTED_STEPS = (
    64  # of which the records are sorted by length together: 16,384 records in batches of 256
)


@dataclass(frozen=True)
class Padded:
    """length: of every batch; longer rows are cut to it. None: the batch's longest row, rounded up to a multiple.
    value: what fills up. lengths: gives `name/length`, too.

    Raises:
        UsageError: a number is below 1, or both are given.
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


@dataclass(frozen=True)
class Bucketed:
    """The records of so many steps are sorted by the length of this list and cut into batches again, so that little
    is filled up; the batches come in random order (sorted, where nothing is shuffled).

    Attributes:
        boundaries: ascending lengths; a batch is padded to the lowest one that its longest row fits in, or, beyond
            the last, to that row. None: so many as `buckets`, each with equally many of the data set's records, which
            one pass over the feature finds.
        length: longer rows are cut to it.
        value: what fills up.
        steps: how many are sorted together.
        lengths: gives `name/length`, too.

    Raises:
        UsageError: boundaries are none, or a number is below 1.
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


@dataclass(frozen=True)
class Packed:
    """batch_size rows of this length, each with the lists of as many records as fit, in the order of the epoch: a
    record goes to the first row that has room for it, and where none has the next batch begins.

    Gives [rows, length], int32 `name/segment` [rows, length] (1, 2, ... for the records of a row; 0 is nothing) and
    int32 `name/position` [rows, length] (from 0 in each record). A longer record is cut, and counted. What is not
    packed becomes a list per row.

    Attributes:
        value: what fills up.

    Raises:
        UsageError: the length is below 1.
    """

    length: int
    value: Any = 0

    def __post_init__(self) -> None:
        if self.length < 1:
            raise UsageError(f"Packed: length must be at least 1: {self}")


@dataclass(frozen=True)
class OneHot:
    """depth: how many classes there are; None: as many as the schema names.

    Raises:
        UsageError: depth is below 1.
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
    """The way of each feature that is not given as it is. One way alone is that of all lists.

    Raises:
        UsageError: a name or a way that the schema does not have, or ways that exclude each other.
    """
    if isinstance(collate, str | Padded | Bucketed | Packed | OneHot):
        collate = {feature.name: collate for feature in schema if feature.ragged_rank}
        if not collate:
            raise UsageError("collate: no list is read; {name: way} says it of other features")
    if not isinstance(collate, Mapping):
        raise UsageError(
            f"collate is a way, or one by feature name, {{name: {_COLLATIONS_TEXT}}}, not {collate!r}"
        )
    collations: dict[str, Collation] = {}
    for name, choice in collate.items():
        if name not in schema:
            raise UsageError(
                f"collate: {name!r} is no feature that is read; {available_names(name, schema.names)}"
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
            f"collate: {feature.name!r} is no list that is read; there are {lists or 'none'}"
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
    """Returns the value that fills up, as a value of the feature; 0 is the empty text, too."""
    if is_bytes(feature):
        kind = str if feature.dtype == "string" else bytes
        value = kind() if type(value) is int and value == 0 else value
        if isinstance(value, kind):
            return value
    else:
        with contextlib.suppress(ValueError, TypeError, OverflowError):
            return cast_fill_value(value, numpy_dtype(feature))
    raise UsageError(
        f"collate: {feature.name!r} is {feature.describe()}, which {value!r} can't fill up"
    )


def _resolve_one_hot(collation: OneHot, feature: Feature) -> OneHot:
    if feature.shape or "int" not in feature.dtype:
        raise UsageError(
            f"collate: {feature.name!r} is {feature.describe()}: one_hot takes a whole number a record"
        )
    if collation.depth is None and feature.classes is None:
        raise UsageError(
            f"collate: nothing says how many classes {feature.name!r} has: give OneHot(depth)"
        )
    return OneHot(len(feature.classes or ()) if collation.depth is None else collation.depth)


def _check_compatible(collations: Mapping[str, Collation]) -> None:
    bucketed = [name for name, collation in collations.items() if isinstance(collation, Bucketed)]
    packed = [name for name, collation in collations.items() if isinstance(collation, Packed)]
    if len(bucketed) > 1:
        raise UsageError(
            f"collate: one feature decides the buckets, not {' and '.join(bucketed)}: pad the others"
        )
    if bucketed and packed:
        raise UsageError(
            f"collate: {bucketed[0]!r} is bucketed and {packed[0]!r} packed: choose one"
        )
    if packed and (
        others := [
            name
            for name, collation in collations.items()
            if name not in packed and collation != "ragged"
        ]
    ):
        raise UsageError(
            f"collate: {others[0]!r} becomes a list for each packed row, which can't be {collations[others[0]]} as well"
        )


def cast_fill_value(value: Any, dtype: np.dtype[Any]) -> Any:
    """The value as one of the dtype; 0 is the zero of each, also of timestamps.

    Raises:
        ValueError, TypeError, OverflowError: it is none.
    """
    array = np.asarray(value).astype(dtype)
    if array.shape or (dtype.kind in "iub" and array != value):
        raise ValueError(f"{value!r} is no {dtype}")
    return array[()]
