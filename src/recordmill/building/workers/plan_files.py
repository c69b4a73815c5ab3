"""The begin of a build by many workers: folders, the plan and what else the driver has go to OUT. Lists that are too
long for every worker to hold, of a plan's files and units, are files of Arrow record batches there, of which workers
read those that they need.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base.errors import DataError, Reject
from recordmill.building.plan import BuildPlan
from recordmill.building.workers.input_digests import PlannedDigests, with_digests
from recordmill.building.workers.shared_files import SHARED, NotSharedError, SharedFolder, SharedPlan
from recordmill.shards.manifest import TRANSFORM_FOLDER
from recordmill.sources.common.contract import Source
from recordmill.sources.common.tables import UnitTable, with_unit_table
from recordmill.storage.file_table import FileTable
from recordmill.storage.files import check_uploaded, create_file, read_range, upload_all, write_all
from recordmill.storage.folders import files_below, make_scratch, remove_tree
from recordmill.storage.lazy_table import BlockTable, Table, TableBatches, messages

BLOCK_ITEMS = 4096  # files are 300 KiB or so, a request's worth
CACHED_BLOCKS = 8  # batches in each process: its threads read neighbours


class SharedBatches(TableBatches):
    """A table in OUT, of batches of so many rows. starts: [batches + 1] where each batch begins; digests: [batches, 32]
    SHA-256.
    """

    def __init__(
        self,
        job_folder: SharedFolder,
        name: str,
        schema: pa.Schema,
        starts: npt.NDArray[np.int64],
        digests: npt.NDArray[np.uint8],
        length: int,
        rows: int,
    ) -> None:
        self.job_folder, self.name, self.schema, self.starts, self.digests = job_folder, name, schema, starts, digests
        self.length, self.rows = length, rows

    def batch(self, number: int) -> pa.RecordBatch:
        """The rows from number * rows on.

        Raises:
            NotSharedError: the file is not there. DataError: it is another one.
        """
        path = self.job_folder.run(SHARED, self.name)
        start, stop = self.starts[number : number + 2].tolist()
        try:
            return _batch(path, start, stop, self.digests[number].tobytes(), self.schema)
        except FileNotFoundError:
            raise NotSharedError(path, self.job_folder.out) from None

    def passed(self) -> Iterator[pa.RecordBatch]:
        yield from map(self.batch, range(len(self.digests)))


@functools.lru_cache(maxsize=CACHED_BLOCKS)
def _batch(path: str, start: int, stop: int, digest: bytes, schema: pa.Schema) -> pa.RecordBatch:
    data = read_range(path, start, stop)
    if hashlib.sha256(data).digest() != digest:
        raise DataError("is not what this build has written there", source=path)
    return pa.ipc.read_record_batch(pa.py_buffer(data), schema)


def share_batches(
    job_folder: SharedFolder, what: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch], rows: int
) -> SharedBatches:
    """Put the table where every worker can read it; gives it as it travels. what: for people who look there. rows: of
    each batch, but the last.
    """
    starts, digests, length = list[int](), list[bytes](), 0
    folder = make_scratch("table-", None if job_folder.is_remote else job_folder.run())
    try:
        path = str(Path(folder, what))
        with create_file(path) as file:
            for data, count in messages(schema, batches):
                starts.append(file.tell())
                digests.append(hashlib.sha256(data).digest())
                write_all(file, data)
                length += count
        name = Path(job_folder.hand_over(path, SHARED)).name
    finally:
        remove_tree(folder, ignore_errors=True)
    known = np.frombuffer(b"".join(digests[1:-1]), np.uint8).reshape(-1, 32)  # without the schema and the end
    return SharedBatches(job_folder, name, schema, np.array(starts[1:], np.int64), known, length, rows)


def share_table(job_folder: SharedFolder, what: str, table: TableBatches) -> SharedBatches:
    """As `share_batches`, of a table that is held or lies on this machine."""
    parts = (table.take(range(at, min(at + BLOCK_ITEMS, table.length))) for at in range(0, table.length, BLOCK_ITEMS))
    return share_batches(job_folder, what, table.schema, parts, BLOCK_ITEMS)


def share_files(job_folder: SharedFolder, files: FileTable) -> FileTable:
    """The same files, with all columns, in OUT."""
    return files.moved(share_batches(job_folder, "files", files.schema, files.rebatched(BLOCK_ITEMS), BLOCK_ITEMS))


def with_shared_tables(source: Source, job_folder: SharedFolder) -> Source:
    """The source with its files and units in OUT; a user's own, which says itself what it is, as it was made."""
    source = with_unit_table(source)
    if not isinstance(source.units, UnitTable):
        return source
    digests = source.digests
    files = share_files(job_folder, with_digests(source.files, digests))
    tables: dict[str, Any] = {"files": files, "units": UnitTable(share_table(job_folder, "units", source.units.stored))}
    if digests:
        tables["digests"] = PlannedDigests(files, len(digests))
    if source.plan_rejects:
        tables["plan_rejects"] = SharedRejects.share(job_folder, source.plan_rejects)
    shared: Source = replace(source, **tables)  # type: ignore[type-var]
    return shared


