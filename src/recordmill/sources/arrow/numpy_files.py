"""Source for NumPy's .npy and .npz files.

Each array is a feature, and each index of its first dimension is a record. Nothing is unpickled, so
no code from a file is run.

The headers contain dtypes and shapes. So the plan reads only the values of the label, and times,
which may be NaT and thus null. The build reads rows as byte ranges of the file. A compressed member
of a .npz can only be read as a stream. The position of a record is its row number.

If a .npz has arrays called x_train and x_test, they become the feature `x` of two splits. Several
.npy files of a folder are parts of one array if their names differ in a number, such as x_1.npy and
x_2.npy. Otherwise they are different columns of the same rows.

Sources: numpy.lib.format, PKWARE's APPNOTE.TXT (4.3.7).
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
from recordmill.base.messages import Message
from recordmill.base.option_names import option
from recordmill.base.threads import thread_map
from recordmill.schemas.feature import Schema, check_feature_count
from recordmill.schemas.splits import SPLIT_WORDS
from recordmill.sources.arrow.options import NumpyOptions
from recordmill.sources.arrow.python_rows import tensors_to_column
from recordmill.sources.arrow.row_groups import max_batch_bytes
from recordmill.sources.common.content import filter_kind
from recordmill.sources.common.contract import (
    BATCH_BYTES,
    BATCH_ROWS,
    UNIT_BYTES,
    Chunk,
    PlanOptions,
    Unit,
    pack_units,
)
from recordmill.sources.common.layout import (
    NO_LAYOUT,
    note_unused_partitions,
    read_layout,
)
from recordmill.sources.values.conform import conform_chunk
from recordmill.sources.values.flatten import check_column_names
from recordmill.sources.values.schema_unifier import (
    SchemaUnifier,
    check_columns,
    declared_dtypes,
    finish_unified_schema,
)
from recordmill.storage.arrow_files import open_arrow_file
from recordmill.storage.file_table import FileTable, InputFile
from recordmill.storage.files import check_unchanged, read_ranges
from recordmill.storage.listing import Listing

_NPY_MAGIC, _ZIP_MAGIC = b"\x93NUMPY", b"PK"
_HEAD_BYTES = 16 << 10  # NumPy rejects headers of more than 10,000 characters
_LOCAL_HEADER_BYTES = 30  # bytes of the header before a zip member, without name and extra field
# Values per row of an array in Fortran order: each is a range, with a tuple and a system call.
_MAX_RANGES = 1 << 18
# Column of the file table. Each value lists the arrays whose rows are the records of the file.
_ARRAYS_COLUMN = "numpy/arrays"
_ARRAYS_TYPE = pa.list_(
    pa.struct({"file": pa.uint32(), "member": pa.string(), "feature": pa.string()})
)
_SPLIT_WORDS_PATTERN = f"({'|'.join(SPLIT_WORDS)})"
_SPLIT_NAME_PATTERN = re.compile(
    rf"(?:{_SPLIT_WORDS_PATTERN}[-_.])?(.*?)(?:[-_.]{_SPLIT_WORDS_PATTERN})?",
    re.IGNORECASE | re.DOTALL,
)
# The same three groups as in _SPLIT_NAME_PATTERN: word, rest, word. The first is always empty.
_NUMBERED_NAME_PATTERN = re.compile(r"()(.*?)[-_.]?(\d+)?", re.DOTALL)
_SAVE_TOGETHER = "save what belongs together as one .npz: numpy.savez('data.npz', x=x, y=y)"

_Rows = np.ndarray[Any, Any]
# (file, [(ordinal of the file that contains an array, the array), ...]): the rows of these arrays,
# side by side, are the records of the file.
_RowTable = tuple[InputFile, list[tuple[int, "_StoredArray"]]]


@dataclass(frozen=True)
class _StoredArray:
    """One array of a file, as its header describes it.

    Attributes:
        name: Name of the feature. If the dtype has fields, each field is a feature.
        shape: The shape of the array. It is () for a single value, and for a member of a .npz that
            is not an array.
        is_fortran: Whether the values are in Fortran order.
        header_bytes: Bytes before the values.
        size_bytes: Bytes of header and values, uncompressed.
        offset: Position of the header in the file. None for a compressed member.
        member: Name of the member in a .npz. Empty for a .npy.
    """

    file: InputFile
    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_fortran: bool
    header_bytes: int
    size_bytes: int
    offset: int | None
    member: str

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def option_names(self) -> set[str]:  # names that the option `columns` may use
        return {self.name, _parse_split(self.name)[1]}

    @property
    def feature_names(self) -> list[str]:
        stem = f"{self.name}." if self.member else ""
        return (
            [self.name]
            if self.dtype.names is None
            else [stem + field for field in self.dtype.names]
        )

    def to_columns(self, rows: _Rows | None = None) -> list[tuple[pa.Field, pa.Array]]:
        """Converts rows to one (field, column) for each feature.

        Args:
            rows: Rows of this array. If None, one row of zeros is converted, which is enough to
                learn the types.

        Raises:
            DataError: The rows can't be features.
        """
        try:
            rows = np.zeros((1, *self.shape[1:]), self.dtype) if rows is None else rows
            fields = (
                [rows] if rows.dtype.names is None else [rows[name] for name in rows.dtype.names]
            )
            # NumPy would create invalid `str` objects from code points beyond Unicode.
            for field_values in (
                field_values for field_values in fields if field_values.dtype.kind == "U"
            ):
                points = np.ascontiguousarray(field_values).view(
                    np.dtype("u4").newbyteorder(field_values.dtype.byteorder)
                )
                if points.size and points.max() > sys.maxunicode:
                    raise ValueError("text with a character beyond Unicode")
            return list(map(tensors_to_column, self.feature_names, fields))
        except DataError as error:
            raise self.data_error(error.reason) from None
        except (pa.ArrowException, ValueError, OverflowError) as error:
            raise self.data_error(Message("is damaged: {error}", error=error)) from None

    def open_reader(self, stack: ExitStack) -> Callable[[int, int], _Rows]:
        """Returns a function (begin, end) that reads the rows [begin, end).

        The function works until `stack` is closed. If the array is compressed, `begin` is ignored:
        each call returns the next rows, so callers must start at row 0 and leave no gaps.
        """
        if self.offset is not None:
            return self._read_ranges
        archive = stack.enter_context(
            zipfile.ZipFile(stack.enter_context(open_arrow_file(self.file.path)))
        )
        stream = stack.enter_context(archive.open(self.member))
        stream.read(self.header_bytes)
        return partial(self._read_stream, stream)

    def _read_ranges(self, begin: int, end: int) -> _Rows:
        """Reads rows [begin, end) from the file.

        In C order they are one byte range. In Fortran order, each item of a row is a range of its
        own.
        """
        size = self.dtype.itemsize
        # In Fortran order, all rows of one item are consecutive. So item i of the rows is the range
        # that begins i columns later.
        step, ranges = (size, self.row_bytes // size) if self.is_fortran else (self.row_bytes, 1)
        data, start = (
            allocate((ranges, (end - begin) * step), np.uint8),
            (self.offset or 0) + self.header_bytes + begin * step,
        )
        read_ranges(
            self.file.path,
            [(start + index * self.shape[0] * step, buffer) for index, buffer in enumerate(data)],
        )
        shape = (end - begin, *self.shape[1:])
        return (
            data.view(self.dtype).reshape(shape[::-1]).T
            if self.is_fortran
            else data.view(self.dtype).reshape(shape)
        )

    def _read_stream(self, stream: IO[bytes], begin: int, end: int) -> _Rows:
        try:
            data = stream.read((end - begin) * self.row_bytes)
            return np.frombuffer(data, self.dtype).reshape(end - begin, *self.shape[1:])
        except Exception as error:  # zipfile and zlib raise many types of errors
            raise self.data_error(
                Message(
                    "damaged at rows {begin} to {end}: {error}",
                    begin=begin,
                    end=end - 1,
                    error=error,
                )
            ) from None

    def check(self) -> None:
        """Raises DataError if the array can't be read as rows.

        The array must not contain Python objects or be a single value, and it must have the size
        that its header specifies. An array in Fortran order must not be compressed or have very
        long rows.
        """
        if self.dtype.hasobject:
            raise self.data_error(
                "holds Python objects, which only unpickling reads, and that runs "
                "code: save it as numbers or text, such as x.astype(str); or, if you "
                "trust it, load it and give its arrays to recordmill.build"
            )
        if not self.shape:
            raise self.data_error(
                "is a single value, and a record is a row of an array's first dimension"
            )
        if min(self.shape) < 0 or not self.dtype.itemsize or self.dtype.subdtype:
            raise self.data_error(
                f"damaged: no array has shape {self.shape} and dtype {self.dtype}"
            )
        if (
            expected_bytes := self.header_bytes + self.shape[0] * self.row_bytes
        ) != self.size_bytes:
            problem = (
                "is cut off"
                if expected_bytes > self.size_bytes
                else "holds more than an array; save each to a file of its own"
            )
            raise self.data_error(
                f"{problem}: it has {self.size_bytes:,} bytes, and its header says {expected_bytes:,}"
            )
        if self.is_fortran and (
            self.offset is None or self.row_bytes > _MAX_RANGES * self.dtype.itemsize
        ):
            raise self.data_error(
                "is compressed, or has long rows, in Fortran order: save numpy.ascontiguousarray(x)"
            )

    def data_error(self, reason: str) -> DataError:
        return DataError(
            reason, source=self.file.name, place=f"array {self.member!r}" if self.member else ""
        )


@dataclass(frozen=True)
class NumpySource:
    """A source of the rows of NumPy files.

    Attributes:
        files: The files with rows. The column _ARRAYS_COLUMN lists the arrays that form these rows.
            Some of the arrays may be stored in other files.
        plan_rejects: Always empty, since rows are checked when they are read.
        text_label: Name of the label feature if its class names are the distinct texts in its
            column, else None.
        batch_bytes: Approximate size of a chunk.
    """

    schema: Schema
    files: FileTable
    units: Sequence[Unit]
    notes: tuple[str, ...] = ()
    plan_rejects: tuple[Reject, ...] = ()
    text_label: str | None = None
    batch_bytes: int = BATCH_BYTES
    kind: str = "numpy"

    def read(self, unit: Unit) -> Iterator[Chunk]:
        """Yields the rows of a unit, file by file."""
        for ordinal in range(unit.begin_file, unit.end_file):
            references = self.files.take_columns((ordinal,), (_ARRAYS_COLUMN,))[_ARRAYS_COLUMN][
                0
            ].as_py()
            files = {
                file_id: self.files[file_id]
                for file_id in sorted({reference["file"] for reference in references})
            }
            for file in files.values():
                check_unchanged(file.path, file.stat, file.name)
            stored = {
                (file_id, reference.member): reference
                for file_id, file in files.items()
                for reference in _read_headers(file)
            }
            arrays = [
                replace(stored[reference["file"], reference["member"]], name=reference["feature"])
                for reference in references
            ]
            row, stop = (
                (unit.start, unit.stop) if unit.stop or not arrays else (0, arrays[0].shape[0])
            )
            for batch in _read_batches(arrays, row, stop, self.batch_bytes):
                yield conform_chunk(
                    batch,
                    self.schema,
                    text_label=self.text_label,
                    file_id=ordinal,
                    file_name=self.files[ordinal].name,
                    first_row=row,
                )
                row += batch.num_rows
            for file in files.values():
                check_unchanged(file.path, file.stat, file.name)


def plan_numpy(listing: Listing, options: NumpyOptions, common: PlanOptions) -> NumpySource:
    """Plans NumPy files from their headers.

    Raises:
        DataError: A file is damaged, or contains objects or an unsupported dtype. It is also raised
            if the arrays have different numbers of rows, if the files have different features, or
            if there are no rows.
        UsageError: An option names an array that does not exist.
    """
    numpy_files = filter_kind(listing, "numpy")
    layout = read_layout(
        numpy_files.files, numpy_files.roots, split_from=options.split_from, class_from=NO_LAYOUT
    )
    input_files = numpy_files.files.with_splits(layout.splits)
    arrays_by_input = list(thread_map(_read_headers, input_files, common.threads))
    if options.columns is not None:
        check_columns(
            options.columns,
            sorted(
                {
                    name
                    for arrays in arrays_by_input
                    for array in arrays
                    for name in array.option_names
                }
            ),
        )
        arrays_by_input = [
            [array for array in arrays if not array.option_names.isdisjoint(options.columns)]
            for arrays in arrays_by_input
        ]
    tables, notes = _group_arrays(input_files, arrays_by_input, options)
    files = FileTable.from_files(file for file, _ in tables)
    references = [
        [(file_id, array.member, array.name) for file_id, array in arrays] for _, arrays in tables
    ]
    files = files.with_column(_ARRAYS_COLUMN, pa.array(references, _ARRAYS_TYPE))
    arrays_by_file = [[array for _, array in arrays] for _, arrays in tables]
    unifier = _unify_schemas(arrays_by_file, common)
    units = pack_units(
        (
            unit
            for file_id, arrays in enumerate(arrays_by_file)
            for unit in _iter_units(file_id, arrays)
        ),
        UNIT_BYTES,
    )
    if not any(unit.rows for unit in units):
        raise DataError("there are no rows", source=input_files[0].name)
    batch_bytes = max_batch_bytes(common)
    label_arrays_by_file = (
        [array for array in arrays if common.label in array.feature_names]
        for arrays in arrays_by_file
    )
    batches = (
        batch
        for label_arrays in label_arrays_by_file
        if label_arrays
        for batch in _read_batches(label_arrays, 0, label_arrays[0].shape[0], batch_bytes)
    )
    schema, schema_notes, text_label = finish_unified_schema(unifier, batches, common, "the arrays")
    for file in input_files:
        check_unchanged(file.path, file.stat, file.name)
    notes = [
        *numpy_files.notes,
        *layout.notes,
        *notes,
        *schema_notes,
        *note_unused_partitions(input_files, schema.names),
    ]
    return NumpySource(
        schema=schema,
        files=files,
        units=units,
        notes=tuple(notes),
        text_label=text_label,
        batch_bytes=batch_bytes,
    )


def _group_arrays(
    files: Sequence[InputFile],
    arrays_by_input: Sequence[Sequence[_StoredArray]],
    options: NumpyOptions,
) -> tuple[list[_RowTable], list[str]]:
    """Decides which arrays form records together.

    A row table is a file with some arrays. The rows of the arrays are its records. A .npz with
    arrays of several splits has a row table for each split. Several .npy files that are columns of
    the same rows have one row table, which belongs to the first of these files. The row tables of
    the other files are empty.

    Args:
        files: The input files.
        arrays_by_input: The arrays of each input file.
        options: Options of NumPy files.

    Returns:
        (row tables, notes for the user).

    Raises:
        DataError: It is unclear if several .npy files are columns, parts of an array, or classes.
    """
    tables, counts, rowless = list[_RowTable](), Counter[str](), set[str]()
    keys = iter(
        _group_keys(
            [arrays[0].name for arrays in arrays_by_input if arrays and not arrays[0].member]
        )
    )
    groups = defaultdict[tuple[object, ...], list[tuple[int, _StoredArray]]](list)
    for file, arrays in zip(files, arrays_by_input, strict=True):
        if arrays and not arrays[0].member:
            arrays[0].check()
            feature, key = next(keys)
            groups[file.root, file.name.rpartition("/")[0], key].append(
                (len(tables), replace(arrays[0], name=feature))
            )
            tables.append((file, []))
            continue
        rowless.update(array.name for array in arrays if not array.shape)
        by_split = defaultdict[str | None, list[_StoredArray]](list)
        for array in (array for array in arrays if array.shape):
            array.check()
            by_split[_parse_split(array.name)[0]].append(array)
        # arrays without a split in their name belong to all rows, so nothing is divided by splits
        if None in by_split or not by_split:
            tables.append(
                (
                    file,
                    [
                        (len(tables), array)
                        for split_arrays in by_split.values()
                        for array in split_arrays
                    ],
                )
            )
            continue
        for split, split_arrays in by_split.items():
            file_split = file.split if options.split_from == NO_LAYOUT else split
            counts[str(file_split)] += split_arrays[0].shape[0]
            split_file = replace(file, name=f"{file.name}!/{split}", split=file_split)
            tables.append(
                (
                    split_file,
                    [
                        (len(tables), replace(array, name=_parse_split(array.name)[1]))
                        for array in split_arrays
                    ],
                )
            )
    for group in groups.values():
        tables[group[0][0]][1].extend(group)
        # x.npy and y.npy of equal form may be features, parts of one array, or two classes
        if len({(array.dtype, array.shape[1:]) for _, array in group}) < len(group):
            names = ", ".join(array.file.name for _, array in group[:3])
            raise DataError(
                f"{names}: rows of one form may be columns, parts or classes; {_SAVE_TOGETHER}"
            )
    notes = [
        f"splits by the arrays' names: {', '.join(f'{name} {n:,}' for name, n in counts.items())}"
    ]
    notes = notes if counts.keys() - {"None"} else []
    if len(largest := max(groups.values(), key=len, default=[])) > 1:
        notes.append(
            f"columns of the same rows: {', '.join(array.file.name for _, array in largest[:3])}"
        )
    if rowless:
        notes.append(f"left out, because they have no rows: {', '.join(sorted(rowless)[:3])}")
    return tables, notes


def _unify_schemas(tables: Sequence[Sequence[_StoredArray]], common: PlanOptions) -> SchemaUnifier:
    unifier, first_names, first_file = SchemaUnifier(declared_dtypes(common)), set[str](), ""
    for arrays in filter(None, tables):
        first_array, name = arrays[0], arrays[0].file.name
        advice = Message("{columns} names those to take", columns=option("columns"))
        for unequal in (unequal for unequal in arrays if unequal.shape[0] != first_array.shape[0]):
            problem = f"{unequal.name!r} has {unequal.shape[0]:,} rows, and {first_array.name!r} {first_array.shape[0]:,}"
            raise DataError(
                "{problem}: a record is one of each; {advice}",
                problem=problem,
                advice=advice,
                source=unequal.file.name,
            )
        row_bytes = sum(array.row_bytes for array in arrays)
        if row_bytes > (max_row_bytes := common.cap_line_bytes(row_bytes)) or (
            first_array.shape[0] and not row_bytes
        ):
            raise first_array.data_error(
                Message(
                    "a row has {row_bytes} bytes, and may have from 1 to {max_row_bytes}: see "
                    "{memory}",
                    row_bytes=f"{row_bytes:,}",
                    max_row_bytes=f"{max_row_bytes:,}",
                    memory=option("memory"),
                )
            )
        fields = [field for array in arrays for field, _ in array.to_columns()]
        names = [field.name for field in fields]
        check_column_names(names, name)
        check_feature_count(len(names), common.memory_bytes, name)
        first_names, first_file = first_names or {*names}, first_file or name
        if differences := sorted(first_names.symmetric_difference(names)):
            problem = (
                f"has no {differences[0]!r}, but"
                if differences[0] in first_names
                else f"has {differences[0]!r}, unlike"
            )
            raise DataError(
                "{problem} {first_file}; {advice}, or {save_together}",
                problem=problem,
                first_file=first_file,
                advice=advice,
                save_together=_SAVE_TOGETHER,
                source=name,
            )
        if first_array.shape[0]:
            null_counts = dict.fromkeys(names, 0)
            for array in arrays:
                null_counts.update(_count_missing_times(array, max_batch_bytes(common)))
            unifier.add(pa.schema(fields), name, null_counts)
    return unifier


def _count_missing_times(array: _StoredArray, batch_bytes: int) -> dict[str, int]:
    """Counts NaT in each feature of an array with one time per row.

    NaT becomes null.
    """
    fields = [array.dtype[name] for name in array.dtype.names or ()] or [array.dtype]
    if array.shape[1:] or not any(field.kind == "M" for field in fields):
        return {}
    counts = Counter[str]()
    for batch in _read_batches([array], 0, array.shape[0], batch_bytes):
        counts.update(
            {
                field.name: column.null_count
                for field, column in zip(batch.schema, batch.columns, strict=True)
            }
        )
    return counts


def _iter_units(ordinal: int, arrays: Sequence[_StoredArray]) -> Iterator[Unit]:
    """Yields units for the rows of one file.

    A unit has about UNIT_BYTES. If an array is compressed, all rows are one unit.
    """
    rows, row_bytes = arrays[0].shape[0] if arrays else 0, sum(array.row_bytes for array in arrays)
    # a compressed array can only be read from its first row on
    if rows * row_bytes <= UNIT_BYTES or any(array.offset is None for array in arrays):
        yield Unit(ordinal, ordinal + 1, rows=rows, size_bytes=rows * row_bytes)
        return
    step = max(1, UNIT_BYTES // row_bytes)
    for start in range(0, rows, step):
        count = min(step, rows - start)
        yield Unit(
            ordinal,
            ordinal + 1,
            start=start,
            stop=start + count,
            first_row=start,
            rows=count,
            size_bytes=count * row_bytes,
        )


def _read_batches(
    arrays: Sequence[_StoredArray], begin: int, end: int, batch_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Yields the rows [begin, end) of arrays as batches of about `batch_bytes`.

    All arrays have the same number of rows. Each becomes a column, or a column for each field of
    its dtype.
    """
    # during conversion, a text is a Python object of about 64 bytes
    widths = (
        math.prod(array.shape[1:]) * 64 * (array.dtype.kind in "SU") + array.row_bytes
        for array in arrays
    )
    step = max(1, min(BATCH_ROWS, batch_bytes // max(sum(widths), 1)))
    with ExitStack() as stack:
        readers = [array.open_reader(stack) for array in arrays]
        for start in range(begin, end, step):
            rows = (read(start, min(start + step, end)) for read in readers)
            columns = [
                column
                for array, rows_of_array in zip(arrays, rows, strict=True)
                for column in array.to_columns(rows_of_array)
            ]
            fields, values = zip(*columns, strict=True)
            yield pa.RecordBatch.from_arrays(list(values), schema=pa.schema(fields))


def _group_keys(stems: Sequence[str]) -> list[tuple[str, tuple[str | None, ...]]]:
    """Splits the name of each .npy file into a feature and a group.

    Files of a group contain the features of the same rows. A group is a tuple of parts of the name:
    the number at its end, and the name of a split at its start or end. A part is only removed if
    all names have it and it differs between them. Otherwise it remains in the feature.

    Args:
        stems: The file names without extension.

    Returns:
        (feature, group) of each file.

    >>> _group_keys(["X_1", "X_2"]), _group_keys(["X_train", "y_test"]), _group_keys(["x_1"])
    ([('X', ('1',)), ('X', ('2',))], [('X', ('train',)), ('y', ('test',))], [('x_1', ())])
    """
    names, keys = list(stems), [tuple[str | None, ...]()] * len(stems)
    for pattern in (_NUMBERED_NAME_PATTERN, _SPLIT_NAME_PATTERN):
        splits = [_parse_split(name, pattern) for name in names]
        if None not in (words := {word for word, _ in splits}) and len(words) > 1:
            keys = [(*key, word) for key, (word, _) in zip(keys, splits, strict=True)]
            names = [rest or "x" for _, rest in splits]
    return list(zip(names, keys, strict=True))


def _parse_split(
    name: str, pattern: re.Pattern[str] = _SPLIT_NAME_PATTERN
) -> tuple[str | None, str]:
    """Splits the name of an array into (split, rest of the name).

    >>> _parse_split("x_train"), _parse_split("val_images"), _parse_split("latest")
    (('train', 'x'), ('validation', 'images'), (None, 'latest'))

    Args:
        name: The name.
        pattern: A pattern with three groups: a word before the rest, the rest, and a word after it.
            If the word is not a common name of a split, it is returned unchanged.
    """
    match = pattern.fullmatch(name)
    word = match and (match[1] or match[3])
    return (SPLIT_WORDS.get(word.lower(), word), match[2]) if match and word else (None, name)


def _read_headers(file: InputFile) -> list[_StoredArray]:
    """Reads the headers of the arrays in a file.

    Raises:
        DataError: The file is damaged, or is not a NumPy file.
    """
    try:
        with open_arrow_file(file.path) as data:
            if data.read(len(_ZIP_MAGIC)) != _ZIP_MAGIC:
                data.seek(0)
                name = file.name.rpartition("/")[2].removesuffix(".npy")
                return [
                    _parse_header(file, name, data.read(_HEAD_BYTES), size=data.size(), offset=0)
                ]
            arrays = list[_StoredArray]()
            with zipfile.ZipFile(data) as archive:
                for info in archive.infolist():
                    # decompression by other methods has no bound on its memory
                    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                        raise ValueError(
                            f"{info.filename!r} is packed by another method than deflate"
                        )
                    head = archive.open(info).read(_HEAD_BYTES)
                    data.seek(info.header_offset)
                    data_offset = (
                        info.header_offset
                        + _LOCAL_HEADER_BYTES
                        + sum(struct.unpack("<HH", data.read(_LOCAL_HEADER_BYTES)[-4:]))
                    )
                    offset = data_offset if info.compress_type == zipfile.ZIP_STORED else None
                    name = info.filename.removesuffix(".npy")
                    arrays.append(
                        _parse_header(
                            file,
                            name,
                            head,
                            size=info.file_size,
                            offset=offset,
                            member=info.filename,
                        )
                    )
            return arrays
    except Exception as error:  # zipfile and numpy raise many types of errors for damage
        raise DataError(
            "is not a NumPy file, or it is damaged: {error}", error=error, source=file.name
        ) from None


def _parse_header(
    file: InputFile, name: str, head: bytes, *, size: int, offset: int | None, member: str = ""
) -> _StoredArray:
    """Parses the header of an array from its first bytes.

    Args:
        file: The file that contains the array.
        name: Name of the array.
        head: The first bytes of the array.
        size: Bytes of header and values.
        offset: Position of the header in the file. None for a compressed member.
        member: Name of the member in a .npz. Empty for a .npy.
    """
    if member and not head.startswith(_NPY_MAGIC):
        return _StoredArray(
            file,
            name,
            dtype=np.dtype(np.uint8),
            shape=(),
            is_fortran=False,
            header_bytes=0,
            size_bytes=size,
            offset=offset,
            member=member,
        )
    source, formats = io.BytesIO(head), np.lib.format
    version = formats.read_magic(source)
    read_header = (
        formats.read_array_header_2_0 if version > (1, 0) else formats.read_array_header_1_0
    )
    shape, is_fortran, dtype = read_header(source)
    # NumPy decodes headers as Latin-1, but version 3 has field names in UTF-8
    if version == (3, 0) and dtype.names:
        dtype.names = tuple(field.encode("latin-1").decode() for field in dtype.names)
    return _StoredArray(
        file,
        name,
        dtype=dtype,
        shape=shape,
        is_fortran=is_fortran and len(shape) > 1,
        header_bytes=source.tell(),
        size_bytes=size,
        offset=offset,
        member=member,
    )


def read_npy(data: bytes, file: InputFile) -> _Rows:
    """Returns the array of a .npy file that is completely in memory.

    The array may have any shape, and shares the memory of `data`.

    Args:
        data: The content.
        file: The file, for messages.

    Raises:
        DataError: The content is damaged, or contains Python objects.
    """
    try:
        array = _parse_header(file, file.name, data[:_HEAD_BYTES], size=len(data), offset=0)
    except Exception as error:  # as in _read_headers
        raise DataError(
            "is not a NumPy file, or it is damaged: {error}", error=error, source=file.name
        ) from None
    # a single value and Fortran order are accepted here, since no rows are read in ranges
    replace(array, shape=array.shape or (1,), is_fortran=False).check()
    values = np.frombuffer(data, array.dtype, offset=array.header_bytes)
    return values.reshape(array.shape[::-1]).T if array.is_fortran else values.reshape(array.shape)


def read_npy_type(file: InputFile) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Returns (dtype, shape) of the array in a .npy file, from its header.

    Raises:
        DataError: The array can't be read, for example because it contains Python objects.
        ValueError: The file is a .npz.
    """
    (array,) = _read_headers(file)
    replace(array, shape=array.shape or (1,), is_fortran=False).check()
    return array.dtype, array.shape
