"""Counts of the contents of records, and the Schema that fits all of them.

Parts of the records can be counted anywhere and in any order of completion. The counts are added up
afterwards. If a record is an Example except for an invalid feature name, the error names that
feature.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from recordmill.base import native
from recordmill.base.buffers import Bytes, Int64s
from recordmill.base.errors import DataError
from recordmill.base.machine import DEFAULT_MEMORY_BYTES
from recordmill.base.names import make_name_table, names_in_table
from recordmill.base.option_names import option
from recordmill.records.example.decode import validate_spans
from recordmill.records.protobuf.message import (
    EXAMPLE_MAPS,
    SEQUENCE_MAPS,
    find_invalid_name,
    join_records,
    to_plain_form,
)
from recordmill.schemas import feature

# number of names that the first table has room for
_INITIAL_NAMES = 1 << 12
# mean size of a name in the first table
_INITIAL_BYTES_PER_NAME = 64
# 4 MiB, the largest record that is copied to find an invalid name. Python makes several copies of
# it.
_MAX_COPIED_RECORD_BYTES = 4 << 20
# 64 MiB for all names
_MAX_NAME_BYTES = 64 << 20
_KINDS = (feature.BYTES_LIST, feature.FLOAT_LIST, feature.INT64_LIST)
_COUNTS_DTYPE: np.dtype[Any] = np.dtype(native.NameCounts)
# Stands for an unknown record number. It is also the neutral element of a minimum.
_ABSENT = (1 << 63) - 1

# (source, record number)
RecordLocation = tuple[str, int]
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class FeatureCounts:
    """Counts of one feature name in all records so far.

    A list is the bytes_list, float_list or int64_list of one Feature. Its kind is the type of its
    values. Smallest and largest values are None if there are no such values.

    Attributes:
        name: The name.
        per_step: Whether the name is in the feature lists of SequenceExamples. Each list then
            belongs to a step.
        records: The number of records with the name.
        kinds: The number of lists, by kind.
        first_locations: The location of the first record with a list of each kind.
        values: The number of values in all lists.
        min_values: The smallest number of values in a list.
        max_values: The largest number of values in a list.
        first_min_values: The location of the first list with the smallest number.
        first_max_values: The location of the first list with the largest number.
        bytes_values: The number of bytes values.
        texts: The number of bytes values that are UTF-8 text.
        min_bytes: The size of the shortest bytes value.
        max_bytes: The size of the longest bytes value.
        min_int: The smallest int64 value.
        max_int: The largest int64 value.
        sum_int: The sum of the int64 values, as an int64 that wraps.
    """

    name: str
    per_step: bool
    records: int = 0
    kinds: Mapping[str, int] = field(default_factory=dict)
    first_locations: Mapping[str, RecordLocation] = field(default_factory=dict)
    values: int = 0
    min_values: int | None = None
    max_values: int | None = None
    first_min_values: RecordLocation | None = None
    first_max_values: RecordLocation | None = None
    bytes_values: int = 0
    texts: int = 0
    min_bytes: int | None = None
    max_bytes: int | None = None
    min_int: int | None = None
    max_int: int | None = None
    sum_int: int = 0

    def __add__(self, other: FeatureCounts) -> FeatureCounts:
        """Returns the sum with the counts of later records."""
        return FeatureCounts(
            name=self.name,
            per_step=self.per_step,
            records=self.records + other.records,
            kinds=_add_counts(self.kinds, other.kinds),
            first_locations={**other.first_locations, **self.first_locations},
            values=self.values + other.values,
            min_values=combine_known(self.min_values, other.min_values, min),
            max_values=combine_known(self.max_values, other.max_values, max),
            first_min_values=_choose_location(
                min,
                first=self.min_values,
                first_location=self.first_min_values,
                second=other.min_values,
                second_location=other.first_min_values,
            ),
            first_max_values=_choose_location(
                max,
                first=self.max_values,
                first_location=self.first_max_values,
                second=other.max_values,
                second_location=other.first_max_values,
            ),
            bytes_values=self.bytes_values + other.bytes_values,
            texts=self.texts + other.texts,
            min_bytes=combine_known(self.min_bytes, other.min_bytes, min),
            max_bytes=combine_known(self.max_bytes, other.max_bytes, max),
            min_int=combine_known(self.min_int, other.min_int, min),
            max_int=combine_known(self.max_int, other.max_int, max),
            # The sum wraps like an int64, as in the native library.
            sum_int=(self.sum_int + other.sum_int + (1 << 63)) % (1 << 64) - (1 << 63),
        )

    @property
    def present(self) -> int:
        """The number of lists. A Feature without a list does not count."""
        return sum(self.kinds.values())

    @property
    def length(self) -> int | None:
        """The number of values of every list, or None if lists differ."""
        return self.max_values if self.min_values == self.max_values else None

    @property
    def is_text(self) -> bool:
        """Whether all bytes values are UTF-8 text. This is true if there are none."""
        return self.bytes_values == self.texts


def _add_counts(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    return {key: first.get(key, 0) + second.get(key, 0) for key in {**first, **second}}


def combine_known(
    first: _Value | None, second: _Value | None, combine: Callable[[_Value, _Value], _Value]
) -> _Value | None:
    """Combines two values, or returns the one that is not None.

    >>> combine_known(3, 5, min), combine_known(None, 5, min)
    (3, 5)
    """
    return second if first is None else first if second is None else combine(first, second)


def _choose_location(
    best: Callable[[int, int], int],
    first: int | None,
    first_location: RecordLocation | None,
    second: int | None,
    second_location: RecordLocation | None,
) -> RecordLocation | None:
    """Returns the location of the smaller or the larger one of two numbers.

    If the numbers are equal, the result is `first_location`. A number of None is ignored.

    Args:
        best: `min` to choose the smaller number, or `max` to choose the larger one.
        first: A number, or None.
        first_location: The location of `first`.
        second: Another number, or None.
        second_location: The location of `second`.
    """
    return (
        second_location
        if first is None
        or (second is not None and first != second and best(first, second) == second)
        else first_location
    )


@dataclass(frozen=True)
class Inference:
    """Counts of all records so far. `Inference()` contains none.

    Attributes:
        examples: The number of Examples. A SequenceExample without feature lists counts as an
            Example.
        sequences: The number of SequenceExamples.
        other_records: The number of records that are neither.
        first_other_record: The location of the first of these, or None.
        features: The counts by (name, per_step), see `FeatureCounts`.
        bad_name_message: An error message if the first of the other records is an Example except
            for an invalid feature name. Otherwise "".
    """

    examples: int = 0
    sequences: int = 0
    other_records: int = 0
    first_other_record: RecordLocation | None = None
    features: Mapping[tuple[str, bool], FeatureCounts] = field(default_factory=dict)
    bad_name_message: str = ""

    def __add__(self, other: Inference) -> Inference:
        """Returns the sum with the counts of later records.

        Raises:
            DataError: There are too many features.
        """
        features = dict(self.features)
        for key, counts in other.features.items():
            features[key] = features[key] + counts if key in features else counts
        feature.check_feature_count(len(features), DEFAULT_MEMORY_BYTES)
        return Inference(
            examples=self.examples + other.examples,
            sequences=self.sequences + other.sequences,
            other_records=self.other_records + other.other_records,
            first_other_record=self.first_other_record or other.first_other_record,
            features=features,
            bad_name_message=self.bad_name_message or other.bad_name_message,
        )

    @property
    def records(self) -> int:
        return self.examples + self.sequences + self.other_records

    def feature_name(self, name: str, per_step: bool) -> str:
        """Returns the name in the schema for a key of `features`.

        A feature list is renamed if a feature of the context has its name.
        """
        return feature.step_feature_name(name, (name, False) in self.features) if per_step else name

    @property
    def message(self) -> str:
        """The message of most records: `Example`, `SequenceExample` or `bytes`."""
        if self.other_records > self.examples + self.sequences:
            return feature.OPAQUE_BYTES
        return feature.SEQUENCE_EXAMPLE if self.sequences else feature.EXAMPLE

    def conflicts(self) -> list[str]:
        """Returns a message for each feature that prevents a common schema.

        Such a feature has lists of several kinds. Or it is a feature list, and a feature of the
        context has the same name in the schema.
        """
        lines, context = [], {name for name, per_step in self.features if not per_step}
        for (name, per_step), counts in sorted(self.features.items()):
            if len(counts.kinds) > 1:
                kinds = ", ".join(
                    f"{kind}_list first in {_format_location(counts.first_locations[kind])} ({count} times)"
                    for kind, count in counts.kinds.items()
                )
                lines.append(f"feature {name!r}: {kinds}")
            if per_step and self.feature_name(name, per_step) in context:
                lines.append(f"feature {name!r}: is in the context and in the feature lists")
        return lines

    def drop_conflicts(self, names: Collection[str]) -> Inference:
        """Returns the inference without features that have lists of several kinds.

        Args:
            names: Names of features that are kept in any case.
        """
        features = {
            key: counts
            for key, counts in self.features.items()
            if self.feature_name(*key) in names or len(counts.kinds) < 2
        }
        return replace(self, features=features)

    def to_schema(self, use_opaque_on_conflict: bool = False) -> feature.Schema:
        """Returns the schema that fits every counted record.

        The features are in bytewise order of their names. A feature that every record has is
        required. If every list has one value, the feature is a scalar. If every list has n values,
        it is a tensor `(n,)`. Otherwise its shape is `(None,)`. Bytes values become the dtype
        string if all of them are text. The features of a nested list of TensorFlow Datasets are
        joined to one, if `_find_nested_lists` finds them.

        Args:
            use_opaque_on_conflict: Whether the result is a schema with one binary column `record`
                if no other schema fits. Otherwise this is an error.

        Raises:
            DataError: A feature has lists of several kinds, or most records are Examples except for
                an invalid name.
        """
        if self.message == feature.OPAQUE_BYTES and self.bad_name_message:
            raise DataError(
                "{bad_name_message}, which is not a name (UTF-8 text without NUL), "
                "so these are not Examples; fix the program that wrote them, or pass "
                "a schema ({schema})",
                bad_name_message=self.bad_name_message,
                schema=option("schema", "FILE"),
            )
        conflicts = self.conflicts() if self.message != feature.OPAQUE_BYTES else []
        if self.message == feature.OPAQUE_BYTES or (conflicts and use_opaque_on_conflict):
            return feature.Schema(
                (feature.Feature("record", "bytes", (), True),), message=feature.OPAQUE_BYTES
            )
        if conflicts:
            suffix = f" (and {len(conflicts) - 1} more features)" if len(conflicts) > 1 else ""
            raise DataError(
                "no schema fits all records: {conflicts}{suffix}; pass a schema "
                "({schema}) to choose one, and the other records become rejects",
                conflicts=conflicts[0],
                suffix=suffix,
                schema=option("schema", "FILE"),
            )
        counts_by_name = {self.feature_name(*key): counts for key, counts in self.features.items()}
        nested = {} if self.sequences else _find_nested_lists(counts_by_name)
        nested_names = {f"{name}/{part}" for name, parts in nested.items() for part in parts}
        features = [
            replace(self._feature(counts), name=name)
            for name, counts in counts_by_name.items()
            if name not in nested_names
        ]
        features += [self._nest(name, parts, counts_by_name) for name, parts in nested.items()]
        return feature.Schema(
            tuple(sorted(features, key=lambda item: item.name.encode())), message=self.message
        )

    def _feature(self, counts: FeatureCounts) -> feature.Feature:
        dtype = "bytes"
        if counts.kinds:
            (kind,) = counts.kinds
            dtype = {
                feature.INT64_LIST: "int64",
                feature.FLOAT_LIST: "float32",
                feature.BYTES_LIST: "string" if counts.is_text else "bytes",
            }[kind]
        length = counts.length
        shape: tuple[int | None, ...] = () if length == 1 or not counts.kinds else (length or None,)
        present = counts.records if counts.per_step else counts.present
        required = present == self.examples + self.sequences
        return feature.Feature(
            counts.name,
            dtype,
            (None, *shape) if counts.per_step else shape,
            required,
            per_step=counts.per_step,
        )

    def _nest(
        self, name: str, part_names: list[str], counts_by_name: Mapping[str, FeatureCounts]
    ) -> feature.Feature:
        flat = counts_by_name[f"{name}/{part_names[0]}"]
        lists = counts_by_name[f"{name}/{part_names[-1]}"].sum_int
        inner = flat.values // lists if lists else 1
        values_feature = self._feature(flat)
        return replace(
            values_feature,
            name=name,
            shape=(None,) * len(part_names) + ((inner,) if inner > 1 else ()),
        )


def _format_location(place: RecordLocation) -> str:
    return f"{place[0]} record {place[1]}" if place[0] else f"record {place[1]}"


def _find_nested_lists(counts_by_name: Mapping[str, FeatureCounts]) -> dict[str, list[str]]:
    """Finds nested lists in the form in which TensorFlow Datasets writes them.

    The values are in one feature, and the lengths of the lists at each level in further features.
    These features must be in the same number of records. The lengths of each level must add up to
    the number of items in the next one.

    Returns:
        Maps the name of each nested list to the last components of its feature names, such as
        `ragged_flat_values`. The component of the values comes first.
    """
    nested = {}
    for key, flat in counts_by_name.items():
        name, slash, part = key.rpartition("/")
        if not slash or part != "ragged_flat_values" or name in counts_by_name:
            continue
        parts: list[str] = []
        while f"{name}/ragged_row_lengths_{len(parts)}" in counts_by_name:
            parts.append(f"ragged_row_lengths_{len(parts)}")
        if not parts:
            continue
        levels = [counts_by_name[f"{name}/{part_name}"] for part_name in parts]
        sums = [level.sum_int for level in levels]
        sizes = [level.values for level in levels[1:]]
        is_regular = all(
            set(level.kinds) == {feature.INT64_LIST}
            and level.present == flat.present
            and (level.min_int or 0) >= 0
            for level in levels
        )
        # A sum could have wrapped, so each length is compared with the total, too.
        is_bounded = all(
            (level.max_int or 0) <= limit
            for level, limit in zip(levels, [*sizes, flat.values], strict=True)
        )
        divides_evenly = flat.values == 0 if sums[-1] == 0 else flat.values % sums[-1] == 0
        if is_regular and is_bounded and sums[:-1] == sizes and divides_evenly:
            nested[name] = [part, *parts]
    return nested


def infer(
    data: Bytes,
    starts: Int64s,
    lengths: Int64s,
    *,
    source: str = "",
    first_record: int = 0,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
) -> Inference:
    """Counts the contents of records.

    Args:
        data: uint8 [bytes], a buffer that contains the records.
        starts: int64 [rows], the offset of each record. Record i is `data[starts[i] : starts[i] +
            lengths[i]]`.
        lengths: int64 [rows], the size of each record.
        source: The file name for the locations in the result.
        first_record: The number of the first record in its file.
        memory_bytes: The memory that limits the number of features.

    Raises:
        DataError: There are more different names than the memory allows.
        ValueError: A record is not inside `data`.
    """
    max_names = feature.max_feature_count(memory_bytes)
    # If the small table is full, all records are counted again with a table of the maximum size.
    for name_slots, text_bytes in (
        (min(_INITIAL_NAMES, max_names), _INITIAL_NAMES * _INITIAL_BYTES_PER_NAME),
        (max_names, _MAX_NAME_BYTES),
    ):
        table, counts = make_name_table(name_slots, text_bytes), _empty_counts(name_slots + 1)
        outcome = _count_names(*validate_spans(data, starts, lengths), first_record, table, counts)
        if outcome is not None:
            break
    names = [(name.decode(), part == 2) for name, part in names_in_table(table)]
    if outcome is None:
        feature.check_feature_count(len(names) + 1, memory_bytes, source)
        raise DataError(
            f"names of features of more than {_MAX_NAME_BYTES >> 20} MiB: they seem "
            "to be data; pass a schema",
            source=source,
        )
    status, maps = outcome
    other_rows = np.flatnonzero(status)
    sequences = int(np.count_nonzero((status == 0) & (maps >= 2)))
    features = {
        (name, per_step): _to_feature_counts(
            name, per_step, dict(zip(_COUNTS_DTYPE.names or (), line, strict=True)), source
        )
        for (name, per_step), line in zip(names, counts[1 : len(names) + 1].tolist(), strict=True)
        if line[0]
    }
    first_other_record = (source, first_record + int(other_rows[0])) if len(other_rows) else None
    bad_name_message = (
        ""
        if first_other_record is None
        else _describe_invalid_name(
            data, starts[other_rows[0]], lengths[other_rows[0]], first_other_record
        )
    )
    return Inference(
        examples=len(status) - len(other_rows) - sequences,
        sequences=sequences,
        other_records=len(other_rows),
        first_other_record=first_other_record,
        features=features,
        bad_name_message=bad_name_message,
    )


def _empty_counts(slots: int) -> npt.NDArray[Any]:
    counts = np.zeros(slots, _COUNTS_DTYPE)
    for name in _COUNTS_DTYPE.names or ():
        if name.startswith(("min_", "first_")):
            counts[name] = _ABSENT
        elif name.startswith(("max_", "last_")):
            counts[name] = -1
    # The smallest int64 is the neutral element of a maximum.
    counts["max_int"] = -_ABSENT - 1
    return counts


def _describe_invalid_name(data: Bytes, start: int, length: int, place: RecordLocation) -> str:
    """Returns an error message if an invalid feature name is a record's only fault.

    The result is "" if the record has other faults, or if it is too large to be examined.

    Args:
        data: The buffer that contains the record.
        start: The offset of the record.
        length: The size of the record.
        place: The location of the record, for the message.
    """
    name = (
        find_invalid_name(data[start : start + length].tobytes())
        if length <= _MAX_COPIED_RECORD_BYTES
        else None
    )
    return "" if name is None else f"{_format_location(place)} holds a feature called {name!r}"


def _count_names(
    data: Bytes,
    starts: Int64s,
    lengths: Int64s,
    first_record: int,
    table: Int64s,
    counts: npt.NDArray[Any],
) -> tuple[npt.NDArray[np.uint8], Int64s] | None:
    """Counts the names and values of records.

    A record may encode its message in an unusual way, such as with unpacked numbers. It is then
    rewritten in the plain form of `to_plain_form` and counted, if protobuf accepts it.

    Args:
        data: The buffer that contains the records.
        starts: The offset of each record.
        lengths: The size of each record.
        first_record: The number of the first record in its file.
        table: The table of names. New names are added.
        counts: The counts of each name. The records are added to them.

    Returns:
        (status of each record, a bit for each map that it has). The status is not 0 if a record is
        neither an Example nor a SequenceExample. None if there are too many names for the table.
    """
    status, maps = (
        np.full(len(starts), native.RecordStatus.UNREAD, np.uint8),
        np.zeros(len(starts), np.int64),
    )
    num_left = native.count_names(data, starts, lengths, first_record, table, counts, status, maps)
    for map_count in (EXAMPLE_MAPS, SEQUENCE_MAPS):
        if num_left <= 0:
            break
        unusual_rows = np.flatnonzero(status)
        forms = [
            to_plain_form(data[starts[row] : starts[row] + lengths[row]].tobytes(), map_count)
            for row in unusual_rows
        ]
        # Unknown fields of the message itself may be feature lists, so only the second round
        # accepts them. Nearly any message parses with unknown fields, so it must have a map.
        is_plain = [
            form is not None
            and (not form.has_unknown_fields or (map_count == SEQUENCE_MAPS and form.has_map))
            for form in forms
        ]
        accepted = np.array(is_plain, np.bool_)
        plain, plain_starts, plain_sizes = join_records(
            [form.data if form is not None else b"" for form in forms]
        )
        starts_by_row, sizes_by_row = (
            np.zeros(len(starts), np.int64),
            np.zeros(len(starts), np.int64),
        )
        starts_by_row[unusual_rows], sizes_by_row[unusual_rows] = plain_starts, plain_sizes
        status[unusual_rows[accepted]] = native.RecordStatus.UNREAD
        # `last_row` detects a name that a record has twice. Here the rows are visited again.
        counts["last_row"] = -1
        num_left = native.count_names(
            plain, starts_by_row, sizes_by_row, first_record, table, counts, status, maps
        )
    return None if num_left < 0 else (status, maps)


def _to_feature_counts(
    name: str, per_step: bool, values: Mapping[str, int], source: str
) -> FeatureCounts:
    def value_or_none(field: str, nothing: int) -> int | None:
        return None if values[field] == nothing else values[field]

    kinds = {kind: values[f"{kind}_lists"] for kind in _KINDS if values[f"{kind}_lists"]}
    first_min_values, first_max_values = (
        None if values[field] == _ABSENT else (source, values[field])
        for field in ("first_min_values", "first_max_values")
    )
    ints = feature.INT64_LIST in kinds and values["min_int"] <= values["max_int"]
    return FeatureCounts(
        name=name,
        per_step=per_step,
        records=values["records"],
        kinds=kinds,
        first_locations={kind: (source, values[f"first_{kind}_list"]) for kind in kinds},
        values=values["values"],
        min_values=value_or_none("min_values", _ABSENT),
        max_values=value_or_none("max_values", -1),
        first_min_values=first_min_values,
        first_max_values=first_max_values,
        bytes_values=values["bytes_values"],
        texts=values["texts"],
        min_bytes=value_or_none("min_bytes", _ABSENT),
        max_bytes=value_or_none("max_bytes", -1),
        min_int=values["min_int"] if ints else None,
        max_int=values["max_int"] if ints else None,
        sum_int=values["sum_int"],
    )
