"""`Dataset`: the records of a data set, or of any TFRecord files, as tables, arrays,
NumPy batches, tf.data and for PyTorch; `open` makes one.

Opening reads the manifest and looks at each shard's size; records are read, and both their CRCs checked, when they are
asked for. Neither apache_beam nor tensorflow is imported here.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recordmill.base.errors import DataError, UsageError
from recordmill.base.machine import core_count
from recordmill.base.people import html
from recordmill.base.people.nearest import there_are
from recordmill.base.threads import thread_map
from recordmill.pipelines.options.naming import names_keywords
from recordmill.reader.faces import arrays
from recordmill.reader.faces.rebatch import rebatched
from recordmill.reader.faces.training import Trainable
from recordmill.reader.record import Plan, make_record_plan, parse_record
from recordmill.reader.selection import Selection, until
from recordmill.reader.shown_tables import show_tables
from recordmill.reader.torch.face import InTorch
from recordmill.records.columns.parts import to_numpy
from recordmill.records.columns.ragged import Array, Ragged, Strings
from recordmill.records.columns.where import Where
from recordmill.records.inference.infer import Inference
from recordmill.records.tfrecord.frames import Int64s
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Feature, Schema
from recordmill.shards.access import FileAccess
from recordmill.shards.catalog import Catalog, Inputs, find
from recordmill.shards.loads.batches import Load, decode_block, decode_load, record_batches
from recordmill.shards.loads.hints import load_schema
from recordmill.shards.loads.sample import Sample
from recordmill.shards.loads.scattered import are_scattered, scattered_batches
from recordmill.shards.loads.schema_of import infer_files, schema_of
from recordmill.shards.pieces import PIECE_BYTES, FrameBlock, Piece

Columns = dict[str, Array | Ragged | Strings]
_MADE_ANEW = ("_plan", "_selection")  # by each process that reads


@names_keywords("open")
def open(
    inputs: Inputs,
    split: str | None = None,
    columns: Sequence[str] | str | None = None,
    *,
    schema: Schema | str | os.PathLike[str] | None = None,
    threads: int | None = None,
    infer_from: str | int | None = None,
    where: str | pc.Expression | None = None,
) -> Dataset:
    """Open a data set of recordmill's, or any TFRecord files.

    Args:
        inputs: OUT of a build, or files, folders, globs, one or several.
        split: only this split; None: all, in the manifest's order.
        columns: only these features, in this order; the others are skipped, not parsed. A text is names with commas
            between them.
        schema: of foreign files, or the schema.pbtxt that holds it, if it is known; otherwise it is inferred over all
            their records when it is first needed. A `schema.pbtxt` or a `features.json` of TensorFlow Datasets beside
            the files then says true dtypes, shapes and class names where the records agree.
        threads: how many read and decode; None or 0: one per core.
        infer_from: infer over so many records only, the first ones of each file, or over so many whole files
            (`"20files"`). A later record that the schema does not fit is an error when it is read.
        where: only the records for which this holds: an SQL condition on the features as they are stored, which DuckDB
            evaluates, or a `pyarrow.compute` expression; also on features that `columns` leaves out. The data set then
            has these records and no others, numbered from 0.

    Raises:
        UsageError: nothing there, no such split or column, or a predicate that has no meaning for the features.
        DataError: a shard is missing or not as long as the manifest says.
    """
    show_tables()
    catalog = find(inputs, split)
    of_files = None if infer_from is None else Sample.parse(infer_from)
    given = load_schema(schema)
    return Dataset(
        catalog,
        catalog.schema if given is None else given,
        [name.strip() for name in columns.split(",")] if isinstance(columns, str) else columns,
        threads or 0,
        of_files,
        None if where is None else Where(where),
    )


class Dataset(Trainable, InTorch):
    """Records in a fixed order, addressed by number. It can be pickled, and shared between threads.

    With `where` it has the records for which that holds. Reading them in order filters on the way; `len`, numbers,
    slices and `to_numpy()` need to know which ones they are, and the first of these finds out by one pass over the
    features that `where` looks at (8 bytes for each of these records are kept).
    """

    mixed = None  # it is one data set

    def __init__(
        self,
        catalog: Catalog,
        schema: Schema | None = None,
        columns: Sequence[str] | None = None,
        threads: int = 0,
        sample: Sample | None = None,
        where: Where | None = None,
    ) -> None:
        self.catalog, self.sample, self.where = catalog, sample, where
        self.threads = threads or core_count()
        self._given_schema, self._columns = schema, None if columns is None else tuple(columns)
        self.files = [FileAccess(file, ordinal) for ordinal, file in enumerate(catalog.files)]
        if schema is not None:
            _ = self.schema, self._selection  # an unknown column is reported now

    def __getstate__(self) -> dict[str, Any]:
        # What is made of functions is made again where it is needed; what was counted or found out goes along.
        return {name: value for name, value in self.__dict__.items() if name not in _MADE_ANEW}

    @cached_property
    def inference(self) -> Inference | None:
        """What was counted in the records, or in a sample of them, to know their schema; None where it was known."""
        return (
            infer_files(self.catalog.files, threads=self.threads, sample=self.sample)
            if self._given_schema is None
            else None
        )

    @cached_property
    def _known(self) -> tuple[Schema, list[str]]:
        """The features that the records have, and notes on what described them."""
        if self._given_schema is not None:
            return self._given_schema, []
        assert self.inference is not None
        return schema_of(self.catalog.files, self.inference)

    @property
    def full_schema(self) -> Schema:
        """The features that the records have."""
        return self._known[0]

    @property
    def schema_notes(self) -> tuple[str, ...]:
        """What beside the files described them, as far as it was used: `schema.pbtxt` or `features.json`."""
        return tuple(self._known[1])

    @cached_property
    def schema(self) -> Schema:
        """The features that are read: those asked for by `columns`, or all."""
        if self._columns is None:
            return self.full_schema
        if unknown := [name for name in self._columns if name not in self.full_schema]:
            raise UsageError(f"no feature {unknown[0]!r}; {there_are(unknown[0], self.full_schema.names)}")
        return self.full_schema.select(self._columns)

    @cached_property
    def _selection(self) -> Selection | None:
        return None if self.where is None else Selection.of(self.where, self.full_schema, self.schema)

    @cached_property
    def matching(self) -> Int64s | None:
        """[records] ascending: the numbers that the records of `where` have among all; None without it."""
        return None if self._selection is None else self._selection.numbers(self.loads(), self.threads)

    @cached_property
    def _plan(self) -> Plan | None:
        return make_record_plan(self.schema)

    @cached_property
    def fingerprint(self) -> str:
        """What tells this data set from others, wherever it lies: its files' names, sizes and digests, and `where`."""
        digest = hashlib.blake2b(digest_size=16)
        for file in self.files:
            about = file.file
            digest.update(b"%s\x00%d\x00%d\x00" % (about.identity, file.records, about.stat.size_bytes))
            digest.update((about.info.sha256 if about.info else "").encode() + b"\n")
        if self.where is not None:
            digest.update(str(self.where.predicate).encode())
        return digest.hexdigest()

    @property
    def splits(self) -> tuple[str, ...]:
        return self.catalog.splits

    @cached_property
    def ends(self) -> npt.NDArray[np.int64]:
        """The number of records up to and with each file."""
        return np.cumsum([file.records for file in self.files], dtype=np.int64)

    @property
    def file_records(self) -> list[int]:
        """The number of records of each file, with those that `where` leaves out."""
        return [file.records for file in self.files]

    @property
    def _total(self) -> int:
        """The records of all files."""
        return int(self.ends[-1]) if len(self.ends) else 0

    def __len__(self) -> int:
        return self._total if self.matching is None else len(self.matching)

    @overload
    def __getitem__(self, at: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, at: str) -> Array | Ragged | Strings: ...
    @overload
    def __getitem__(self, at: slice | Sequence[int] | npt.NDArray[Any]) -> pa.Table: ...
    def __getitem__(self, at: Any) -> dict[str, Any] | pa.Table | Array | Ragged | Strings:
        """`ds[17]`: one record as a dict; `ds[5:9]`, `ds[[3, 1, 8]]`: a pyarrow.Table of these records in that order;
        `ds["name"]`: that column as an array.

        In the dict a scalar is a Python or NumPy scalar, `str` or `bytes`; a tensor or a list is an array; what is
        missing is None.
        """
        if isinstance(at, str):
            return self.select([at]).to_numpy()[at]
        if isinstance(at, slice):
            start, stop, step = at.indices(len(self))
            return self.to_table(start, stop) if step == 1 else self.take(np.arange(start, stop, step))
        if isinstance(at, int | np.integer) and not isinstance(at, bool):
            return self._record(int(at))
        return self.take(at)

    def _record(self, at: int) -> dict[str, Any]:
        total = len(self)
        if not -total <= at < total:
            raise IndexError(f"record {at} of {total}")
        at = at % total if self.matching is None else int(self.matching[at])
        number = int(np.searchsorted(self.ends, at, "right"))
        file = self.files[number]
        record = at - int(self.ends[number - 1] if number else 0)
        frame = file.frame(record)
        if self._plan is not None:
            found = parse_record(frame.payload(0).tobytes(), self._plan, self.schema, whole=self._columns is None)
            if found is not None:
                return found
        batch = decode_block(
            FrameBlock(frame, record, file.offset(record) - int(frame.starts[0])), self.schema, file.file.path
        )
        return {
            feature.name: _value(column, feature) for feature, column in zip(self.schema, batch.columns, strict=True)
        }

    def take(self, records: Sequence[int] | npt.NDArray[Any]) -> pa.Table:
        """The records of these numbers (negative ones count from the end), in this order, as a pyarrow.Table."""
        wanted = np.asarray(records)
        if wanted.dtype == np.bool_ or (wanted.size and wanted.dtype.kind not in "iu") or wanted.ndim != 1:
            raise TypeError(f"records are addressed by a number, a slice or a list of numbers, not by {records!r}")
        wanted = wanted.astype(np.int64)
        if len(outside := wanted[(wanted < -len(self)) | (wanted >= len(self))]):
            raise IndexError(f"record {outside[0]} of {len(self)}")
        wanted = wanted % max(len(self), 1) if self.matching is None else self.matching[wanted]
        distinct, back = np.unique(wanted, return_inverse=True)
        return self._ascending(distinct).take(pa.array(back.reshape(-1)))

    def _ascending(self, numbers: Int64s) -> pa.Table:
        """The records of these numbers among all, ascending."""
        if are_scattered(numbers) and all(file.seekable for file in self.files):
            with contextlib.suppress(DataError):  # which the other way finds, too, and says where
                return self._table(scattered_batches(self.files, self.ends, numbers, self.schema, self.threads))
        runs = np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1) if len(numbers) else []
        return self._table(
            record_batches(
                (load for run in runs for load in self.loads(int(run[0]), int(run[-1]) + 1)),
                self.schema,
                threads=self.threads,
            )
        )

    def __getitems__(self, records: Sequence[int]) -> list[dict[str, Any]]:
        """The records of these numbers as dicts, read together: what loaders ask for a batch, that take single records
        otherwise.
        """
        batch = self.take(records).combine_chunks()
        return [
            {
                feature.name: _value(column.chunk(0).slice(row, 1), feature)
                for feature, column in zip(self.schema, batch.columns, strict=True)
            }
            for row in range(batch.num_rows)
        ]

    def select(self, columns: Sequence[str]) -> Dataset:
        """The same records with these features only, in this order; nothing is copied.

        Raises:
            UsageError: no such feature is read.
        """
        if unknown := [name for name in columns if name not in self.schema]:
            raise UsageError(f"no feature {unknown[0]!r} is read; there are {', '.join(self.schema.names)}")
        view = Dataset(self.catalog, self.full_schema, columns, self.threads, self.sample, self.where)
        view.files = self.files
        if "matching" in self.__dict__:
            view.__dict__["matching"] = self.matching
        return view

    def drop(self, columns: Sequence[str]) -> Dataset:
        """The same records without these features; nothing is copied.

        Raises:
            UsageError: no such feature is read.
        """
        self.select(columns)  # which refuses unknown names
        return self.select([name for name in self.schema.names if name not in columns])

    def head(self, records: int = 5) -> pa.Table:
        """The first records as a pyarrow.Table."""
        records = max(records, 0)
        if self.where is None:
            return self._table(record_batches(self._first(records), self.schema, threads=self.threads))
        return self._table(until(records, self._first(2**62), self.decode, self.threads))

    def to_table(self, start: int = 0, stop: int | None = None) -> pa.Table:
        """Records [start, stop) as one pyarrow.Table in memory."""
        return self._table(self.record_batches(start, stop))

    def to_batches(self, batch_rows: int | None = None) -> Iterator[pa.RecordBatch]:
        """The records in order as Arrow batches of batch_rows rows, the last one shorter;
        None: as they come, about 8 MiB each.
        """
        batches = self.record_batches()
        return batches if batch_rows is None else rebatched(batches, batch_rows)

    def to_numpy(self, memmap_dir: str | os.PathLike[str] | None = None) -> Columns:
        """Every column as an array; see `recordmill.records.columns.parts` for what each feature becomes.

        memmap_dir: an empty or new folder; the columns are written there as `.npy` files and given memory-mapped, so
        they may exceed memory; text is then `Strings` instead of an object array. `open_columns(memmap_dir)` opens them
        again.
        """
        return arrays.in_memory(self) if memmap_dir is None else arrays.memory_mapped(self, memmap_dir)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Every record as a dict, as `ds[i]` gives it: for looking, not for bulk."""
        for batch in self.record_batches():
            for row in range(batch.num_rows):
                yield {
                    feature.name: _value(column.slice(row, 1), feature)
                    for feature, column in zip(self.schema, batch.columns, strict=True)
                }

    def __repr__(self) -> str:
        if not self._is_described:
            return f"<{self._headline}; its schema is inferred when it is needed>"
        return "\n".join([f"<{self._headline}", *(f"  {name}: {about}" for name, about in self._described())]) + ">"

    def _repr_html_(self) -> str:
        """What notebooks show: the same as `repr`, with the features as a table; nothing is read for it."""
        if not self._is_described:
            return html.section(self._headline, lines=["its schema is inferred when it is needed"])
        return html.section(self._headline, html.table(["feature", "holds"], self._described()))

    @property
    def _is_described(self) -> bool:
        """Whether the schema is known without reading records."""
        return self._given_schema is not None or "_known" in self.__dict__

    @property
    def _headline(self) -> str:
        manifest = self.catalog.manifest
        name = manifest.name if manifest else f"{len(self.files)} file{'s' if len(self.files) != 1 else ''}"
        known = manifest is not None or "ends" in self.__dict__
        rows = f"{self._total:,} records" if known else f"{self.catalog.size_bytes:,} bytes"
        if self.where is not None:
            found = f"{len(self):,} of " if "matching" in self.__dict__ else "of "
            rows = f"{found}{rows} those where {self.where.predicate}"
        return f"Dataset {name}: {rows}, {', '.join(self.splits) or 'no split'}"

    def _described(self) -> list[tuple[str, str]]:
        """(name, what it holds) of each feature."""
        label = self.schema.label
        return [
            (f.name, f"{f.describe()}{'' if f.required else ' or missing'}{' (label)' if f.name == label else ''}")
            for f in self.schema
        ]

    def loads(
        self,
        start: int = 0,
        stop: int | None = None,
        *,
        piece_bytes: int = PIECE_BYTES,
        piece_records: int | None = None,
    ) -> Iterator[Load]:
        """The pieces of work that give records [start, stop) of all, in order; `decode` makes batches of each by
        itself.
        """
        stop = self._total if stop is None else min(stop, self._total)
        for number, (file, end) in enumerate(zip(self.files, self.ends.tolist(), strict=True)):
            begin = int(self.ends[number - 1]) if number else 0
            low, high = max(start, begin) - begin, min(stop, end) - begin
            if low >= high:
                continue
            if file.seekable:
                yield from (Load(file.file, piece) for piece in file.pieces(low, high, piece_bytes, piece_records))
            else:
                yield from (
                    Load(file.file, Piece(number, low, None, 0, None), block) for block in file.blocks(low, high)
                )

    def decode(self, load: Load) -> list[pa.RecordBatch]:
        """The records of a load, or those of them for which `where` holds."""
        return decode_load(load, self.schema) if self._selection is None else self._selection.decode(load)

    def record_batches(self, start: int = 0, stop: int | None = None) -> Iterator[pa.RecordBatch]:
        """Records [start, stop) in order as they come, about 8 MiB of a shard each, or what `where` leaves of that."""
        if self.where is not None and (start, stop) != (0, None):
            start, stop = self._reach(start, stop)
        for batches in thread_map(self.decode, self.loads(start, stop), self.threads):
            yield from batches

    def _reach(self, start: int, stop: int | None) -> tuple[int, int]:
        """From which to which of all records those of `where` with these numbers lie;
        between them are no others of them.
        """
        assert self.matching is not None
        found = self.matching[start:stop]
        return (int(found[0]), int(found[-1]) + 1) if len(found) else (0, 0)

    def spans(self) -> Iterator[tuple[int, int, bool]]:
        """(first of all records, the one behind the last, whether it can be read from anywhere) of each file
        that has records.
        """
        start = 0
        for file, end in zip(self.files, self.ends.tolist(), strict=True):
            if end > start:
                yield start, end, file.seekable
            start = end

    def _first(self, records: int) -> Iterator[Load]:
        """The first records, without counting any file: only as much is read as they need."""
        for number, file in enumerate(self.files):
            if file.file.info is not None:
                blocks = (Load(file.file, piece) for piece in file.pieces(0, min(records, file.records)))
            else:
                blocks = (Load(file.file, Piece(number, 0, None, 0, None), block) for block in file.blocks(0, records))
            for load in blocks:
                yield load
                records -= len(load.block.frames) if load.block is not None else load.piece.records or 0
            if records <= 0:
                return

    def _table(self, batches: Iterable[pa.RecordBatch]) -> pa.Table:
        return pa.Table.from_batches(batches, to_arrow(self.schema))


def _value(column: pa.Array, feature: Feature) -> Any:
    """The value of a column of one row."""
    if column.null_count:
        return None
    if not feature.shape:
        return (
            to_numpy(column, replace(feature, required=True))[0]
            if feature.timestamp or feature.dtype == "float16"
            else column[0].as_py()
        )
    value = to_numpy(column, replace(feature, required=True))[0]
    return value.to_list() if isinstance(value, Ragged) else value
