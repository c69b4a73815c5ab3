"""Labels files for images: tables with one or more rows per image.

A labels file is a .csv, .tsv, .txt or .jsonl file. A folder may have several of them, such as one
for each split. One of the columns contains paths, which are matched to the images. Messages name
the lines of the file.
"""

from __future__ import annotations

import os.path
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recordmill.base.errors import DataError, Reject, UsageError
from recordmill.base.messages import Message
from recordmill.base.option_names import did_you_mean, option
from recordmill.sources.common.contract import PlanOptions, RecordLocator, Source
from recordmill.sources.csv.options import CsvOptions
from recordmill.sources.csv.source import plan_csv
from recordmill.sources.images.image_finder import UNKNOWN, ImageFinder
from recordmill.sources.jsonl.options import JsonlOptions
from recordmill.sources.jsonl.source import plan_jsonl
from recordmill.storage.file_table import FileTable, InputFile
from recordmill.storage.files import parse_input_path, read_range, stat
from recordmill.storage.folders import is_folder, real_path
from recordmill.storage.listing import InputRoot, list_inputs

_CSV_EXTENSIONS, _JSONL_EXTENSIONS = ("csv", "tsv", "txt"), ("jsonl", "ndjson")
_PATH_NAMES = """
file_name filename file path file_path filepath image image_path image_name image_file image_filename
img img_path img_name image_id img_id id name
"""
_MAX_SHOWN_CHARACTERS = 200  # of a name in a message
# A column with an unusual name is the path column only if 90 % of its values are images.
_MIN_IMAGE_SHARE = 0.9
PATH_COLUMNS = _PATH_NAMES.split()  # names of path columns, the most certain first


@dataclass(frozen=True)
class LabelRows:
    """All rows of a labels file.

    Attributes:
        table: The columns, with one row for each row of the file.
        places: Where each row is in the file, such as `line 7`.
        time_dtypes: Dtypes of columns that contain only times, by column name. In `table` these
            columns are text, because a path may look like a date.
    """

    table: pa.RecordBatch
    places: Sequence[str] = field(repr=False)
    time_dtypes: Mapping[str, str] = field(default_factory=dict)


def table_planner(
    name: str, dialect: Mapping[str, Any]
) -> Callable[[InputFile, PlanOptions], Source]:
    """Returns a function that plans a table of labels or boxes.

    A CSV file has a header unless the dialect specifies otherwise. Blanks around its fields are
    dropped.

    Args:
        name: The name of the file. Its extension determines the format.
        dialect: The user's `CsvDialect.dialect`.

    Raises:
        UsageError: An option is not for JSON Lines.
    """
    if name.rpartition(".")[2].lower() in _JSONL_EXTENSIONS:
        check_unused_dialect(dialect, "JSON Lines", ("encoding",))
        return lambda file, common: plan_jsonl([file], JsonlOptions(**dialect), common)
    options = CsvOptions(**{"header": True, **dialect, "trim": True})
    return lambda file, common: plan_csv([file], options, common)


def check_unused_dialect(
    dialect: Mapping[str, Any], description: str, used: Sequence[str] = ()
) -> None:
    """Raises UsageError if an option of CSV has no effect on labels or boxes.

    Args:
        dialect: The user's `CsvDialect.dialect`.
        description: Phrase for the input, which is not CSV, for the message.
        used: Names of the options that have an effect.
    """
    for name, value in dialect.items():
        if name not in used:
            raise UsageError(
                "{option} is only for CSV files, not for {description}",
                option=option(name, value),
                description=description,
            )


