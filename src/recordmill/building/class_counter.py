"""The pass over all records that counts the classes for stratified splits.

It keeps class and hash of each record, or of each group, to find the exact boundaries in `building.stratified_splits`. This takes
24 bytes each, and as much again for the sort, regardless of `--memory`.
"""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recordmill.base.buffers import Int64s, release_unused
from recordmill.base.errors import UsageError
from recordmill.base.option_names import option
from recordmill.base.progress import Progress
from recordmill.base.threads import thread_map
from recordmill.building.ingest import decode_key_columns, read_unit_group
from recordmill.building.plan import BuildPlan
from recordmill.building.stratified_splits import (
    GROUP_DTYPE,
    RECORD_DTYPE,
    GroupedStarts,
    Rows,
    StratifiedSplits,
    combine_rows,
    describe_class_sizes,
    find_class_ids,
    starts_by_group,
    starts_by_record,
    target_counts,
)
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Feature
from recordmill.sources.common.tables import count_unit_rows

MAX_STRATIFIED_CLASSES = (
    1 << 15
)  # 32,768, enough for ImageNet's 21,841 classes: each worker gets the boundaries of all
_TOLERANCE_DIVISOR = (
    10  # with groups, a split may miss its share of a class by a tenth, or by one record
)


def check_class_feature(feature: Feature) -> None:
    """Raises UsageError unless the feature is a string, an integer or a boolean."""
    if feature.dtype in ("string", "bool") or feature.dtype.removeprefix("u").startswith("int"):
        return
    if feature.dtype.startswith(("float", "bfloat")):
        remedy = (
            f"if they are whole numbers say {option('dtypes', {feature.name: 'int64'})}, else add a column that names "
            "a range for each"
        )
    else:
        remedy = "name a column of texts, whole numbers or truth values"
    raise UsageError(
        f"{option('stratify', feature.name)}: it holds {feature.describe()}, which is no class; {remedy}"
    )


def count_classes(plan: BuildPlan, progress: Progress) -> BuildPlan:
    """Reads all records and returns the plan with its `stratified_splits`.

    A plan without `stratify` is returned as it is, and nothing is read.

    Raises:
        UsageError: The column has more than MAX_STRATIFIED_CLASSES values. Or groups contain several classes, or are too large to
            divide a class by the fractions.
        DataError: An input is broken.
    """
    if plan.key_options.stratify is None:
        return plan
    progress.begin("classes", None if plan.source is None else count_unit_rows(plan.source.units))
    counter = _ClassCounter(plan)
    for _ in thread_map(
        lambda group: counter.add_unit_group(group, progress),
        range(len(plan.unit_groups)),
        plan.threads,
    ):
        pass
    strata = counter.compute_splits()
    release_unused(heap=True)
    return replace(plan, stratified_splits=strata)


