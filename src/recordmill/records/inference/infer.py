"""Records that nobody has described to the Schema that fits them all: a monoid of counts, so that parts are counted
anywhere and added up. A record that is no Example is told by the name by which it fails.
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
from recordmill.records.example import locate
from recordmill.records.example.decode import checked_batch
from recordmill.records.protobuf.message import (
    EXAMPLE_PARTS,
    SEQUENCE_PARTS,
    join_records,
    plain_form,
    wrong_name,
)
from recordmill.schemas import feature

_FIRST_NAMES = 1 << 12  # names there is room for at first
_NAME_BYTES = 64  # bytes per name there is room for at first
_NAMED_BYTES = (
    4 << 20
)  # 4 MiB of a record that is copied to tell a wrong name; Python takes some copies of it
_MOST_NAME_BYTES = 64 << 20  # 64 MiB of all names
_KINDS = (feature.BYTES_LIST, feature.FLOAT_LIST, feature.INT64_LIST)
_COUNTS: np.dtype[Any] = np.dtype(native.NameCounts)
_ABSENT = (1 << 63) - 1  # no record number; also the identity of a minimum

FeatureLocation = tuple[str, int]  # (source, record number)
_Known = TypeVar("_Known")


@dataclass(frozen=True)
class FeatureCounts:
    """Counts of one name, in all records so far.

    per_step: it stands in the feature_lists; the counts of Features are then counts of steps.
    records: how many have the name. kinds: kind to how many Features; first: kind to the first place. values: of all
    lists together. least_values, most_values: in one list; fewest_at, most_at: the first place of each. texts: how many
    bytes values are UTF-8 text. least_bytes, most_bytes: of one value. least_int, most_int, sum_int: of the int64
    values, the sum as an int64 that wraps.
    """

    name: str
    per_step: bool
    records: int = 0
    kinds: Mapping[str, int] = field(default_factory=dict)
    first: Mapping[str, FeatureLocation] = field(default_factory=dict)
    values: int = 0
    least_values: int | None = None
    most_values: int | None = None
    fewest_at: FeatureLocation | None = None
    most_at: FeatureLocation | None = None
    bytes_values: int = 0
    texts: int = 0
    least_bytes: int | None = None
    most_bytes: int | None = None
    least_int: int | None = None
    most_int: int | None = None
    sum_int: int = 0

    def __add__(self, other: FeatureCounts) -> FeatureCounts:
        """The counts of both; self's records stand before other's."""
        return FeatureCounts(
            self.name,
            self.per_step,
            self.records + other.records,
            _sum(self.kinds, other.kinds),
            {**other.first, **self.first},
            self.values + other.values,
            joined(self.least_values, other.least_values, min),
            joined(self.most_values, other.most_values, max),
            _place_of(min, self.least_values, self.fewest_at, other.least_values, other.fewest_at),
            _place_of(max, self.most_values, self.most_at, other.most_values, other.most_at),
            self.bytes_values + other.bytes_values,
            self.texts + other.texts,
            joined(self.least_bytes, other.least_bytes, min),
            joined(self.most_bytes, other.most_bytes, max),
            joined(self.least_int, other.least_int, min),
            joined(self.most_int, other.most_int, max),
            (self.sum_int + other.sum_int + (1 << 63)) % (1 << 64) - (1 << 63),
        )

    @property
    def present(self) -> int:
        """How many Features have a list set."""
        return sum(self.kinds.values())

    @property
    def length(self) -> int | None:
        """The number of values, if all lists have the same."""
        return self.most_values if self.least_values == self.most_values else None

    @property
    def is_text(self) -> bool:
        """All bytes values are UTF-8 text (an empty list says nothing against it)."""
        return self.bytes_values == self.texts


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {key: one.get(key, 0) + other.get(key, 0) for key in {**one, **other}}


def joined(
    one: _Known | None, other: _Known | None, join: Callable[[_Known, _Known], _Known]
) -> _Known | None:
    """Returns what join makes of both, or the one that is known."""
    return other if one is None else one if other is None else join(one, other)


def _place_of(
    best: Callable[[int, int], int],
    one: int | None,
    here: FeatureLocation | None,
    other: int | None,
    there: FeatureLocation | None,
) -> FeatureLocation | None:
    """The place of the better number, the first one's if they are equal."""
    return (
        there
        if one is None or (other is not None and one != other and best(one, other) == other)
        else here
    )