def read_label_file(
    path: str, name: str, dialect: Mapping[str, Any], dtypes: Mapping[str, str]
) -> LabelRows:
    """Reads all rows of a labels file. The extension determines the format.

    Args:
        path: The file.
        name: The name of the file in messages.
        dialect: The user's `CsvDialect.dialect`.
        dtypes: The user's dtypes. Columns that they declare as texts keep the text of each number.

    Raises:
        UsageError: The file can't be read, or has another extension.
        DataError: The file is empty, malformed, or can't be decoded. The message has the line.
    """
    try:
        read_range(path, 0, 0)  # fails if the file can't be read
        file = InputFile(0, name, path, stat(path))
    except OSError as error:
        raise UsageError(
            "{labels}: can't be read: {strerror}",
            labels=option("labels", path),
            strerror=error.strerror,
        ) from error
    if name.rpartition(".")[2].lower() not in (*_CSV_EXTENSIONS, *_JSONL_EXTENSIONS):
        raise UsageError(
            "{labels}: a .csv, .tsv or .jsonl file is needed", labels=option("labels", path)
        )
    texts = [column for column, dtype in dtypes.items() if dtype in ("string", "bytes")]
    return read_label_rows(table_planner(name, dialect), file, texts)


def read_label_rows(
    plan: Callable[[InputFile, PlanOptions], Source],
    file: InputFile,
    texts: Sequence[str] = (),
    rejects: list[Reject] | None = None,
) -> LabelRows:
    """Reads all rows of a table, with inferred dtypes.

    Args:
        plan: Plans the table with given options.
        file: The table.
        texts: Names of the columns that are read as texts.
        rejects: A list that receives malformed rows. If None, the first such row is an error.

    Raises:
        DataError: The table is malformed or has no row, or `rejects` is None and a row is
            malformed.
    """
    source = plan(file, PlanOptions())
    time_dtypes = {feature.name: feature.dtype for feature in source.schema if feature.timestamp}
    plain_dtypes = {
        feature.name: dtype for feature in source.schema if (dtype := _plain_dtype(feature.dtype))
    }
    plain_dtypes |= {name: "string" for name in texts if name in source.schema}
    if plain_dtypes:
        source = plan(file, PlanOptions(dtypes=plain_dtypes))
    chunks = [chunk for unit in source.units for chunk in source.read(unit)]
    bad_rows = [reject for chunk in chunks for reject in chunk.rejects]
    floats = [feature.name for feature in source.schema if feature.dtype == "float64"]
    if rejects is not None and floats and any(bad.reason == "range" for bad in bad_rows):
        # The caller rejects numbers that are too large. Here the remedy would be another dtype.
        return read_label_rows(plan, file, [*texts, *floats], rejects)
    if bad_rows and rejects is None:
        raise DataError(bad_rows[0].message, source=file.name, place=bad_rows[0].place)
    if rejects is not None:
        rejects += bad_rows
    table = pa.Table.from_batches([chunk.records for chunk in chunks]).combine_chunks()
    if not table.num_rows:
        first = bad_rows[0] if bad_rows else None
        reason = "has no row" if first is None else first.message
        raise DataError(reason, source=file.name, place=first.place if first else "")
    columns = table.to_batches()[0].replace_schema_metadata(None)
    assert isinstance(source, RecordLocator)
    places = source.locate(0, np.concatenate([chunk.positions for chunk in chunks]).tolist())
    return LabelRows(columns, [place.partition(",")[0] for place in places], time_dtypes)


def _plain_dtype(dtype: str) -> str:
    """Returns the dtype that replaces an inferred one, or "".

    float32 is read as float64, and a time as text, so that no digit of a value or path is lost.
    """
    return "float64" if dtype == "float32" else "string" if dtype.startswith("timestamp") else ""


@dataclass(frozen=True)
class LabelRequest:
    """The user's options for a labels file.

    Attributes:
        path: The labels file, or a folder of labels files.
        path_column: The column of the labels file with paths. If None, it is detected.
        dialect: The user's `CsvDialect.dialect` for the file.
        label: Name of the label column. None means the column `label`, if it exists.
        reject: Whether rows without an image file, and image files without a row, are rejects.
        reserved_names: Names of features that do not come from the labels file.
        dtypes: The user's dtypes by feature name.
    """

    path: str
    path_column: str | None
    dialect: Mapping[str, Any]
    label: str | None
    reject: bool
    reserved_names: frozenset[str]
    dtypes: Mapping[str, str]


@dataclass(frozen=True)
class LabelColumns:
    """Columns of a labels file, with one value for each image file.

    Attributes:
        columns: [files] Values by feature name.
        keep: [files] Mask of the files to use.
        time_dtypes: Dtypes of text columns that contain times, by feature name.
        rejects: Rows without a file, and files without a row.
        notes: Notes for the user.
    """

    columns: Mapping[str, pa.Array]
    keep: npt.NDArray[np.bool_]
    time_dtypes: Mapping[str, str]
    rejects: tuple[Reject, ...] = ()
    notes: tuple[str, ...] = ()


