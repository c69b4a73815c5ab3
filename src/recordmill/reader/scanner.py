"""Records of a set of files as a view shows them: `Scanner`.

A `View` selects records, renames features and determines how they are decoded. A `Scanner` reads
the records of its view in batches, by their numbers. Another view of the same files copies nothing.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base.arguments import suggest_fields
from recordmill.base.buffers import Int64s
from recordmill.base.errors import DataWarning, UsageError
from recordmill.base.machine import core_count
from recordmill.base.option_names import available_names
from recordmill.base.sizes import MAX_ROWS, to_whole_number
from recordmill.base.threads import thread_map
from recordmill.reader.options.images import Images
from recordmill.reader.sampling.sampler import RecordSubset
from recordmill.reader.take import head_calls, range_calls
from recordmill.reader.view import (
    Condition,
    Selection,
    View,
    check_features,
    check_unique,
    filter_numbers,
    rename_columns,
)
from recordmill.records.columns.conversions import Decoding
from recordmill.records.columns.convert import make_class_name_steps, output_schema
from recordmill.records.columns.predicate import Predicate
from recordmill.records.inference.confirm import SchemaGuess
from recordmill.records.inference.infer import Inference
from recordmill.records.tfrecord.frames import FileFrames
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Feature, Schema
from recordmill.shards.catalog import Catalog
from recordmill.shards.loading.decode import decode_frames
from recordmill.shards.loading.infer_schema import (
    confirm_frames,
    infer_from_files,
    refine_inferred,
    select_features,
)
from recordmill.shards.loading.sample import Sample
from recordmill.shards.pieces import FrameCall
from recordmill.shards.record_files import RecordFiles
from recordmill.shards.record_table import raise_first_damage

if TYPE_CHECKING:
    import pyarrow.compute as pc
    from typing_extensions import Self


# 64 MiB: size of the decoded images of one piece. An 8 MiB piece of encoded images decodes to more.
_MAX_PIXEL_BYTES = 64 << 20
FULL_VIEW = View()  # all records, under their stored names
# Cached attributes that each process computes again, because they hold functions.
_NOT_PICKLED = ("_parse_plan", "_selection", "_decoding", "encoded_view", "lenient_view")


@suggest_fields
class Scanner:
    """Records in a fixed order, with everything that reading batches needs.

    This class implements `reader.prefetch.protocols.Fetchable`. `Dataset` adds the methods for
    users.

    Args:
        catalog: The files to read.
        schema: Schema of the stored records. None infers it when it is first needed.
        columns: Stored names of the features to read. None reads all.
        threads: Number of threads that read and decode. 0 means one per core.
        infer_from: The sample for inferring an unknown schema. None uses all records.
        where: A condition on the stored features, in addition to the conditions of `view`.
        view: The selection, names and conversions.

    Raises:
        UsageError: `schema` is known and the columns, conditions or conversions do not fit it.
    """

    mixture_parts, zip_parts = None, ()  # it is one data set
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
        if not isinstance(columns, Sequence | None):
            raise UsageError(f'columns is a list of features, as in ["x", "y"], not {columns!r}')
        self._explicit_schema, self._columns = schema, None if columns is None else tuple(columns)
        self.files = RecordFiles.open(catalog.files)
        if schema is not None:
            _ = self.schema, self._selection  # reports unknown columns here, not at the first read

    def __getstate__(self) -> dict[str, Any]:
        # Counts and an inferred schema travel along, because computing them reads the files.
        return {name: value for name, value in self.__dict__.items() if name not in _NOT_PICKLED}

    @property
    def files(self) -> RecordFiles:
        """The open files, for reading.

        The first access in a process, such as a worker that has unpickled this, applies the
        settings of the data set for reads from stores.
        """
        self.apply_store_settings()
        return self._files

    @files.setter
    def files(self, files: RecordFiles) -> None:
        self._files = files

    def apply_store_settings(self) -> None:
        """Applies the settings of the data set for reads from stores to this process."""
        self.catalog.apply_store_settings()

    @cached_property
    def inference(self) -> Inference | None:
        """Counts of the features of the records, or of a sample of them.

        None if the schema is known. Otherwise the first access reads the records.
        """
        self.apply_store_settings()
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
        """Schema of the stored records, and notes about the files that described it."""
        if self._explicit_schema is not None:
            return self._explicit_schema, []
        assert self.inference is not None
        self.apply_store_settings()
        return refine_inferred(self.catalog.files, self.inference)

    @property
    def full_schema(self) -> Schema:
        """All features of the records, under their stored names."""
        return self._schema_and_notes[0]

    @property
    def schema_notes(self) -> tuple[str, ...]:
        """Names of the files that described the features.

        These are a `schema.pbtxt` or a `features.json` next to files without a manifest.
        """
        return tuple(self._schema_and_notes[1])

    @cached_property
    def schema(self) -> Schema:
        """The features that are read, under the names of this view."""
        return self.view.to_shown(self._decoding.schema)

    @cached_property
    def _decoding(self) -> Decoding:
        """Conversion of payloads to the features that are read, under their stored names."""
        # Options may name features that are not read. They are checked against all features.
        if self.view.steps or self.view.images is not None:
            output_schema(self.view.steps, self.full_schema)
            _ = self.view.make_decoding(self.full_schema, self._stored_images).schema
        if self.view.class_names:
            make_class_name_steps(self.full_schema)
        return self.view.make_decoding(self._stored_schema, self._stored_images)

    @cached_property
    def _stored_images(self) -> Mapping[str, Images]:
        """Targets of the encoded images that are decoded, by stored name."""
        if self.view.images is None:
            return {}
        # The first records decide which features are images, so another view has to read them.
        plain = type(self)(
            self.catalog, self.full_schema, threads=self.threads, infer_from=self.infer_from
        )
        plain.files = self.files
        from recordmill.reader.images.columns import resolve_image_targets

        return resolve_image_targets(plain, self.view.images)

    @property
    def images(self) -> Mapping[str, Images]:
        """Targets of the images that are decoded, by feature name.

        Empty unless the data set was opened with `decode_images`.
        """
        stored = {name: self.view.names.get(name, name) for name in self.schema.names}
        return {
            name: self._stored_images[old]
            for name, old in stored.items()
            if old in self._stored_images
        }

    @cached_property
    def encoded_view(self) -> Self:
        """These records, with images as stored bytes."""
        encoded = self._with_view(replace(self.view, images=None), self._columns)
        # shuffled orders and saved states depend on the fingerprint, and must be the same for both
        encoded.__dict__["fingerprint"] = self.fingerprint
        return encoded

    @cached_property
    def lenient_view(self) -> Self:
        """These records, read without errors for damaged places.

        In files without an index, each damaged place counts as one record that can't be read. A
        data set with a manifest is returned unchanged.
        """
        if self._is_lenient or self.catalog.manifest is not None:
            return self
        scanner = type(self)(
            self.catalog,
            self._explicit_schema,
            columns=self._columns,
            threads=self.threads,
            infer_from=self.infer_from,
            view=self.view,
        )
        scanner.files, scanner._is_lenient = self.files, True
        if "_schema_and_notes" in self.__dict__:
            scanner.__dict__["_schema_and_notes"] = self._schema_and_notes
        return scanner

    @cached_property
    def _stored_schema(self) -> Schema:
        """The features that are read, under their stored names."""
        if self._columns is None:
            return self.full_schema
        if unknown := [name for name in self._columns if name not in self.full_schema]:
            raise UsageError(
                f"no feature {unknown[0]!r}; {available_names(unknown[0], self.full_schema.names)}"
            )
        check_unique(self._columns)
        return self.full_schema.select(self._columns)

    def make_decoding(self, schema: Schema) -> Decoding:
        """Returns the conversion of payloads to some features of this view.

        Args:
            schema: Features of this view, under the names of the view. `required` may differ.

        Returns:
            The conversion, under the stored names.
        """
        stored = self.view.to_stored(schema)
        if not self._decoding.steps:
            return Decoding(stored)
        # The features of `schema` are already converted. The steps need the stored ones.
        decoded = {step.feature for step in self._decoding.steps}
        features = (
            replace(self._stored_schema[f.name], required=f.required) if f.name in decoded else f
            for f in stored
        )
        return self.view.make_decoding(
            replace(stored, features=tuple(features)), self._stored_images
        )

    @property
    def condition_names(self) -> frozenset[str]:
        """Stored names of the features that the conditions of this view use."""
        conditions = () if self._selection is None else self._selection.conditions
        return frozenset(name for one in conditions for name in one.stored_schema.names)

    @cached_property
    def _selection(self) -> Selection | None:
        return (
            Selection.from_view(self.view, self.full_schema, self._decoding)
            if self.view.is_filtered
            else None
        )

    @cached_property
    def record_subset(self) -> RecordSubset | None:
        """Numbers of the matching records among all stored records. None means all.

        The first access reads the features of the conditions in all records.
        """
        return (
            None
            if self._selection is None
            else self._selection.find_matching(
                self.calls(),
                self.threads,
                self.ends,
                lenient=self._is_lenient,
            )
        )

    @cached_property
    def fingerprint(self) -> str:
        """Identity of the records, independent of their location.

        It covers the names, sizes and contents of the files, the selection of records, and the
        conversions. The content of a shard is the digest in the manifest. The content of any other
        file is a digest of the lengths and CRCs of its records, which are read for it.
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
        """Names of the splits, in reading order."""
        return self.catalog.splits

    @cached_property
    def ends(self) -> Int64s:
        """Number of stored records up to the end of each file, int64 [files].

        The manifest has the counts. Other files are read to count their records.

        Raises:
            DataError: The first damage that was found, unless damaged places are left out.
        """
        ends = self.files.count_records(self.threads)
        for file in () if self._is_lenient or self.catalog.manifest is not None else self.files:
            for damage in file.damage:
                raise_first_damage(file.file.path)
                raise damage.error(file.file.path)
        for file in self.files:
            if (problem := file.file.compare_length(file.records)) is not None:
                warnings.warn(str(problem), DataWarning, stacklevel=2)
        return ends

    @property
    def file_records(self) -> list[int]:
        """Number of stored records of each file, including records that a condition excludes."""
        return [file.records for file in self.files]

    @property
    def _num_stored(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    @property
    def columns(self) -> list[str]:
        """Names of the features that are read."""
        return list(self.schema.names)

    @property
    def features(self) -> dict[str, Feature]:
        """The features that are read, by name."""
        return {feature.name: feature for feature in self.schema}

    def __contains__(self, name: object) -> bool:
        """Returns whether a feature of this name is read.

        Raises:
            TypeError: `name` is not text.
        """
        if not isinstance(name, str):
            raise TypeError(
                "`in` looks for no record, since they have numbers; `name in ds` looks for a feature"
            )
        return name in self.schema

    def __len__(self) -> int:
        return self._num_stored if self.record_subset is None else len(self.record_subset)

    def _to_stored_numbers(self, numbers: Int64s) -> Int64s:
        """Converts numbers of this view to numbers among all stored records."""
        return numbers if self.record_subset is None else self.record_subset.record_numbers(numbers)

    def select(self, columns: Sequence[str]) -> Self:
        """Returns a view with some features, in the given order.

        Args:
            columns: Names of features of this view.

        Returns:
            The new view. Nothing is copied.

        Raises:
            UsageError: A feature is unknown, or named twice.

        Examples:
            >>> recordmill.open("shards").select(["size", "id"]).columns
            ['size', 'id']
        """
        check_features(columns, self.schema)
        return self._with_view(self.view, [self.view.names.get(name, name) for name in columns])

    def drop(self, columns: Sequence[str]) -> Self:
        """Returns a view without some features.

        Args:
            columns: Names of features of this view.

        Returns:
            The new view. Nothing is copied.

        Raises:
            UsageError: A feature is unknown.

        Examples:
            >>> recordmill.open("shards").drop(["tokens"]).columns
            ['id', 'size', 'animal']
        """
        check_features(columns, self.schema)
        return self.select([name for name in self.schema.names if name not in columns])

    def rename(self, names: Mapping[str, str]) -> Self:
        """Returns a view with new names for some features.

        Args:
            names: Current name to new name, `{"old": "new"}`.

        Returns:
            The new view. Nothing is copied.

        Raises:
            UsageError: A feature is unknown, or two features would have the same name.

        Examples:
            >>> recordmill.open("shards").rename({"animal": "label"}).columns
            ['id', 'size', 'tokens', 'label']
        """
        return self._with_view(
            self.view.with_renamed(names, self.schema), self._stored_schema.names
        )

    def filter(self, what: str | pc.Expression | Sequence[int] | npt.NDArray[Any]) -> Self:
        """Returns a view with some of the records, in the same order.

        The records of the new view are numbered from 0.

        Args:
            what: A condition, a mask or record numbers. A condition is an SQL expression or a
                `pyarrow.compute` expression, as in `where` of `open`. It uses the feature names of
                this view and the stored values, and is evaluated on demand. A mask has one bool per
                record. Record numbers may be in any order. A mask and numbers are kept in memory,
                with 4 bytes per selected record.

        Returns:
            The new view. Nothing is copied.

        Raises:
            UsageError: The condition does not fit the features, the mask has another length, or a
                record is named twice.
            IndexError: There is no record of such a number.

        Examples:
            >>> ds = recordmill.open("shards")
            >>> ds.filter([0, 2, 4])["id"].tolist(), len(ds.filter(ds["size"] > 3))
            ([7, 3, 6], 3)
        """
        # not at the top: this import takes 60 ms, which `head` and `inspect` do not need
        import pyarrow.compute as pc

        if isinstance(what, str | pc.Expression):
            condition = Condition(Predicate(what, "filter: "), self.view.names)
            return self._with_view(
                replace(self.view, conditions=(*self.view.conditions, condition)), self._columns
            )
        # numbers of matching records, so the new view does not need the conditions any more
        numbers = filter_numbers(what, len(self))
        subset = (
            self.record_subset.select(numbers)
            if self.record_subset
            else RecordSubset.from_numbers(numbers, self._num_stored)
        )
        return self._with_view(replace(self.view, conditions=(), subset=subset), self._columns)

    def _with_view(self, view: View, columns: Sequence[str] | None) -> Self:
        """Returns the same files with another view.

        Known counts and matching records are passed on if they stay valid.

        Args:
            view: The new view.
            columns: Stored names of the features to read. None reads all.
        """
        if view.images is not None:
            view = replace(view, images=self._stored_images)
        scanner = type(self)(
            self.catalog,
            self.full_schema,
            columns=columns,
            threads=self.threads,
            infer_from=self.infer_from,
            view=view,
        )
        scanner.files = self.files
        if "record_subset" in self.__dict__ and (view.conditions, view.subset) == (
            self.view.conditions,
            self.view.subset,
        ):
            scanner.__dict__["record_subset"] = self.record_subset
        return scanner

    def head(self, records: int = 5) -> pa.Table:
        """Returns the first records as a `pyarrow.Table`.

        Args:
            records: Number of records. If there are fewer, all are returned. Only as much is read
                as they need.

        Returns:
            A `pyarrow.Table`.

        Examples:
            >>> recordmill.open("shards").head(3)["id"].to_pylist()
            [7, 0, 3]
        """
        records = min(to_whole_number(records, "records", 0), MAX_ROWS)
        # with conditions, the number of records to read for `records` matches is unknown
        calls = head_calls(self.files, 2**62 if self.view.is_filtered else records)
        return self._make_table(self._decode_first(records, calls))

    def _decode_first(self, records: int, calls: Iterable[FrameCall]) -> Iterator[pa.RecordBatch]:
        """Yields the first records of this view.

        Decoding stops when there are enough records. Each thread may have started one more part.
        """
        for batch in thread_map(lambda call: self.decode(call()), calls, self.threads):
            yield batch.slice(0, records)
            records -= batch.num_rows
            if records <= 0:
                return

    def calls(
        self,
        start: int = 0,
        stop: int | None = None,
        *,
        piece_records: int | None = None,
    ) -> Iterator[FrameCall]:
        """Yields the readings of a range of the stored records, in order.

        If records were selected by number, pieces without selected records are left out.

        Args:
            start: Number of the first record among all stored records.
            stop: Number after the last record. None means the end.
            piece_records: Maximum number of records that are read together. None sets no limit.
                Files that can only be read from the start ignore it.
        """
        stop = self._num_stored if stop is None else min(stop, self._num_stored)
        return range_calls(
            self.files,
            start,
            stop,
            piece_records=piece_records,
            subset=self.view.subset,
        )

    def decode(self, frames: FileFrames) -> pa.RecordBatch:
        """Decodes frames into a batch with the columns of `schema`.

        Records that are not part of this view are left out.

        Raises:
            DataError: A record is damaged, does not fit the schema or can't be converted.
            SchemaNotConfirmed: A record contradicts the guessed schema.
        """
        if self._selection is not None:
            # Numbers among all records are used only with a subset. Counting may read all files.
            return self._selection.decode(
                frames, frames.numbers if self.view.subset is None else self.number_records(frames)
            )
        if self._guess is None:
            batch = decode_frames(frames, self._decoding)
        else:
            stored = select_features(
                confirm_frames(frames, self._guess), self._decoding.stored_schema
            )
            batch = self._decoding.convert(stored, frames.location)
        return rename_columns(batch, self.schema)

    def number_records(self, frames: FileFrames) -> Int64s:
        """Returns the numbers of frames of one file among all stored records."""
        return frames.numbers + (int(self.ends[frames.file - 1]) if frames.file else 0)

    def record_batches(self, start: int = 0, stop: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yields records in order, decoded on threads.

        A batch holds the records of about 8 MiB of a file, or the matching ones among them. If
        images are decoded, a batch has at most 64 MiB of pixels, or one record. If records were
        selected by number, parts of files without selected records are not read. Nothing is read
        until the iterator is consumed.

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
        row_bytes = sum(images.row_bytes for images in self.images.values())
        calls = self.calls(
            start, stop, piece_records=max(_MAX_PIXEL_BYTES // row_bytes, 1) if row_bytes else None
        )
        yield from thread_map(lambda call: self.decode(call()), calls, self.threads)

    def _enclosing_range(self, start: int, stop: int | None) -> tuple[int, int]:
        """Returns the range of stored records that contains records [start, stop) of this view."""
        begin, end, _ = slice(start, stop).indices(len(self))
        if begin >= end:
            return (0, 0)
        if self.record_subset is None:
            return begin, end
        # `decode` filters the records between them
        first, last = self.record_subset.record_numbers(np.array([begin, end - 1])).tolist()
        return first, last + 1

    def _make_table(self, batches: Iterable[pa.RecordBatch]) -> pa.Table:
        return pa.Table.from_batches(batches, to_arrow(self.schema))