@dataclass(frozen=True)
class Inference:
    """Counts of all records so far; `Inference()` has seen nothing.

    examples, sequences: how many records are Examples (a SequenceExample without feature lists is one, too) and
    SequenceExamples. others: how many are neither; first_other: the first of them; misnamed: why, if it is an
    Example but for a name. features: by (name, per_step).
    """

    examples: int = 0
    sequences: int = 0
    others: int = 0
    first_other: FeatureLocation | None = None
    features: Mapping[tuple[str, bool], FeatureCounts] = field(default_factory=dict)
    misnamed: str = ""

    def __add__(self, other: Inference) -> Inference:
        """Adds the counts of both; self's records stand before other's."""
        features = dict(self.features)
        for key, counts in other.features.items():
            features[key] = features[key] + counts if key in features else counts
        feature.check_feature_count(len(features), DEFAULT_MEMORY_BYTES)
        return Inference(
            self.examples + other.examples,
            self.sequences + other.sequences,
            self.others + other.others,
            self.first_other or other.first_other,
            features,
            self.misnamed or other.misnamed,
        )

    @property
    def records(self) -> int:
        return self.examples + self.sequences + self.others

    def feature_name(self, name: str, per_step: bool) -> str:
        """Returns what the feature of `features` is called in a schema."""
        return feature.step_feature_name(name, (name, False) in self.features) if per_step else name

    @property
    def message(self) -> str:
        """The message that most records are: `Example`, `SequenceExample` or `bytes`."""
        if self.others > self.examples + self.sequences:
            return feature.OPAQUE_BYTES
        return feature.SEQUENCE_EXAMPLE if self.sequences else feature.EXAMPLE

    def conflicts(self) -> list[str]:
        """Why no schema fits all records, one line per feature: kinds that differ, and a list that has the name of a
        feature of the context also as `name/sequence`.
        """
        lines, context = [], {name for name, per_step in self.features if not per_step}
        for (name, per_step), counts in sorted(self.features.items()):
            if len(counts.kinds) > 1:
                seen = ", ".join(
                    f"{kind}_list first in {_where(counts.first[kind])} ({count} times)"
                    for kind, count in counts.kinds.items()
                )
                lines.append(f"feature {name!r}: {seen}")
            if per_step and self.feature_name(name, per_step) in context:
                lines.append(f"feature {name!r}: stands in the context and in the feature lists")
        return lines

    def without_conflicts(self, wanted: Collection[str]) -> Inference:
        """Without the features of several kinds, unless they are wanted."""
        kept = {
            key: counts
            for key, counts in self.features.items()
            if self.feature_name(*key) in wanted or len(counts.kinds) < 2
        }
        return replace(self, features=kept)

    def schema(self, keep_conflicts: bool = False) -> feature.Schema:
        """The schema that fits every record counted; features in the order of their names' bytes.

        A feature that every record has is required. One value always is a scalar, n always a tensor `(n,)`, else
        `(None,)`. Names as TensorFlow Datasets writes nested lists become one feature if their lengths add up. Bytes
        are a string if all are text.

        Args:
            keep_conflicts: where no schema of features fits, one binary column `record` instead of the error.

        Raises:
            DataError: a feature's kinds differ; it names the feature and the records. Most records are no Examples, but
                for a name that is no text they would be.
        """
        if self.message == feature.OPAQUE_BYTES and self.misnamed:
            raise DataError(
                f"{self.misnamed}, which is no name (UTF-8 text without NUL), so that these are no Examples; mend what "
                f"wrote them, or give a schema ({option('schema', 'FILE')})"
            )
        conflicts = self.conflicts() if self.message != feature.OPAQUE_BYTES else []
        if self.message == feature.OPAQUE_BYTES or (conflicts and keep_conflicts):
            return feature.Schema(
                (feature.Feature("record", "bytes", (), True),), message=feature.OPAQUE_BYTES
            )
        if conflicts:
            more = f" (and {len(conflicts) - 1} more features)" if len(conflicts) > 1 else ""
            raise DataError(
                f"no schema fits all records: {conflicts[0]}{more}; a schema ({option('schema', 'FILE')}) says which "
                "is meant, and the other records are bad ones"
            )
        counted = {self.feature_name(*key): counts for key, counts in self.features.items()}
        nested = {} if self.sequences else _nested(counted)
        taken = {f"{name}/{part}" for name, parts in nested.items() for part in parts}
        features = [
            replace(self._feature(counts), name=name)
            for name, counts in counted.items()
            if name not in taken
        ]
        features += [self._nest(name, parts, counted) for name, parts in nested.items()]
        return feature.Schema(
            tuple(sorted(features, key=lambda one: one.name.encode())), message=self.message
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
        self, name: str, parts: list[str], counted: Mapping[str, FeatureCounts]
    ) -> feature.Feature:
        flat = counted[f"{name}/{parts[0]}"]
        lists = counted[f"{name}/{parts[-1]}"].sum_int
        inner = flat.values // lists if lists else 1
        one = self._feature(flat)
        return replace(one, name=name, shape=(None,) * len(parts) + ((inner,) if inner > 1 else ()))


