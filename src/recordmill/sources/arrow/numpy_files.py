"""Plans and reads NumPy's files: a `.npy`, or an array of a `.npz`, is a feature with a row per record; nothing is
unpickled.

The headers tell dtypes and shapes, so the plan reads no data but the label's. Rows are read by ranges of the file; a
compressed member of a `.npz` is a stream. A record's position is its row number. Arrays called x_train and x_test in a
`.npz` are `x` of two splits. Of several `.npy` in a folder, names that differ in a number are parts of one array, and
others columns of the same rows. Sources: numpy.lib.format, PKWARE's APPNOTE.TXT (4.3.7).
"""

from __future__ import annotations

import io
import math
import re
import struct
import sys
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import IO, Any

import numpy as np
import pyarrow as pa

from recordmill.base.buffers import allocate
from recordmill.base.errors import DataError, Reject
from recordmill.base.option_names import option
from recordmill.base.threads import thread_map
from recordmill.schemas.feature import Schema, check_feature_count
from recordmill.schemas.splits import SPLIT_WORDS
from recordmill.sources.arrow.parquet import batch_bytes_within
from recordmill.sources.arrow.python_rows import column_of_tensors
from recordmill.sources.common.content import filter_kind
from recordmill.sources.common.contract import (
    BATCH_BYTES,
    BATCH_ROWS,
    UNIT_BYTES,
    Chunk,
    PlanOptions,
    Unit,
    packed,
)
from recordmill.sources.common.layout import AUTO_LAYOUT, NO_LAYOUT, note_partitions, read_layout
from recordmill.sources.values.conform import conform_chunk
from recordmill.sources.values.flatten import check_column_names
from recordmill.sources.values.schema_unifier import (
    SchemaUnifier,
    check_columns,
    declared_dtypes,
    finish_unified_schema,
)
from recordmill.storage.arrow_files import range_file
from recordmill.storage.file_table import FileTable, InputFile
from recordmill.storage.files import check_unchanged, read_ranges
from recordmill.storage.listing import Listing

_NPY, _ZIP = b"\x93NUMPY", b"PK"
_HEAD_BYTES = 16 << 10  # 16 KiB: numpy refuses headers of more than 10,000 characters
_LOCAL_HEADER = 30  # bytes of a member's own header, before its name and its extra field
_MOST_RANGES = 1 << 18  # of a batch, a tuple and a system call each
_ARRAYS = "numpy/arrays"  # a column of files
_ARRAYS_TYPE = pa.list_(
    pa.struct({"file": pa.uint32(), "member": pa.string(), "feature": pa.string()})
)
_WORDS = f"({'|'.join(SPLIT_WORDS)})"
_SPLIT_NAME = re.compile(rf"(?:{_WORDS}[-_.])?(.*?)(?:[-_.]{_WORDS})?", re.IGNORECASE | re.DOTALL)
_NUMBERED = re.compile(
    r"()(.*?)[-_.]?(\d+)?", re.DOTALL
)  # groups as those of _SPLIT_NAME: word, rest, word
_TOGETHER = "save what belongs together as one .npz: numpy.savez('data.npz', x=x, y=y)"

_Rows = np.ndarray[Any, Any]
_Table = tuple[
    InputFile, list[tuple[int, "_Array"]]
]  # a file, and the arrays of its rows with the ordinals of theirs


@dataclass(frozen=True)
class NumpyOptions:
    """columns: only these arrays, by their own names or those of their features; None is all. split_from: as in
    `sources.common.layout`; `none` takes arrays of several splits for rows after one another.
    """

    columns: tuple[str, ...] | None = None
    split_from: str = AUTO_LAYOUT


