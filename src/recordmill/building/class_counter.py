"""Counts of the classes for stratified splits, by one pass over all records.

The pass keeps one row for each record, or for each split group, with its class and its hash. From
these rows, `building.stratified_splits` computes where each split begins within each class. A row
takes 24 bytes, and as much again while the rows are sorted. `--memory` does not limit this.
"""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recordmill.base.buffers import Int64s, release_unused
from recordmill.base.errors import UsageError
from recordmill.base.messages import Message
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
    compute_added_targets,
    compute_targets,
    describe_class_sizes,
    find_class_ids,
    find_starts_by_group,
    find_starts_by_record,
)
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Feature
from recordmill.shards.manifest import read_sketch
from recordmill.sources.common.tables import count_unit_rows
from recordmill.statistics.dataset_sketch import DatasetSketch

# 32,768 is enough for ImageNet's 21,841 classes. Each worker gets the boundaries of all.
MAX_STRATIFIED_CLASSES = 1 << 15
# With split groups, a split may get up to a tenth (1/10) more or less than its share of a class, or
# one record if a tenth is less.
_TOLERANCE_DIVISOR = 10


def check_class_feature(feature: Feature) -> None:
    """Raises UsageError unless the feature is a string, an integer or a boolean."""
    if feature.dtype in ("string", "bool") or feature.dtype.removeprefix("u").startswith("int"):
        return
    if feature.dtype.startswith(("float", "bfloat")):
        remedy: str = Message(
            "if they are whole numbers, use {dtypes}; otherwise add a column that "
            "names a range for each",
            dtypes=option("dtypes", {feature.name: "int64"}),
        )
    else:
        remedy = "name a column of texts, whole numbers or booleans"
    raise UsageError(
        "{stratify}: the column holds {feature}, which can't be a class; {remedy}",
        stratify=option("stratify", feature.name),
        feature=feature.describe(),
        remedy=remedy,
    )