def _where(place: FeatureLocation) -> str:
    return f"{place[0]} record {place[1]}" if place[0] else f"record {place[1]}"


def _nested(counted: Mapping[str, FeatureCounts]) -> dict[str, list[str]]:
    """Returns names of nested lists to their parts, values first, where records and lengths of all parts agree."""
    found = {}
    for key, flat in counted.items():
        name, slash, part = key.rpartition("/")
        if not slash or part != "ragged_flat_values" or name in counted:
            continue
        parts: list[str] = []
        while f"{name}/ragged_row_lengths_{len(parts)}" in counted:
            parts.append(f"ragged_row_lengths_{len(parts)}")
        if not parts:
            continue
        levels = [counted[f"{name}/{one}"] for one in parts]
        sums = [level.sum_int for level in levels]
        sizes = [level.values for level in levels[1:]]
        regular = all(
            set(level.kinds) == {feature.INT64_LIST}
            and level.present == flat.present
            and (level.least_int or 0) >= 0
            for level in levels
        )
        # or their sum may have wrapped
        bounded = all(
            (level.most_int or 0) <= behind
            for level, behind in zip(levels, [*sizes, flat.values], strict=True)
        )
        whole = flat.values == 0 if sums[-1] == 0 else flat.values % sums[-1] == 0
        if regular and bounded and sums[:-1] == sizes and whole:
            found[name] = [part, *parts]
    return found


def infer(
    data: Bytes,
    starts: Int64s,
    lengths: Int64s,
    *,
    source: str = "",
    first_record: int = 0,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
) -> Inference:
    """Count the records data[starts[i] : starts[i] + lengths[i]].

    Args:
        data: uint8 [bytes]. starts, lengths: int64 [rows], inside data.
        source, first_record: the file's name and the number of the first record in it, for the places in the result.

    Raises:
        DataError: there are more different names than the memory allows features.
        ValueError: a record does not lie inside data.
    """
    most = feature.max_feature_count(memory_bytes)
    for room, text_bytes in (
        (min(_FIRST_NAMES, most), _FIRST_NAMES * _NAME_BYTES),
        (most, _MOST_NAME_BYTES),
    ):
        table, counts = make_name_table(room, text_bytes), _no_counts(room + 1)
        tally = _count(*checked_batch(data, starts, lengths), first_record, table, counts)
        if tally is not None:
            break
    names = [(name.decode(), part == 2) for name, part in names_in_table(table)]
    if tally is None:
        feature.check_feature_count(len(names) + 1, memory_bytes, source)
        raise DataError(
            f"names of features of more than {_MOST_NAME_BYTES >> 20} MiB: they seem to be data; give a schema",
            source=source,
        )
    status, parts = tally
    others = np.flatnonzero(status)
    sequences = int(np.count_nonzero((status == 0) & (parts >= 2)))
    features = {
        (name, per_step): _feature_counts(
            name, per_step, dict(zip(_COUNTS.names or (), line, strict=True)), source
        )
        for (name, per_step), line in zip(names, counts[1 : len(names) + 1].tolist(), strict=True)
        if line[0]
    }
    first_other = (source, first_record + int(others[0])) if len(others) else None
    wrong = (
        ""
        if first_other is None
        else _misnamed(data, starts[others[0]], lengths[others[0]], first_other)
    )
    return Inference(
        len(status) - len(others) - sequences, sequences, len(others), first_other, features, wrong
    )