def read_label_columns(
    request: LabelRequest, files: FileTable, roots: Sequence[InputRoot]
) -> LabelColumns:
    """Reads a labels file, and arranges its rows by image file.

    If some file has several rows, all values become lists.

    Raises:
        UsageError: The labels file or a column does not exist, or no path is one of the image
            files.
        DataError: The labels file is malformed.
    """
    path = parse_input_path(request.path)
    name = os.path.basename(path.rstrip("/"))
    labels_files = _list_labels_files(path)
    parts = [_match_rows(*file, request, files, roots) for file in labels_files]
    rows, owner, repeated = _drop_repeats(_join_rows(parts, [name for _, name in labels_files]))
    counts = np.bincount(owner[owner >= 0], minlength=len(files))
    columns, names = _rename_columns(request, rows.table, name)
    time_dtypes = {
        key: rows.time_dtypes[column_name]
        for key, column_name in names.items()
        if column_name in rows.time_dtypes
    }
    rejects, notes = _report_unmatched(request, rows.unmatched, counts, files, name)
    notes += _note_renames(names, name)
    if repeated:
        notes.append(f"{name}: {repeated} row(s) equal another row of their file, and are left out")
    if several := int(np.count_nonzero(counts > 1)):
        example = files[int(np.argmax(counts > 1))].name
        notes.append(
            f"{name}: {several} file(s) have several rows that differ, such as {example}, so every column is a list"
        )
    aligned, files_with_nulls = _align(columns, owner, counts)
    keep = (counts > 0) | (not request.reject)
    if files_with_nulls is not None:
        rejects.extend(
            Reject(
                files[file_id].name,
                "",
                "null",
                f"{name} has several rows for it, some of which are empty in some column; a list can't hold that",
            )
            for file_id in files_with_nulls
        )
        keep[files_with_nulls] = False
    return LabelColumns(aligned, keep, time_dtypes, tuple(rejects), tuple(notes))


@dataclass(frozen=True)
class _MatchedRows:
    """Rows of labels files with their images.

    Attributes:
        table: The columns without the paths.
        owner: [rows] Index of the image file of each row, or -1.
        unmatched: (labels file, place, path) of each row without an image.
        time_dtypes: See `LabelRows`.
    """

    table: pa.RecordBatch
    owner: npt.NDArray[np.int64]
    unmatched: Sequence[tuple[str, str, str]]
    time_dtypes: Mapping[str, str]


def _list_labels_files(path: str) -> list[tuple[str, str]]:
    """Returns (path, name) of the labels file, or of the labels files of a folder.

    If a folder has tables with several extensions, one extension is used.

    Raises:
        UsageError: The folder has no labels file.
    """
    if not is_folder(path):
        return [(path, os.path.basename(path))]
    files = [
        (file.path, file.name)
        for file in list_inputs([path]).files
        if "submission" not in file.name.lower()
    ]
    for ending in ("csv", "tsv", *_JSONL_EXTENSIONS):
        if matching_files := [file for file in files if file[1].lower().endswith(f".{ending}")]:
            return matching_files
    raise UsageError(
        "{labels}: the folder has no .csv, .tsv or .jsonl file", labels=option("labels", path)
    )


def _match_rows(
    path: str, name: str, request: LabelRequest, files: FileTable, roots: Sequence[InputRoot]
) -> _MatchedRows:
    """Reads a labels file, and finds the image of each row.

    Raises:
        UsageError: See `read_label_columns`.
        DataError: The labels file is malformed.
    """
    rows = read_label_file(path, name, request.dialect, request.dtypes)
    finder = LabelFinder(files, roots, path)
    column = choose_path_column(request.path_column, rows.table, finder, name)
    paths = rows.table.column(column)
    owner = finder.find_images(paths)
    unmatched = np.flatnonzero(owner < 0).tolist()
    return _MatchedRows(
        table=rows.table.drop_columns([column]),
        owner=owner,
        unmatched=[
            (name, rows.places[row], f"{column} {paths[row].as_py()!r}") for row in unmatched
        ],
        time_dtypes=rows.time_dtypes,
    )


