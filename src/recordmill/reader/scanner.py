"""`Scanner`: the records of files as a view wants them: which of them, which features, under which names and decoded
how. Files and a view in, batches of records by their numbers out; nothing is copied for another view.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base.buffers import Int64s
from recordmill.base.errors import UsageError
from recordmill.base.machine import core_count
from recordmill.base.option_names import available_names
from recordmill.base.sizes import MAX_ROWS, to_whole_number
from recordmill.base.threads import thread_map
from recordmill.reader.options.images import Images
from recordmill.reader.sampling.sampler import RecordSubset
from recordmill.reader.take import head_loads, range_loads
from recordmill.reader.view import (
    Condition,
    Selection,
    View,
    check_features,
    check_unique,
    decode_first_rows,
    filter_numbers,
    rename_columns,
)
from recordmill.records.columns.conversions import Decoding
from recordmill.records.columns.convert import class_names_of, output_schema
from recordmill.records.columns.predicate import Predicate
from recordmill.records.inference.confirm import SchemaGuess
from recordmill.records.inference.infer import Inference
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Feature, Schema
from recordmill.shards.access import FileAccess, file_accesses, lenient_files
from recordmill.shards.catalog import Catalog
from recordmill.shards.loading.batches import Load, decode_load
from recordmill.shards.loading.infer_schema import (
    confirm_load,
    infer_from_files,
    refine_inferred,
    select_features,
)
from recordmill.shards.loading.sample import Sample
from recordmill.shards.pieces import PIECE_BYTES

if TYPE_CHECKING:
    import pyarrow.compute as pc
    from typing_extensions import Self


def confirm_batches(load: Load, guess: SchemaGuess, decoding: Decoding) -> list[pa.RecordBatch]:
    """Returns the records of a load as `decoding` makes columns of them; Unconfirmed: one is not what was guessed."""
    batches = (select_features(batch, decoding.stored) for batch in confirm_load(load, guess))
    return [decoding.converted(batch, load.file.path, "record {}".format) for batch in batches]


_MAX_PIXEL_BYTES = 64 << 20  # 64 MiB of decoded images of a piece
FULL_VIEW = View()  # all records, under their own names
_NOT_PICKLED = (
    "_parse_plan",
    "_selection",
    "_decoding",
    "encoded",
    "lenient",
)  # by each process that reads


class Scanner:
    """Records in a fixed order; what the faces of the reader ask for (`reader.prefetch.protocols.Fetchable`)."""

    mixed, zipped = None, ()  # it is one data set
    _guess: SchemaGuess | None = None
    _is_lenient = False

    def __init__(
        self,
        catalog: Catalog,
        schema: Schema | None = None,
        columns: Sequence[str] | None = None,
        threads: int = 0,
        infer_from: Sample | None = None,
        where: Predicate | None = None,
        view: View = FULL_VIEW,
    ) -> None:
        self.catalog, self.infer_from = catalog, infer_from
        where_conditions = () if where is None else (Condition(where, {}),)
        self.view = replace(view, conditions=(*where_conditions, *view.conditions))
        self.threads = to_whole_number(threads, "threads", 0) or core_count()
        self._explicit_schema, self._columns = schema, None if columns is None else tuple(columns)
        self.files: list[FileAccess] = file_accesses(catalog.files)
        if schema is not None:
            _ = self.schema, self._selection  # an unknown column is reported now

    def __getstate__(self) -> dict[str, Any]:
        # What is made of functions is made again where it is needed; what was counted or found out goes along.
        return {name: value for name, value in self.__dict__.items() if name not in _NOT_PICKLED}

    @cached_property
    def inference(self) -> Inference | None:
        """Returns what was counted in the records, or a sample, to know their schema; None where it was known."""
        return (
            infer_from_files(
                self.catalog.files,
                threads=self.threads,
                sample=self.infer_from,
                lenient=self._is_lenient,
            )
            if self._explicit_schema is None
            else None
        )

    @cached_property
    def _schema_and_notes(self) -> tuple[Schema, list[str]]:
        """The features that the records have, and notes on what described them."""
        if self._explicit_schema is not None:
            return self._explicit_schema, []
        assert self.inference is not None
        return refine_inferred(self.catalog.files, self.inference)

    @property
    def full_schema(self) -> Schema:
        """The features that the records have."""
        return self._schema_and_notes[0]

    @property
    def schema_notes(self) -> tuple[str, ...]:
        """Returns which files described the records, as far as they were used: `schema.pbtxt` or `features.json`."""
        return tuple(self._schema_and_notes[1])

    @cached_property
    def schema(self) -> Schema:
        """The features that are read: those asked for by `columns`, or all."""
        return self.view.to_shown(self._decoding.schema)

    @cached_property
    def _decoding(self) -> Decoding:
        """Returns how the records' payloads become the features that are read, under the names in the records."""
        if (
            self.view.steps or self.view.images is not None
        ):  # also those that are not read must be there
            output_schema(self.view.steps, self.full_schema)
            _ = self.view.make_decoding(self.full_schema, self._stored_images).schema
        if self.view.class_names:
            class_names_of(self.full_schema)
        return self.view.make_decoding(self._stored_schema, self._stored_images)

    @cached_property
    def _stored_images(self) -> Mapping[str, Images]:
        """Returns the encoded images that the records have, by their names there."""
        if self.view.images is None:
            return {}
        plain = type(self)(self.catalog, self.full_schema, None, self.threads, self.infer_from)
        plain.files = self.files
        from recordmill.reader.images.columns import images_by_feature

        return images_by_feature(plain, self.view.images)

    @property
    def images(self) -> Mapping[str, Images]:
        """Encoded images of `schema`, by feature, where the data set was opened with `decode_images`."""
        stored = {name: self.view.names.get(name, name) for name in self.schema.names}
        return {
            name: self._stored_images[old]
            for name, old in stored.items()
            if old in self._stored_images
        }

    @cached_property
    def encoded(self) -> Self:
        """Returns the same records with these images as they are stored."""
        encoded = self._with_view(replace(self.view, images=None), self._columns)
        encoded.__dict__["fingerprint"] = self.fingerprint
        return encoded

    @cached_property
    def lenient(self) -> Self:
        """Returns the same records and, in damaged files of others, one that can't be read for each damaged place."""
        if self._is_lenient or self.catalog.manifest is not None:
            return self
        scanner = type(self)(
            self.catalog,
            self._explicit_schema,
            self._columns,
            self.threads,
            self.infer_from,
            view=self.view,
        )
        scanner.files, scanner._is_lenient = lenient_files(self.files), True
        if "_schema_and_notes" in self.__dict__:
            scanner.__dict__["_schema_and_notes"] = self._schema_and_notes
        return scanner

    @cached_property
    def _stored_schema(self) -> Schema:
        """The features that are read, as the records have them."""
        if self._columns is None:
            return self.full_schema
        if unknown := [name for name in self._columns if name not in self.full_schema]:
            raise UsageError(
                f"no feature {unknown[0]!r}; {available_names(unknown[0], self.full_schema.names)}"
            )
        check_unique(self._columns)
        return self.full_schema.select(self._columns)

    def stored(self, schema: Schema) -> Decoding:
        """Returns how the records' payloads become these features of `schema`, under the names in the records."""
        stored = self.view.to_stored(schema)
        if not self._decoding.steps:
            return Decoding(stored)
        decoded = {step.feature for step in self._decoding.steps}
        features = (
            replace(self._stored_schema[f.name], required=f.required) if f.name in decoded else f
            for f in stored
        )
        return self.view.make_decoding(
            replace(stored, features=tuple(features)), self._stored_images
        )

    @cached_property
    def _selection(self) -> Selection | None:
        return (
            Selection.from_view(self.view, self.full_schema, self._decoding)
            if self.view.is_filtered
            else None
        )

    @cached_property
    def matching(self) -> RecordSubset | None:
        """Records that there are, of all; None: all."""
        return (
            None
            if self._selection is None
            else self._selection.find_matching(self.loads(), self.threads, self._num_stored)
        )

    @cached_property
    def fingerprint(self) -> str:
        """Identity of the data set, wherever it lies.

        It covers its files' names, sizes and contents, which of their records there are, and how they are decoded. A
        content is that of the manifest or, of other files, the lengths and CRCs of all records, which are read as they
        are counted.
        """
        digest = hashlib.blake2b(digest_size=16)
        for file in self.files:
            info = file.file
            digest.update(
                b"%s\x00%d\x00%d\x00" % (info.identity, file.records, info.stat.size_bytes)
            )
            digest.update(file.content.encode() + b"\n")
        digest.update(self.view.identity().encode())
        if self._stored_images:
            digest.update(f"\x00images {sorted(self._stored_images.items())!r}".encode())
        return digest.hexdigest()

    @property
    def splits(self) -> tuple[str, ...]:
        return self.catalog.splits

    @cached_property
    def ends(self) -> npt.NDArray[np.int64]:
        """The number of records up to and with each file."""
        threads = self.threads if self.catalog.manifest is None else 1
        return np.cumsum(
            list(thread_map(lambda file: file.records, self.files, threads)), dtype=np.int64
        )

    @property
    def file_records(self) -> list[int]:
        """The number of records of each file, with those that `where` leaves out."""
        return [file.records for file in self.files]

    @property
    def _num_stored(self) -> int:
        """The records of all files."""
        return int(self.ends[-1]) if len(self.ends) else 0

    @property
    def columns(self) -> list[str]:
        """The names of the features that are read."""
        return list(self.schema.names)

    @property
    def features(self) -> dict[str, Feature]:
        """The features that are read, by name."""
        return {feature.name: feature for feature in self.schema}

    def __contains__(self, name: object) -> bool:
        """Returns whether a feature of that name is read."""
        if not isinstance(name, str):
            raise TypeError(
                "`in` looks for no record, since they have numbers; `name in ds` looks for a feature"
            )
        return name in self.schema

    def __len__(self) -> int:
        return self._num_stored if self.matching is None else len(self.matching)

    def _to_stored_numbers(self, numbers: Int64s) -> Int64s:
        return numbers if self.matching is None else self.matching.at(numbers)

    def select(self, columns: Sequence[str]) -> Self:
        """Returns a view with these features only, in this order; nothing is copied.

        Raises:
            UsageError: no such feature is read.
        """
        check_features(columns, self.schema)
        return self._with_view(self.view, [self.view.names.get(name, name) for name in columns])

    def drop(self, columns: Sequence[str]) -> Self:
        """Returns a view without these features; nothing is copied.

        Raises:
            UsageError: no such feature is read.
        """
        check_features(columns, self.schema)
        return self.select([name for name in self.schema.names if name not in columns])

    def rename(self, names: Mapping[str, str]) -> Self:
        """Returns a view with features under other names, `{"old": "new"}`; nothing is copied.

        Raises:
            UsageError: no such feature is read, or two would have one name.
        """
        return self._with_view(
            self.view.with_renamed(names, self.schema), self._stored_schema.names
        )

    def filter(self, what: str | pc.Expression | Sequence[int] | npt.NDArray[Any]) -> Self:
        """Returns some of the records, in the same order, numbered from 0.

        Args:
            what: a condition on the features under the names that they have here, as `where` of `open`, evaluated
                when it is needed; or a bool for each record; or the numbers of those that are kept. Their numbers are
                held: 4 bytes a record.

        Raises:
            UsageError: a predicate that has no meaning for the features, or a mask or numbers that do not fit.
        """
        import pyarrow.compute as pc  # takes 60 ms, which what only looks at records has no need of

        if isinstance(what, str | pc.Expression):
            condition = Condition(Predicate(what, "filter: "), self.view.names)
            return self._with_view(
                replace(self.view, conditions=(*self.view.conditions, condition)), self._columns
            )
        numbers = filter_numbers(what, len(self))
        subset = (
            self.matching.within(numbers)
            if self.matching
            else RecordSubset.of_numbers(numbers, self._num_stored)
        )
        return self._with_view(replace(self.view, conditions=(), subset=subset), self._columns)

    def _with_view(self, view: View, columns: Sequence[str] | None) -> Self:
        """Returns the same files by another view. `columns` has the names in the records."""
        if view.images is not None:
            view = replace(view, images=self._stored_images)
        scanner = type(self)(
            self.catalog, self.full_schema, columns, self.threads, self.infer_from, view=view
        )
        scanner.files = self.files
        if "ends" in self.__dict__:
            scanner.__dict__["ends"] = self.ends
        if "matching" in self.__dict__ and (view.conditions, view.subset) == (
            self.view.conditions,
            self.view.subset,
        ):
            scanner.__dict__["matching"] = self.matching
        return scanner

    def head(self, records: int = 5) -> pa.Table:
        """The first records as a pyarrow.Table."""
        records = min(to_whole_number(records, "records", 0), MAX_ROWS)
        loads = head_loads(self.files, 2**62 if self.view.is_filtered else records)
        return self._make_table(decode_first_rows(records, loads, self.decode, self.threads))

    def loads(
        self,
        start: int = 0,
        stop: int | None = None,
        *,
        piece_bytes: int = PIECE_BYTES,
        piece_records: int | None = None,
    ) -> Iterator[Load]:
        """Returns the pieces of work that give records [start, stop), in order; `decode` makes batches of each."""
        stop = self._num_stored if stop is None else min(stop, self._num_stored)
        return range_loads(self.files, self.ends, start, stop, piece_bytes, piece_records)

    def decode(self, load: Load) -> list[pa.RecordBatch]:
        """The records of a load, or those of them that there are, as columns of `schema`."""
        if self._selection is None:
            batches = (
                decode_load(load, self._decoding)
                if self._guess is None
                else confirm_batches(load, self._guess, self._decoding)
            )
            return [rename_columns(batch, self.schema) for batch in batches]
        return self._selection.decode(
            load, 0 if self.view.subset is None else self._first_record_number(load)
        )

    def _first_record_number(self, load: Load) -> int:
        """The number of a load's first record among all."""
        file_index = load.piece.file
        record_in_file = load.piece.first_record if load.block is None else load.block.first_record
        return (int(self.ends[file_index - 1]) if file_index else 0) + record_in_file

    def record_batches(self, start: int = 0, stop: int | None = None) -> Iterator[pa.RecordBatch]:
        """Records [start, stop) of a slice, in order as they come: about 8 MiB of a shard each, or what is kept."""
        if (start, stop) != (0, None):
            start, stop = self._enclosing_range(start, stop)
        row_bytes = sum(images.row_bytes for images in self.images.values())
        loads = self.loads(
            start, stop, piece_records=max(_MAX_PIXEL_BYTES // row_bytes, 1) if row_bytes else None
        )
        if self.view.subset is not None:
            loads = filter(self._may_have_kept, loads)
        for batches in thread_map(self.decode, loads, self.threads):
            yield from batches

    def _may_have_kept(self, load: Load) -> bool:
        """Returns whether records of a load may be kept."""
        assert self.view.subset is not None
        count = load.piece.records if load.block is None else len(load.block.frames)
        first = self._first_record_number(load)
        return count is None or bool(
            np.diff(self.view.subset.below(np.array([first, first + count])))[0]
        )

    def _enclosing_range(self, start: int, stop: int | None) -> tuple[int, int]:
        """Returns the range of all records in which the kept ones with these numbers lie."""
        begin, end, _ = slice(start, stop).indices(len(self))
        if begin >= end:
            return (0, 0)
        if self.matching is None:
            return begin, end
        first, last = self.matching.at(np.array([begin, end - 1])).tolist()
        return first, last + 1

    def _make_table(self, batches: Iterable[pa.RecordBatch]) -> pa.Table:
        return pa.Table.from_batches(batches, to_arrow(self.schema))
