"""`WriteShards`: a PCollection of RecordBatches of a user's own pipeline to a committed data set,
as `build` writes one.
"""

from __future__ import annotations

import atexit
import os
import threading
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue

from recordmill.base.errors import DataError, Reject, UsageError
from recordmill.base.machine import MEMORY_BYTES
from recordmill.building.cuts import ShardOptions
from recordmill.building.ingest import Ingested, find_too_large, too_large
from recordmill.building.order import DEFAULT_SPLIT, OrderOptions, place_payloads
from recordmill.building.plan import EXCHANGE_FILES, PLAN_NAME, BuildPlan, load_plan
from recordmill.building.run_file import Buckets, Run, RunWriter
from recordmill.records.example.encode import encode
from recordmill.records.tfrecord.frames import FRAME_BYTES
from recordmill.schemas.feature import Schema
from recordmill.shards.rejects import RejectBudget, Rejected, RejectWriter
from recordmill.shards.run_folder import RunFolder, check_out
from recordmill.sources.arrow.rows import batches_of_rows
from recordmill.sources.values.conform import conform
from recordmill.storage.files import local_path
from recordmill.transforms.beam_types import (
    AsSingleton,
    BatchElements,
    Create,
    DoFn,
    FlatMap,
    Map,
    ParDo,
    PCollection,
    Pipeline,
    PTransform,
)
from recordmill.transforms.stages import PlanPath, ShardRuns

_LOCAL_RUNNERS = ("FnApiRunner", "DirectRunner", "BundleBasedDirectRunner", "SwitchingDirectRunner")
_MANY = 1 << 16  # shards that an engine may write at once: each goes to whichever worker is free
_LEASE_SEC = 900  # 15 minutes: a run counts as alive so long while no process holds it, as when workers are replaced
_held: dict[str, RunFolder] = {}  # run folders that this process holds, by the run; let go when the job has committed
_composed: set[str] = set()  # the runs of pipelines that were put together in this process
_held_lock = threading.Lock()
_process = os.getpid()


@atexit.register
def _release_all() -> None:
    """Remove the folders of this process's own pipelines that failed, of which nobody tells it before it ends; a worker
    that ends leaves them to the others, and a fork to its parent.
    """
    if os.getpid() != _process:
        return
    with _held_lock:
        while _held:
            run, folder = _held.popitem()
            folder.close() if run in _composed else folder.release()


def hold(plan_path: PlanPath) -> None:
    """Hold the run's folder in this process, too: it is alive as long as one of its processes is."""
    folder = RunFolder.attach(Path(plan_path).parent)
    with _held_lock:
        if folder.id not in _held:
            joined = RunFolder.join(folder.path)
            if joined is None:
                return
            _held[folder.id] = joined
        _held[folder.id].renew()


@dataclass
class BatchDicts(PTransform):
    """A PCollection of dicts (feature name to value, missing ones absent or None) to RecordBatches of up
    to batch_rows rows.
    """

    batch_rows: int = 4096

    def expand(self, rows: PCollection) -> PCollection:  # {name: value} -> RecordBatch
        return (
            rows
            | BatchElements(min_batch_size=self.batch_rows, max_batch_size=self.batch_rows)
            | FlatMap(batches_of_rows)
        )


@dataclass
class WriteShards(PTransform):
    """RecordBatches with the schema's columns to a data set at `out`; gives a PCollection with its one Manifest.

    The records have no position, so a record's place is a hash of its bytes, or of `order.key`; the same records give
    the same shards whatever the bundles. Rows that don't fit the schema are rejects, held against the budget. Nothing
    is written while the graph is built.

    writers: how many workers may write shards at once; None: as many as there are, and where the pipeline runs in this
    process its `threads`.

    Raises (when the pipeline runs): what `finish` raises; UsageError if out holds a data set and overwrite is not set.
    """

    out: str
    schema: Schema
    order: OrderOptions = field(default_factory=OrderOptions)
    shards: ShardOptions = field(default_factory=ShardOptions)
    compression: str = "none"
    budget: RejectBudget = field(default_factory=RejectBudget)
    overwrite: bool = False
    name: str = "dataset"
    threads: int = 1
    memory_bytes: int = MEMORY_BYTES
    exchange: str = EXCHANGE_FILES
    writers: int | None = None

    def __post_init__(self) -> None:
        self.out = local_path(self.out)
        if not self.order.shuffle:
            raise UsageError("records of a pipeline have no order to keep: shuffle, or give a key")
        for column in (self.order.key, self.order.split_by):
            if column is not None and column not in self.schema:
                raise UsageError(
                    f"no column {column!r} to decide order or split by; the schema has {', '.join(self.schema.names)}"
                )

    def _packs(self, pipeline: Pipeline) -> int:
        """Over how many elements the shards are spread: one where this process writes them on its threads."""
        if self.writers is not None:
            if self.writers < 1:
                raise UsageError(f"writers={self.writers}: at least 1")
            return self.writers
        return 1 if type(pipeline.runner).__name__ in _LOCAL_RUNNERS else _MANY

    def expand(self, batches: PCollection) -> PCollection:  # RecordBatch -> Manifest
        run = uuid.uuid4().hex[:12]
        _composed.add(run)
        plan = batches.pipeline | "Start" >> Create([run]) | "MakeFolder" >> Map(start_run, self)
        ingested = batches | "Ingest" >> ParDo(_IngestBatches(), AsSingleton(plan))
        manifest = ingested | "Shard" >> ShardRuns(plan, self._packs(batches.pipeline))
        return manifest | "Release" >> Map(_release, AsSingleton(plan))