def count_classes(plan: BuildPlan, progress: Progress) -> BuildPlan:
    """Counts the classes of all records and returns the plan with `stratified_splits` set.

    If the plan has no `stratify`, it is returned unchanged, and nothing is read. Otherwise all
    records are read.

    Raises:
        UsageError: The column has more than MAX_STRATIFIED_CLASSES different values. Or, with split
            groups, some groups contain several classes or are too large to divide a class by the
            fractions.
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
    stratified_splits = counter.compute_splits()
    release_unused(heap=True)
    return replace(plan, stratified_splits=stratified_splits)


class _ClassCounter:
    """Classes and hashes of the records that were read so far.

    Several threads may call `add_unit_group` at once.
    """

    def __init__(self, plan: BuildPlan) -> None:
        assert plan.key_options.stratify is not None
        assert plan.source is not None
        self._plan, self._column, self._lock = plan, plan.key_options.stratify, threading.Lock()
        self._feature = plan.source.schema[self._column]
        self._values = pa.array([], to_arrow(plan.source.schema).field(self._column).type)
        self._counts = np.zeros(1, np.int64)
        self._is_grouped = plan.key_options.group_column is not None
        self._rows: list[Rows] = [np.empty(0, GROUP_DTYPE if self._is_grouped else RECORD_DTYPE)]

    def add_unit_group(self, unit_group: int, progress: Progress) -> None:
        """Reads a unit group and adds a row for each record or split group."""
        for chunk in read_unit_group(self._plan, unit_group):
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
            # Needs no lock, because appending to a list is atomic.
            self._rows.append(rows)
            # Free the memory before the next chunk is read.
            del chunk, batch, hashes, rows
        release_unused(heap=True)

    def _count_values(self, column: pa.Array) -> Int64s:
        """Counts the values by class and returns the class of each value.

        A value that was not seen before becomes a new class.

        Raises:
            UsageError: There would be more than MAX_STRATIFIED_CLASSES classes.
        """
        with self._lock:
            class_ids = find_class_ids(column, self._values)
            if (is_new := class_ids < 0).any():
                values = pc.unique(column.filter(pa.array(is_new)))
                if len(self._values) + len(values) > MAX_STRATIFIED_CLASSES:
                    raise UsageError(
                        "{stratify}: the column has more than "
                        "{max_stratified_classes} different values; name a column "
                        "with fewer",
                        stratify=option("stratify", self._column),
                        max_stratified_classes=f"{MAX_STRATIFIED_CLASSES:,}",
                    )
                self._values = pa.concat_arrays([self._values, values])
                self._counts = np.append(self._counts, np.zeros(len(values), np.int64))
                class_ids = find_class_ids(column, self._values)
            self._counts += np.bincount(class_ids, minlength=len(self._counts))
            return class_ids

    def compute_splits(self) -> StratifiedSplits:
        """Computes where each split begins within each class, from all records that were added.

        The method can be called only once, because it releases the rows.

        Raises:
            UsageError: Split groups contain several classes, or are too large to divide a class.
        """
        options = self._plan.key_options
        fractions = [fraction for _, fraction in options.fractions]
        stored = self._count_stored_records()
        targets = (
            compute_targets(self._counts.tolist(), fractions)
            if stored is None
            else compute_added_targets(stored, self._counts, fractions)
        )
        rows, self._rows = np.concatenate(self._rows), []
        if self._is_grouped:
            grouped = find_starts_by_group(combine_rows(rows), targets)
            self._check_groups(grouped, targets)
            split_starts, counts = grouped.split_starts, grouped.counts
        else:
            split_starts, counts = find_starts_by_record(rows, targets), targets
        # Threads find the values in any order, so the classes are sorted by value for a stable
        # result.
        by_value = np.asarray(pc.sort_indices(self._values)) + 1
        class_ids = [0, *by_value.tolist()]
        names = [self._class_name(class_id) for class_id in class_ids]
        notes = describe_class_sizes(self._column, names, self._plan.split_names, counts[class_ids])
        values = self._values.take(pa.array(by_value - 1))
        return StratifiedSplits(
            self._column,
            values=values,
            split_starts=split_starts[class_ids],
            is_grouped=self._is_grouped,
            notes=tuple(notes),
        )

    def _count_stored_records(self) -> Int64s | None:
        """Counts the stored records of each class and split, for an append.

        Returns:
            int64 [classes, splits]. None if the build is not an append, or if the statistics do not
            contain these counts. The new records alone are then divided by the fractions.
        """
        base = self._plan.base_manifest
        data = None if base is None else read_sketch(base, self._plan.out)
        if data is None:
            return None
        sketch = DatasetSketch.from_bytes(data)
        if self._column not in sketch.schema:
            return None
        column, values = sketch.schema.names.index(self._column), self._values.to_pylist()
        stored = np.zeros((len(self._counts), len(self._plan.split_names)), np.int64)
        for split, features in zip(sketch.splits, sketch.features, strict=True):
            counts = features[column].counts_by_value()
            if counts is None or split not in self._plan.split_names:
                return None
            split_id = self._plan.split_names.index(split)
            stored[:, split_id] = [
                features[column].missing,
                # A bool is counted as a number, and is equal to it.
                *(counts.get(value, 0) for value in values),
            ]
        return stored

    def _class_name(self, class_id: int) -> str:
        """Returns the name of a class for messages."""
        if not class_id:
            return "(missing)"
        value = self._values[class_id - 1].as_py()
        classes = self._feature.classes
        return f"{value if classes is None else classes[value]!s:.99}"

    def _check_groups(self, grouped: GroupedStarts, targets: Int64s) -> None:
        """Raises UsageError if the split groups are too large or too mixed.

        A group must contain one class only. In each split, the number of records of a class may
        deviate from the target by a tenth, or by one record if that is more.

        Args:
            grouped: The first group of each split, and the resulting numbers of records.
            targets: [classes, splits] number of records that each split should get.
        """
        options = self._plan.key_options
        name = "key" if options.split_by is None else "split_by"
        conflict = Message(
            "{stratify} and {option} conflict",
            stratify=option("stratify", options.stratify),
            option=option(name, options.group_column),
        )
        remedy = Message(
            "drop one of the options, or use a {split_by} column with smaller groups",
            split_by=option("split_by"),
        )
        if grouped.num_mixed_groups:
            raise UsageError(
                "{conflict}: {num_mixed_groups} of {num_groups} groups hold records "
                "of several classes, and would have to be divided; drop one of the "
                "options, or use a {stratify} column that has one value in each group",
                conflict=conflict,
                num_mixed_groups=f"{grouped.num_mixed_groups:,}",
                num_groups=f"{grouped.num_groups:,}",
                stratify=option("stratify"),
            )
        deviations = np.abs(grouped.counts - targets)
        if not (is_wrong := deviations > np.maximum(targets // _TOLERANCE_DIVISOR, 1)).any():
            return
        class_id, split_id = np.unravel_index(
            int(np.argmax(np.where(is_wrong, deviations, -1))), deviations.shape
        )
        raise UsageError(
            "{conflict}: split {split_names} would have {counts} of the {sum} "
            "records of {class_name}. Its share is {targets}, and may differ by a "
            "tenth; {remedy}",
            conflict=conflict,
            split_names=repr(self._plan.split_names[split_id]),
            counts=f"{int(grouped.counts[class_id, split_id]):,}",
            sum=f"{int(targets[class_id].sum()):,}",
            class_name=self._class_name(int(class_id)),
            targets=f"{int(targets[class_id, split_id]):,}",
            remedy=remedy,
        )
