"""Reading of image files into chunks, with the columns from folders and labels files.

The bytes of files are read into one Arrow buffer, and checked there. If there is a `RewriteRule`,
the images are then resized or encoded in another format.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from recordmill.base.buffers import to_offsets
from recordmill.base.errors import Fault, Reject
from recordmill.base.messages import Message
from recordmill.base.option_names import option
from recordmill.base.threads import MemoryBudget
from recordmill.records.images.check import check_decode, check_structure, check_structures
from recordmill.records.images.header import (
    FORMATS_BY_EXTENSION,
    PALETTE,
    TOO_LARGE,
    BadImage,
    ImageHeader,
)
from recordmill.records.images.pixels import NUM_PIXEL_SUMS, PixelSums, sum_pixels
from recordmill.records.images.rewrite import Placement, ReserveMemory, RewriteRule
from recordmill.schemas.arrow import from_arrow_field, to_arrow
from recordmill.schemas.feature import Feature, Schema
from recordmill.sources.common.contract import BATCH_BYTES, BATCH_FILES, IMAGE_FEATURES, Chunk
from recordmill.sources.common.layout import FolderLayout
from recordmill.sources.common.tables import take_file_batch
from recordmill.sources.images.box_columns import (
    ANNOTATION_FILE,
    HIDDEN_COLUMNS,
    STATED_HEIGHT,
    STATED_WIDTH,
)
from recordmill.sources.images.boxes import OBJECT_NAMES, Frame, find_frame, fit_boxes
from recordmill.sources.images.pairs import PARTNER_COLUMN
from recordmill.sources.values.conform import conform
from recordmill.sources.values.labels import ClassNames
from recordmill.storage.file_table import (
    FileTable,
    InputFile,
    make_dictionary_column,
    null_column,
    read_files,
)
from recordmill.storage.files import Bytes

if TYPE_CHECKING:
    from PIL import Image

DECODE_MEMORY_DIVISOR = 2  # half of the memory is for decoding images
# less than for other batches, because rewritten images may be much larger than their files
_REWRITE_BATCH_FILES, _REWRITE_BATCH_BYTES = (
    32,
    BATCH_BYTES // 8,
)
# The name of a file table column with the values of a feature is this prefix and the feature name.
FEATURE_PREFIX = "feature/"


def feature_names(files: FileTable) -> list[str]:
    """Returns the names of the features in the columns of a file table."""
    return [
        name.removeprefix(FEATURE_PREFIX)
        for name in files.extra_columns
        if name.startswith(FEATURE_PREFIX)
    ]


def with_features(files: FileTable, columns: Mapping[str, pa.Array]) -> FileTable:
    """Returns the file table with additional features.

    Args:
        files: The files.
        columns: [files] Values by feature name.
    """
    for name, values in columns.items():
        files = files.with_column(FEATURE_PREFIX + name, values)
    return files


def without_features(files: FileTable) -> FileTable:
    """Returns the file table without its features. The splits are kept."""
    return files.drop_columns([FEATURE_PREFIX + name for name in feature_names(files)])


def with_folder_labels(files: FileTable, layout: FolderLayout) -> FileTable:
    """Returns the file table with `label` and `class_name`, if folders determine classes."""
    return with_features(
        files, dict.fromkeys(("label", "class_name"), layout.classes) if layout.class_names else {}
    )


def column_feature(files: FileTable, name: str) -> Feature:
    """Returns the feature for a column of the file table.

    float64 becomes float32. A label of text becomes an int64 feature with the texts as its classes.
    """
    column = files.dictionary_values(FEATURE_PREFIX + name)
    feature = from_arrow_field(pa.field(name, column.type, nullable=column.null_count > 0))
    if feature.dtype == "float64":
        feature = replace(feature, dtype="float32")
    if name == "label" and feature.dtype == "string":
        names = ClassNames(name)
        names.add(column)
        return replace(feature, dtype="int64", classes=names.sorted_classes())
    return feature


def conform_columns(files: FileTable, schema: Schema) -> tuple[FileTable, list[Reject], list[str]]:
    """Casts the features in the file table to a schema, and drops all others.

    Args:
        files: The files.
        schema: Schema of these features.

    Returns:
        (files with values that fit, rejects for the others, notes on rounded floats).
    """
    listed_files, columns = without_features(files), dict[str, pa.Array]()
    if not len(schema) or not files:
        return listed_files, [], []
    is_good, rounded_counts = np.ones(len(files), np.bool_), Counter[str]()
    faults: dict[int, Fault] = {}
    for values, names in _batches_to_conform(files, schema):
        fitted = conform(values, schema.select(names))
        numbers = (
            files.column(FEATURE_PREFIX + names[0]).indices
            if files.is_dictionary_encoded(FEATURE_PREFIX + names[0])
            else None
        )
        rows = np.arange(len(files)) if numbers is None else numbers.to_numpy()
        for row, fault in fitted.faults.items():
            # one bad value of a dictionary is in the rows of several files
            for file_id in np.flatnonzero(rows == row).tolist():
                faults.setdefault(file_id, fault)
        positions = np.full(values.num_rows, -1)
        positions[fitted.good_rows] = np.arange(len(fitted.good_rows))
        is_good &= positions[rows] >= 0
        for name, column in zip(fitted.batch.schema.names, fitted.batch.columns, strict=True):
            if fitted.faults:
                columns[name] = make_dictionary_column(np.maximum(positions, 0)[rows], column)
            else:  # one value per file, or the same dictionary indices, which columns may share
                columns[name] = (
                    column if numbers is None else pa.DictionaryArray.from_arrays(numbers, column)
                )
        rounded_counts.update(fitted.rounded_counts)
    absent = [name for name in schema.names if name not in feature_names(files)]
    for name in absent:
        values = conform(pa.RecordBatch.from_pydict({name: pa.nulls(1)}), schema.select([name]))
        for fault in values.faults.values():
            faults = {file_id: faults.get(file_id, fault) for file_id in range(len(files))}
            is_good[:] = False
        if not values.faults:
            columns[name] = pa.DictionaryArray.from_arrays(
                null_column(len(files)).indices, values.batch.column(0)
            )
    notes = [
        f"{name}: {rounded_counts[name]} value(s) lose digits as {schema[name].dtype}"
        for name in schema.names
        if rounded_counts[name]
    ]
    rejects = [
        Reject(files[file_id].name, "", fault.reason, f"labels: {fault.message}")
        for file_id, fault in sorted(faults.items())
    ]
    return with_features(listed_files, columns).filter(is_good), rejects, notes


def _batches_to_conform(files: FileTable, schema: Schema) -> list[tuple[pa.RecordBatch, list[str]]]:
    """Returns the columns of the file table that are features, as batches for `conform`.

    A dictionary-encoded column is a batch of its own, which contains each distinct value once. The
    other columns are in one batch.

    Returns:
        (batch, names of its features) of each batch.
    """
    present = [name for name in schema.names if name in feature_names(files)]
    encoded = [name for name in present if files.is_dictionary_encoded(FEATURE_PREFIX + name)]
    plain_names = [name for name in present if name not in encoded]
    name_groups = [[name] for name in encoded] + ([plain_names] if plain_names else [])
    return [
        (
            pa.RecordBatch.from_pydict(
                {n: files.dictionary_values(FEATURE_PREFIX + n) for n in names}
            ),
            names,
        )
        for names in name_groups
    ]


def read_images(
    files: FileTable,
    ordinals: Sequence[int],
    schema: Schema,
    *,
    decode_bytes: int,
    max_pixels: int,
    decode: bool = False,
    with_pixels: bool = False,
    pair: str = "",
    rule: RewriteRule | None = None,
) -> Iterator[Chunk]:
    """Yields images in chunks of about BATCH_BYTES. A larger file is a chunk of its own.

    Args:
        files: All files of the source.
        ordinals: Indices of the files to read, in this order.
        schema: The features of the chunks.
        decode_bytes: Memory that all threads together may use to decode images.
        max_pixels: An image with more pixels is a reject.
        decode: Whether images are checked by decoding all their frames.
        with_pixels: Whether the pixels of decoded images are summed up for `Chunk.pixel_sums`.
        pair: Name of the feature of the masks. "" without masks.
        rule: How images are rewritten. If None, their bytes are kept.

    Raises:
        DataError: A file has changed since it was listed, or can't be read.
    """
    first = 0
    while first < len(ordinals):
        candidates = ordinals[
            first : first + (BATCH_FILES if rule is None else _REWRITE_BATCH_FILES)
        ]
        batch_files, partners = _next_files(
            files, candidates, BATCH_BYTES if rule is None else _REWRITE_BATCH_BYTES
        )
        batch = _ImageBatch(
            candidates[: len(batch_files)],
            batch_files,
            partners,
            pair=pair,
            max_pixels=max_pixels,
            rule=rule,
            table=files,
        )
        batch.check(
            decode_bytes, max_pixels, decode=decode, with_pixels=with_pixels and rule is None
        )
        yield batch.to_chunk(schema, files)
        first += len(batch_files)


def _next_files(
    files: FileTable, ordinals: Sequence[int], max_bytes: int
) -> tuple[Sequence[InputFile], Sequence[InputFile]]:
    """Returns the files for the next chunk, and their masks.

    Args:
        files: All files of the source.
        ordinals: Indices of the candidates. The first ones are returned, at least one.
        max_bytes: Approximate size of the returned files.
    """
    if PARTNER_COLUMN not in files.extra_columns:
        return take_file_batch(files, ordinals, max_bytes)[0], ()
    images, partners = (
        files.items_at(ordinals),
        files.items_at(files.take_columns(ordinals, (PARTNER_COLUMN,))[PARTNER_COLUMN].to_numpy()),
    )
    ends = np.cumsum(
        [
            image.stat.size_bytes + partner.stat.size_bytes
            for image, partner in zip(images, partners, strict=True)
        ]
    )
    count = max(int(np.searchsorted(ends, max_bytes, "right")), 1)
    return images[:count], partners[:count]


_shared_budget = functools.cache(MemoryBudget)  # one per process, for all threads


def _memory_reserver(decode_bytes: int) -> ReserveMemory:
    """Returns a function that reserves memory while an image is decoded.

    All threads share `decode_bytes`. The function waits until its memory is free, and raises
    BadImage if the image needs more than `decode_bytes`.
    """

    def reserve(takes: int) -> AbstractContextManager[None]:
        if takes > decode_bytes:
            memory, enough = (
                option("memory", f"{DECODE_MEMORY_DIVISOR * size + extra >> 20}MiB")
                for size, extra in ((decode_bytes, 0), (takes, 1 << 20))
            )
            raise BadImage(
                TOO_LARGE,
                Message(
                    "takes {takes} MiB to decode, more than {memory} leaves for it; use {enough}",
                    takes=(takes >> 20) + 1,
                    memory=memory,
                    enough=enough,
                ),
            )
        return _shared_budget(decode_bytes).reserve(takes)

    return reserve


def _add_pixels(header: ImageHeader, sums: list[PixelSums], image: Image.Image) -> None:
    try:
        sums.append(sum_pixels(image, header.bits))
    except BadImage:  # the image is good, but its colors do not have 8 bits
        sums.append(np.zeros(NUM_PIXEL_SUMS, np.int64))


def describe_traits(header: ImageHeader, name: str) -> Iterator[str]:
    """Yields phrases about unusual properties of an image, such as `JPEG with CMYK`.

    Args:
        header: Header of the image.
        name: Name of its file, to compare the extension with the format. Empty for a rewritten
            image.
    """
    yield from (f"{header.format} with {trait}" for trait in header.traits())
    if header.tensorflow_issue:
        yield header.kind
    extension = name.rpartition(".")[2].lower()
    if FORMATS_BY_EXTENSION.get(extension, header.format) != header.format:
        yield f"{header.format} named .{extension}"


class EncodedFiles:
    """The bytes of several files in one buffer, and their image headers.

    Args:
        files: The files. All are read at once.
        max_pixels: An image with more pixels is bad.
    """

    def __init__(self, files: Sequence[InputFile], max_pixels: int) -> None:
        # The pool of Arrow reuses memory, which avoids page faults. Page faults would take a third
        # of the time of reading.
        sizes = [file.stat.size_bytes for file in files]
        self.files, self._buffer, self._max_pixels = (
            files,
            pa.allocate_buffer(sum(sizes)),
            max_pixels,
        )
        self._bytes = (
            np.frombuffer(self._buffer, np.uint8) if self._buffer.size else np.empty(0, np.uint8)
        )
        for _ in read_files(files, self._bytes):
            pass
        self._ends = np.cumsum(sizes, dtype=np.int64)

    @functools.cached_property
    def headers(self) -> list[ImageHeader | BadImage]:
        """The header of each file, or the reason why it is not an image."""
        return list(check_structures(self._bytes, self._ends, self._max_pixels))

    def data(self, row: int) -> Bytes:
        """Returns a view of the bytes of a file."""
        return self._bytes[self._ends[row] - self.files[row].stat.size_bytes : self._ends[row]]

    def check(
        self,
        row: int,
        decode_bytes: int | None,
        max_pixels: int,
        sums: list[PixelSums] | None = None,
    ) -> ImageHeader:
        """Checks that a file is a complete image, and returns its header.

        Args:
            row: Index of the file.
            decode_bytes: Memory that all threads together may use to decode images. If None, the
                image is not decoded.
            max_pixels: An image with more pixels is bad.
            sums: A list that receives the pixel sums of the image if it is decoded.

        Raises:
            BadImage: The file is not a complete image.
        """
        header = self.headers[row]
        if isinstance(header, BadImage):
            raise header
        if decode_bytes is not None:
            first = None if sums is None else functools.partial(_add_pixels, header, sums)
            check_decode(self.data(row), header, _memory_reserver(decode_bytes), max_pixels, first)
        return header

    def column(self, rows: Sequence[int]) -> pa.Array:
        """Returns a column with the bytes of some files.

        The buffer is not copied. The bytes of the other files are overwritten, so this must be the
        last call.

        Args:
            rows: Indices of the files, ascending.
        """
        sizes = np.diff(self._ends, prepend=0)[rows]
        offsets = to_offsets(sizes)
        if len(rows) < len(self.files):  # a column can't have gaps
            for index, row in enumerate(rows):
                self._bytes[offsets[index] : offsets[index + 1]] = self.data(row)
        buffers = [None, pa.py_buffer(offsets), self._buffer]
        return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(rows), buffers)


class _StatedSizes:
    """The sizes of the images of one batch according to their annotations.

    There are none if the source has no boxes.
    """

    def __init__(self, files: FileTable, ordinals: Sequence[int]) -> None:
        names = (STATED_WIDTH, STATED_HEIGHT, ANNOTATION_FILE)
        self._has_boxes = STATED_WIDTH in files.extra_columns
        if self._has_boxes:
            columns = files.take_columns(ordinals, names)
            self._widths, self._heights, self._files = (columns[name].to_pylist() for name in names)

    def find_frame(self, row: int, header: ImageHeader, images: EncodedFiles) -> Frame | None:
        """Returns the image that the annotation describes. None without boxes.

        Args:
            row: Index of the image in the batch.
            header: Header of the image.
            images: The bytes of all images.

        Raises:
            BadImage: The annotation describes another image.
        """
        if not self._has_boxes:
            return None
        return find_frame(
            self._widths[row], self._heights[row], self._files[row] or "", header, images.data(row)
        )


class _ImageBatch:
    """Collects the images of one chunk."""

    def __init__(
        self,
        ordinals: Sequence[int],
        files: Sequence[InputFile],
        partners: Sequence[InputFile],
        pair: str,
        max_pixels: int,
        rule: RewriteRule | None,
        table: FileTable,
    ) -> None:
        self._annotations = _StatedSizes(table, ordinals)
        # the annotated image of each good image, if there are boxes
        self._frames: list[Frame] = []
        self._ordinals, self._images = (
            np.array(ordinals, np.uint32),
            EncodedFiles(files, max_pixels),
        )
        self._partner, self._rule = pair, rule
        self._partners = EncodedFiles(partners, max_pixels) if partners else None
        # good images: their rows, headers of the files and of the records, and names
        self._rows: list[int] = []
        self._stored: list[ImageHeader] = []
        self._headers: list[ImageHeader] = []
        self._names: list[str] = []
        # rewritten images: their placements, and the bytes of image and mask
        self._placements: list[Placement] = []
        self._written: list[tuple[bytes, bytes]] = []
        self._rejects: list[Reject] = []
        self._counts: Counter[str] = Counter()
        self._pixels: list[PixelSums] = []

    def check(self, decode_bytes: int, max_pixels: int, decode: bool, with_pixels: bool) -> None:
        """Checks the files, and rejects the bad ones.

        If there is a rule, the good ones are rewritten.
        """
        check_bytes, reserve = decode_bytes if decode else None, _memory_reserver(decode_bytes)
        for row, file in enumerate(self._images.files):
            sums: list[PixelSums] = []
            placement, image, mask = None, b"", b""
            try:
                header = self._images.check(
                    row, check_bytes, max_pixels, sums if with_pixels else None
                )
                frame = self._annotations.find_frame(row, header, self._images)
                if self._rule is not None:
                    placement = self._rule.place_image(self._images.data(row), header)
                    image = self._rule.rewrite_image(
                        self._images.data(row), header, placement, reserve
                    )
                if self._partners is not None:
                    file = self._partners.files[row]
                    partner_header = self._partners.check(row, check_bytes, max_pixels)
                    # a mask may have the size of the stored image or, after EXIF rotation, of the
                    # upright one
                    fits = [
                        (header.height, header.width),
                        *([] if placement is None else [placement.upright_size]),
                    ]
                    if (partner_header.height, partner_header.width) not in fits:
                        sizes = f"{partner_header.height} x {partner_header.width} pixels, and the image {header.height} x {header.width}"
                        raise BadImage(TOO_LARGE, sizes)
                    if self._rule is not None and placement is not None:
                        mask = self._rule.rewrite_mask(
                            self._partners.data(row), partner_header, placement, reserve
                        )
            except BadImage as error:
                self._rejects.append(error.fault.at(file.name, ""))
                continue
            if placement is None:
                self._keep(row, header)
            else:
                self._keep_written(row, header, placement, image, mask)
            self._pixels += sums
            self._frames += [] if frame is None else [frame]

    def _keep(self, row: int, header: ImageHeader) -> None:
        name = self._images.files[row].name
        self._rows.append(row)
        self._stored.append(header)
        self._headers.append(header)
        self._names.append(name)
        self._counts.update(describe_traits(header, name if self._rule is None else ""))

    def _keep_written(
        self, row: int, stored: ImageHeader, placement: Placement, image: bytes, mask: bytes
    ) -> None:
        header = check_structure(np.frombuffer(image, np.uint8))
        self._keep(row, header)
        self._stored[-1] = stored
        self._placements.append(placement)
        self._written.append((image, mask))
        for trait in {*stored.traits()} - {*header.traits(), PALETTE}:
            self._counts[f"{stored.format} with {trait}, written without"] += 1
        self._counts["images turned upright, as their EXIF data says"] += placement.orientation > 1

    def to_chunk(self, schema: Schema, files: FileTable) -> Chunk:
        ordinals = self._ordinals[self._rows]
        target = to_arrow(schema)
        file_columns = files.take_columns(
            ordinals, [FEATURE_PREFIX + name for name in feature_names(files)]
        )
        feature_columns = {
            name.removeprefix(FEATURE_PREFIX): column for name, column in file_columns.items()
        }
        if self._frames:
            box_columns = feature_columns | files.take_columns(ordinals, HIDDEN_COLUMNS)
            box_lists, counts, rejects = fit_boxes(
                box_columns, self._stored, self._frames, self._placements, self._names
            )
            feature_columns |= box_lists
            self._counts += counts
            self._rejects += rejects
        columns = [
            feature_columns[name] if name in feature_columns else self._own_column(name)
            for name in schema.names
        ]
        records = pa.RecordBatch.from_arrays(columns, schema=target)
        pixels = {
            name: np.stack(self._pixels)
            for name in IMAGE_FEATURES
            if self._pixels and name in schema
        }
        return Chunk(
            records=records,
            file_ids=ordinals,
            positions=np.zeros(len(ordinals), np.int64),
            rejects=tuple(self._rejects),
            note_counts=dict(sorted((+self._counts).items())),
            pixel_sums=pixels,
        )

    def _own_column(self, name: str) -> pa.Array:
        """Returns a feature that comes from the image itself."""
        feature_name = OBJECT_NAMES.get(name, name)
        is_partner = self._partners is not None and name == self._partner
        if self._rule is not None and (feature_name == "image" or is_partner):
            return pa.array(
                [image_and_mask[is_partner] for image_and_mask in self._written], pa.large_binary()
            )
        if feature_name == "image":
            return self._images.column(self._rows)
        if self._partners is not None and is_partner:
            return self._partners.column(self._rows)
        if feature_name == "source":
            return pa.array(self._names, pa.large_string())
        if feature_name == "format":
            formats = [
                header.format if name == feature_name else header.format.lower()
                for header in self._headers
            ]
            return pa.array(formats, pa.large_string())
        return pa.array([getattr(header, feature_name) for header in self._headers], pa.int64())
