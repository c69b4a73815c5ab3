"""Summary of TFRecord files: counts, sizes, features, ranges, examples and damage.

`inspect` reads all records once, or a sample. Threads compute the statistics of batches, which are
added up in order. Each `Finding` describes a difference between records.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from recordmill.base.arguments import suggest_keywords
from recordmill.base.display import Display
from recordmill.base.errors import DataError, UsageError
from recordmill.base.messages import Message, join_messages
from recordmill.base.option_names import option
from recordmill.base.progress import Progress, ProgressArgument, to_progress
from recordmill.base.sizes import format_count
from recordmill.base.threads import thread_map
from recordmill.options.calls import Values, with_keywords
from recordmill.options.read import InspectOptions
from recordmill.reader.display import show_value
from recordmill.reader.inspect.contents import Contents, suggest_arrays, union_range
from recordmill.reader.open_files import OpenFiles
from recordmill.reader.records import Records
from recordmill.reader.statistics import read_stored_statistics
from recordmill.records.columns.numpy_arrays import is_bytes
from recordmill.records.inference.infer import (
    FeatureCounts,
    Inference,
    RecordLocation,
    combine_known,
)
from recordmill.records.tfrecord.frames import FileFrames
from recordmill.schemas.arrow import format_ticks
from recordmill.schemas.feature import OPAQUE_BYTES, Feature, Schema
from recordmill.schemas.tfds import tfds_limitations
from recordmill.shards.catalog import Inputs, catalog_inputs
from recordmill.shards.cutting import cut_files
from recordmill.shards.loading.decode import decode_frames, salvage
from recordmill.shards.loading.sample import iter_sample_reads
from recordmill.shards.pieces import FrameRead, iter_piece_reads
from recordmill.shards.rejects import (
    RejectBudget,
    RejectSummary,
    TooManyRejects,
    is_record_error,
    with_remedy,
)
from recordmill.statistics.dataset_statistics import DatasetStatistics
from recordmill.storage.files import limit_requests

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from recordmill.options.keywords import InspectKeywords

FINDING_KINDS, FINDING_MESSAGE, FINDING_LENGTHS, FINDING_PRESENCE = (
    "kinds",
    "message",
    "lengths",
    "presence",
)


@dataclass(frozen=True)
class Finding:
    """A difference between records.

    Attributes:
        feature: Name of the feature. Empty if the finding concerns complete records.
        what: One of the FINDING constants.
        text: The description.
        places: (file, record number) of the first record of each variant.
        conflict: True if no schema fits all records because of this difference.
    """

    feature: str
    what: str
    text: str
    places: tuple[RecordLocation, ...]
    conflict: bool = False

    def to_json(self) -> dict[str, Any]:
        places = [{"file": file, "record": record} for file, record in self.places]
        return {
            "feature": self.feature,
            "what": self.what,
            "conflict": self.conflict,
            "text": self.text,
            "places": places,
        }

    def __str__(self) -> str:
        return f"{self.feature}: {self.text}" if self.feature else self.text


def format_location(place: RecordLocation) -> str:
    """Returns the place of a record as text.

    >>> format_location(("a.tfrecord", 3))
    'a.tfrecord record 3'
    """
    return f"{place[0]} record {place[1]}" if place[0] else f"record {place[1]}"


def find_differences(inference: Inference) -> list[Finding]:
    """Returns the differences between records: conflicts, then lengths, by feature."""
    if inference.message == OPAQUE_BYTES:
        return []
    return [*_message_findings(inference), *_kind_findings(inference), *_length_findings(inference)]


def find_conflicting_features(inference: Inference) -> frozenset[str]:
    """Returns the features that have no common type in all records."""
    conflicts = () if inference.message == OPAQUE_BYTES else _kind_findings(inference)
    return frozenset(finding.feature for finding in conflicts)


def drop_conflicts(inference: Inference) -> Inference:
    """Returns the counts without the conflicting features."""
    bad = find_conflicting_features(inference)
    return replace(
        inference,
        features={
            key: counts
            for key, counts in inference.features.items()
            if inference.feature_name(*key) not in bad
        },
    )


def _message_findings(inference: Inference) -> Iterator[Finding]:
    if inference.other_records and inference.first_other_record is not None:
        text = (
            f"{inference.other_records:,} of {inference.records:,} records are neither Example nor SequenceExample, "
            f"first {format_location(inference.first_other_record)}"
        )
        yield Finding("", FINDING_MESSAGE, text, (inference.first_other_record,), conflict=True)


def _kind_findings(inference: Inference) -> Iterator[Finding]:
    for key, counts in sorted(inference.features.items()):
        name = inference.feature_name(*key)
        if len(counts.kinds) > 1:
            parts = (
                f"{kind} in {count:,} {_count_unit(counts, count)}, first {format_location(counts.first_locations[kind])}"
                for kind, count in counts.kinds.items()
            )
            yield Finding(
                name,
                FINDING_KINDS,
                "; ".join(parts),
                tuple(counts.first_locations[kind] for kind in counts.kinds),
                conflict=True,
            )


def _length_findings(inference: Inference) -> Iterator[Finding]:
    for key, counts in sorted(inference.features.items()):
        name = inference.feature_name(*key)
        if (
            counts.length is None
            and counts.first_min_values is not None
            and counts.first_max_values is not None
        ):
            text = (
                f"{_count_values(counts.min_values)} in {format_location(counts.first_min_values)}, "
                f"{_count_values(counts.max_values)} in {format_location(counts.first_max_values)}"
            )
            yield Finding(
                name, FINDING_LENGTHS, text, (counts.first_min_values, counts.first_max_values)
            )


def _count_values(count: int | None) -> str:
    return format_count(count or 0, "value")


def _count_unit(counts: FeatureCounts, count: int) -> str:
    return ("step" if counts.per_step else "record") + ("" if count == 1 else "s")


_MAX_REJECTS = 10  # damaged records that are listed with their reasons
_MAX_EXAMPLES = 3  # distinct values that are shown per feature
_EXAMPLE_ROWS = 20  # rows of a batch in which examples are searched
_SIZE_BATCH = 1 << 20  # values per call; each of their sizes takes eight bytes

ValueRange = tuple[Any, Any]


@dataclass(frozen=True)
class FeatureStats:
    """Statistics of one feature.

    A range is None if the feature has no values of this type.

    Attributes:
        rows: Number of records that were inspected.
        present: Number of these records that have the feature.
        lengths: (minimum, maximum) number of items of the first variable dimension.
        sizes: (minimum, maximum) size of a text or binary value, in bytes.
        values: (minimum, maximum) of the numbers. Times are ticks, but readable text in a
            `Summary`.
        examples: The first distinct values, as readable text.
        missing_at: (file, record number) of the first record without the feature, or None.
        contents: Kinds of the binary values.
    """

    rows: int = 0
    present: int = 0
    lengths: ValueRange | None = None
    sizes: ValueRange | None = None
    values: ValueRange | None = None
    examples: tuple[str, ...] = ()
    missing_at: RecordLocation | None = None
    contents: Contents | None = None

    def __add__(self, other: FeatureStats) -> FeatureStats:
        examples = tuple(dict.fromkeys(self.examples + other.examples))[:_MAX_EXAMPLES]
        return FeatureStats(
            rows=self.rows + other.rows,
            present=self.present + other.present,
            lengths=combine_known(self.lengths, other.lengths, union_range),
            sizes=combine_known(self.sizes, other.sizes, union_range),
            values=combine_known(self.values, other.values, union_range),
            examples=examples,
            missing_at=other.missing_at if self.missing_at is None else self.missing_at,
            contents=combine_known(self.contents, other.contents, operator.add),
        )

    @classmethod
    def from_column(
        cls, column: pa.Array, feature: Feature, first: RecordLocation = ("", 0)
    ) -> FeatureStats:
        """Returns the statistics of a column of one batch.

        Args:
            feature: The feature of the column.
            first: (file, record number) of its first row.
        """
        lengths = _min_max(pc.list_value_length(column)) if feature.ragged_rank else None
        values = column
        while pa.types.is_nested(values.type):
            values = values.flatten()
        sizes = _text_sizes(values) if is_bytes(feature) else None
        numbers = None if is_bytes(feature) else _min_max(values)
        head = column.slice(0, _EXAMPLE_ROWS)
        examples = tuple(
            dict.fromkeys(
                show_value(head.slice(row, 1), feature)
                for row in range(len(head))
                if head[row].is_valid
            )
        )[:_MAX_EXAMPLES]
        missing_at = (
            (first[0], first[1] + pc.index(column.is_null(), True).as_py())
            if column.null_count
            else None
        )
        # single bytes have no recognisable contents
        contents = (
            Contents.count(values)
            if feature.dtype == "bytes" and sizes is not None and sizes[1] > 1
            else None
        )
        return cls(
            rows=len(column),
            present=len(column) - column.null_count,
            lengths=lengths,
            sizes=sizes,
            values=numbers,
            examples=examples,
            missing_at=missing_at,
            contents=contents,
        )


def _text_sizes(values: pa.Array) -> ValueRange | None:
    """Returns the minimum and maximum size of the values, in bytes."""
    parts = (values.slice(first, _SIZE_BATCH) for first in range(0, len(values), _SIZE_BATCH))
    sizes: ValueRange | None = None
    for part in parts:
        sizes = combine_known(sizes, _min_max(pc.binary_length(part)), union_range)
    return sizes


def _min_max(values: pa.Array) -> ValueRange | None:
    if pa.types.is_float16(values.type):
        values = values.cast(pa.float32())  # min_max does not support float16
    limits = pc.min_max(values)
    if not limits["min"].is_valid:
        return None
    minimum, maximum = limits["min"], limits["max"]
    if pa.types.is_timestamp(values.type):
        return minimum.value, maximum.value
    return minimum.as_py(), maximum.as_py()


def _show_times(stats: FeatureStats, feature: Feature) -> FeatureStats:
    """Returns the statistics with the range of times as readable text."""
    if not feature.timestamp or stats.values is None:
        return stats
    minimum, maximum = (format_ticks(ticks, feature) for ticks in stats.values)
    return replace(stats, values=(minimum, maximum))


@dataclass(frozen=True)
class Summary:
    """Everything that `recordmill inspect` shows.

    Attributes:
        name: Name of the data set, or the number of files.
        schema: The features, without conflicting ones.
        splits: Number of records, shards and bytes of each split.
        compression: The compressions of the files.
        looked_at: Number of records that were inspected.
        features: Statistics by feature name.
        refusals: Features that TensorFlow Datasets can't read, with the reason. None for files
            without a manifest, and for records that are not TensorFlow messages.
        notes: Messages about the files and their schema.
        sampled: Description of the sample. None if all records were inspected.
        findings: Differences between records.
        conflicts: Kinds of each conflicting feature, with the number of records of each kind.
        rejected: Damaged records. Only `records` includes them.
        statistics: Statistics of the build. None if it stored none.
    """

    name: str
    schema: Schema
    splits: dict[str, dict[str, int]]
    compression: tuple[str, ...]
    looked_at: int
    features: dict[str, FeatureStats] = field(default_factory=dict)
    refusals: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
    sampled: str | None = None
    findings: tuple[Finding, ...] = ()
    conflicts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    rejected: RejectSummary = field(default_factory=RejectSummary.empty)
    statistics: DatasetStatistics | None = None

    def guesses(self) -> dict[str, list[str]]:
        """Returns the arrays that binary features with values of equal length may contain.

        For example `float32[64,64,3]`, by feature name.
        """
        sizes = {}
        for name, stats in self.features.items():
            is_integer = self.schema[name].kind == "int64" and not self.schema[name].shape
            if is_integer and stats.values is not None and stats.values[0] == stats.values[1]:
                sizes[name] = stats.values[0]
        guesses = {}
        for name, stats in self.features.items():
            if (
                stats.contents is not None
                and stats.sizes is not None
                and stats.sizes[0] == stats.sizes[1]
                and not self.schema[name].shape
            ):
                guesses[name] = suggest_arrays(stats.contents, stats.sizes[0], sizes)
        return {name: texts for name, texts in guesses.items() if texts}

    @property
    def records(self) -> int:
        return sum(split["records"] for split in self.splits.values())

    def to_json(self) -> dict[str, Any]:
        guesses = self.guesses()
        features = [
            {
                "name": feature.name,
                "dtype": feature.dtype,
                "shape": list(feature.shape),
                "kind": feature.kind,
                "required": feature.required,
                "classes": None if feature.classes is None else list(feature.classes),
                "present": stats.present,
                "lengths": stats.lengths,
                "sizes": stats.sizes,
                "values": stats.values,
                "examples": list(stats.examples),
                "contents": None if stats.contents is None else stats.contents.to_json(),
                "may_be": guesses.get(feature.name, []),
            }
            for feature in self.schema
            for stats in [self.features[feature.name]]
        ]
        return {
            "name": self.name,
            "records": self.records,
            "splits": self.splits,
            "compression": list(self.compression),
            "message": self.schema.message,
            "label": self.schema.label,
            "looked_at": self.looked_at,
            "features": features,
            "tfds_refusals": None if self.refusals is None else list(self.refusals),
            "notes": list(self.notes),
            "sampled": self.sampled,
            "findings": [finding.to_json() for finding in self.findings],
            "conflicts": {name: dict(kinds) for name, kinds in self.conflicts.items()},
            "rejects": {
                "count": self.rejected.total,
                "reasons": dict(sorted(self.rejected.counts.items())),
                "first": [asdict(reject) for reject in self.rejected.first],
            },
            "statistics": None if self.statistics is None else self.statistics.to_json(),
        }


def summarise(files: OpenFiles, counters: Progress | None = None) -> Summary:
    """Inspects the records of some files.

    If the files were opened with `infer_from`, only this sample is read. Conflicting features are
    left out of the schema and reported. If the files are lenient, damaged records are counted.

    Args:
        counters: Receives the number of records that were read.

    Raises:
        DataError: A record is damaged and the files are not lenient.
    """
    catalog, sample = files.catalog, files.infer_from
    schema, conflicts, schema_notes = _readable_schema(files)
    lenient = files.is_lenient
    splits: dict[str, dict[str, int]] = {
        split: {"records": 0, "shards": 0, "bytes": 0} for split in catalog.splits
    }
    for file in catalog.files:
        figures = splits[file.split]
        figures["shards"], figures["bytes"] = (
            figures["shards"] + 1,
            figures["bytes"] + file.stat.size_bytes,
        )
    features = {feature.name: FeatureStats() for feature in schema}
    looked_at, rejected = 0, RejectSummary.empty()

    # Results arrive in order, so the first places and examples do not depend on threads.
    def inspect_read(read: FrameRead) -> tuple[int, int, dict[str, FeatureStats], RejectSummary]:
        frames = read()
        name = catalog.files[frames.file].name
        return frames.file, *_frames_stats(frames, name, schema=schema, lenient=lenient)

    counts = [0] * len(catalog.files)
    for index, rows, new_stats, damaged in thread_map(
        inspect_read, _iter_inspected_reads(files), files.threads
    ):
        looked_at, rejected = looked_at + rows, rejected + damaged
        features = {name: stats + new_stats[name] for name, stats in features.items()}
        counts[index] += rows + damaged.total
        if counters is not None:
            counters.advance(records=rows)
    if sample is not None:
        counts = [file.records for file in files.files]
    for file, count in zip(catalog.files, counts, strict=True):
        splits[file.split]["records"] += count
    features = {feature.name: _show_times(features[feature.name], feature) for feature in schema}
    compression = tuple(dict.fromkeys(file.compression for file in catalog.files))
    num_parts = 0 if catalog.manifest is None else len(catalog.manifest.parts)
    refusals = (
        (f"data sets of several parts, like the {num_parts} here: `recordmill compact` joins them",)
        if num_parts > 1
        else tuple(tfds_limitations(schema, *compression[:1]))
        if num_parts and schema.message != OPAQUE_BYTES
        else None
    )
    name = (
        catalog.manifest.name
        if catalog.manifest
        else format_count(len(catalog.files), "TFRecord file")
    )
    sampled = None if sample is None else sample.describe(len(catalog.files))
    differences = (
        *(find_differences(files.inference) if files.inference is not None else ()),
        *_presence_findings(features),
    )
    build_notes = () if catalog.manifest is None else catalog.manifest.statistics.get("notes", ())
    wrong_counts = filter(
        None, (f.compare_length(n) for f, n in zip(catalog.files, counts, strict=True))
    )
    notes = (*catalog.notes, *map(str, wrong_counts), *build_notes, *schema_notes)
    return Summary(
        name=name,
        schema=schema,
        splits=splits,
        compression=compression,
        looked_at=looked_at,
        features=features,
        refusals=refusals,
        notes=notes,
        sampled=sampled,
        findings=differences,
        conflicts=conflicts,
        rejected=rejected,
        statistics=read_stored_statistics(Records.from_files(files)),
    )


def _readable_schema(
    files: OpenFiles,
) -> tuple[Schema, dict[str, Mapping[str, int]], tuple[str, ...]]:
    """Returns (readable features, record counts by kind for each conflicting feature, notes)."""
    inference = files.inference
    if inference is None:
        return files.schema, {}, files.notes
    bad = find_conflicting_features(inference)
    if not bad:
        try:
            return files.schema, {}, files.notes
        except DataError as error:
            # Files have numbers of different classes. The features can be shown without classes.
            return inference.to_schema(), {}, (str(error),)
    counts_by_name = {
        inference.feature_name(*key): counts for key, counts in sorted(inference.features.items())
    }
    kinds = {name: counts.kinds for name, counts in counts_by_name.items() if name in bad}
    return drop_conflicts(inference).to_schema(), kinds, ()


def _presence_findings(features: Mapping[str, FeatureStats]) -> Iterator[Finding]:
    for name, stats in features.items():
        if stats.missing_at is not None:
            first = format_location(stats.missing_at)
            text = f"missing in {stats.rows - stats.present:,} of {stats.rows:,} records, first {first}"
            yield Finding(name, FINDING_PRESENCE, text, (stats.missing_at,))


def _iter_inspected_reads(files: OpenFiles) -> Iterator[FrameRead]:
    """Yields deferred reads of all records, or of the sample. No file is read twice."""
    shards = files.catalog.files
    if files.infer_from is not None:
        return iter_sample_reads(shards, files.infer_from)
    return iter_piece_reads(shards, cut_files(enumerate(shards), lenient=files.is_lenient))


def _frames_stats(
    frames: FileFrames, name: str, *, schema: Schema, lenient: bool
) -> tuple[int, dict[str, FeatureStats], RejectSummary]:
    """Computes the statistics of the records in some frames.

    Args:
        frames: Frames of one file.
        name: Name of the file.
        schema: The features.
        lenient: True if bad records are counted. Otherwise they are an error.

    Returns:
        The number of good records, their statistics by feature, and a summary of the bad records.
    """
    if lenient:
        salvaged = salvage(frames, name, schema)
        batches, numbers, rejects = salvaged.batches, salvaged.numbers, salvaged.rejects
    else:
        batches, numbers, rejects = (decode_frames(frames, schema),), frames.numbers, ()
    total = {feature.name: FeatureStats() for feature in schema}
    for batch in batches:  # there is at most one batch
        for feature, column in zip(schema, batch.columns, strict=True):
            stats = FeatureStats.from_column(column, feature)
            # the batch has no rows for unreadable records, so a row is not yet a record number
            if stats.missing_at is not None:
                stats = replace(stats, missing_at=(name, int(numbers[stats.missing_at[1]])))
            total[feature.name] = stats
    reasons = Counter(reject.reason for reject in rejects)
    return (
        sum(batch.num_rows for batch in batches),
        total,
        RejectSummary(reasons, rejects[:_MAX_REJECTS]),
    )


@suggest_keywords
@with_keywords("inspect")
def inspect(
    inputs: Inputs,
    split: str | None = None,
    *,
    progress: ProgressArgument = None,
    quiet: bool = True,
    **options: Unpack[InspectKeywords],
) -> Summary:
    """Inspects the records of a data set or of any TFRecord files.

    Args:
        inputs: As in `open`.
        split: As in `open`.
        progress: A function that receives the progress, as in `build`.
        quiet: If True, no progress is shown on the terminal.
        **options: The options of `recordmill inspect`, as keywords. docs/reference.md lists them.

    Returns:
        The summary.

    Raises:
        UsageError: An option does not fit the inputs or the other options.
        DataError: A record is damaged and `max_rejects` is 0.
        TooManyRejects: More records are damaged than `max_rejects` allows.

    Examples:
        >>> summary = recordmill.inspect("shards")
        >>> summary.records, summary.features["size"].values
        (10, (0.0, 4.5))
    """
    chosen = Values("inspect", {"split": split, **options})[InspectOptions]
    limit_requests(chosen.storage_requests)
    budget = RejectBudget.parse(chosen.max_rejects)
    if chosen.infer_from is not None and budget != RejectBudget():
        raise UsageError(
            "{max_rejects} counts all records: leave out {infer_from}",
            max_rejects=option("max_rejects"),
            infer_from=option("infer_from"),
        )
    counters = to_progress(progress)
    counters.begin("convert")
    with Display(counters, quiet):
        if budget != RejectBudget():
            catalog = catalog_inputs(inputs, split, lenient=True)
            files = OpenFiles.from_catalog(
                catalog, chosen.schema, threads=chosen.threads, is_lenient=True
            )
            summary = summarise(files, counters)
        else:
            try:
                catalog = catalog_inputs(inputs, split, skips_headerless=True)
                files = OpenFiles.from_catalog(
                    catalog,
                    chosen.schema,
                    threads=chosen.threads,
                    infer_from=chosen.infer_from,
                )
                return summarise(files, counters)
            except DataError as error:
                # `max_rejects` helps only against errors of single records
                if not error.source or not is_record_error(error):
                    raise
                raise with_remedy(error) from error
    rejected = summary.rejected
    if not budget.allows(rejected.total, summary.records):
        first = join_messages(
            "", [Message("\n  {reject}", reject=reject) for reject in rejected.first]
        )
        raise TooManyRejects(
            Message(
                "of {records} records are damaged: {rejected}; {max_rejects} allows "
                "fewer:{first}\nAllow them with {max_rejects2}.",
                records=f"{summary.records:,}",
                rejected=rejected.describe(),
                max_rejects=option("max_rejects", budget.option_value),
                first=first,
                max_rejects2=option("max_rejects", rejected.total),
            ),
            rejected.first,
            rejected.counts,
        )
    return summary
