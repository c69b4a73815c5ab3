"""Writes RecordBatches of a user's own pipeline to a committed data set.

The shards have the same form as the shards of `build`. The pipeline runs in this process, or in
workers that share only the output folder.
"""

from __future__ import annotations

import contextlib
import functools
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from recordmill.base.arguments import suggest_fields
from recordmill.base.errors import DataError, Fault, UsageError
from recordmill.base.option_names import available_names
from recordmill.base.progress import Progress
from recordmill.base.sizes import to_whole_number
from recordmill.building.ingest import (
    IngestResult,
    KeyedChunk,
    create_sketches,
    describe_oversized_record,
    find_oversized_record,
    update_statistics,
)
from recordmill.building.plan import BuildPlan, choose_dataset_name
from recordmill.building.record_keys import DEFAULT_SPLIT, assign_by_payload
from recordmill.building.shard_boundaries import ShardOptions
from recordmill.building.sorted_run import KeyBuckets, SortedRun, SortedRunWriter
from recordmill.building.workers.shared_files import (
    JobFolder,
    SharedPlanHandle,
    begin_build,
    task_workspace,
)
from recordmill.building.workers.sorted_runs import SharedIngestResult, share_results
from recordmill.options.build import BuildShards, WriteShardsOptions
from recordmill.options.calls import Values, with_keywords
from recordmill.options.order import BuildOrder
from recordmill.records.example.encode import encode
from recordmill.records.tfrecord.frames import FRAME_OVERHEAD_BYTES
from recordmill.schemas.arrow import class_names_in_metadata, to_arrow
from recordmill.schemas.feature import Feature, Schema
from recordmill.shards.manifest import Manifest
from recordmill.shards.rejects import RejectBudget, RejectSummary, RejectWriter
from recordmill.shards.run import RunFolder, check_output_folder
from recordmill.sources.arrow.python_rows import rows_to_batches
from recordmill.sources.values.conform import ConformedBatch, conform
from recordmill.sources.values.labels import ClassNames, with_label
from recordmill.storage.files import is_remote, parse_output_path
from recordmill.storage.folders import absolute_path
from recordmill.transforms import beam_types
from recordmill.transforms.build_stages import (
    HISTOGRAMS,
    INGEST_RESULTS,
    ShardStages,
    increment_counters,
    pair_outputs,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from recordmill.options.keywords import WriteShardsKeywords

_LOCAL_RUNNERS = ("FnApiRunner", "DirectRunner", "BundleBasedDirectRunner", "SwitchingDirectRunner")


# The only column of a batch of rejects. Its values are structs of a reason and a message.
_REJECTS_COLUMN = "recordmill.rejects"


@suggest_fields
@dataclass
class BatchDicts(beam_types.PTransform):
    """Converts dicts of values by feature name to RecordBatches.

    A missing value is None, or its key is absent.

    With a schema, rows that don't fit it become rejects. Examples are a text among numbers, a list
    for a scalar, or a key that is not a feature. The other rows of the batch are kept. The rejects
    are output as separate batches with the single column `recordmill.rejects`, which `WriteShards`
    counts. Without a schema, a row that doesn't fit the other rows of its batch ends the run.

    Args:
        batch_rows: Number of rows of a batch.
        schema: The schema of the records, as in `WriteShards`. If None, the types are inferred from
            the values of each batch.
    """

    batch_rows: int = 4096
    schema: Schema | None = None

    def __post_init__(self) -> None:
        self.batch_rows = to_whole_number(self.batch_rows, "batch_rows", 1)
        if self.schema is not None and not isinstance(self.schema, Schema):
            raise UsageError(f"schema is a Schema, not {type(self.schema).__name__}")

    def expand(
        self, rows: beam_types.PCollection
    ) -> beam_types.PCollection:  # {name: value} -> RecordBatch
        return (
            rows
            | beam_types.BatchElements(
                min_batch_size=self.batch_rows, max_batch_size=self.batch_rows
            )
            | beam_types.FlatMap(_make_batches, self.schema).with_output_types(pa.RecordBatch)
        )


# Metadata of batches from dicts. If such a batch lacks a column, its values are missing.
_DICT_METADATA = {b"recordmill.dicts": b""}


def _make_batches(
    rows: Sequence[Mapping[str, Any]], schema: Schema | None = None
) -> Iterator[pa.RecordBatch]:
    if schema is None:
        yield from map(_mark_as_dicts, rows_to_batches(rows))
        return
    fitted = [*_fit_rows(rows, schema)]
    good = [conformed.batch for conformed in fitted]
    yield from pa.Table.from_batches(good, to_arrow(schema)).combine_chunks().to_batches()
    if rejects := [fault._asdict() for conformed in fitted for fault in conformed.faults.values()]:
        yield pa.record_batch({_REJECTS_COLUMN: rejects})


def _mark_as_dicts(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.replace_schema_metadata({**(batch.schema.metadata or {}), **_DICT_METADATA})


def _fit_rows(rows: Sequence[Mapping[str, Any]], schema: Schema) -> Iterator[ConformedBatch]:
    """Yields batches of consecutive rows, each with the rows that do not fit.

    Whether a row fits does not depend on the other rows.
    """
    try:
        for batch in map(_mark_as_dicts, rows_to_batches(rows)):
            check_batch(batch, schema)
            yield conform(batch, schema)
    except DataError as error:
        # Arrow converts complete columns, and a single wrong value makes it fail. Dividing the rows
        # into halves finds that value.
        if len(rows) == 1:
            yield ConformedBatch(
                batch=pa.RecordBatch.from_pylist([], to_arrow(schema)),
                good_rows=np.empty(0, np.int64),
                faults={0: Fault("type", error.reason)},
                rounded_counts={},
            )
        else:
            yield from _fit_rows(rows[: len(rows) // 2], schema)
            yield from _fit_rows(rows[len(rows) // 2 :], schema)


def _are_rejects(batch: pa.RecordBatch) -> bool:
    """Returns whether a batch from `BatchDicts` contains rejects."""
    names: list[str] = batch.schema.names
    return names == [_REJECTS_COLUMN]


def check_batch(batch: pa.RecordBatch, schema: Schema) -> None:
    """Raises DataError if the columns of a batch do not fit the schema.

    Each column must be a feature of the schema, and each feature must have a column. But a batch
    that was made from dicts may lack columns. The metadata of the batch shows this.

    Columns for text must contain text or bytes, because numbers and times are not converted to
    text.
    """
    names = batch.schema.names
    if unknown := [name for name in names if name not in schema]:
        raise DataError(
            f"a batch has the column {unknown[0]!r}, which the schema does not name; {available_names(unknown[0], schema.names)}; "
            "leave it out, or name it in the schema",
            source="pipeline",
        )
    missing = (
        []
        if _DICT_METADATA.keys() <= {*(batch.schema.metadata or {})}
        else [f for f in schema.names if f not in names]
    )
    if missing:
        raise DataError(
            f"a batch lacks the column {missing[0]!r}, which the schema names; give it one of nulls, or leave it out of "
            "the schema",
            source="pipeline",
        )
    for column in batch.schema:
        value_type, is_text = column.type, schema[column.name].dtype in ("string", "bytes")
        while pa.types.is_nested(value_type) or pa.types.is_dictionary(value_type):
            value_type = value_type.value_type
        if is_text and not (_is_text(value_type) or class_names_in_metadata(column)):
            raise DataError(
                f"column {column.name!r} is {column.type}, but the schema has {schema[column.name].describe()}; make "
                "it text, as in pyarrow.compute.cast(column, 'string'), or name it so in the schema",
                source="pipeline",
            )


def _is_text(kind: pa.DataType) -> bool:
    text = (
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )
    data = (
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
    )
    return bool(text or data or pa.types.is_binary_view(kind) or pa.types.is_null(kind))


@suggest_fields
@beam_types.with_type_hints(input_type=pa.RecordBatch, output_type=Manifest)
class WriteShards(beam_types.PTransform):
    """Writes RecordBatches as a data set, and outputs its manifest.

    The batches have the columns of the schema. The key of a record is a hash of its bytes or of a
    column, because records in a PCollection have no position. So equal records result in equal
    shards, independent of bundles, workers and retries.

    Rows that don't fit the schema become rejects. The run fails if a column is missing or unknown,
    or if it is not text although the schema requires text. Nothing is written while the graph is
    constructed. Each run of the graph is a separate build.

    Constructing the graph raises UsageError for a collection that is unbounded or windowed, and for
    invalid options. The pipeline raises the errors of `commit_shared_build`, and UsageError if
    `out` contains a data set and `overwrite` is False.

    Args:
        out: A folder that all workers see, or one in a store (`s3://bucket/name`, gs, az).
        schema: The schema of the records.
        **options: Keywords as for `build`, which docs/reference.md describes: `label`, `splits`,
            `split_by`, `split_seed`, `key`, `seed`, `shard_size`, `num_shards`, `compression`,
            `name`, `max_rejects`, `overwrite`, `threads` and `memory`. Without `splits`, all
            records are in `train`. Without `key`, the entire record determines the order.
    """

    @with_keywords("WriteShards")
    def __init__(self, out: str, schema: Schema, **options: Unpack[WriteShardsKeywords]) -> None:
        super().__init__()
        values = Values("WriteShards", options)
        own, shards, self.order = (
            values[WriteShardsOptions],
            values[BuildShards],
            values[BuildOrder],
        )
        self.out = absolute_path(parse_output_path(out))
        for column in (own.label, self.order.key, self.order.split_by):
            if column is not None and column not in schema:
                raise UsageError(f"no column {column!r}; {available_names(column, schema.names)}")
        self.schema = schema if own.label is None else replace(schema, label=own.label)
        # The label whose texts become classes.
        is_text = own.label is not None and _is_text_feature(schema[own.label])
        self.text_label = own.label if is_text else None
        self.shards = ShardOptions.from_options(shards.shard_size, shards.num_shards)
        self.compression, self.overwrite = shards.compression, own.overwrite
        self.budget = RejectBudget.parse(own.max_rejects)
        self.name = choose_dataset_name(shards.name, self.out)
        self.threads, self.memory_bytes = own.threads, own.memory

    def expand(
        self, batches: beam_types.PCollection
    ) -> beam_types.PCollection:  # RecordBatch -> Manifest
        if not beam_types.is_global(batches):
            raise UsageError(
                "WriteShards writes one data set of all records: give a bounded PCollection in the global window "
                "(beam.WindowInto(beam.window.GlobalWindows()))"
            )
        is_local = type(batches.pipeline.runner).__name__ in _LOCAL_RUNNERS
        # Engines keep the result of a shuffle, so `start_run` normally runs once. If an engine
        # repeats it nevertheless, the second run is not used.
        plan_handle = (
            batches.pipeline
            | "Start" >> beam_types.Create([self])
            | "Begin" >> beam_types.Map(start_run, self._class_names(batches))
            | "Keep" >> beam_types.Reshuffle()
        )
        ingested = batches | "Ingest" >> beam_types.ParDo(
            _IngestBatches(), beam_types.AsSingleton(plan_handle)
        ).with_outputs(HISTOGRAMS, main=INGEST_RESULTS)
        manifest: beam_types.PCollection = pair_outputs(ingested) | "Shard" >> ShardStages(
            plan_handle, Progress(), is_local
        )
        return manifest

    def _class_names(self, batches: beam_types.PCollection) -> Any:
        """Returns the classes of a text label as a side input. None without such a label."""
        if self.text_label is None:
            return None
        return beam_types.AsSingleton(
            batches
            | "Classes" >> beam_types.Map(_find_class_names, self.schema, self.text_label)
            | "Join classes" >> beam_types.CombineGlobally(_JoinClassNames(self.text_label))
        )


def _is_text_feature(feature: Feature) -> bool:
    return feature.dtype == "string" and feature.classes is None


def _find_class_names(batch: pa.RecordBatch, schema: Schema, label: str) -> ClassNames:
    names = ClassNames(label)
    if not _are_rejects(batch):
        check_batch(batch, schema)
        if label in batch.schema.names:
            field = batch.schema.field(label)
            names.add(batch.column(label), class_names_in_metadata(field))
    return names


@dataclass
class _JoinClassNames(beam_types.CombineFn):
    """Joins the class names of all batches.

    Args:
        label: Name of the label.
    """

    label: str

    def create_accumulator(self) -> ClassNames:
        return ClassNames(self.label)

    def add_input(self, joined: ClassNames, names: ClassNames) -> ClassNames:
        joined += names
        return joined

    def merge_accumulators(self, accumulators: Iterable[ClassNames]) -> ClassNames:
        return functools.reduce(self.add_input, accumulators, self.create_accumulator())

    def extract_output(self, joined: ClassNames) -> ClassNames:
        return joined


def start_run(options: WriteShards, class_names: ClassNames | None = None) -> SharedPlanHandle:
    """Starts a new run, and returns the handle of its plan.

    If an engine repeats this step, there are two runs. The abandoned one is removed when its lease
    has expired.

    Args:
        options: The options.
        class_names: The values of a text label. None if the schema stays as it is.

    Raises:
        DataError: A text label has no values, or too many for classes.
    """
    schema = options.schema
    if options.text_label is not None:
        schema = with_label(schema, options.text_label, class_names)
    is_store = is_remote(options.out)
    base_generation = check_output_folder(options.out, options.overwrite)
    run_id = uuid.uuid4().hex[:12]
    if not is_store:
        folder = RunFolder.create(options.out, uses_engine=True)
        folder.release()
        run_id = folder.id
    job_folder = JobFolder(options.out, run_id)
    split_names = tuple(name for name, _ in options.order.fractions) or (DEFAULT_SPLIT,)
    plan = BuildPlan(
        folder=job_folder.run_path(),
        base_generation=base_generation,
        schema=schema,
        split_names=split_names,
        key_buckets=KeyBuckets.for_shards(len(split_names), 2**64, options.shards.num_shards or 64),
        key_options=options.order,
        shard_options=options.shards,
        compression=options.compression,
        threads=options.threads,
        memory_bytes=options.memory_bytes,
        budget=options.budget,
        name=options.name,
        store_url=options.out if is_store else "",
    )
    return begin_build(plan, job_folder)


class _IngestBatches(beam_types.DoFn):
    """Sorts the records of a bundle with one SortedRunWriter.

    The step outputs a result whenever sorted runs are written, and at the end of the bundle.
    """

    # The temporary folder of the current bundle. None between bundles.
    _workspace: contextlib.AbstractContextManager[BuildPlan] | None = None

    def start_bundle(self) -> None:
        self._close_workspace()
        self._writer: SortedRunWriter | None = None
        self._records_read = 0

    def process(
        self, batch: pa.RecordBatch, plan_handle: SharedPlanHandle
    ) -> Iterator[SharedIngestResult]:
        plan_handle.job_folder.begin_step()
        plan_handle.job_folder.open_run().renew_lease()
        if self._writer is None:
            local_plan = task_workspace(plan_handle)
            self._job_folder = plan_handle.job_folder
            self._workspace = local_plan
            self._plan = local_plan.__enter__()
            folder = Path(self._plan.folder)
            self._writer = SortedRunWriter(
                str(folder / "runs"), self._plan.key_buckets, self._plan.max_run_buffer_bytes
            )
            self._sketches = create_sketches(self._plan)
            self._reject_writer = RejectWriter(
                folder / "rejects" / f"bundle-{uuid.uuid4().hex}.jsonl",
                max_rejects=self._plan.max_rejects,
            )
        if _are_rejects(batch):
            faults = [Fault(**fields) for fields in batch.column(0).to_pylist()]
            self._reject_writer.write(fault.at("pipeline", "a dict") for fault in faults)
            self._records_read += len(faults)
            increment_counters(records_read=len(faults), records_rejected=len(faults))
            return
        check_batch(batch, self._plan.schema)
        conformed = conform(batch, self._plan.schema)
        self._reject_writer.write(
            fault.at("pipeline", f"row {row} of a batch") for row, fault in conformed.faults.items()
        )
        self._records_read += batch.num_rows
        increment_counters(records_read=batch.num_rows, records_rejected=len(conformed.faults))
        frames = encode(conformed.batch, self._plan.schema)
        if (oversized := find_oversized_record(frames)) is not None:
            raise DataError(
                describe_oversized_record(frames, oversized),
                source="pipeline",
                place=f"record {oversized} of a batch",
            )
        keys, split_ids = assign_by_payload(self._plan.key_options, conformed.batch, frames)
        # Pipeline records have no file or position. The CRC of the payload breaks ties between
        # equal keys.
        file_ids, positions = np.zeros(len(frames), np.uint32), frames.crcs.astype(np.int64)
        sorted_runs = tuple(
            self._writer.add(
                frames.data,
                frames.lengths + FRAME_OVERHEAD_BYTES,
                crcs=frames.crcs,
                keys=keys,
                split_ids=split_ids,
                file_ids=file_ids,
                positions=positions,
            )
        )
        update_statistics(
            self._plan,
            self._sketches,
            KeyedChunk(
                conformed.batch,
                file_ids=file_ids,
                positions=positions,
                keys=keys,
                split_ids=split_ids,
            ),
        )
        if sorted_runs:
            yield self._share_results(sorted_runs, RejectSummary.empty())

    def finish_bundle(self) -> Iterable[object]:
        if self._writer is not None:
            sorted_runs = () if self._writer.is_empty else (self._writer.finish(),)
            result = self._share_results(sorted_runs, self._reject_writer.close())
            self._close_workspace()
            yield beam_types.in_global_window(result)
            yield beam_types.TaggedOutput(
                HISTOGRAMS, beam_types.in_global_window(self._writer.histogram)
            )

    def _share_results(
        self, sorted_runs: tuple[SortedRun, ...], rejected: RejectSummary
    ) -> SharedIngestResult:
        """Returns the results since the last call, in the form for other workers.

        The files of the sorted runs are moved to the output folder.

        Args:
            sorted_runs: The sorted runs that were written.
            rejected: The rejects of the bundle, for its last result. Otherwise empty.
        """
        records_read, self._records_read = self._records_read, 0
        result = share_results(
            self._job_folder,
            IngestResult(
                unit_group=0, sorted_runs=sorted_runs, records_read=records_read, rejected=rejected
            ),
            self._sketches,
        )
        increment_counters(runs_written=len(sorted_runs))
        return result

    def _close_workspace(self) -> None:
        """Closes the temporary folder of a bundle, also of one that has failed."""
        local_plan, self._workspace = self._workspace, None
        if local_plan is not None:
            local_plan.__exit__(None, None, None)