def _join_rows(parts: Sequence[_MatchedRows], names: Sequence[str]) -> _MatchedRows:
    """Returns the rows of all labels files. A column that a file lacks is null in its rows.

    Args:
        parts: The rows of each file.
        names: Name of each file, for messages.

    Raises:
        DataError: Two files have values of different types in a column.
    """
    if len(parts) == 1:
        return parts[0]
    columns = dict.fromkeys(name for part in parts for name in part.table.schema.names)
    return _MatchedRows(
        table=pa.RecordBatch.from_pydict(
            {column: _join_column(column, parts, names) for column in columns}
        ),
        owner=np.concatenate([part.owner for part in parts]),
        unmatched=[row for part in parts for row in part.unmatched],
        time_dtypes={
            name: dtype
            for name, dtype in parts[0].time_dtypes.items()
            if all(part.time_dtypes.get(name) == dtype for part in parts)
        },
    )


def _join_column(column: str, parts: Sequence[_MatchedRows], names: Sequence[str]) -> pa.Array:
    pieces = [
        part.table.column(column)
        if column in part.table.schema.names
        else pa.nulls(len(part.owner))
        for part in parts
    ]
    # A column without values is ignored here, because its type was not inferred from values.
    kinds = {
        piece.type: name
        for piece, name in zip(pieces, names, strict=True)
        if piece.null_count < len(piece)
    }
    if len(kinds) <= 1:
        kind = next(iter(kinds), pieces[0].type)
    elif {*kinds} == {pa.int64(), pa.float64()}:
        kind = pa.float64()
    else:
        (first, first_file), (second, second_file), *_ = kinds.items()
        raise DataError(
            f"column {column!r} is {first} in {first_file} and {second} in {second_file}; "
            "give all files values of one type",
            source=second_file,
        )
    return pa.concat_arrays(
        [
            pa.nulls(len(piece), kind) if piece.null_count == len(piece) else pc.cast(piece, kind)
            for piece in pieces
        ]
    )


def _drop_repeats(rows: _MatchedRows) -> tuple[_MatchedRows, npt.NDArray[np.int64], int]:
    """Drops rows that repeat the first row of their image file.

    If any row differs from the first row of its file, all rows are kept, because the rows are then
    lists of values.

    Returns:
        (remaining rows, image file of each, number of dropped rows).
    """
    owner = rows.owner
    _, first, first_ids = np.unique(owner, return_index=True, return_inverse=True)
    repeats = np.flatnonzero((first[first_ids] != np.arange(len(owner))) & (owner >= 0))
    pairs = (
        (rows.table.slice(int(first[first_ids[row]]), 1), rows.table.slice(int(row), 1))
        for row in repeats
    )
    if not len(repeats) or not all(first_row.equals(row) for first_row, row in pairs):
        return rows, owner, 0
    kept_rows = np.delete(np.arange(len(owner)), repeats)
    return replace(rows, table=rows.table.take(pa.array(kept_rows))), owner[kept_rows], len(repeats)


class LabelFinder:
    """Finds the images that a labels file names.

    Args:
        files: The images.
        roots: The inputs.
        path: Path of the labels file.
    """

    def __init__(self, files: FileTable, roots: Sequence[InputRoot], path: str) -> None:
        self._finder = ImageFinder(files, roots)
        self._folder = real_path(os.path.dirname(path) or ".")
        self._name = f"{os.path.basename(self._folder)}/{os.path.basename(path)}"

    @property
    def example(self) -> str:
        """File name of the first image, for messages."""
        return self._finder.example

    def find_images(self, values: pa.Array) -> npt.NDArray[np.int64]:
        """Returns the index of the image that each value names, or -1, [rows]."""
        image_ids = [
            self._finder.find(value, self._folder, self._name) if value else UNKNOWN
            for value in _texts(values)
        ]
        return np.maximum(np.array(image_ids, np.int64), UNKNOWN)


