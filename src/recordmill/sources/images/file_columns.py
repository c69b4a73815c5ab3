"""Columns of tables that name files, whose content their records get: `--file-column photo=image`.

Paths are relative to the folder of their table, and lead to files below the INPUT only. An image keeps its column's
name, beside `NAME/format`, `NAME/height`, `NAME/width`, `NAME/channels` and `NAME/source`; of a mask, bytes, text or an
array of NumPy there is the name alone. A row whose file is missing, too large or no such thing is a reject. Nothing is
unpickled.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from recordmill.base.errors import DataError, UsageError
from recordmill.base.option_names import option
from recordmill.base.threads import thread_map
from recordmill.base.utf8 import is_utf8
from recordmill.records.images.check import MAX_PIXELS
from recordmill.records.images.header import SIZE_FAULT, BadImage
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
    TableOptions,
    Unit,
)
from recordmill.sources.images.reading import EncodedFiles, traits_of
from recordmill.sources.images.source import MAX_IMAGE_BYTES, OWN_FEATURES
from recordmill.sources.values.column_join import (
    JoinedRows,
    JoinedSource,
    PlanFunction,
    join_columns,
    options_for_columns,
    plan_text_columns,
)
from recordmill.sources.values.schema_unifier import SchemaUnifier, declared_dtypes, parse_dtype
from recordmill.storage.archives import is_member, is_streamed
from recordmill.storage.file_table import FileTable, InputFile
from recordmill.storage.files import is_remote, stat
from recordmill.storage.folders import is_file, real_path, why_no_file
from recordmill.storage.walk import within

IMAGE, MASK, NPY, _, TEXT = _FORMS = ("image", "mask", "npy", "bytes", "text")
_BESIDE = OWN_FEATURES[1:]  # what a record has of an image beside its bytes
_NO_FILE = "no file"
_UNITS, _LEAST_UNIT_BYTES = (
    64,
    4 << 10,
)  # of a table, which are read in parallel: most of the work are its files

_Found = Mapping[
    str, Sequence[InputFile | BadImage | None]
]  # by column, of rows; None: there is no value


@dataclass(frozen=True)
class _FileColumns:
    """forms: by column. follow_links: also out of the INPUT. arrays: the features of columns of arrays."""

    forms: Mapping[str, str]
    most_bytes: int
    follow_links: bool
    arrays: Mapping[str, Feature]

    def join(self, files: FileTable, chunk: Chunk) -> Iterator[JoinedRows]:
        """Yields the content of the files that the rows name, of about BATCH_BYTES at once."""
        for rows, found in self.files_of(files, chunk):
            ends, first = np.cumsum(_sizes(found, rows.rows)), 0
            while first < max(rows.rows, 1):
                before = ends[first - 1] if first else 0
                stop = max(int(np.searchsorted(ends, before + BATCH_BYTES, "right")), first + 1)
                yield self._content(
                    _slice(rows, first, stop),
                    {name: some[first:stop] for name, some in found.items()},
                )
                first = stop

    def files_of(self, files: FileTable, chunk: Chunk) -> Iterator[tuple[Chunk, _Found]]:
        """Yields some of the rows with the files that they name."""
        for first in range(0, max(chunk.rows, 1), BATCH_FILES):
            rows, found = (
                _slice(chunk, first, first + BATCH_FILES),
                dict[str, list[InputFile | BadImage | None]](),
            )
            assert isinstance(rows.records, pa.RecordBatch)
            tables = {at: files[at] for at in np.unique(rows.file).tolist()}
            for name in self.forms:
                values = zip(rows.file.tolist(), rows.records.column(name).to_pylist(), strict=True)
                found[name] = [
                    None if value is None else self._find(tables[at], value) for at, value in values
                ]
            yield rows, found

    def _find(self, table: InputFile, value: str) -> InputFile | BadImage:
        inside = (
            table.name if table.path.endswith(f"/{table.name}") else posixpath.basename(table.path)
        )
        root = table.path.removesuffix(f"/{inside}")  # of a table in a linked folder, that folder
        name = posixpath.normpath(posixpath.join(posixpath.dirname(inside), value))
        path = f"{root}/{name}"
        if not value or "\0" in value:
            return BadImage(_NO_FILE, "is no path")
        if (
            value[0] == "/"
            or name.split("/")[0] == ".."
            or (is_member(path) and not is_member(table.path))
        ):
            return BadImage(_NO_FILE, "is not below the INPUT, where files are read alone")
        try:
            if not is_remote(path) and not is_member(path):
                if not is_file(path):
                    return BadImage(_NO_FILE, why_no_file(path))
                if not self.follow_links and not within(real_path(path), real_path(root)):
                    return BadImage(
                        _NO_FILE,
                        f"is a link out of the INPUT; {option('follow_links', True)} allows it",
                    )
            file = InputFile(table.root, name, path, stat(path))
            if is_streamed(path):
                return BadImage(SIZE_FAULT, "is large and packed: unpack the archive")
        except OSError as error:
            return BadImage(_NO_FILE, error.strerror or str(error))
        if file.stat.size_bytes > self.most_bytes:
            most = f"{self.most_bytes}, a quarter of {option('memory')} and at most 2 GiB"
            return BadImage(
                SIZE_FAULT, f"{file.stat.size_bytes} bytes are more than a record may have ({most})"
            )
        return file

    def _content(self, rows: Chunk, found: _Found) -> JoinedRows:
        columns, bad, counts = (
            list[tuple[pa.Field, pa.Array]](),
            dict[int, tuple[str, str]](),
            Counter(rows.counts),
        )
        sizes = list[dict[int, tuple[int, int]]]()  # of the images of each column, by row
        for name in sorted(found, key=lambda name: self.forms[name] == MASK):
            assert isinstance(rows.records, pa.RecordBatch)
            some = {row: one for row, one in enumerate(found[name]) if isinstance(one, InputFile)}
            faults = {row: one for row, one in enumerate(found[name]) if isinstance(one, BadImage)}
            encoded, made = (
                EncodedFiles([*some.values()], MAX_PIXELS),
                dict[int, Any](),
            )  # by row what is no bytes
            for at, (row, file) in enumerate(some.items()):
                try:
                    image = (
                        sizes[0].get(row) if len(sizes) == 1 and self.forms[name] == MASK else None
                    )
                    made[row] = self._made(name, encoded, at, file, image)
                except BadImage as error:
                    faults[row] = error
                except (
                    DataError,
                    ValueError,
                    OverflowError,
                    pa.ArrowException,
                ) as error:  # the others of odd arrays
                    faults[row] = BadImage(
                        "type", error.reason if isinstance(error, DataError) else str(error)
                    )
            for row, fault in faults.items():
                shown = (
                    some[row].name if row in some else repr(rows.records.column(name)[row].as_py())
                )
                bad.setdefault(row, (fault.reason, f"{name}: {shown:.150}: {fault.message}"[:280]))
            if self.forms[name] == IMAGE:
                sizes.append({row: (header.height, header.width) for row, header in made.items()})
                counts.update(
                    trait for row, one in made.items() for trait in traits_of(one, some[row].name)
                )
            place = np.full(rows.rows, -1)
            place[[*made]] = np.arange(len(made))
            index = None if len(made) == rows.rows else pa.array(place, mask=place < 0)
            data = encoded.column([at for at, row in enumerate(some) if row in made])
            for field, column in self.columns(
                name, data, [*made.values()], [some[row].name for row in made]
            ):
                columns.append((field, column if index is None else column.take(index)))
        fields, arrays = zip(*columns, strict=True)
        values = pa.RecordBatch.from_arrays(list(arrays), schema=pa.schema(fields))
        return JoinedRows(replace(rows, counts=counts), values, bad)

    def _made(
        self,
        name: str,
        encoded: EncodedFiles,
        at: int,
        file: InputFile,
        image: tuple[int, int] | None,
    ) -> Any:
        """Returns the header of an image, an array, or None of other files. image: the size that a mask must have.

        Raises:
            BadImage, DataError: The file is no such thing.
        """
        form = self.forms[name]
        if form in (IMAGE, MASK):
            header = encoded.check(at, None, MAX_PIXELS)
            if image is not None and (size := (header.height, header.width)) != image:
                raise BadImage(
                    SIZE_FAULT,
                    f"{size[0]} x {size[1]} pixels, and the image {image[0]} x {image[1]}",
                )
            return header
        if form == TEXT and not is_utf8(encoded.data(at)):
            raise DataError("is not UTF-8")
        return (
            _as_feature(read_npy(encoded.data(at).tobytes(), file), self.arrays[name])
            if form == NPY
            else None
        )

    def columns(
        self, name: str, data: pa.Array, made: Sequence[Any], names: Sequence[str]
    ) -> Iterator[tuple[pa.Field, pa.Array]]:
        """Yields what a column becomes. data: the bytes of its files. made: as `_made` gives it. names: theirs."""
        form = self.forms[name]
        if form == NPY:
            yield (
                objects_to_column(name, made) if made else (pa.field(name, pa.null()), pa.nulls(0))
            )
            return
        data = data.cast(pa.large_string()) if form == TEXT else data
        yield pa.field(name, data.type), data
        for feature in _BESIDE if form == IMAGE else ():
            values = (
                names
                if feature.name == "source"
                else [getattr(header, feature.name) for header in made]
            )
            yield (
                pa.field(f"{name}/{feature.name}", arrow_type(feature)),
                pa.array(values, arrow_type(feature)),
            )


def _as_feature(array: np.ndarray[Any, Any], feature: Feature) -> np.ndarray[Any, Any]:
    """Returns an array in the dtype of the feature; floats may be rounded.

    Raises:
        DataError, ValueError, OverflowError, ArrowException: It is another one.
    """
    is_number, kind = feature.dtype in ITEM_BYTES, array.dtype.kind
    kinds = "biuf" if is_number else {"string": "U", "bytes": "S"}.get(feature.dtype, "M")
    made = array
    if kind in kinds and is_number and feature.dtype != "bfloat16":
        with np.errstate(all="ignore"):
            made = array.astype(feature.dtype, copy=False)
        both_floats = kind == made.dtype.kind == "f"
        fits = np.isinf(made) == np.isinf(array) if both_floats else made == array
        kinds = kinds if made is array or fits.all() else ""
    if kind not in kinds or array.ndim != len(feature.shape):
        raise DataError(
            f"an array of {array.dtype}{[*array.shape]}, where {feature.describe()} is needed"
        )
    if not is_number:  # which may hold what no text or time is
        objects_to_column(feature.name, [array])
    return made


def _sizes(found: _Found, rows: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """[rows] the bytes of all files that each names."""
    sizes = np.zeros(rows, np.int64)
    for some in found.values():
        sizes += [one.stat.size_bytes if isinstance(one, InputFile) else 0 for one in some]
    return sizes


def _slice(chunk: Chunk, first: int, stop: int) -> Chunk:
    """Returns these rows; rejects and counts stand beside the first ones."""
    assert isinstance(chunk.records, pa.RecordBatch)
    some = slice(first, stop)
    rest = () if first else (chunk.rejects, chunk.counts)
    return Chunk(chunk.records[some], chunk.file[some], chunk.position[some], *rest)


def plan_file_columns(
    plan: PlanFunction,
    options: TableOptions,
    follow_links: bool,
    files: FileTable,
    common: PlanOptions,
) -> Source:
    """Plans the files by `plan`, with the content of the files that columns name, if the options say which do.

    Raises:
        DataError, UsageError: As plan does; an option is none, or of no column, or features have one name; arrays of a
            column don't go together.
    """
    given, chosen = common.schema, options.columns
    forms = dict(map(_parse, options.file_columns))
    forms = {
        n: form
        for n, form in forms.items()
        if (chosen is None or n in chosen) and (given is None or n in given)
    }
    if not forms:
        return plan(files, common)
    beside = {f"{name}/{feature.name}" for name in forms for feature in _BESIDE}
    if common.label in {*forms, *beside}:
        raise UsageError(f"{option('label', common.label)}: a column of files can't be the label")
    mine = options_for_columns(common, {*forms, *beside}.__contains__)
    unit_bytes = min(max(files.size_bytes // _UNITS, _LEAST_UNIT_BYTES), common.unit_bytes)
    of_own = replace(
        options_for_columns(common, lambda name: name not in beside), unit_bytes=unit_bytes
    )
    own = plan_text_columns(files, of_own, plan, [*forms], "file_columns")
    columns = _FileColumns(forms, min(MAX_IMAGE_BYTES, common.memory_bytes // 4), follow_links, {})
    fields, nothing = [], pa.nulls(0, pa.large_binary())
    for name, form in forms.items():
        some = [field for field, _ in columns.columns(name, nothing, (), ())]
        some = (
            [to_arrow_field(_array_feature(name, own, columns, mine, common.threads))]
            if form == NPY
            else some
        )
        fields += [field.with_nullable(not own.schema[name].required) for field in some]
    if taken := [
        field.name for field in fields if field.name in own.schema and field.name not in forms
    ]:
        raise UsageError(
            f"{option('file_columns')}: the table has a column {taken[0]!r}, as images would; rename it"
        )
    unifier = SchemaUnifier(declared_dtypes(mine))
    unifier.add(pa.schema(fields), option("file_columns"))
    joined = join_columns(
        own,
        columns,
        unifier=unifier,
        batches=(),
        common=mine,
        declared_schema=given,
        description="the files",
    )
    assert isinstance(joined, JoinedSource)
    columns = replace(
        columns,
        arrays={name: joined.joined_schema[name] for name, form in forms.items() if form == NPY},
    )
    return replace(joined, joiner=columns, units=tuple(_with_files(own, columns)))


def _with_files(own: Source, columns: _FileColumns) -> Iterator[Unit]:
    """Yields the units with about the bytes of the files that their rows name, as the first ones tell."""
    each = 0
    for chunk in islice(own.read(own.units[0]), 1):
        rows, found = next(columns.files_of(own.files, chunk))
        each = int(_sizes(found, rows.rows).sum()) // max(rows.rows, 1)
    for unit in own.units:
        yield replace(unit, size_bytes=unit.size_bytes + each * (unit.rows or 0))


def _parse(item: str) -> tuple[str, str]:
    """Returns (column, form) of `emb=npy`, or of `photo`, which is an image.

    Raises:
        UsageError: There is no such form.
    """
    name, _, form = item.rpartition("=")
    if name and form not in _FORMS:
        raise UsageError(
            f"{option('file_columns', item)}: COLUMN or COLUMN=FORM, which is one of {', '.join(_FORMS)}"
        )
    return (name, form) if name else (item, IMAGE)


def _array_feature(
    name: str, own: Source, columns: _FileColumns, mine: PlanOptions, threads: int
) -> Feature:
    """Returns the feature of a column of arrays: as it is declared, with a shape, or of the headers of all files."""
    if mine.schema is not None and name in mine.schema:
        return mine.schema[name]
    dtype, shape = parse_dtype(mine.dtypes.get(name, "string"))
    if shape is not None:
        return Feature(name, dtype, shape)

    def look(unit: Unit) -> dict[pa.Field, str]:
        fields = dict[pa.Field, str]()
        for chunk in own.read(unit):
            for _, found in replace(columns, forms={name: NPY}).files_of(own.files, chunk):
                for file in (one for one in found[name] if isinstance(one, InputFile)):
                    with contextlib.suppress(
                        DataError, ValueError, OverflowError
                    ):  # rejects, when they are read
                        kind, dims = read_npy_type(file)
                        fields.setdefault(
                            objects_to_column(name, [np.zeros(dims, kind)])[0], file.name
                        )
        return fields

    unifier, seen = SchemaUnifier(mine.dtypes), dict[pa.Field, str]()
    for fields in thread_map(look, own.units, threads):
        seen = {**fields, **seen}
    for field, where in seen.items():
        unifier.add(pa.schema([field]), where)
    return unifier.schema()[name] if seen else Feature(name, "string")
