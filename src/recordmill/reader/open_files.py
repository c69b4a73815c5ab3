"""`OpenFiles`: the open files of a data set, which all its views share."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from recordmill.base.buffers import Int64s
from recordmill.base.errors import DataWarning, UsageError
from recordmill.base.machine import count_cores
from recordmill.base.option_names import option
from recordmill.base.sizes import to_whole_number
from recordmill.base.threads import thread_map
from recordmill.reader.options.images import Images, ImageTarget
from recordmill.reader.sampling.sampler import RecordSubset
from recordmill.reader.take import iter_head_reads, iter_range_reads, take_first_rows
from recordmill.records.columns.conversions import Decoding
from recordmill.records.columns.convert import (
    ConversionStep,
    NameClasses,
    make_class_name_steps,
    output_schema,
)
from recordmill.records.inference.confirm import SchemaGuess
from recordmill.records.inference.infer import Inference
from recordmill.records.tfrecord.frames import FileFrames, FileOrigin, JoinedOrigin
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Schema
from recordmill.shards.catalog import Catalog
from recordmill.shards.loading.decode import decode_frames
from recordmill.shards.loading.infer_schema import infer_from_files, refine_inferred
from recordmill.shards.loading.sample import Sample
from recordmill.shards.loading.schema_hints import load_schema
from recordmill.shards.manifest import STATISTICS_NAME, read_statistics
from recordmill.shards.pieces import FrameRead, join_reads
from recordmill.shards.record_files import RecordFiles
from recordmill.shards.record_table import raise_first_damage

if TYPE_CHECKING:
    from recordmill.statistics.dataset_statistics import DatasetStatistics


@dataclass(eq=False)
class OpenFiles:
    """Open files of a data set, with their schema and conversions.

    All views of a data set share this object. If the schema is unknown, it is inferred when it is
    first needed. A pickled copy contains the schema if it is known.

    Attributes:
        catalog: The files to read.
        record_files: The same files, open. Use `files` to read them.
        known_schema: Schema of the stored records. None if it is not known yet.
        threads: Number of threads that read and decode. 0 means one per core.
        infer_from: The sample for inferring an unknown schema. None means all records.
        steps: Conversions of features, by stored name.
        image_target: Targets of encoded images, by stored name or for all images. If None, images
            stay encoded.
        class_names: True if classes are returned as names instead of numbers.
        guess: The guess that the schema comes from, or None. If set, each decoded record must
            confirm it.
        is_lenient: True if damaged places are not errors. In files without an index, each of them
            counts as one record that can't be read.
        known_notes: Names of the files that described the features of `known_schema`.
    """

    catalog: Catalog
    record_files: RecordFiles
    known_schema: Schema | None = None
    threads: int = 0
    infer_from: Sample | None = None
    steps: tuple[ConversionStep, ...] = ()
    image_target: ImageTarget | None = None
    class_names: bool = False
    guess: SchemaGuess | None = None
    is_lenient: bool = False
    known_notes: tuple[str, ...] = ()

    @classmethod
    def from_catalog(
        cls,
        catalog: Catalog,
        schema: Schema | str | os.PathLike[str] | None,
        *,
        threads: int | None,
        infer_from: str | int | None = None,
        **options: Any,
    ) -> OpenFiles:
        """Opens the files of a catalog. Reads a schema file, but no records.

        Args:
            catalog: The files.
            schema: As in `recordmill.open`.
            threads: As in `recordmill.open`.
            infer_from: As in `recordmill.open`.
            **options: Other attributes of this class.

        Raises:
            UsageError: An option is invalid, or two of them exclude each other.
        """
        if infer_from is not None and schema is not None:
            raise UsageError(
                "{infer_from} and {schema} exclude each other: give one of them",
                infer_from=option("infer_from"),
                schema=option("schema"),
            )
        sample = None if infer_from is None else Sample.parse(infer_from)
        given_schema = load_schema(schema)
        return cls(
            catalog,
            RecordFiles.open(catalog.files),
            catalog.schema if given_schema is None else given_schema,
            threads=threads or 0,
            infer_from=sample,
            **options,
        )

    def __post_init__(self) -> None:
        self.threads = to_whole_number(self.threads, "threads", 0) or count_cores()

    @property
    def files(self) -> RecordFiles:
        """The open files, for reading.

        Each access applies the data set's settings for stores to this process. The process may be a
        worker that has unpickled this object.
        """
        self.catalog.apply_store_settings()
        return self.record_files

    @cached_property
    def inference(self) -> Inference | None:
        """Counts of the features of the records, or of a sample of them.

        None if the schema is known. Otherwise the first access reads the records.
        """
        if self.known_schema is not None:
            return None
        self.catalog.apply_store_settings()
        return infer_from_files(
            self.catalog.files,
            threads=self.threads,
            sample=self.infer_from,
            lenient=self.is_lenient,
        )

    @property
    def schema(self) -> Schema:
        """All features of the records, under their stored names."""
        if self.known_schema is None:
            assert self.inference is not None
            self.catalog.apply_store_settings()
            self.learn_schema(*refine_inferred(self.catalog.files, self.inference))
        assert self.known_schema is not None
        return self.known_schema

    @property
    def notes(self) -> tuple[str, ...]:
        """Names of the files that described the features.

        Such a file is a `schema.pbtxt` or a `features.json` next to files without a manifest.
        """
        _ = self.schema
        return self.known_notes

    def learn_schema(self, schema: Schema, notes: Sequence[str]) -> None:
        """Keeps a schema that all records fit, so that it is not inferred again."""
        self.known_schema, self.known_notes = schema, tuple(notes)

    @cached_property
    def images(self) -> Mapping[str, Images]:
        """Targets of the encoded images that are decoded, by stored name.

        If the option names no features, the first access reads the first records.
        """
        if self.image_target is None:
            return {}
        from recordmill.reader.images.columns import resolve_image_targets

        return resolve_image_targets(self.as_encoded, self.image_target)

    def head(self, records: int) -> pa.Table:
        """Returns the first records with all features, as they are stored."""
        reads = iter_head_reads(self.files, records)
        decoded = thread_map(lambda read: decode_frames(read(), self.schema), reads, self.threads)
        return pa.Table.from_batches(take_first_rows(decoded, records), to_arrow(self.schema))

    @cached_property
    def as_encoded(self) -> OpenFiles:
        """A copy of this object that returns images as stored bytes."""
        if self.image_target is None:
            return self
        return replace(self, image_target=None, known_schema=self.schema)

    @cached_property
    def as_lenient(self) -> OpenFiles:
        """A copy of this object that ignores damaged places."""
        return replace(self, is_lenient=True)

    def make_decoding(self, schema: Schema) -> Decoding:
        """Returns the conversion of stored features to the values that `open` determined.

        Args:
            schema: The features, under their stored names.
        """
        steps = [step for step in self.steps if step.feature in schema]
        if self.images:
            from recordmill.reader.images.columns import (
                ImageConversion,
                find_photo,
                has_boxes,
            )

            boxes = has_boxes(schema.names)
            has_photo = find_photo(self.images) is not None
            steps += [
                ImageConversion(
                    name, target, boxes, has_photo and target.mask and target.orientation
                )
                for name, target in self.images.items()
                if name in schema
            ]
        if self.class_names:
            steps += [
                NameClasses(feature.name) for feature in schema if feature.classes is not None
            ]
        return Decoding(schema, tuple(steps))

    def check_conversions(self) -> None:
        """Raises UsageError if a conversion does not fit its feature.

        All features are checked, also features that are not read.
        """
        if self.steps or self.images:
            output_schema(self.steps, self.schema)
            _ = self.make_decoding(self.schema).schema
        if self.class_names:
            make_class_name_steps(self.schema)

    @cached_property
    def ends(self) -> Int64s:
        """Number of records up to the end of each file, int64 [files].

        The manifest has the counts. Other files are read to count their records.

        Raises:
            DataError: A file is damaged, unless damaged places are left out. The error is the first
                damage.
        """
        ends = self.files.count_records(self.threads)
        for file in () if self.is_lenient or self.catalog.manifest is not None else self.files:
            for damage in file.damage:
                raise_first_damage(file.file.path)
                raise damage.error(file.file.path)
        for file in self.files:
            if (problem := file.file.compare_length(file.records)) is not None:
                warnings.warn(str(problem), DataWarning, stacklevel=2)
        return ends

    @property
    def num_records(self) -> int:
        """Number of records in the files, including records that a view leaves out."""
        return int(self.ends[-1]) if len(self.ends) else 0

    def number_records(self, frames: FileFrames, records: Sequence[int] | None = None) -> Int64s:
        """Converts record numbers in one file to numbers among the records of all files.

        Args:
            frames: Frames of one file, or of several files. The latter have such numbers already.
            records: Record numbers in the file. None means the numbers of `frames`.
        """
        numbers = frames.numbers if records is None else np.array(records, np.int64)
        origin = frames.origin
        starts = np.concatenate([[0], self.ends])
        if isinstance(origin, FileOrigin):
            return numbers + starts[origin.ordinal]
        if isinstance(origin, JoinedOrigin):
            return origin.count_all_records(numbers, starts)
        return numbers

    def iter_reads(
        self,
        start: int = 0,
        stop: int | None = None,
        *,
        piece_records: int | None = None,
        subset: RecordSubset | None = None,
    ) -> Iterator[FrameRead]:
        """Yields deferred reads of a range of records, in order.

        Args:
            start: Number of the first record.
            stop: Number after the last record. None means the end.
            piece_records: Maximum number of records of a read. None means no limit. Files that can
                only be read from the start ignore it.
            subset: Reads without a record of this subset are left out. If None, all are kept.
        """
        stop = self.num_records if stop is None else min(stop, self.num_records)
        return iter_range_reads(self.files, start, stop, piece_records=piece_records, subset=subset)

    def iter_joined_reads(
        self,
        start: int = 0,
        stop: int | None = None,
        *,
        piece_records: int | None = None,
        subset: RecordSubset | None = None,
    ) -> Iterator[FrameRead]:
        """Yields deferred reads of a range of records, like `iter_reads`.

        Small files are read together, so frames may come from several files.
        """
        reads = self.iter_reads(start, stop, piece_records=piece_records, subset=subset)
        return join_reads(reads, piece_records)

    def read_statistics(self) -> DatasetStatistics | None:
        """Returns the stored statistics of all records and features. None if there are none."""
        from recordmill.statistics.dataset_statistics import DatasetStatistics

        manifest, root = self.catalog.manifest, self.catalog.root
        data = None if manifest is None or root is None else read_statistics(manifest, root)
        if data is None:
            return None
        return DatasetStatistics.from_bytes(data, STATISTICS_NAME, self.schema)

    @property
    def identity(self) -> bytes:
        """Names, sizes and contents of the files, independent of their location.

        The content of a shard is the digest in the manifest. The content of any other file is a
        digest of the lengths and CRCs of its records, which are read for it.
        """
        parts = []
        for file in self.files:
            info = file.file
            parts.append(
                b"%s\x00%d\x00%d\x00" % (info.identity, file.records, info.stat.size_bytes)
            )
            parts.append(file.content.encode() + b"\n")
        return b"".join(parts)