def _no_counts(slots: int) -> npt.NDArray[Any]:
    counts = np.zeros(slots, _COUNTS)
    for name in _COUNTS.names or ():
        if name.startswith(("min_", "first_")):
            counts[name] = _ABSENT
        elif name.startswith(("max_", "last_")):
            counts[name] = -1
    counts["max_int"] = -_ABSENT - 1
    return counts


def _misnamed(data: Bytes, start: int, length: int, place: FeatureLocation) -> str:
    """Returns the name of a feature that makes a record no Example, if it is one but for that name."""
    name = wrong_name(data[start : start + length].tobytes()) if length <= _NAMED_BYTES else None
    return "" if name is None else f"{_where(place)} holds a feature called {name!r}"


def _count(
    data: Bytes,
    starts: Int64s,
    lengths: Int64s,
    first_record: int,
    table: Int64s,
    counts: npt.NDArray[Any],
) -> tuple[npt.NDArray[np.uint8], Int64s] | None:
    """Returns (status, parts) as native.count_names, of unusual records in plain form; None: too many names."""
    status, parts = np.full(len(starts), locate.UNREAD, np.uint8), np.zeros(len(starts), np.int64)
    left = native.count_names(data, starts, lengths, first_record, table, counts, status, parts)
    for message in (EXAMPLE_PARTS, SEQUENCE_PARTS):
        if left <= 0:
            break
        odd = np.flatnonzero(status)
        forms = [
            plain_form(data[starts[row] : starts[row] + lengths[row]].tobytes(), message)
            for row in odd
        ]
        # Nearly any message parses as an Example of unknown fields: it must have features. An unknown field of the
        # message itself may be feature lists, so only the second round tolerates it.
        kept = [
            form is not None
            and form.entries > 0
            and (message == SEQUENCE_PARTS or not form.has_unknown)
            for form in forms
        ]
        good = np.array(kept, np.bool_)
        plain, at, size = join_records([form.data if form is not None else b"" for form in forms])
        all_at, all_size = np.zeros(len(starts), np.int64), np.zeros(len(starts), np.int64)
        all_at[odd], all_size[odd] = at, size
        status[odd[good]] = locate.UNREAD
        counts["last_row"] = -1
        left = native.count_names(
            plain, all_at, all_size, first_record, table, counts, status, parts
        )
    return None if left < 0 else (status, parts)


def _feature_counts(
    name: str, per_step: bool, seen: Mapping[str, int], source: str
) -> FeatureCounts:
    def known(field: str, nothing: int) -> int | None:
        return None if seen[field] == nothing else seen[field]

    kinds = {kind: seen[f"{kind}_lists"] for kind in _KINDS if seen[f"{kind}_lists"]}
    fewest_at, most_at = (
        None if seen[field] == _ABSENT else (source, seen[field])
        for field in ("first_min_values", "first_max_values")
    )
    ints = feature.INT64_LIST in kinds and seen["min_int"] <= seen["max_int"]
    return FeatureCounts(
        name,
        per_step,
        seen["records"],
        kinds,
        {kind: (source, seen[f"first_{kind}_list"]) for kind in kinds},
        seen["values"],
        known("min_values", _ABSENT),
        known("max_values", -1),
        fewest_at,
        most_at,
        seen["bytes_values"],
        seen["texts"],
        known("min_bytes", _ABSENT),
        known("max_bytes", -1),
        seen["min_int"] if ints else None,
        seen["max_int"] if ints else None,
        seen["sum_int"],
    )