class _ClassCounter:
    """Classes and hashes of the records read so far. Several threads may add to it."""

    def __init__(self, plan: BuildPlan) -> None:
        assert plan.key_options.stratify is not None
        assert plan.source is not None
        self._plan, self._column, self._lock = plan, plan.key_options.stratify, threading.Lock()
        self._feature = plan.source.schema[self._column]
        self._values = pa.array([], to_arrow(plan.source.schema).field(self._column).type)
        self._counts = np.zeros(1, np.int64)
        self._is_grouped = plan.key_options.group_column is not None
        self._rows: list[Rows] = [np.empty(0, GROUP_DTYPE if self._is_grouped else RECORD_DTYPE)]

    def add_unit_group(self, group: int, progress: Progress) -> None:
        """Adds the records of a group of units."""
        for chunk in read_unit_group(self._plan, group):
            progress.advance(chunk.rows)
            if not chunk.rows:
                continue
            batch = decode_key_columns(self._plan, chunk)
            assert batch is not None
            hashes = self._plan.key_assigner.split_hashes(batch, chunk.file_ids, chunk.positions)
            rows = np.zeros(chunk.rows, GROUP_DTYPE if self._is_grouped else RECORD_DTYPE)
            rows["hash"], rows["class_id"] = hashes, self._count_values(batch.column(self._column))
            if self._is_grouped:
                rows["records"] = 1
                rows = combine_rows(rows)
            else:
                rows["file"], rows["position"] = chunk.file_ids, chunk.positions
            self._rows.append(rows)  # needs no lock: appending to a list is atomic
            del chunk, batch, hashes, rows  # free the memory before the next chunk is read
        release_unused(heap=True)

    def _count_values(self, column: pa.Array) -> Int64s:
        """Counts the values and returns the class of each. New values become new classes."""
        with self._lock:
            numbers = find_class_ids(column, self._values)
            if (new := numbers < 0).any():
                values = pc.unique(column.filter(pa.array(new)))
                if len(self._values) + len(values) > MAX_STRATIFIED_CLASSES:
                    raise UsageError(
                        f"{option('stratify', self._column)}: it has more than {MAX_STRATIFIED_CLASSES:,} different values; name "
                        "a column of fewer classes"
                    )
                self._values = pa.concat_arrays([self._values, values])
                self._counts = np.append(self._counts, np.zeros(len(values), np.int64))
                numbers = find_class_ids(column, self._values)
            self._counts += np.bincount(numbers, minlength=len(self._counts))
            return numbers

    def compute_splits(self) -> StratifiedSplits:
        """Computes the boundaries of the splits. Can be called once, because it releases the rows."""
        order = self._plan.key_options
        wanted = target_counts(self._counts.tolist(), [fraction for _, fraction in order.splits])
        rows, self._rows = np.concatenate(self._rows), []
        if self._is_grouped:
            cuts = starts_by_group(combine_rows(rows), wanted)
            self._check(cuts, wanted)
            begins, counts = cuts.split_starts, cuts.counts
        else:
            begins, counts = starts_by_record(rows, wanted), wanted
        by_value = np.asarray(pc.sort_indices(self._values)) + 1
        numbers = [0, *by_value.tolist()]
        names = [self._name(number) for number in numbers]
        notes = describe_class_sizes(self._column, names, self._plan.split_names, counts[numbers])
        values = self._values.take(pa.array(by_value - 1))
        return StratifiedSplits(
            self._column, values, begins[numbers], self._is_grouped, tuple(notes)
        )

    def _name(self, number: int) -> str:
        """Returns the name of a class for messages."""
        if not number:
            return "(missing)"
        value = self._values[number - 1].as_py()
        classes = self._feature.classes
        return f"{value if classes is None else classes[value]!s:.99}"

    def _check(self, cuts: GroupedStarts, wanted: Int64s) -> None:
        order = self._plan.key_options
        name = "key" if order.split_by is None else "split_by"
        said = (
            f"{option('stratify', order.stratify)} and {option(name, order.group_column)} conflict"
        )
        remedy = f"drop one of them, or let {option('split_by')} name a column of smaller groups"
        if cuts.mixed_groups:
            raise UsageError(
                f"{said}: {cuts.mixed_groups:,} of {cuts.num_groups:,} groups hold records of several classes, and would have to "
                f"be divided; drop one of them, or let {option('stratify')} name a column that is the same in all of "
                "a group"
            )
        off = np.abs(cuts.counts - wanted)
        if not (wrong := off > np.maximum(wanted // _TOLERANCE_DIVISOR, 1)).any():
            return
        number, split = np.unravel_index(int(np.argmax(np.where(wrong, off, -1))), off.shape)
        raise UsageError(
            f"{said}: split {self._plan.split_names[split]!r} would have {int(cuts.counts[number, split]):,} of the "
            f"{int(wanted[number].sum()):,} records of {self._name(int(number))}, where {int(wanted[number, split]):,} "
            f"are its share and a tenth more or less is allowed; {remedy}"
        )