class SharedRanges(Table[range]):
    """Ranges of numbers in OUT."""

    def __init__(self, stored: TableBatches) -> None:
        self._stored = stored

    def __len__(self) -> int:
        return self._stored.length

    def _item(self, at: int) -> range:
        (first,), (last,) = (column.to_pylist() for column in self._stored.take((at,)).columns)
        return range(first, last)


def share_ranges(job_folder: SharedFolder, ranges: Sequence[range]) -> SharedRanges:
    """The same ranges in OUT."""
    edges = [pa.array([one.start for one in ranges]), pa.array([one.stop for one in ranges])]
    return SharedRanges(
        share_table(job_folder, "groups", TableBatches(pa.RecordBatch.from_arrays(edges, ["first", "last"])))
    )


def _packed(texts: Iterable[str]) -> pa.Array:
    return pa.array([text.encode("utf-8", "surrogateescape") for text in texts], pa.binary())


class SharedRejects(BlockTable[Reject]):
    """What a plan left out, in OUT."""

    def __init__(self, stored: TableBatches) -> None:
        self._stored = stored

    @classmethod
    def share(cls, job_folder: SharedFolder, rejects: Sequence[Reject]) -> SharedRejects:
        """The same in OUT."""
        # names of files need not be UTF-8
        texts = [_packed(values) for values in zip(*map(astuple, rejects), strict=True)]
        return cls(
            share_table(
                job_folder, "left-out", TableBatches(pa.RecordBatch.from_arrays(texts, [*Reject.__annotations__]))
            )
        )

    def __len__(self) -> int:
        return self._stored.length

    def some(self, places: Sequence[int]) -> list[Reject]:
        columns = (column.to_pylist() for column in self._stored.take(places).columns)
        each = zip(*columns, strict=True)
        return [Reject(*(value.decode("utf-8", "surrogateescape") for value in values)) for values in each]


def begin_build(plan: BuildPlan, job_folder: SharedFolder) -> SharedPlan:
    """Make the build's folders, and put there what workers need; gives the plan as it travels.

    On a disk that workers share, OUT and the build's own folder are there already.
    """
    job_folder.attach().renew()  # from here on the build can be seen to be alive
    saved = plan.transform
    if saved is not None and job_folder.is_remote:  # on a disk it lies there already
        found = {f"{TRANSFORM_FOLDER}/{name}": path for name, path in files_below(saved.folder).items()}
        upload_all(job_folder.data(), found, plan.memory_bytes)
        check_uploaded(job_folder.data(), found)
        plan = replace(plan, transform=replace(saved, folder=job_folder.data(TRANSFORM_FOLDER)))
    return share_plan(plan, job_folder)


def share_plan(plan: BuildPlan, job_folder: SharedFolder) -> SharedPlan:
    """The plan as it travels in the graph; what of it may be long goes to OUT."""
    if not job_folder.is_remote:
        job_folder.make_folders()
    source = None if plan.source is None else with_shared_tables(plan.source, job_folder)
    groups = share_ranges(job_folder, plan.groups) if plan.groups else ()
    return job_folder.broadcast(plan.moved(folder=job_folder.run(), source=source, groups=groups))
