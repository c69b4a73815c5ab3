"""Reads image files into chunks: bytes straight into one Arrow buffer, checked where they lie; and the columns that
come from an image's folder and the labels file.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from recordmill.base.errors import Reject
from recordmill.base.option_names import option
from recordmill.base.threads import Budget
from recordmill.records.images.check import check_decode, check_each
from recordmill.records.images.header import EXTENSIONS, SIZE_FAULT, BadImage, ImageHeader
from recordmill.records.images.pixels import SUMS, PixelSums, add_pixels
from recordmill.schemas.arrow import from_arrow_field, to_arrow
from recordmill.schemas.feature import Feature, Schema
from recordmill.sources.common.contract import BATCH_BYTES, BATCH_FILES, IMAGE_FEATURES, Chunk
from recordmill.sources.common.layout import FolderLayout
from recordmill.sources.common.tables import batch_of
from recordmill.sources.images.boxes import OBJECT_NAMES, BoxRule, fit_boxes
from recordmill.sources.values.conform import conform
from recordmill.sources.values.labels import ClassNames
from recordmill.storage.file_table import FileTable, InputFile, coded, nothing
from recordmill.storage.files import Bytes, read_files

if TYPE_CHECKING:
    from PIL import Image

DECODED_SHARE = 2  # a half of the memory, for images while they are decoded
FEATURES = "feature/"  # what the names of these columns begin with


def feature_names(files: FileTable) -> list[str]:
    """Returns the names of the features that are columns of the files."""
    return [name.removeprefix(FEATURES) for name in files.columns if name.startswith(FEATURES)]


def with_features(files: FileTable, columns: Mapping[str, pa.Array]) -> FileTable:
    """Returns the files with these features: [files]."""
    for name, values in columns.items():
        files = files.with_column(FEATURES + name, values)
    return files


def without_features(files: FileTable) -> FileTable:
    """Returns the files as they were listed, and split."""
    return files.without([FEATURES + name for name in feature_names(files)])


def by_folders(files: FileTable, said: FolderLayout) -> FileTable:
    """Returns the files with `label` and `class_name`, as their folders say."""
    return with_features(files, dict.fromkeys(("label", "class_name"), said.classes) if said.class_names else {})


def side_feature(files: FileTable, name: str) -> Feature:
    """Returns the feature of a column as it is; text labels become classes."""
    column = files.words(FEATURES + name)
    feature = from_arrow_field(pa.field(name, column.type, nullable=column.null_count > 0))
    if feature.dtype == "float64":
        feature = replace(feature, dtype="float32")
    if name == "label" and feature.dtype == "string":
        names = ClassNames(name)
        names.add(column)
        return replace(feature, dtype="int64", classes=names.sorted())
    return feature


def conform_side(files: FileTable, schema: Schema) -> tuple[FileTable, list[Reject], list[str]]:
    """Returns the files with their features as that schema, of nothing else, has them; a file whose features don't fit
    is a reject; and which floats lose digits.
    """
    bare, found = without_features(files), dict[str, pa.Array]()
    if not len(schema) or not files:
        return bare, [], []
    good, lost = np.ones(len(files), np.bool_), Counter[str]()
    bad: dict[int, tuple[str, str]] = {}
    for values, names in _batches(files, schema):
        fitted = conform(values, schema.select(names))
        numbers = files.column(FEATURES + names[0]).indices if files.is_coded(FEATURES + names[0]) else None
        rows = np.arange(len(files)) if numbers is None else numbers.to_numpy()
        for row, reason, message in fitted.bad:
            for at in np.flatnonzero(rows == row).tolist():
                bad.setdefault(at, (reason, message))
        place = np.full(values.num_rows, -1)
        place[fitted.good] = np.arange(len(fitted.good))
        good &= place[rows] >= 0
        for name, column in zip(fitted.batch.schema.names, fitted.batch.columns, strict=True):
            if fitted.bad:
                found[name] = coded(np.maximum(place, 0)[rows], column)
            else:  # of a file each, or as many numbers as before, which columns may share
                found[name] = column if numbers is None else pa.DictionaryArray.from_arrays(numbers, column)
        lost.update(fitted.lost)
    absent = [name for name in schema.names if name not in feature_names(files)]
    for name in absent:
        values = conform(pa.RecordBatch.from_pydict({name: pa.nulls(1)}), schema.select([name]))
        for _, reason, message in values.bad:
            bad = {at: bad.get(at, (reason, message)) for at in range(len(files))}
            good[:] = False
        if not values.bad:
            found[name] = pa.DictionaryArray.from_arrays(nothing(len(files)).indices, values.batch.column(0))
    said = [f"{name}: {lost[name]} value(s) lose digits as {schema[name].dtype}" for name in schema.names if lost[name]]
    rejects = [Reject(files[at].name, "", why, f"labels: {message}") for at, (why, message) in sorted(bad.items())]
    return with_features(bare, found).filter(good), rejects, said


def _batches(files: FileTable, schema: Schema) -> list[tuple[pa.RecordBatch, list[str]]]:
    """Returns the values that are to fit, with the features' names: of columns that are dictionary-encoded by
    themselves.
    """
    there = [name for name in schema.names if name in feature_names(files)]
    encoded = [name for name in there if files.is_coded(FEATURES + name)]
    own = [name for name in there if name not in encoded]
    parts = [[name] for name in encoded] + ([own] if own else [])
    return [(pa.RecordBatch.from_pydict({n: files.words(FEATURES + n) for n in names}), names) for names in parts]


def read_images(
    files: FileTable,
    ordinals: Sequence[int],
    schema: Schema,
    *,
    decode_bytes: int | None,
    max_pixels: int,
    with_pixels: bool = False,
    boxes: BoxRule | None = None,
) -> Iterator[Chunk]:
    """Yields the files of these ordinals in chunks of about BATCH_BYTES; one larger file is a chunk of its own.

    decode_bytes: the memory that all threads together may take to decode them; None: they are not decoded.
    with_pixels: what is decoded is added up (`Chunk.pixels`). boxes: how the boxes of the files become shares.

    Raises:
        DataError: a file changed since it was listed, or can't be read.
    """
    first = 0
    while first < len(ordinals):
        taken, size = batch_of(files, ordinals[first : first + BATCH_FILES], BATCH_BYTES)
        batch = _Batch(ordinals[first : first + len(taken)], taken, size)
        batch.check(decode_bytes, max_pixels, with_pixels)
        yield batch.finish(schema, files, boxes)
        first += len(taken)


_budget = functools.cache(Budget)  # of the process, which all threads share


def _check_pixels(
    data: Bytes, header: ImageHeader, decode_bytes: int, max_pixels: int, first: Callable[[Image.Image], object] | None
) -> None:
    """Decodes the image if there is so much memory.

    Args:
        data: The bytes of the file.
        header: What it says.
        decode_bytes: The memory that all threads together may take.
        max_pixels: Of a frame.
        first: Gets the first frame.

    Raises:
        BadImage: There is less memory, or it can't be decoded.
    """

    def reserve(takes: int) -> AbstractContextManager[None]:
        if takes > decode_bytes:
            enough = option("memory", f"{(DECODED_SHARE * takes >> 20) + 1}MiB")
            raise BadImage(
                SIZE_FAULT, f"takes {(takes >> 20) + 1} MiB to decode, more than there is; {enough} is enough"
            )
        return _budget(decode_bytes).reserve(takes)

    check_decode(data, header, reserve, max_pixels, first)


def _add_pixels(header: ImageHeader, sums: list[PixelSums], image: Image.Image) -> None:
    try:
        sums.append(add_pixels(image, header.bits))
    except BadImage:  # a good image, of colours that are not 8 bits
        sums.append(np.zeros(SUMS, np.int64))


class _Batch:
    """One chunk in the making."""

    def __init__(self, ordinals: Sequence[int], files: Sequence[InputFile], size_bytes: int) -> None:
        # Arrow's pool hands out memory that was used before, so that no page faults:
        # that is a third of the time of reading.
        self._buffer = pa.allocate_buffer(size_bytes)
        self._bytes = np.frombuffer(self._buffer, np.uint8) if size_bytes else np.empty(0, np.uint8)
        for _ in read_files([(file.path, file.stat, file.name) for file in files], self._bytes):
            pass
        self._listed = list(zip(ordinals, files, strict=True))
        self._ends = np.cumsum([file.stat.size_bytes for file in files], dtype=np.int64)
        self._headers: list[ImageHeader] = []
        self._ordinals: list[int] = []
        self._names: list[str] = []
        self._offsets = [0]
        self._rejects: list[Reject] = []
        self._counts: Counter[str] = Counter()
        self._pixels: list[PixelSums] = []

    def check(self, decode_bytes: int | None, max_pixels: int, with_pixels: bool) -> None:
        """Keeps the files that are whole images."""
        headers = check_each(self._bytes, self._ends, max_pixels)
        starts = [0, *self._ends[:-1].tolist()]
        for (ordinal, file), header, start in zip(self._listed, headers, starts, strict=True):
            data = self._bytes[start : start + file.stat.size_bytes]
            try:
                if isinstance(header, BadImage):
                    raise header
                sums: list[PixelSums] = []
                if decode_bytes is not None:
                    first = functools.partial(_add_pixels, header, sums) if with_pixels else None
                    _check_pixels(data, header, decode_bytes, max_pixels, first)
                self._keep(ordinal, file, header, data)
                self._pixels += sums
            except BadImage as error:
                self._rejects.append(Reject(file.name, "", error.reason, error.message))

    def _keep(self, ordinal: int, file: InputFile, header: ImageHeader, data: Bytes) -> None:
        end = self._offsets[-1] + len(data)
        if self._rejects:  # a gap, which no column may have
            self._bytes[self._offsets[-1] : end] = data
        self._offsets.append(end)
        self._headers.append(header)
        self._ordinals.append(ordinal)
        self._names.append(file.name)
        for trait in header.traits():
            self._counts[f"{header.format} with {trait}"] += 1
        if header.beyond_tensorflow:
            self._counts[header.kind] += 1
        extension = file.name.rpartition(".")[2].lower()
        if EXTENSIONS.get(extension, header.format) != header.format:
            self._counts[f"{header.format} named .{extension}"] += 1

    def finish(self, schema: Schema, files: FileTable, boxes: BoxRule | None) -> Chunk:
        rows, bad = len(self._ordinals), list[int]()
        target = to_arrow(schema)
        taken = files.take(self._ordinals, [FEATURES + name for name in feature_names(files)])
        given = {name.removeprefix(FEATURES): column for name, column in taken.items()}
        if boxes is not None and rows:
            made, bad, counts = fit_boxes(given, self._headers, boxes)
            given |= made
            self._counts += counts
        columns = [given[name] if name in given else self._own(name) for name in schema.names]
        records = pa.RecordBatch.from_arrays(columns, schema=target)
        ordinals = np.array(self._ordinals, np.uint32)
        pixels = {name: np.stack(self._pixels) for name in IMAGE_FEATURES if self._pixels and name in schema}
        if bad:
            message = f"a box crosses the border of the image; {option('boxes_outside', 'clip')} clips it"
            self._rejects += [Reject(self._names[row], "", "box", message) for row in bad]
            keep = np.delete(np.arange(rows), bad)
            records, ordinals = records.take(pa.array(keep)), ordinals[keep]
            pixels = {name: sums[keep] for name, sums in pixels.items()}
        return Chunk(
            records,
            ordinals,
            np.zeros(len(ordinals), np.int64),
            tuple(self._rejects),
            dict(sorted(self._counts.items())),
            pixels,
        )

    def _own(self, name: str) -> pa.Array:
        """Returns a column that comes from the file itself; null for a feature that nothing gives (a schema may name
        one).
        """
        own = OBJECT_NAMES.get(name, name)
        if own == "image":
            offsets = np.array(self._offsets, np.int64)
            return pa.LargeBinaryArray.from_buffers(
                pa.large_binary(), len(self._ordinals), [None, pa.py_buffer(offsets), self._buffer]
            )
        if own == "source":
            return pa.array(self._names, pa.large_string())
        if own == "format":
            formats = [header.format if name == own else header.format.lower() for header in self._headers]
            return pa.array(formats, pa.large_string())
        return pa.array([getattr(header, own) for header in self._headers], pa.int64())