@dataclass(frozen=True)
class _Array:
    """One array of a file. name: its feature, or what its fields' begin with. shape: empty also of a member that is no
    array. head, size: bytes before its values, and in all. start: where it begins in the file; None: it is
    compressed. member: its name in a `.npz`.
    """

    file: InputFile
    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    head: int
    size: int
    start: int | None
    member: str

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def names(self) -> set[str]:  # by which an option may mean it
        return {self.name, _split_name(self.name)[1]}

    @property
    def features(self) -> list[str]:
        stem = f"{self.name}." if self.member else ""
        return (
            [self.name]
            if self.dtype.names is None
            else [stem + field for field in self.dtype.names]
        )

    def columns(self, rows: _Rows | None = None) -> list[tuple[pa.Field, pa.Array]]:
        """Returns the features of these rows, or of one of zeros; DataError if there can't be."""
        try:
            rows = np.zeros((1, *self.shape[1:]), self.dtype) if rows is None else rows
            parts = (
                [rows] if rows.dtype.names is None else [rows[name] for name in rows.dtype.names]
            )
            for part in (
                part for part in parts if part.dtype.kind == "U"
            ):  # NumPy makes invalid `str` of others
                points = np.ascontiguousarray(part).view(
                    np.dtype("u4").newbyteorder(part.dtype.byteorder)
                )
                if points.size and points.max() > sys.maxunicode:
                    raise ValueError("text with a character beyond Unicode")
            return list(map(column_of_tensors, self.features, parts))
        except DataError as error:
            raise self.error(error.reason) from None
        except (pa.ArrowException, ValueError, OverflowError) as error:
            raise self.error(f"is damaged: {error}") from None

    def reader(self, stack: ExitStack) -> Callable[[int, int], _Rows]:
        """Returns what reads rows [first, stop), of a compressed array one after the other, while the stack is open."""
        if self.start is not None:
            return self._ranges
        archive = stack.enter_context(
            zipfile.ZipFile(stack.enter_context(range_file(self.file.path)))
        )
        stream = stack.enter_context(archive.open(self.member))
        stream.read(self.head)
        return partial(self._stream, stream)

    def _ranges(self, first: int, stop: int) -> _Rows:
        """In Fortran order, each item of the rows is a range."""
        size = self.dtype.itemsize
        step, ranges = (size, self.row_bytes // size) if self.fortran else (self.row_bytes, 1)
        found, start = (
            allocate((ranges, (stop - first) * step), np.uint8),
            (self.start or 0) + self.head + first * step,
        )
        read_ranges(
            self.file.path,
            [(start + at * self.shape[0] * step, into) for at, into in enumerate(found)],
        )
        shape = (stop - first, *self.shape[1:])
        return (
            found.view(self.dtype).reshape(shape[::-1]).T
            if self.fortran
            else found.view(self.dtype).reshape(shape)
        )

    def _stream(self, stream: IO[bytes], first: int, stop: int) -> _Rows:
        try:
            data = stream.read((stop - first) * self.row_bytes)
            return np.frombuffer(data, self.dtype).reshape(stop - first, *self.shape[1:])
        except Exception as error:  # `zipfile` and what it inflates with raise many kinds
            raise self.error(f"damaged at rows {first} to {stop - 1}: {error}") from None

    def check(self) -> None:
        """Raises DataError if its rows can't be read."""
        if self.dtype.hasobject:
            raise self.error(
                "holds Python objects, which only unpickling reads, and that runs code: save it anew as numbers or "
                "text, such as x.astype(str); or, if you trust it, load it and give its arrays to recordmill.build"
            )
        if not self.shape:
            raise self.error(
                "is a single value, and a record is a row of an array's first dimension"
            )
        if min(self.shape) < 0 or not self.dtype.itemsize or self.dtype.subdtype:
            raise self.error(f"damaged: no array has shape {self.shape} and dtype {self.dtype}")
        if (needed := self.head + self.shape[0] * self.row_bytes) != self.size:
            how = (
                "is cut off"
                if needed > self.size
                else "holds more than an array; save each to a file of its own"
            )
            raise self.error(f"{how}: it has {self.size:,} bytes, and its header says {needed:,}")
        if self.fortran and (
            self.start is None or self.row_bytes > _MOST_RANGES * self.dtype.itemsize
        ):
            raise self.error(
                "is compressed, or has long rows, in Fortran order: save numpy.ascontiguousarray(x)"
            )

    def error(self, reason: str) -> DataError:
        return DataError(
            reason, source=self.file.name, place=f"array {self.member!r}" if self.member else ""
        )


@dataclass(frozen=True)
class NumpySource:
    """files: with the arrays that make each one's rows as a column _ARRAYS, which may lie in other files. named: the
    label, if its classes are texts of its values.
    """

    schema: Schema
    files: FileTable
    units: Sequence[Unit]
    notes: tuple[str, ...] = ()
    plan_rejects: tuple[Reject, ...] = ()
    named: str | None = None
    batch_bytes: int = BATCH_BYTES
    kind: str = "numpy"

    def read(self, unit: Unit) -> Iterator[Chunk]:
        """Yields the unit's rows, file by file."""
        for ordinal in range(unit.first_file, unit.last_file):
            wanted = self.files.take((ordinal,), (_ARRAYS,))[_ARRAYS][0].as_py()
            files = {at: self.files[at] for at in sorted({one["file"] for one in wanted})}
            for file in files.values():
                check_unchanged(file.path, file.stat, file.name)
            found = {(at, one.member): one for at, file in files.items() for one in _open(file)}
            arrays = [
                replace(found[one["file"], one["member"]], name=one["feature"]) for one in wanted
            ]
            row, stop = (
                (unit.start, unit.stop) if unit.stop or not arrays else (0, arrays[0].shape[0])
            )
            for batch in _batches(arrays, row, stop, self.batch_bytes):
                yield conform_chunk(
                    batch, self.schema, self.named, ordinal, self.files[ordinal].name, row
                )
                row += batch.num_rows
            for file in files.values():
                check_unchanged(file.path, file.stat, file.name)


def plan_numpy(listing: Listing, options: NumpyOptions, common: PlanOptions) -> NumpySource:
    """Reads the headers.

    Raises:
        DataError: A file is damaged, or holds objects or a dtype that no feature has; arrays that don't go together; no
            rows.
        UsageError: An option names an array that is not there.
    """
    kept = filter_kind(listing, "numpy")
    layout = read_layout(
        kept.files, kept.roots, split_from=options.split_from, class_from=NO_LAYOUT
    )
    given = kept.files.with_splits(layout.splits)
    opened = list(thread_map(_open, given, common.threads))
    if options.columns is not None:
        check_columns(
            options.columns,
            sorted({name for arrays in opened for one in arrays for name in one.names}),
        )
        opened = [
            [one for one in arrays if not one.names.isdisjoint(options.columns)]
            for arrays in opened
        ]
    tables, notes = _tables(given, opened, options)
    files = FileTable.of(file for file, _ in tables)
    column = [[(at, one.member, one.name) for at, one in arrays] for _, arrays in tables]
    files = files.with_column(_ARRAYS, pa.array(column, _ARRAYS_TYPE))
    each = [[one for _, one in arrays] for _, arrays in tables]
    unifier = _unify(each, common)
    units = packed(
        (unit for at, arrays in enumerate(each) for unit in _units(at, arrays)), UNIT_BYTES
    )
    if not any(unit.rows for unit in units):
        raise DataError("there are no rows", source=given[0].name)
    batch_bytes = batch_bytes_within(common)
    labels = ([one for one in arrays if common.label in one.features] for arrays in each)
    batches = (
        batch
        for some in labels
        if some
        for batch in _batches(some, 0, some[0].shape[0], batch_bytes)
    )
    schema, more, named = finish_unified_schema(unifier, batches, common, "the arrays")
    for file in given:
        check_unchanged(file.path, file.stat, file.name)
    notes = [*kept.notes, *layout.notes, *notes, *more, *note_partitions(given, schema.names)]
    return NumpySource(schema, files, units, tuple(notes), named=named, batch_bytes=batch_bytes)


def _tables(
    files: Sequence[InputFile], opened: Sequence[Sequence[_Array]], options: NumpyOptions
) -> tuple[list[_Table], list[str]]:
    """Returns (tables, notes). A `.npz` with arrays of several splits is a file of each; a `.npy` has no rows where
    they are columns of another's.
    """
    tables, counts, rowless = list[_Table](), Counter[str](), set[str]()
    keys = iter(_keys([arrays[0].name for arrays in opened if arrays and not arrays[0].member]))
    groups = defaultdict[tuple[object, ...], list[tuple[int, _Array]]](list)
    for file, arrays in zip(files, opened, strict=True):
        if arrays and not arrays[0].member:
            arrays[0].check()
            feature, key = next(keys)
            groups[file.root, file.name.rpartition("/")[0], key].append(
                (len(tables), replace(arrays[0], name=feature))
            )
            tables.append((file, []))
            continue
        rowless.update(one.name for one in arrays if not one.shape)
        by_split = defaultdict[str | None, list[_Array]](list)
        for one in (one for one in arrays if one.shape):
            one.check()
            by_split[_split_name(one.name)[0]].append(one)
        if None in by_split or not by_split:
            tables.append(
                (file, [(len(tables), one) for some in by_split.values() for one in some])
            )
            continue
        for split, some in by_split.items():
            said = file.split if options.split_from == NO_LAYOUT else split
            counts[str(said)] += some[0].shape[0]
            part = replace(file, name=f"{file.name}!/{split}", split=said)
            tables.append(
                (part, [(len(tables), replace(one, name=_split_name(one.name)[1])) for one in some])
            )
    for group in groups.values():
        tables[group[0][0]][1].extend(group)
        if len({(one.dtype, one.shape[1:]) for _, one in group}) < len(group):
            names = ", ".join(one.file.name for _, one in group[:3])
            raise DataError(
                f"{names}: rows of one form may be columns, parts or classes; {_TOGETHER}"
            )
    notes = [
        f"splits by the arrays' names: {', '.join(f'{name} {n:,}' for name, n in counts.items())}"
    ]
    notes = notes if counts.keys() - {"None"} else []
    if len(most := max(groups.values(), key=len, default=[])) > 1:
        notes.append(f"columns of the same rows: {', '.join(one.file.name for _, one in most[:3])}")
    if rowless:
        notes.append(f"left out, for they have no rows: {', '.join(sorted(rowless)[:3])}")
    return tables, notes


def _unify(tables: Sequence[Sequence[_Array]], common: PlanOptions) -> SchemaUnifier:
    unifier, first, first_name = SchemaUnifier(declared_dtypes(common)), set[str](), ""
    for arrays in filter(None, tables):
        one, name, take = arrays[0], arrays[0].file.name, f"{option('columns')} names those to take"
        for other in (other for other in arrays if other.shape[0] != one.shape[0]):
            what = f"{other.name!r} has {other.shape[0]:,} rows, and {one.name!r} {one.shape[0]:,}"
            raise DataError(f"{what}: a record is one of each; {take}", source=other.file.name)
        row_bytes = sum(one.row_bytes for one in arrays)
        if row_bytes > (most := common.most_line_bytes(row_bytes)) or (
            one.shape[0] and not row_bytes
        ):
            raise one.error(
                f"a row has {row_bytes:,} bytes, and may have from 1 to {most:,}: see {option('memory')}"
            )
        fields = [field for one in arrays for field, _ in one.columns()]
        names = [field.name for field in fields]
        check_column_names(names, name)
        check_feature_count(len(names), common.memory_bytes, name)
        first, first_name = first or {*names}, first_name or name
        if differ := sorted(first.symmetric_difference(names)):
            what = (
                f"has no {differ[0]!r}, but" if differ[0] in first else f"has {differ[0]!r}, unlike"
            )
            raise DataError(f"{what} {first_name}; {take}, or {_TOGETHER}", source=name)
        if one.shape[0]:  # times may be NaT, which is null
            nulls = {field.name: -1 if "timestamp" in str(field.type) else 0 for field in fields}
            unifier.add(pa.schema(fields), name, nulls)
    return unifier


def _units(ordinal: int, arrays: Sequence[_Array]) -> Iterator[Unit]:
    """Yields parts of about UNIT_BYTES of the rows, or all of them where some are compressed."""
    rows, row_bytes = arrays[0].shape[0] if arrays else 0, sum(one.row_bytes for one in arrays)
    if rows * row_bytes <= UNIT_BYTES or any(one.start is None for one in arrays):
        yield Unit(ordinal, ordinal + 1, rows=rows, size_bytes=rows * row_bytes)
        return
    step = max(1, UNIT_BYTES // row_bytes)
    for start in range(0, rows, step):
        count = min(step, rows - start)
        yield Unit(ordinal, ordinal + 1, start, start + count, start, count, count * row_bytes)


def _batches(
    arrays: Sequence[_Array], first: int, stop: int, batch_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Yields rows [first, stop) in batches of about batch_bytes."""
    # a text is an object of some 64 bytes on its way
    widths = (
        math.prod(one.shape[1:]) * 64 * (one.dtype.kind in "SU") + one.row_bytes for one in arrays
    )
    step = max(1, min(BATCH_ROWS, batch_bytes // max(sum(widths), 1)))
    with ExitStack() as stack:
        reads = [one.reader(stack) for one in arrays]
        for start in range(first, stop, step):
            rows = (read(start, min(start + step, stop)) for read in reads)
            columns = [
                column
                for one, some in zip(arrays, rows, strict=True)
                for column in one.columns(some)
            ]
            fields, values = zip(*columns, strict=True)
            yield pa.RecordBatch.from_arrays(list(values), schema=pa.schema(fields))


def _keys(stems: Sequence[str]) -> list[tuple[str, tuple[str | None, ...]]]:
    """Returns (feature, the number and the split in it) of names of `.npy` files, where all have one and these differ.

    >>> _keys(["X_1", "X_2"]), _keys(["X_train", "y_test"]), _keys(["x_1"])
    ([('X', ('1',)), ('X', ('2',))], [('X', ('train',)), ('y', ('test',))], [('x_1', ())])
    """
    names, said = list(stems), [tuple[str | None, ...]()] * len(stems)
    for pattern in (_NUMBERED, _SPLIT_NAME):
        told = [_split_name(name, pattern) for name in names]
        if None not in (words := {word for word, _ in told}) and len(words) > 1:
            said = [(*before, word) for before, (word, _) in zip(said, told, strict=True)]
            names = [rest or "x" for _, rest in told]
    return list(zip(names, said, strict=True))


def _split_name(name: str, pattern: re.Pattern[str] = _SPLIT_NAME) -> tuple[str | None, str]:
    """Returns (the split that an array's name says, the rest of it).

    >>> _split_name("x_train"), _split_name("val_images"), _split_name("latest")
    (('train', 'x'), ('validation', 'images'), (None, 'latest'))
    """
    match = pattern.fullmatch(name)
    word = match and (match[1] or match[3])
    return (SPLIT_WORDS.get(word.lower(), word), match[2]) if match and word else (None, name)


def _open(file: InputFile) -> list[_Array]:
    """Reads the headers of a file's arrays; DataError if it has none, or is damaged."""
    try:
        with range_file(file.path) as data:
            if data.read(len(_ZIP)) != _ZIP:
                data.seek(0)
                name = file.name.rpartition("/")[2].removesuffix(".npy")
                return [_header(file, name, data.read(_HEAD_BYTES), data.size(), 0, "")]
            found = list[_Array]()
            with zipfile.ZipFile(data) as archive:
                for info in archive.infolist():
                    if info.compress_type not in (
                        zipfile.ZIP_STORED,
                        zipfile.ZIP_DEFLATED,
                    ):  # whose memory is bounded
                        raise ValueError(
                            f"{info.filename!r} is packed by another method than deflate"
                        )
                    head = archive.open(info).read(_HEAD_BYTES)
                    data.seek(info.header_offset)
                    at = (
                        info.header_offset
                        + _LOCAL_HEADER
                        + sum(struct.unpack("<HH", data.read(_LOCAL_HEADER)[-4:]))
                    )
                    start = at if info.compress_type == zipfile.ZIP_STORED else None
                    name = info.filename.removesuffix(".npy")
                    found.append(_header(file, name, head, info.file_size, start, info.filename))
            return found
    except Exception as error:  # damage makes `zipfile` and `numpy` raise many kinds
        raise DataError(f"is no file of NumPy's, or damaged: {error}", source=file.name) from None


def _header(
    file: InputFile, name: str, head: bytes, size: int, start: int | None, member: str
) -> _Array:
    """Returns what the first bytes of an array, which has so many in all, say of it."""
    if member and not head.startswith(_NPY):
        return _Array(file, name, np.dtype(np.uint8), (), False, 0, size, start, member)
    source, formats = io.BytesIO(head), np.lib.format
    version = formats.read_magic(source)
    read = formats.read_array_header_2_0 if version > (1, 0) else formats.read_array_header_1_0
    shape, fortran, dtype = read(source)
    if version == (3, 0) and dtype.names:
        dtype.names = tuple(field.encode("latin-1").decode() for field in dtype.names)
    return _Array(
        file, name, dtype, shape, fortran and len(shape) > 1, source.tell(), size, start, member
    )


def read_npy(data: bytes, file: InputFile) -> _Rows:
    """Returns the array that is the whole content of a `.npy`, of any shape.

    Raises:
        DataError: it is damaged, or holds Python objects.
    """
    try:
        one = _header(file, file.name, data[:_HEAD_BYTES], len(data), 0, "")
    except Exception as error:  # as of `_open`
        raise DataError(f"is no file of NumPy's, or damaged: {error}", source=file.name) from None
    replace(one, shape=one.shape or (1,), fortran=False).check()
    values = np.frombuffer(data, one.dtype, offset=one.head)
    return values.reshape(one.shape[::-1]).T if one.fortran else values.reshape(one.shape)


def read_npy_type(file: InputFile) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Returns (dtype, shape) of a `.npy` by its header; DataError, or ValueError of a `.npz`: it can't be read."""
    (one,) = _open(file)
    replace(one, shape=one.shape or (1,), fortran=False).check()
    return one.dtype, one.shape
