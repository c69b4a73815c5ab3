"""Columns of file names in tables, which are replaced by the contents of the files.

The option is `--file-column photo=image`. Paths are relative to the folder of the table, and only
files below the input are read. An image keeps the name of its column, and adds `NAME/format`,
`NAME/height`, `NAME/width`, `NAME/channels` and `NAME/source`. A mask, bytes, text or NumPy array
has only the column itself. A row is a reject if its file is missing, too large, or has another
form. Nothing is unpickled.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from recordmill.base.errors import DataError, Fault, UsageError
from recordmill.base.messages import Message, shorten
from recordmill.base.option_names import option
from recordmill.base.threads import thread_map
from recordmill.base.utf8 import is_utf8
from recordmill.records.images.header import MAX_PIXELS, TOO_LARGE, BadImage
from recordmill.schemas.arrow import arrow_type, to_arrow_field
from recordmill.schemas.feature import ITEM_BYTES, Feature
from recordmill.sources.arrow.numpy_files import read_npy, read_npy_type
from recordmill.sources.arrow.python_rows import objects_to_column
from recordmill.sources.common.contract import (
    BATCH_BYTES,
    BATCH_FILES,
    Chunk,
    PlanOptions,
    Source,
    Unit,
)
from recordmill.sources.common.options import TableOptions
from recordmill.sources.images.reading import EncodedFiles, describe_traits
from recordmill.sources.images.source import MAX_IMAGE_BYTES, OWN_FEATURES
from recordmill.sources.values.casting import cast_values
from recordmill.sources.values.column_join import (
    JoinedRows,
    JoinedSource,
    PlanFunction,
    join_columns,
    options_for_columns,
    plan_text_columns,
)
from recordmill.sources.values.schema_unifier import SchemaUnifier, declared_dtypes, parse_dtype
from recordmill.storage.archives import is_archive_member, is_streamed_member
from recordmill.storage.file_table import FileTable, InputFile
from recordmill.storage.files import is_remote, stat
from recordmill.storage.folders import is_file, no_file_message, real_path
from recordmill.storage.walk import is_within

IMAGE_FORM, MASK_FORM, NPY_FORM, _, TEXT_FORM = _FORMS = ("image", "mask", "npy", "bytes", "text")
_IMAGE_FEATURES = OWN_FEATURES[1:]  # features of an image in addition to its bytes
_NO_FILE_REASON = "no file"
# A table has small units, because most of the work is reading its files in parallel.
_MAX_TABLE_UNITS, _MIN_UNIT_BYTES = (
    64,
    4 << 10,
)

# For each column name and row: the file, a Fault if the path can't be used, or None if the value is
# null.
_FilesByColumn = Mapping[str, Sequence[InputFile | Fault | None]]


class _DecodedColumn(NamedTuple):
    """The files that one column of some rows names.

    Attributes:
        files: The files by row.
        encoded: The bytes of the files, in the order of `files`.
        decoded: The header or the values of each file that can be used, by row.
        faults: The faults of the other rows that have a value.
    """

    files: Mapping[int, InputFile]
    encoded: EncodedFiles
    decoded: Mapping[int, Any]
    faults: Mapping[int, Fault]


@dataclass(frozen=True)
class _FileColumns:
    """Joins the content of files to the rows that name them.

    Attributes:
        forms: How the files of a column are read, by column name: one of _FORMS.
        max_bytes: Maximum size of a file.
        follow_links: Whether links may lead out of the input.
        arrays: Features of the columns with arrays, by column name.
    """

    forms: Mapping[str, str]
    max_bytes: int
    follow_links: bool
    arrays: Mapping[str, Feature]

    def join(self, files: FileTable, chunk: Chunk) -> Iterator[JoinedRows]:
        """Reads the files that the records of a chunk name.

        Yields:
            Slices of the chunk, with the contents of their files. The files of a slice have about
            BATCH_BYTES together.
        """
        for rows, files_by_column in self.find_files(files, chunk):
            ends, begin = np.cumsum(_sizes(files_by_column, rows.rows)), 0
            while begin < max(rows.rows, 1):
                begin_bytes = ends[begin - 1] if begin else 0
                end = max(int(np.searchsorted(ends, begin_bytes + BATCH_BYTES, "right")), begin + 1)
                yield self._read_content(
                    _slice(rows, begin, end),
                    {
                        name: column_files[begin:end]
                        for name, column_files in files_by_column.items()
                    },
                )
                begin = end

    def find_files(self, files: FileTable, chunk: Chunk) -> Iterator[tuple[Chunk, _FilesByColumn]]:
        """Yields slices of a chunk with the files that their rows name.

        A slice has at most BATCH_FILES rows. A path that can't be used is a Fault instead of a
        file.
        """
        for begin in range(0, max(chunk.rows, 1), BATCH_FILES):
            rows, files_by_column = (
                _slice(chunk, begin, begin + BATCH_FILES),
                dict[str, list[InputFile | Fault | None]](),
            )
            assert isinstance(rows.records, pa.RecordBatch)
            tables = {file_id: files[file_id] for file_id in np.unique(rows.file_ids).tolist()}
            for name in self.forms:
                values = zip(
                    rows.file_ids.tolist(), rows.records.column(name).to_pylist(), strict=True
                )
                files_by_column[name] = [
                    None if value is None else self._find(tables[file_id], value)
                    for file_id, value in values
                ]
            yield rows, files_by_column

    def _find(self, table: InputFile, value: str) -> InputFile | Fault:
        inside = (
            table.name if table.path.endswith(f"/{table.name}") else posixpath.basename(table.path)
        )
        root = table.path.removesuffix(f"/{inside}")  # behind a link, the table's own folder
        name = posixpath.normpath(posixpath.join(posixpath.dirname(inside), value))
        path = f"{root}/{name}"
        if not value or "\0" in value:
            return Fault(_NO_FILE_REASON, "is not a path")
        if (
            value[0] == "/"
            or name.split("/")[0] == ".."
            or (is_archive_member(path) and not is_archive_member(table.path))
        ):
            return Fault(_NO_FILE_REASON, "is not below the INPUT; other files are not read")
        try:
            if not is_remote(path) and not is_archive_member(path):
                if not is_file(path):
                    return Fault(_NO_FILE_REASON, no_file_message(path))
                if not self.follow_links and not is_within(real_path(path), real_path(root)):
                    return Fault(
                        _NO_FILE_REASON,
                        Message(
                            "is a link out of the INPUT; {follow_links} allows it",
                            follow_links=option("follow_links", True),
                        ),
                    )
            file = InputFile(table.root, name, path, stat(path))
            if is_streamed_member(path):
                return Fault(TOO_LARGE, "is large and compressed: unpack the archive")
        except OSError as error:
            return Fault(_NO_FILE_REASON, error.strerror or str(error))
        if file.stat.size_bytes > self.max_bytes:
            limit = Message(
                "{max_bytes}, a quarter of {memory} and at most 2 GiB",
                max_bytes=self.max_bytes,
                memory=option("memory"),
            )
            return Fault(
                TOO_LARGE,
                Message(
                    "{size_bytes} bytes are more than a record may have ({limit})",
                    size_bytes=file.stat.size_bytes,
                    limit=limit,
                ),
            )
        return file

    def _read_content(self, rows: Chunk, files_by_column: _FilesByColumn) -> JoinedRows:
        assert isinstance(rows.records, pa.RecordBatch)
        columns, bad, counts = (
            list[tuple[pa.Field, pa.Array]](),
            dict[int, Fault](),
            Counter(rows.note_counts),
        )
        # (height, width) by row, for each column of images
        image_sizes = list[dict[int, tuple[int, int]]]()
        # images first, because a mask must have the size of the image
        for name in sorted(files_by_column, key=lambda name: self.forms[name] == MASK_FORM):
            # with several columns of images, the image of a mask is not known
            is_sized = len(image_sizes) == 1 and self.forms[name] == MASK_FORM
            column = self._decode_column(
                name, files_by_column[name], image_sizes[0] if is_sized else {}
            )
            for row, fault in column.faults.items():
                shown_value = (
                    column.files[row].name
                    if row in column.files
                    else repr(rows.records.column(name)[row].as_py())
                )
                message = Message(
                    "{name}: {value}: {fault}",
                    name=name,
                    value=shown_value[:150],
                    fault=fault.message,
                )
                bad.setdefault(row, Fault(fault.reason, shorten(message, 280)))
            if self.forms[name] == IMAGE_FORM:
                image_sizes.append(
                    {row: (header.height, header.width) for row, header in column.decoded.items()}
                )
                counts.update(
                    trait
                    for row, header in column.decoded.items()
                    for trait in describe_traits(header, column.files[row].name)
                )
            columns += self._arrange_column(name, column, rows.rows)
        fields, arrays = zip(*columns, strict=True)
        values = pa.RecordBatch.from_arrays(list(arrays), schema=pa.schema(fields))
        return JoinedRows(replace(rows, note_counts=counts), values, bad)

    def _decode_column(
        self,
        name: str,
        entries: Sequence[InputFile | Fault | None],
        image_sizes: Mapping[int, tuple[int, int]],
    ) -> _DecodedColumn:
        """Reads and checks the files of a column.

        Args:
            name: Name of the column.
            entries: The file of each row, see _FilesByColumn.
            image_sizes: (height, width) that the masks of some rows must have, by row.
        """
        files = {row: entry for row, entry in enumerate(entries) if isinstance(entry, InputFile)}
        faults = {row: entry for row, entry in enumerate(entries) if isinstance(entry, Fault)}
        encoded, decoded = EncodedFiles([*files.values()], MAX_PIXELS), dict[int, Any]()
        for number, (row, file) in enumerate(files.items()):
            try:
                decoded[row] = self._decode(name, encoded, number, file, image_sizes.get(row))
            except BadImage as error:
                faults[row] = error.fault
            # all but DataError come from arrays that can't be cast
            except (DataError, ValueError, OverflowError, pa.ArrowException) as error:
                faults[row] = Fault(
                    "type", error.reason if isinstance(error, DataError) else str(error)
                )
        return _DecodedColumn(files, encoded, decoded, faults)

    def _arrange_column(
        self, name: str, column: _DecodedColumn, num_rows: int
    ) -> Iterator[tuple[pa.Field, pa.Array]]:
        """Yields the (field, column) of each feature, with null in rows without a good file."""
        files, decoded = column.files, column.decoded
        positions = np.full(num_rows, -1)
        positions[[*decoded]] = np.arange(len(decoded))
        index = None if len(decoded) == num_rows else pa.array(positions, mask=positions < 0)
        data = column.encoded.column([number for number, row in enumerate(files) if row in decoded])
        for field, values in self.to_columns(
            name, data, [*decoded.values()], [files[row].name for row in decoded]
        ):
            yield field, values if index is None else values.take(index)

    def _decode(
        self,
        name: str,
        encoded: EncodedFiles,
        index: int,
        file: InputFile,
        image: tuple[int, int] | None,
    ) -> Any:
        """Checks the content of a file, and decodes images and arrays.

        Args:
            name: Name of the column.
            encoded: The bytes of all files.
            index: Index of the file in `encoded`.
            file: The file, for messages.
            image: (height, width) that a mask must have. None means any size.

        Returns:
            The header of an image, the values of an array, or None for other files.

        Raises:
            BadImage: The file is not an image, or a mask has another size.
            DataError: The file is not text or an array of this form.
            ValueError: An array can't be cast. OverflowError and ArrowException are raised for the
                same reason.
        """
        form = self.forms[name]
        if form in (IMAGE_FORM, MASK_FORM):
            header = encoded.check(index, None, MAX_PIXELS)
            if image is not None and (size := (header.height, header.width)) != image:
                raise BadImage(
                    TOO_LARGE,
                    f"{size[0]} x {size[1]} pixels, and the image {image[0]} x {image[1]}",
                )
            return header
        if form == TEXT_FORM and not is_utf8(encoded.data(index)):
            raise DataError("is not UTF-8")
        return (
            _cast_array(read_npy(encoded.data(index).tobytes(), file), self.arrays[name])
            if form == NPY_FORM
            else None
        )

    def to_columns(
        self, name: str, data: pa.Array, decoded: Sequence[Any], names: Sequence[str]
    ) -> Iterator[tuple[pa.Field, pa.Array]]:
        """Yields the (field, column) of each feature that one column of file names becomes.

        Args:
            name: Name of the column.
            data: The bytes of the files.
            decoded: Result of `_decode` for each file.
            names: Name of each file.
        """
        form = self.forms[name]
        if form == NPY_FORM:
            yield (
                objects_to_column(name, decoded)
                if decoded
                else (pa.field(name, pa.null()), pa.nulls(0))
            )
            return
        data = data.cast(pa.large_string()) if form == TEXT_FORM else data
        yield pa.field(name, data.type), data
        for feature in _IMAGE_FEATURES if form == IMAGE_FORM else ():
            values = (
                names
                if feature.name == "source"
                else [getattr(header, feature.name) for header in decoded]
            )
            yield (
                pa.field(f"{name}/{feature.name}", arrow_type(feature)),
                pa.array(values, arrow_type(feature)),
            )


def _cast_array(array: np.ndarray[Any, Any], feature: Feature) -> np.ndarray[Any, Any]:
    """Casts an array to the dtype of a feature. Floats may be rounded.

    Raises:
        DataError: The array has another type or rank.
        ValueError: Arrow can't convert the array.
        OverflowError: Arrow can't convert the array.
        ArrowException: Arrow can't convert the array.
    """
    is_number, kind = feature.dtype in ITEM_BYTES, array.dtype.kind
    kinds = "biuf" if is_number else {"string": "U", "bytes": "S"}.get(feature.dtype, "M")
    if kind not in kinds or array.ndim != len(feature.shape):
        raise DataError(
            f"an array of {array.dtype}{[*array.shape]}, where {feature.describe()} is needed"
        )
    cast = array
    if is_number and feature.dtype not in ("bfloat16", array.dtype.name):
        flat = np.ascontiguousarray(array.reshape(-1))
        fitted = cast_values(
            pa.array(flat.astype(flat.dtype.newbyteorder("="), copy=False)), feature
        )
        if fitted.bad_mask is not None:
            value = flat[np.argmax(fitted.bad_mask)]
            raise DataError(
                f"{value} in an array of {array.dtype}{[*array.shape]} does not fit {feature.dtype}"
            )
        cast = fitted.values.to_numpy(zero_copy_only=False).reshape(array.shape)
    if kind == "M" and array.ndim == 0 and feature.required and np.isnat(array):
        raise DataError("is NaT, but the schema requires a time")
    if not is_number:  # the conversion fails for invalid texts and times
        objects_to_column(feature.name, [array])
    return cast


def _sizes(files_by_column: _FilesByColumn, rows: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Returns the total bytes of the files that each row names, [rows].

    Args:
        files_by_column: The file of each row, by column name.
        rows: Number of rows.
    """
    sizes = np.zeros(rows, np.int64)
    for column_files in files_by_column.values():
        sizes += [
            file.stat.size_bytes if isinstance(file, InputFile) else 0 for file in column_files
        ]
    return sizes