def _texts(values: pa.Array) -> Iterator[str | None]:
    yield from (
        pc.cast(values, pa.large_string()).to_pylist()
        if not pa.types.is_nested(values.type)
        else [None] * len(values)
    )


def choose_path_column(
    declared: str | None, table: pa.RecordBatch, finder: LabelFinder, name: str
) -> str:
    """Returns the column with the paths of images.

    Args:
        declared: The column that the user has declared. If None, it is detected by its name and
            values.
        table: The labels.
        finder: Finds the images.
        name: Name of the labels file, for messages.

    Raises:
        UsageError: There is no such column, or no value in it is an image.
    """
    names = table.schema.names
    if declared is not None:
        if declared not in names:
            raise UsageError(
                f"{name} has no column {declared!r}; it has {', '.join(names)}{did_you_mean(declared, names)}"
            )
        if not (finder.find_images(table.column(declared)) >= 0).any():
            raise UsageError(
                f"{name}: no value of column {declared!r} is one of the images; paths are relative to {name} or to an "
                f"INPUT. {_show_names(declared, table, finder)}"
            )
        return declared
    by_lower: dict[str, str] = {column.lower(): column for column in reversed(names)}
    candidates = [by_lower[candidate] for candidate in PATH_COLUMNS if candidate in by_lower]
    for column in candidates:
        if (finder.find_images(table.column(column)) >= 0).any():
            return column
    if (finder.find_images(pa.array(names, pa.large_string())) >= 0).any():
        raise UsageError(
            "{name}: the first row names an image, so it is not a header: use "
            "{header}, and name the columns with {names}",
            name=name,
            header=option("header", False),
            names=option("names", "filename,label"),
        )
    # A column of another name is used if it is the only one whose values are images.
    by_values: list[str] = [
        column
        for column in names
        if _is_text(table.schema.field(column).type)
        and (finder.find_images(table.column(column)) >= 0).mean() >= _MIN_IMAGE_SHARE
    ]
    if len(by_values) == 1:
        return by_values[0]
    raise UsageError(
        "{name}: no column holds paths of the images; {candidates} of {names} were "
        "checked. Paths are relative to the labels file or to an INPUT; "
        "{labels_path_column} names the column{examples}",
        name=name,
        candidates=", ".join(candidates) or "none",
        names=", ".join(names),
        labels_path_column=option("labels_path_column"),
        examples=f". {_show_names(candidates[0], table, finder)}" if candidates else "",
    )


def _show_names(column: str, table: pa.RecordBatch, finder: LabelFinder) -> str:
    """Returns a phrase with a value of the labels file and an image name.

    The user can compare them and see why nothing matches.
    """
    value = next((text for text in _texts(table.column(column)) if text), "")
    return f"{column} has {value[:100]!a}, and an image is {finder.example[:100]!a}"


def _rename_columns(
    request: LabelRequest, table: pa.RecordBatch, name: str
) -> tuple[dict[str, pa.Array], dict[str, str]]:
    """Returns the columns of a labels file under the names of their features.

    The label column comes first and is called `label`. If it contains texts, it is repeated as
    `class_name`. A column with the name of an image feature gets the prefix `labels_`. Other
    columns keep their names.

    Args:
        request: The user's options.
        table: The columns of the labels file, without the paths.
        name: Name of the labels file, for messages.

    Returns:
        (columns, names in the file), both by feature name. The second item lacks the label.

    Raises:
        UsageError: The label column that the user has named is missing, or two columns would have
            the same name.
    """
    columns = dict(zip(table.schema.names, table.columns, strict=True))
    label = request.label if request.label is not None else "label" if "label" in columns else None
    if label is not None and label not in columns:
        raise UsageError(
            "{label}: {name} has no such column; it has {columns}{did_you_mean}",
            label=option("label", label),
            name=name,
            columns=", ".join(columns),
            did_you_mean=did_you_mean(label, columns),
        )
    renamed, names = dict[str, pa.Array](), dict[str, str]()
    reserved_names = (
        request.reserved_names
        if label is None
        else request.reserved_names - {"label", "class_name"}
    )
    if label is not None:
        renamed["label"] = columns.pop(label)
        if _is_text(renamed["label"].type):
            renamed["class_name"] = renamed["label"]
    for column, values in columns.items():
        key = f"labels_{column}" if column in reserved_names or column in renamed else column
        if key in renamed:
            raise UsageError(f"{name}: two columns would be called {key!r}; rename one")
        renamed[key], names[key] = values, column
    return renamed, names


