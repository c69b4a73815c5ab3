"""`Dataset`: the records of a data set, or of any TFRecord files, as tables, arrays,
NumPy batches, tf.data and for PyTorch; `open` makes one.

Opening reads the manifest and looks at each shard's size; records are read, and both their CRCs checked, when they are
asked for. Neither apache_beam nor tensorflow is imported here.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recordmill.base.errors import DataError, UsageError
from recordmill.base.machine import core_count
from recordmill.base.people.nearest import there_are
from recordmill.base.sizes import parse_size
from recordmill.base.threads import thread_map
from recordmill.pipelines.options.naming import names_keywords
from recordmill.reader.covering import covering, covering_first, spans_of
from recordmill.reader.faces.rebatch import rebatched
from recordmill.reader.faces.training import Trainable
from recordmill.reader.images.options import Images, Spec, wanted_images
from recordmill.reader.one_pass import confirm_batches, guess_of
from recordmill.reader.record import Plan, make_record_plan
from recordmill.reader.rows import read_row, rows_of
from recordmill.reader.sampling.kept import Kept
from recordmill.reader.selection import Selection, until
from recordmill.reader.shown import Shown, headline
from recordmill.reader.shown_tables import show_tables
from recordmill.reader.taking import taken, wanted_numbers
from recordmill.reader.torch.face import InTorch
from recordmill.reader.views import Condition, View, batch_named, check_read, numbers_of, steps_of
from recordmill.records.columns.convert import output_schema
from recordmill.records.columns.decoding import Decoding
from recordmill.records.columns.ragged import Array, Ragged, Strings
from recordmill.records.columns.where import Where
from recordmill.records.inference.confirm import Guess, Unconfirmed
from recordmill.records.inference.infer import Inference
from recordmill.records.tfrecord.frames import Int64s
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Schema
from recordmill.shards.access import FileAccess
from recordmill.shards.catalog import Catalog, Inputs, find, on_terms
from recordmill.shards.loads.batches import Load, decode_load
from recordmill.shards.loads.hints import load_schema
from recordmill.shards.loads.sample import Sample
from recordmill.shards.loads.schema_of import infer_files, schema_of
from recordmill.shards.pieces import PIECE_BYTES
from recordmill.storage.files import bound_requests, local_path

Columns = dict[str, Array | Ragged | Strings]
Result = TypeVar("Result")
_PIXEL_BYTES = 64 << 20  # 64 MiB of decoded images of a piece
WHOLE = View()  # all records, under their own names
_MADE_ANEW = ("_plan", "_selection", "_decoding", "encoded")  # by each process that reads


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
    cache: str | os.PathLike[str] | None = None,
    cache_bytes: int | str = "10GiB",
    storage_requests: int | None = None,
    decode_raw: Mapping[str, str] | Sequence[str] | str | None = None,
    reshape: Mapping[str, str | Sequence[int]] | Sequence[str] | str | None = None,
    decode_images: Spec | None = None,
) -> Dataset:
    """Open a data set of recordmill's, or any TFRecord files.

    Args:
        inputs: OUT of a build, or files, folders, globs, one or several.
        split: only this split; None: all, in the manifest's order.
        columns: only these features, in this order; the others are skipped, not parsed. A text is names with commas
            between them.
        schema: of foreign files, or the schema.pbtxt that holds it, if it is known; otherwise it is inferred over all
            their records when it is first needed, by `to_numpy`, `to_table` and `to_parquet` while they decode. A
            `schema.pbtxt` or a `features.json` of TensorFlow Datasets beside the files then says true dtypes, shapes
            and class names where the records agree.
        threads: how many read and decode; None or 0: one per core.
        infer_from: infer over so many records only, the first ones of each file, or over so many whole files
            (`"20files"`). A later record that the schema does not fit is an error when it is read.
        where: only the records for which this holds: an SQL condition on the features as they are stored, which DuckDB
            evaluates, or a `pyarrow.compute` expression; also on features that `columns` leaves out. The data set then
            has these records and no others, numbered from 0.
        cache: a folder of this machine in which blocks that are read from a store are kept, checked by their CRC, so
            that what was read once needs no request; processes may share it. Files of this machine are read as ever.
        cache_bytes: at most so much of them, as bytes or a size such as "10GiB".
        storage_requests: how many requests to stores this process has under way at once; None: as before, 64 at first.
        decode_raw: bytes that are an array's memory are that array, `{"depth": "float32[256,256]"}` or
            `"depth=float32[256,256]"` as `read` takes it: `"float32"` a number, `[-1,4]` with a first dimension that
            varies, `">float32[...]"` big-endian. It holds for the schema and all that gives records; `where` and
            `filter` look at features as they are stored.
        reshape: the same values in another shape, `{"boxes": [-1, 4]}` or `"boxes=[-1,4]"`, behind decode_raw.
        decode_images: what encoded images are, as `batches` takes it: (height, width), `Images(...)`, or one of them by
            feature. It holds likewise; what a call such as `batches(decode_images=...)` says itself holds instead.
            Where no feature is named, the first records tell which ones are images.

    Raises:
        UsageError: nothing there, no such split or column, a predicate that has no meaning for the features, or a
            feature that can't be decoded so.
        DataError: a shard is missing or not as long as the manifest says.
    """
    show_tables()
    bound_requests(storage_requests)
    catalog = find(inputs, split)
    if cache is not None or storage_requests is not None:
        folder = "" if cache is None else local_path(cache)
        catalog = on_terms(catalog, storage_requests, folder, parse_size(cache_bytes, "--cache-bytes"))
    of_files = None if infer_from is None else Sample.parse(infer_from)
    given = load_schema(schema)
    return Dataset(
        catalog,
        catalog.schema if given is None else given,
        [name.strip() for name in columns.split(",")] if isinstance(columns, str) else columns,
        threads or 0,
        of_files,
        None if where is None else Where(where),
        View(steps=steps_of(decode_raw, reshape), images=wanted_images(decode_images)),
    )


class Dataset(Trainable, InTorch):
    """Records in a fixed order, addressed by number. It can be pickled, and shared between threads.

    With `where`, or filtered, it has the records for which that holds. Reading them in order filters on the way; `len`,
    numbers, slices and `to_numpy()` need to know which ones they are, and the first of these finds out by one pass over
    the features that the predicates look at (a bit for each record is kept). `schema` has the features that are read,
    under the names that are shown; `full_schema` all that the records have, as they have them.
    """

    mixed = None  # it is one data set
    _guess: Guess | None = None  # what the schema is, if every record that is read is to confirm it

    def __init__(
        self,
        catalog: Catalog,
        schema: Schema | None = None,
        columns: Sequence[str] | None = None,
        threads: int = 0,
        sample: Sample | None = None,
        where: Where | None = None,
        view: View = WHOLE,
    ) -> None:
        self.catalog, self.sample = catalog, sample
        own = () if where is None else (Condition(where, {}),)
        self.view = replace(view, conditions=(*own, *view.conditions))
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
        return self.view.shown(self._decoding.schema)

    @cached_property
    @names_keywords("open")
    def _decoding(self) -> Decoding:
        """How the records' payloads become the features that are read, under the names in the records."""
        if self.view.steps or self.view.images is not None:  # also those that are not read must be there
            output_schema(self.view.steps, self.full_schema)
            _ = self.view.decoding(self.full_schema, self._images_stored).schema
        return self.view.decoding(self._stored, self._images_stored)

    @cached_property
    def _images_stored(self) -> Mapping[str, Images]:
        """What encoded images are, all that the records have, by their names there."""
        if self.view.images is None:
            return {}
        plain = Dataset(self.catalog, self.full_schema, None, self.threads, self.sample)
        plain.files = self.files
        from recordmill.reader.images.features import images_by_feature

        return images_by_feature(plain, self.view.images)

    @property
    def images(self) -> Mapping[str, Images]:
        """What the encoded images of `schema` are, by feature, where the data set was opened with `decode_images`."""
        stored = {name: self.view.names.get(name, name) for name in self.schema.names}
        return {name: self._images_stored[old] for name, old in stored.items() if old in self._images_stored}

    @cached_property
    def encoded(self) -> Dataset:
        """The same records with these images as they are stored."""
        other = self._viewed(replace(self.view, images=None), self._columns)
        other.__dict__["fingerprint"] = self.fingerprint
        return other

    @cached_property
    def _stored(self) -> Schema:
        """The features that are read, as the records have them."""
        if self._columns is None:
            return self.full_schema
        if unknown := [name for name in self._columns if name not in self.full_schema]:
            raise UsageError(f"no feature {unknown[0]!r}; {there_are(unknown[0], self.full_schema.names)}")
        return self.full_schema.select(self._columns)

    def stored(self, schema: Schema) -> Decoding:
        """How the records' payloads become these features of `schema`, under the names in the records."""
        shown = self.view.stored(schema)
        if not self._decoding.steps:
            return Decoding(shown)
        decoded = {step.feature for step in self._decoding.steps}
        features = (replace(self._stored[f.name], required=f.required) if f.name in decoded else f for f in shown)
        return self.view.decoding(replace(shown, features=tuple(features)), self._images_stored)

    @property
    def where(self) -> Where | None:
        """The first of the predicates that the records meet."""
        return self.view.conditions[0].where if self.view.conditions else None

    @cached_property
    def _selection(self) -> Selection | None:
        return Selection.of(self.view, self.full_schema, self._decoding) if self.view.filters else None

    @cached_property
    def matching(self) -> Kept | None:
        """Which of all records there are; None: all."""
        return None if self._selection is None else self._selection.find(self.loads(), self.threads, self._total)

    @cached_property
    def _plan(self) -> Plan | None:
        return None if self._decoding.steps else make_record_plan(self._stored)

    @cached_property
    def fingerprint(self) -> str:
        """What tells this data set from others, wherever it lies: its files' names, sizes and digests, and which of
        their records there are, and how they are decoded.
        """
        digest = hashlib.blake2b(digest_size=16)
        for file in self.files:
            about = file.file
            digest.update(b"%s\x00%d\x00%d\x00" % (about.identity, file.records, about.stat.size_bytes))
            digest.update((about.info.digest.removeprefix("sha256:") if about.info else "").encode() + b"\n")
        digest.update(self.view.told().encode())
        if self._images_stored:
            digest.update(f"\x00images {sorted(self._images_stored.items())!r}".encode())
        return digest.hexdigest()

    @property
    def splits(self) -> tuple[str, ...]:
        return self.catalog.splits

    @cached_property
    def ends(self) -> npt.NDArray[np.int64]:
        """The number of records up to and with each file."""
        threads = self.threads if self.catalog.manifest is None else 1
        return np.cumsum(list(thread_map(lambda file: file.records, self.files, threads)), dtype=np.int64)

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
        at = int(self._among_all(np.array([at % total]))[0])
        number = int(np.searchsorted(self.ends, at, "right"))
        first = int(self.ends[number - 1]) if number else 0
        row = read_row(self.files[number], at - first, self._decoding, self._plan, whole=self._columns is None)
        return dict(zip(self.schema.names, row.values(), strict=True))

    def _among_all(self, numbers: Int64s) -> Int64s:
        return numbers if self.matching is None else self.matching.at(numbers)

    def take(self, records: Sequence[int] | npt.NDArray[Any]) -> pa.Table:
        """The records of these numbers (negative ones count from the end), in this order, as a pyarrow.Table."""
        wanted = self._among_all(wanted_numbers(records, len(self)))
        table = taken(self.files, self.ends, wanted, self._decoding, self.threads)
        return pa.Table.from_arrays(table.columns, schema=to_arrow(self.schema))

    def __getitems__(self, records: Sequence[int]) -> list[dict[str, Any]]:
        """The records of these numbers as dicts, read together: what loaders ask for a batch, that take single records
        otherwise.
        """
        batches = self.take(records).combine_chunks().to_batches()
        return [row for batch in batches for row in rows_of(batch, self.schema)]

    def select(self, columns: Sequence[str]) -> Dataset:
        """The same records with these features only, in this order; nothing is copied.

        Raises:
            UsageError: no such feature is read.
        """
        check_read(columns, self.schema)
        return self._viewed(self.view, [self.view.names.get(name, name) for name in columns])

    def drop(self, columns: Sequence[str]) -> Dataset:
        """The same records without these features; nothing is copied.

        Raises:
            UsageError: no such feature is read.
        """
        check_read(columns, self.schema)
        return self.select([name for name in self.schema.names if name not in columns])

    def rename(self, names: Mapping[str, str]) -> Dataset:
        """The same records with features under other names, `{"old": "new"}`; nothing is copied.

        Raises:
            UsageError: no such feature is read, or two would have one name.
        """
        return self._viewed(self.view.renamed(names, self.schema), self._stored.names)

    def filter(self, what: str | pc.Expression | Sequence[int] | npt.NDArray[Any]) -> Dataset:
        """Some of the records, in the same order, numbered from 0.

        what: a condition on the features under the names that they have here, as `where` of `open`, evaluated when it
        is needed; or a bool for each record; or the numbers of those that are kept. A bit for each record is held.

        Raises:
            UsageError: a predicate that has no meaning for the features, or a mask or numbers that do not fit.
        """
        if isinstance(what, str | pc.Expression):
            condition = Condition(Where(what), self.view.names)
            return self._viewed(replace(self.view, conditions=(*self.view.conditions, condition)), self._columns)
        numbers = numbers_of(what, len(self))
        kept = self.matching.within(numbers) if self.matching else Kept.of_numbers(numbers, self._total)
        return self._viewed(replace(self.view, conditions=(), kept=kept), self._columns)

    def _viewed(self, view: View, columns: Sequence[str] | None) -> Dataset:
        """The same files seen otherwise; columns: as the records have them."""
        if view.images is not None:
            view = replace(view, images=self._images_stored)
        other = Dataset(self.catalog, self.full_schema, columns, self.threads, self.sample, view=view)
        other.files = self.files
        if "ends" in self.__dict__:
            other.__dict__["ends"] = self.ends
        if "matching" in self.__dict__ and (view.conditions, view.kept) == (self.view.conditions, self.view.kept):
            other.__dict__["matching"] = self.matching
        return other

    def head(self, records: int = 5) -> pa.Table:
        """The first records as a pyarrow.Table."""
        records = max(records, 0)
        if not self.view.filters:
            return self._table(until(records, covering_first(self.files, records), self.decode, self.threads))
        return self._table(until(records, covering_first(self.files, 2**62), self.decode, self.threads))

    def to_table(self, start: int = 0, stop: int | None = None) -> pa.Table:
        """Records [start, stop) as one pyarrow.Table in memory."""
        if (start, stop) != (0, None):
            return self._table(self.record_batches(start, stop))
        return self._in_one_pass(lambda ds: ds._table(ds.record_batches()))

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
        from recordmill.reader.faces import arrays

        return self._in_one_pass(arrays.in_memory) if memmap_dir is None else arrays.memory_mapped(self, memmap_dir)

    def to_npy(self, folder: str | os.PathLike[str]) -> Columns:
        """The columns as `.npy` files in a new or empty folder, given memory-mapped: `to_numpy(memmap_dir=folder)`."""
        from recordmill.reader.faces import arrays

        return arrays.memory_mapped(self, folder)

    @names_keywords("read")
    def to_parquet(self, path: str | os.PathLike[str], *, compression: str = "zstd", overwrite: bool = False) -> Path:
        """The records, in order and as this view has them, as one Parquet file, which has its name when it is whole;
        memory holds one row group. `recordmill.read` writes many files at once, and counts and resumes.

        compression: "zstd", "snappy", "gzip" or "none". overwrite: a file of that name is replaced.

        Raises:
            UsageError: something of that name is there, or there is no such compression.
        """
        from recordmill.reader.faces import arrays

        return self._in_one_pass(lambda ds: arrays.parquet_file(ds, path, compression, overwrite))

    def _in_one_pass(self, work: Callable[[Dataset], Result]) -> Result:
        """work(self), which reads all records: by a guess where the schema is not known, if they all confirm it."""
        unknown = self._given_schema is None and not self.__dict__.keys() & {"_known", "inference"}
        guess = (
            guess_of(self.catalog, self.threads) if unknown and self.sample is None and not self.view.filters else None
        )
        if guess is not None:
            with contextlib.suppress(Unconfirmed, DataError, UsageError):  # of what may not be so
                other = Dataset(self.catalog, guess.schema, self._columns, self.threads, view=self.view)
                other.files, other._guess = self.files, guess
                result = work(other)
                self.__dict__["_known"] = (guess.schema, list(guess.notes))
                return result
        return work(self)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Every record as a dict, as `ds[i]` gives it: for looking, not for bulk."""
        for batch in self.record_batches():
            yield from rows_of(batch, self.schema)

    def __repr__(self) -> str:
        return self._shown().text()

    def _repr_html_(self) -> str:
        """What notebooks show: the same as `repr`, with the features as a table; nothing is read for it."""
        return self._shown().html()

    def _shown(self) -> Shown:
        known = self.catalog.manifest is not None or "ends" in self.__dict__
        found = self.__dict__.get("matching", self.view.kept if not self.view.conditions else None)
        conditions = [str(condition.where.predicate) for condition in self.view.conditions]
        about = headline(
            self.catalog,
            self._total if known else None,
            None if found is None else len(found),
            conditions + ["they were chosen by number"] * (self.view.kept is not None),
        )
        described = self._given_schema is not None or "_known" in self.__dict__
        return Shown(about, self.schema if described else None)

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
        return covering(self.files, self.ends, start, stop, piece_bytes, piece_records)

    def decode(self, load: Load) -> list[pa.RecordBatch]:
        """The records of a load, or those of them that there are, as columns of `schema`."""
        if self._selection is None:
            batches = (
                decode_load(load, self._decoding)
                if self._guess is None
                else confirm_batches(load, self._guess, self._decoding)
            )
            return [batch_named(batch, self.schema) for batch in batches]
        return self._selection.decode(load, 0 if self.view.kept is None else self._number_of(load))

    def _number_of(self, load: Load) -> int:
        """The number of a load's first record among all."""
        at = load.piece.file
        within = load.piece.first_record if load.block is None else load.block.first_record
        return (int(self.ends[at - 1]) if at else 0) + within

    def record_batches(self, start: int = 0, stop: int | None = None) -> Iterator[pa.RecordBatch]:
        """Records [start, stop) in order as they come, about 8 MiB of a shard each, or what is kept of that."""
        if self.view.filters and (start, stop) != (0, None):
            start, stop = self._reach(start, stop)
        row_bytes = sum(wanted.row_bytes for wanted in self.images.values())
        loads = self.loads(start, stop, piece_records=max(_PIXEL_BYTES // row_bytes, 1) if row_bytes else None)
        if self.view.kept is not None:
            loads = filter(self._has_some, loads)
        for batches in thread_map(self.decode, loads, self.threads):
            yield from batches

    def _has_some(self, load: Load) -> bool:
        """Whether records of a load may be kept."""
        assert self.view.kept is not None
        count = load.piece.records if load.block is None else len(load.block.frames)
        first = self._number_of(load)
        return count is None or bool(np.diff(self.view.kept.below(np.array([first, first + count])))[0])

    def _reach(self, start: int, stop: int | None) -> tuple[int, int]:
        """From which to which of all records those of the kept ones with these numbers lie;
        between them are no others of them.
        """
        assert self.matching is not None
        first, behind, _ = slice(start, stop).indices(len(self))
        if first >= behind:
            return (0, 0)
        low, high = self.matching.at(np.array([first, behind - 1])).tolist()
        return low, high + 1

    def spans(self) -> Iterator[tuple[int, int, bool]]:
        """(first of all records, the one behind the last, whether it can be read from anywhere) of each file
        that has records.
        """
        return spans_of(self.files, self.ends)

    def _table(self, batches: Iterable[pa.RecordBatch]) -> pa.Table:
        return pa.Table.from_batches(batches, to_arrow(self.schema))