def start_run(run: str, options: WriteShards) -> PlanPath:
    """Make the run's folder, once however often it is asked for, and the plan in it."""
    with _held_lock:
        if run not in _held:
            base = check_out(options.out, options.overwrite)
            _held[run] = RunFolder.create(options.out, run, lease_sec=_LEASE_SEC)
            splits = tuple(name for name, _ in options.order.splits) or (DEFAULT_SPLIT,)
            BuildPlan(
                folder=str(_held[run].path.absolute()),
                base=base,
                schema=options.schema,
                splits=splits,
                buckets=Buckets.plan(len(splits), 2**64, options.shards.num_shards or 64),
                order=options.order,
                shards=options.shards,
                compression=options.compression,
                exchange=options.exchange,
                threads=options.threads,
                memory_bytes=options.memory_bytes,
                budget=options.budget,
                name=options.name,
            ).save()
        return str(_held[run].path.absolute() / PLAN_NAME)


class _IngestBatches(DoFn):
    """Collects a bundle's batches in one RunWriter; gives Ingested accounts as runs fill and when the bundle ends."""

    def start_bundle(self) -> None:
        self._writer: RunWriter | None = None
        self._rejects: RejectWriter | None = None
        self._read = 0

    def process(self, batch: pa.RecordBatch, plan_path: PlanPath) -> Iterator[Ingested]:
        plan = load_plan(plan_path)
        hold(plan_path)
        if self._writer is None or self._rejects is None:
            folder = Path(plan.folder)
            self._writer = RunWriter(str(folder / "runs"), plan.buckets, plan.arena_bytes)
            self._rejects = RejectWriter(
                folder / "rejects" / f"bundle-{uuid.uuid4().hex}.jsonl", most=plan.most_rejects
            )
        fitted = conform(batch, plan.schema)
        self._rejects.write(
            Reject("pipeline", f"row {row} of a batch", reason, message) for row, reason, message in fitted.bad
        )
        self._read += batch.num_rows
        frames = encode(fitted.batch, plan.schema)
        if (large := find_too_large(frames)) is not None:
            raise DataError(too_large(frames, large), source="pipeline", place=f"record {large} of a batch")
        keys, splits = place_payloads(plan.order, fitted.batch, frames)
        nowhere, position = np.zeros(len(frames), np.uint32), frames.crcs.astype(np.int64)
        runs = tuple(
            self._writer.add(frames.data, frames.lengths + FRAME_BYTES, frames.crcs, keys, splits, nowhere, position)
        )
        if runs:
            yield self._account(runs)

    def finish_bundle(self) -> Iterable[Any]:
        if self._writer is not None:
            runs = () if self._writer.empty else (self._writer.finish(),)
            yield WindowedValue(self._account(runs, last=True), GlobalWindow().max_timestamp(), [GlobalWindow()])

    def _account(self, runs: tuple[Run, ...], last: bool = False) -> Ingested:
        """The bundle's accounts since the last call; its rejects are told once, at its end."""
        assert self._rejects is not None
        read, self._read = self._read, 0
        return Ingested(0, runs, read, self._rejects.close() if last else Rejected.zero())


def _release(manifest: Any, plan_path: PlanPath) -> Any:
    """Remove the run's folder; kept apart from the commit so that a repeated commit still finds it."""
    with _held_lock:
        folder = _held.pop(RunFolder.attach(Path(plan_path).parent).id, None)
    if folder is not None:
        folder.close()
    return manifest