def _note_renames(names: Mapping[str, str], name: str) -> tuple[str, ...]:
    """Returns a note on renamed columns.

    Args:
        names: Original names by feature name.
        name: Name of the labels file.
    """
    renames = [f"{column} is {feature}" for feature, column in names.items() if feature != column]
    return (
        (f"{name}: columns with the names of image features were renamed: {', '.join(renames)}",)
        if renames
        else ()
    )


def _is_text(kind: pa.DataType) -> bool:
    while pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kind = kind.value_type
    return bool(pa.types.is_large_string(kind) or pa.types.is_string(kind))


def _report_unmatched(
    request: LabelRequest,
    unmatched: Sequence[tuple[str, str, str]],
    counts: npt.NDArray[np.int64],
    files: FileTable,
    name: str,
) -> tuple[list[Reject], list[str]]:
    """Reports rows without an image file, and image files without a row.

    Args:
        request: The user's options.
        unmatched: See `_MatchedRows`.
        counts: [files] Number of rows of each image file.
        files: The image files.
        name: Name of the labels file.

    Returns:
        (rejects, notes). One of the two is empty, depending on the user's options.
    """
    unlabelled = np.flatnonzero(counts == 0).tolist()
    if not request.reject:
        notes = [f"{name}: {len(unmatched)} row(s) without a file left out"] if unmatched else []
        return [], notes + (
            [f"{name}: {len(unlabelled)} file(s) without a row have no labels"]
            if unlabelled
            else []
        )
    rejects = [
        Reject(
            source,
            place,
            "no file",
            Message(
                "{row} is not an image of this input; {missing} leaves such rows out",
                row=shown[:_MAX_SHOWN_CHARACTERS],
                missing=option("missing", "ignore"),
            ),
        )
        for source, place, shown in unmatched
    ]
    rejects += [
        Reject(
            files[row].name,
            "",
            "no label row",
            Message(
                "{name} has no row for this file; {missing} keeps such files without labels",
                name=name,
                missing=option("missing", "ignore"),
            ),
        )
        for row in unlabelled
    ]
    return rejects, []


def _align(
    columns: Mapping[str, pa.Array], owner: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]
) -> tuple[dict[str, pa.Array], npt.NDArray[np.int64] | None]:
    """Arranges the rows of a labels file by image file.

    Values are scalars if no image file has two rows. Otherwise they are lists.

    Args:
        columns: Columns with one value per row.
        owner: [rows] Index of the image file of each row, or -1.
        counts: [files] Number of rows of each image file.

    Returns:
        (columns with one value per image file, image files with a null in one of their lists). The
        second item is None if values are scalars.
    """
    # rows with a file, grouped by file, in their original order
    order = np.argsort(owner, kind="stable")[int((owner < 0).sum()) :]
    if len(counts) == 0 or counts.max() <= 1:
        index = np.full(len(counts), -1, np.int64)
        index[owner[order]] = order
        take = pa.array(index, mask=index < 0)
        return {name: values.take(take) for name, values in columns.items()}, None
    # a single row without any value is for an image without objects, and becomes an empty list
    empty = np.ones(len(owner), np.bool_)
    holes = np.zeros(len(owner), np.bool_)
    for values in columns.values():
        nulls = values.is_null().to_numpy(zero_copy_only=False)
        empty &= nulls
        holes |= nulls
    empty &= counts[owner] == 1
    order = order[~empty[order]]
    lengths = np.bincount(owner[order], minlength=len(counts))
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    boundaries = (
        pa.array(offsets, mask=np.append(counts == 0, False))
        if (counts == 0).any()
        else pa.array(offsets)
    )
    take = pa.array(order)
    aligned = {
        name: pa.LargeListArray.from_arrays(boundaries, values.take(take))
        for name, values in columns.items()
    }
    return aligned, np.unique(owner[order][holes[order]])