def _slice(chunk: Chunk, begin: int, end: int) -> Chunk:
    """Returns the rows [begin, end) of a chunk.

    Only the slice with the first row gets the rejects and note counts.
    """
    assert isinstance(chunk.records, pa.RecordBatch)
    rows = slice(begin, end)
    other_fields = () if begin else (chunk.rejects, chunk.note_counts)
    return Chunk(chunk.records[rows], chunk.file_ids[rows], chunk.positions[rows], *other_fields)


def join_named_files(
    plan: PlanFunction,
    files: FileTable,
    common: PlanOptions,
    *,
    options: TableOptions,
    follow_links: bool,
) -> Source:
    """Plans tables, and the files that some of their columns name.

    Args:
        plan: The function that plans the tables themselves.
        files: The tables.
        common: Options that all kinds of input share.
        options: Options of tables, with the columns and their forms.
        follow_links: Whether links may lead out of the input.

    Raises:
        DataError: The arrays of a column have several types, or `plan` raised it.
        UsageError: An option is invalid or names a column that does not exist, two features have
            the same name, or `plan` raised it.
    """
    declared_schema, selected = common.schema, options.columns
    forms = dict(map(_parse_file_column, options.file_columns))
    forms = {
        n: form
        for n, form in forms.items()
        if (selected is None or n in selected) and (declared_schema is None or n in declared_schema)
    }
    if not forms:
        return plan(files, common)
    image_columns = {f"{name}/{feature.name}" for name in forms for feature in _IMAGE_FEATURES}
    if common.label in {*forms, *image_columns}:
        raise UsageError(
            "{label}: a column of files can't be the label", label=option("label", common.label)
        )
    column_options = options_for_columns(common, {*forms, *image_columns}.__contains__)
    unit_bytes = min(max(files.size_bytes // _MAX_TABLE_UNITS, _MIN_UNIT_BYTES), common.unit_bytes)
    table_options = replace(
        options_for_columns(common, lambda name: name not in image_columns), unit_bytes=unit_bytes
    )
    source = plan_text_columns(files, table_options, plan, [*forms], "file_columns")
    columns = _FileColumns(forms, min(MAX_IMAGE_BYTES, common.memory_bytes // 4), follow_links, {})
    fields, nothing = [], pa.nulls(0, pa.large_binary())
    for name, form in forms.items():
        form_fields = [field for field, _ in columns.to_columns(name, nothing, (), ())]
        form_fields = (
            [to_arrow_field(_array_feature(name, source, columns, column_options, common.threads))]
            if form == NPY_FORM
            else form_fields
        )
        # a .npy file with a single time may contain NaT, which is null
        fields += [
            field.with_nullable(
                not source.schema[name].required
                or (form == NPY_FORM and pa.types.is_timestamp(field.type))
            )
            for field in form_fields
        ]
    if conflicts := [
        field.name for field in fields if field.name in source.schema and field.name not in forms
    ]:
        raise UsageError(
            "{file_columns}: the table has a column {conflicts}, as images would; rename it",
            file_columns=option("file_columns"),
            conflicts=repr(conflicts[0]),
        )
    unifier = SchemaUnifier(declared_dtypes(column_options))
    unifier.add(pa.schema(fields), option("file_columns"))
    joined = join_columns(
        source,
        columns,
        unifier=unifier,
        batches=(),
        common=column_options,
        declared_schema=declared_schema,
        description="the files",
    )
    assert isinstance(joined, JoinedSource)
    columns = replace(
        columns,
        arrays={
            name: joined.joined_schema[name] for name, form in forms.items() if form == NPY_FORM
        },
    )
    return replace(joined, joiner=columns, units=tuple(_units_with_file_sizes(source, columns)))


def _units_with_file_sizes(source: Source, columns: _FileColumns) -> Iterator[Unit]:
    """Yields the units, with the files that their rows name added to their size.

    The size of these files is estimated from the first rows.
    """
    bytes_per_row = 0
    for chunk in islice(source.read(source.units[0]), 1):
        rows, files_by_column = next(columns.find_files(source.files, chunk))
        bytes_per_row = int(_sizes(files_by_column, rows.rows).sum()) // max(rows.rows, 1)
    for unit in source.units:
        yield replace(unit, size_bytes=unit.size_bytes + bytes_per_row * (unit.rows or 0))


def _parse_file_column(item: str) -> tuple[str, str]:
    """Parses an item of the option to (column, form).

    `emb=npy` is the column emb of arrays. An item without a form, such as `photo`, is a column of
    images.

    Raises:
        UsageError: The form is unknown.
    """
    name, _, form = item.rpartition("=")
    if name and form not in _FORMS:
        raise UsageError(
            "{file_columns}: write COLUMN or COLUMN=FORM, where FORM is one of {forms}",
            file_columns=option("file_columns", item),
            forms=", ".join(_FORMS),
        )
    return (name, form) if name else (item, IMAGE_FORM)


def _array_feature(
    name: str, source: Source, columns: _FileColumns, column_options: PlanOptions, threads: int
) -> Feature:
    """Determines the feature of a column with arrays.

    A declared schema determines the feature, or a declared dtype with a shape. Otherwise the
    headers of all files determine it.
    """
    if column_options.schema is not None and name in column_options.schema:
        return column_options.schema[name]
    dtype, shape = parse_dtype(column_options.dtypes.get(name, "string"))
    if shape is not None:
        return Feature(name, dtype, shape)

    def collect_types(unit: Unit) -> dict[pa.Field, str]:
        fields = dict[pa.Field, str]()
        for chunk in source.read(unit):
            for _, files_by_column in replace(columns, forms={name: NPY_FORM}).find_files(
                source.files, chunk
            ):
                for file in (
                    entry for entry in files_by_column[name] if isinstance(entry, InputFile)
                ):
                    # such files become rejects when they are read
                    with contextlib.suppress(DataError, ValueError, OverflowError):
                        kind, dims = read_npy_type(file)
                        fields.setdefault(
                            objects_to_column(name, [np.zeros(dims, kind)])[0], file.name
                        )
        return fields

    unifier, names_by_field = SchemaUnifier(column_options.dtypes), dict[pa.Field, str]()
    for fields in thread_map(collect_types, source.units, threads):
        names_by_field = {**fields, **names_by_field}
    for field, file_name in names_by_field.items():
        unifier.add(pa.schema([field]), file_name)
    return unifier.schema()[name] if names_by_field else Feature(name, "string")
