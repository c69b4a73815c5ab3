"""`Records`: an immutable view of the records of some files."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base.buffers import Int64s
from recordmill.base.errors import DataError, UsageError
from recordmill.base.option_names import available_names
from recordmill.base.sizes import MAX_ROWS, to_whole_number
from recordmill.base.threads import thread_map
from recordmill.reader.open_files import OpenFiles
from recordmill.reader.options.images import Images
from recordmill.reader.sampling.sampler import RecordSubset
from recordmill.reader.selection import (
    RecordFilter,
    check_features,
    check_unique,
    filter_numbers,
    rename_columns,
    rename_features,
)
from recordmill.reader.take import (
    ParsePlan,
    iter_head_reads,
    make_parse_plan,
    read_columns,
    read_row,
    resolve_record_numbers,
    take_first_rows,
    take_rows,
)
from recordmill.records.columns.conversions import Decoding
from recordmill.records.columns.predicate import Predicate, names_to_read
from recordmill.records.inference.confirm import SchemaNotConfirmed
from recordmill.records.tfrecord.frames import FileFrames
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Schema
from recordmill.shards.catalog import Catalog
from recordmill.shards.loading.decode import decode_frames
from recordmill.shards.loading.infer_schema import (
    confirm_frames,
    guess_schema,
    select_features,
)
from recordmill.shards.pieces import FrameRead
from recordmill.shards.record_files import RecordFiles

if TYPE_CHECKING:
    import pyarrow.compute as pc

# 64 MiB: maximum size of the decoded images of a piece. An encoded piece of 8 MiB may decode to
# much more.
_MAX_PIXEL_BYTES = 64 << 20
_Result = TypeVar("_Result")


@dataclass(frozen=True, eq=False)
class Records:
    """Immutable view of the records of some files, in a fixed order.

    `select`, `with_names` and `where` return other views of the same files. They copy nothing, and
    share the schema and the record counts. Threads and processes can share a view. It implements
    `reader.prefetch.protocols.Fetchable`.

    Attributes:
        open_files: The files and their conversions.
        filter: The selection of records.
        columns: Stored names of the features to read. If None, all are read.
        names: Shown name to stored name of the renamed features.
        pinned_fingerprint: Fingerprint that was taken over from another view. If None, it is
            computed.
    """

    open_files: OpenFiles
    filter: RecordFilter
    columns: tuple[str, ...] | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    pinned_fingerprint: str | None = None

    @classmethod
    def from_files(
        cls,
        open_files: OpenFiles,
        columns: Sequence[str] | None = None,
        where: Predicate | None = None,
    ) -> Records:
        """Returns the records of some files.

        Args:
            columns: Names of the features to read. If None, all are read.
            where: A condition on the stored features.

        Raises:
            UsageError: The schema is known and the columns, conditions or conversions do not fit
                it.
        """
        if columns is not None and hasattr(columns, "tolist"):  # an array of NumPy or pandas
            columns = columns.tolist()
        if not isinstance(columns, Sequence | None):
            raise UsageError(f'columns is a list of features, as in ["x", "y"], not {columns!r}')
        record_filter = RecordFilter(open_files)
        records = cls(
            open_files,
            record_filter if where is None else record_filter.and_where(where, {}),
            None if columns is None else tuple(columns),
        )
        return records if open_files.known_schema is None else records._checked()

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process computes the derived values again, because some of them hold functions.
        return Records, tuple(getattr(self, field.name) for field in fields(self))

    def _checked(self) -> Records:
        """Checks the columns, conditions and conversions, and returns these records.

        Raises:
            UsageError: One of them does not fit the features.
        """
        _ = self.schema, self.filter.feature_names
        return self

    # Features

    @cached_property
    def schema(self) -> Schema:
        """The features that are read, under the names of this view."""
        return self._to_shown(self._decoding.schema)

    @cached_property
    def _stored_schema(self) -> Schema:
        """The features that are read, under their stored names."""
        full_schema = self.open_files.schema
        if self.columns is None:
            return full_schema
        if unknown := [name for name in self.columns if name not in full_schema]:
            raise UsageError(
                f"no feature {unknown[0]!r}; {available_names(unknown[0], full_schema.names)}"
            )
        check_unique(self.columns)
        return full_schema.select(self.columns)

    @cached_property
    def _decoding(self) -> Decoding:
        """Conversion of payloads to the features that are read, under their stored names."""
        # Options may name features that are not read. They are checked against all features.
        self.open_files.check_conversions()
        return self.open_files.make_decoding(self._stored_schema)

    @cached_property
    def _filtered_schema(self) -> Schema:
        """Features to read, followed by features that only the conditions use."""
        names = names_to_read(self._stored_schema.names, self.filter.feature_names)
        return self.open_files.schema.select(names)

    @cached_property
    def _parse_plan(self) -> ParsePlan | None:
        return None if self._decoding.steps else make_parse_plan(self._stored_schema)

    def _to_shown(self, stored_schema: Schema) -> Schema:
        return rename_features(stored_schema, {old: new for new, old in self.names.items()})

    def make_decoding(self, schema: Schema) -> Decoding:
        """Returns a conversion of payloads to some features of this view.

        Args:
            schema: Features under the names of this view. `required` may differ from `self.schema`.

        Returns:
            The conversion. Its columns have the stored names.
        """
        stored = rename_features(schema, self.names)
        if not self._decoding.steps:
            return Decoding(stored)
        # The features of `schema` are already converted. The steps need the stored ones.
        decoded = {step.feature for step in self._decoding.steps}
        features = tuple(
            replace(self._stored_schema[f.name], required=f.required) if f.name in decoded else f
            for f in stored
        )
        return self.open_files.make_decoding(replace(stored, features=features))

    @property
    def images(self) -> Mapping[str, Images]:
        """Targets of the images that are decoded, by feature name."""
        targets = self.open_files.images
        stored = {name: self.names.get(name, name) for name in self.schema.names}
        return {name: targets[old] for name, old in stored.items() if old in targets}

    def may_lack(self, name: str) -> bool:
        """Returns whether a record may lack a feature. Reads no records.

        The answer comes from the schema and from the statistics of the build. If a condition uses
        the feature, the answer is False, because readers check each record anyway.
        """
        feature, stored_name = self.schema[name], self.names.get(name, name)
        if feature.required or feature.ragged_rank or stored_name in self.filter.feature_names:
            return False
        statistics = self.open_files.read_statistics()
        return statistics is None or any(
            statistics[split][stored_name].missing for split in self.catalog.splits
        )

    # Files

    @property
    def parts(self) -> tuple[Records]:
        """Only this object, because only a zip has several parts."""
        return (self,)

    @property
    def mixed(self) -> None:
        """None, because it is not a mixture."""

    @property
    def threads(self) -> int:
        """Number of threads that read and decode."""
        return self.open_files.threads

    @property
    def catalog(self) -> Catalog:
        """The files of all records, with their manifest and splits."""
        return self.open_files.catalog

    @property
    def files(self) -> RecordFiles:
        """The open files, for reading."""
        return self.open_files.files

    @cached_property
    def fingerprint(self) -> str:
        """Identity of the records, independent of their location.

        It covers the names, sizes and contents of the files, the selection of records, and the
        conversions. New names and a selection of features do not change it.
        """
        if self.pinned_fingerprint is not None:
            return self.pinned_fingerprint
        files = self.open_files
        identity = self.filter.identity() + "\x00by class name" * files.class_names
        if files.steps:
            identity = f"{identity}\x00as {files.steps!r}"
        if files.images:
            identity = f"{identity}\x00images {sorted(files.images.items())!r}"
        return hashlib.blake2b(files.identity + identity.encode(), digest_size=16).hexdigest()

    @property
    def generations(self) -> tuple[tuple[str, int], ...]:
        """(folder, generation) of the data set. Files without a manifest have none."""
        root, generation = self.catalog.root, self.catalog.generation
        return () if root is None or generation is None else ((root, generation),)

    # Numbers of records

    @property
    def record_subset(self) -> RecordSubset | None:
        """Numbers of the matching records among all stored records. None means all."""
        return self.filter.matching

    def __len__(self) -> int:
        return (
            self.open_files.num_records if self.record_subset is None else len(self.record_subset)
        )

    def to_stored_numbers(self, numbers: Int64s) -> Int64s:
        """Converts numbers of this view to numbers among all stored records."""
        return numbers if self.record_subset is None else self.record_subset.record_numbers(numbers)

    # Other views

    def _derive(self, **changes: Any) -> Records:
        return replace(self, pinned_fingerprint=None, **changes)._checked()

    def select(self, columns: Sequence[str]) -> Records:
        """Returns a view of some features, in the given order.

        Raises:
            UsageError: A feature is unknown, or named twice.
        """
        check_features(columns, self.schema)
        return self._derive(columns=tuple(self.names.get(name, name) for name in columns))

    def with_names(self, names: Mapping[str, str]) -> Records:
        """Returns a view with new names for some features.

        Args:
            names: Current name to new name.

        Raises:
            UsageError: A feature is unknown, a new name is not text, or two features would have the
                same name.
        """
        if not isinstance(names, Mapping) or not all(
            isinstance(name, str) for name in names.values()
        ):
            raise UsageError(f"rename takes {{name: new name}}, not {names!r:.99}")
        check_features(names, self.schema)
        new_names = [names.get(name, name) for name in self.schema.names]
        if duplicates := [name for name in new_names if new_names.count(name) > 1]:
            raise UsageError(f"rename: two features would be called {duplicates[0]!r}")
        stored_names = self._stored_schema.names
        pairs = zip(new_names, stored_names, strict=True)
        new_to_stored = {new: stored for new, stored in pairs if new != stored}
        try:
            return self._derive(columns=tuple(stored_names), names=new_to_stored)
        except ValueError as error:  # a `Schema` refuses invalid names
            raise UsageError("rename: {error}", error=error) from None

    def where(self, what: str | pc.Expression | Sequence[int] | npt.NDArray[Any]) -> Records:
        """Returns a view of selected records.

        Args:
            what: A condition, a mask or a list of record numbers, as in `Dataset.filter`.

        Raises:
            UsageError: The condition does not fit the features, the mask has another length, or a
                record is named twice.
            IndexError: There is no record of such a number.
        """
        # not at the top: this import takes 60 ms, which `head` and `inspect` do not need
        import pyarrow.compute as pc

        return self._derive(
            filter=self.filter.and_where(Predicate(what, "filter: "), self.names)
            if isinstance(what, str | pc.Expression)
            else self.filter.and_numbers(filter_numbers(what, len(self)))
        )

    def drop_missing(self, names: Sequence[str]) -> Records:
        """Returns a view of the records that have all of these features."""
        # not at the top: this import takes 60 ms
        import pyarrow.compute as pc

        return self.where(
            functools.reduce(operator.and_, (pc.field(name).is_valid() for name in names))
        )

    @cached_property
    def encoded_view(self) -> Records:
        """This view, with images as stored bytes."""
        if self.open_files.image_target is None:
            return self
        # Both views must have the same fingerprint, because orders and saved states depend on it.
        return replace(
            self, open_files=self.open_files.as_encoded, pinned_fingerprint=self.fingerprint
        )

    @cached_property
    def lenient_view(self) -> Records:
        """This view, without errors for damaged places in files without a manifest.

        A damaged place counts as one record that can't be read. The view of a data set with a
        manifest is returned unchanged.
        """
        files = self.open_files
        if files.is_lenient or self.catalog.manifest is not None:
            return self
        return self._with_files(files.as_lenient)

    def _with_files(self, open_files: OpenFiles) -> Records:
        """Returns this view with another `OpenFiles` of the same files."""
        return replace(self, open_files=open_files, filter=self.filter.with_files(open_files))

    # Reading

    def in_one_pass(self, work: Callable[[Records], _Result]) -> _Result:
        """Returns `work(self)`. Saves a pass over the files if the schema is unknown.

        `work` first runs with a schema that is guessed from the first records, and each decoded
        record is compared with the guess. If one does not fit, `work` runs again with the schema
        of all records.

        Args:
            work: Must read all records of its argument. It may run twice.
        """
        files, guess = self.open_files, None
        # `decode` uses a guess only if no records are left out
        if files.known_schema is None and files.infer_from is None and not self.filter.is_active:
            self.catalog.apply_store_settings()
            guess = guess_schema(self.catalog.files, threads=self.threads)
        if guess is not None:
            # A wrong guess can also cause errors that the inferred schema does not. Real errors
            # are raised again by the second run of `work`.
            with contextlib.suppress(SchemaNotConfirmed, DataError, UsageError):
                result = work(
                    self._with_files(replace(files, known_schema=guess.schema, guess=guess))
                )
                # all records have confirmed the guess, so no further pass has to infer the schema
                files.learn_schema(guess.schema, guess.notes)
                return result
        return work(self)

    def iter_reads(
        self, start: int = 0, stop: int | None = None, *, piece_records: int | None = None
    ) -> Iterator[FrameRead]:
        """Yields deferred reads of a range of the stored records, in order.

        If records were selected by number, reads without a selected record are left out.

        Args:
            start: Number of the first record among all stored records.
            stop: Number after the last record. None means the end.
            piece_records: Maximum number of records of a read. None means no limit.
        """
        return self.open_files.iter_reads(
            start, stop, piece_records=piece_records, subset=self.filter.subset
        )

    def decode(self, frames: FileFrames) -> pa.RecordBatch:
        """Decodes frames of one file into a batch with the columns of `schema`.

        Records that are not part of this view are left out.

        Raises:
            DataError: A record is damaged, does not fit the schema or can't be converted.
            SchemaNotConfirmed: A record contradicts the guessed schema.
        """
        if self.filter.is_active:
            batch = self._decode_matching(frames)
        elif self.open_files.guess is None:
            batch = decode_frames(frames, self._decoding)
        else:
            guessed = confirm_frames(frames, self.open_files.guess)
            batch = self._decoding.convert(
                select_features(guessed, self._stored_schema), frames.location
            )
        return rename_columns(batch, self.schema)

    def _decode_matching(self, frames: FileFrames) -> pa.RecordBatch:
        mask = self.filter.subset_mask(frames)
        if not mask.any():
            frames, mask = frames.select(slice(0), frames.damage), mask[:0]
        batch = decode_frames(frames, self._filtered_schema)
        mask &= self.filter.condition_mask(batch, frames)
        # `_filtered_schema` begins with the features that are read
        columns = batch.filter(pa.array(mask)).columns[: len(self._stored_schema)]
        matching = pa.RecordBatch.from_arrays(columns, schema=to_arrow(self._stored_schema))
        return self._decoding.convert(matching, frames.select(np.flatnonzero(mask)).location)

    def record_batches(self, start: int = 0, stop: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yields records in order, decoded on threads.

        A batch holds the records of about 8 MiB of a file or of several small files. If the view
        selects records, a batch holds only the matching ones. If images are decoded, a batch has at
        most 64 MiB of pixels, or one record. Lists of images are assumed to be as long as the
        longest list of the first records. If records were selected by number, parts of files
        without selected records are not read. Nothing is read until the iterator is consumed.

        Args:
            start: Number of the first record. Negative numbers count from the end, as in a slice.
            stop: Number after the last record. None means the end.

        Yields:
            Record batches with the columns of `schema`.

        Raises:
            DataError: A record is damaged or does not fit the schema.
        """
        if (start, stop) != (0, None):
            start, stop = self._enclosing_range(start, stop)
        row_bytes = self._image_row_bytes
        piece_records = max(_MAX_PIXEL_BYTES // row_bytes, 1) if row_bytes else None
        reads = self.open_files.iter_joined_reads(
            start, stop, piece_records=piece_records, subset=self.filter.subset
        )
        yield from thread_map(lambda read: self.decode(read()), reads, self.threads)

    @cached_property
    def _image_row_bytes(self) -> int:
        if not self.images:
            return 0
        from recordmill.reader.images.columns import estimate_row_bytes

        return estimate_row_bytes(self.encoded_view, self.images)

    def _enclosing_range(self, start: int, stop: int | None) -> tuple[int, int]:
        """Returns the range of stored records that contains records [start, stop) of this view."""
        begin, end, _ = slice(start, stop).indices(len(self))
        if begin >= end:
            return (0, 0)
        # the range may contain records that the view leaves out; `decode` removes them
        first, last = self.to_stored_numbers(np.array([begin, end - 1])).tolist()
        return first, last + 1

    def read(self, numbers: Int64s, schema: Schema, *, use_mapping: bool = True) -> pa.RecordBatch:
        """Reads some features of records by their numbers, which count all stored records."""
        decoding = self.make_decoding(schema)
        return read_columns(self.files, numbers, decoding, use_mapping=use_mapping)

    def to_table(self, start: int = 0, stop: int | None = None) -> pa.Table:
        """Returns records [start, stop) as one table."""
        return self._make_table(self.record_batches(start, stop))

    def head(self, records: int = 5) -> pa.Table:
        """Returns the first records. Only as much is read as they need."""
        records = min(to_whole_number(records, "records", 0), MAX_ROWS)
        # with conditions, the number of records to read for `records` matches is unknown
        reads = iter_head_reads(self.files, 2**62 if self.filter.is_active else records)
        # Decoding stops after enough rows. Until then, each thread may have started one more read.
        batches = thread_map(lambda read: self.decode(read()), reads, self.threads)
        return self._make_table(take_first_rows(batches, records))

    def _make_table(self, batches: Iterable[pa.RecordBatch]) -> pa.Table:
        return pa.Table.from_batches(batches, to_arrow(self.schema))

    def take(self, records: Sequence[int] | npt.NDArray[Any]) -> pa.Table:
        """Returns records by number, in the given order.

        Raises:
            IndexError: A number is out of range.
            TypeError: `records` is not a list of numbers.
        """
        numbers = self.to_stored_numbers(resolve_record_numbers(records, len(self)))
        table = take_rows(self.files, numbers, self._decoding, self.threads)
        return pa.Table.from_arrays(table.columns, schema=to_arrow(self.schema))

    def row(self, record: int) -> dict[str, Any]:
        """Returns one record as a dict.

        Raises:
            IndexError: The number is out of range.
        """
        total = len(self)
        if not -total <= record < total:
            raise IndexError(f"record {record} of {total}")
        record %= total
        if self.record_subset is not None:
            record = int(self.record_subset.record_numbers(np.array([record]))[0])
        row = read_row(
            self.files,
            record,
            self._decoding,
            self._parse_plan,
            is_full_schema=self.columns is None,
        )
        return dict(zip(self.schema.names, row.values(), strict=True))
