"""Parser of tables of boxes: CSV, TSV and JSON Lines.

Several tools write such tables. A row is a box, or an image with all its boxes in the column
`objects`, as in Hugging Face's metadata.jsonl. A row with the name of an image and no other value
is an image without boxes.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from recordmill.base.errors import DataError, UsageError
from recordmill.base.messages import Message, as_message
from recordmill.sources.images.annotation_rows import (
    MAX_CLASSES,
    AnnotationRows,
    BadRow,
    ImageRow,
    ParseSettings,
    read_json_text,
    to_class,
    to_number,
    to_size,
    to_text,
)
from recordmill.sources.images.foreign_annotations import shape_edges
from recordmill.sources.images.image_finder import ImageFinder
from recordmill.sources.images.labels_file import PATH_COLUMNS, read_label_rows, table_planner
from recordmill.storage.file_table import InputFile
from recordmill.storage.files import (
    read_range,
)
from recordmill.storage.json_fields import parse_json

_CORNERS = (
    ("xmin", "ymin", "xmax", "ymax"),
    ("x_min", "y_min", "x_max", "y_max"),
    ("x1", "y1", "x2", "y2"),
    ("left", "top", "right", "bottom"),
)
_CORNERS_AND_SIZES = (
    ("x", "y", "width", "height"),
    ("x", "y", "w", "h"),
    ("bbox_x", "bbox_y", "bbox_width", "bbox_height"),
)
_BOX_COLUMNS = ("bbox", "bboxes", "boxes", "box")  # a list of x, y, width and height
_CLASSES = [
    "class",
    "label",
    "category",
    "class_name",
    "name",
    "cell_type",
    "object",
    "label_name",
    "labelname",
    "category_name",
]
_OBJECT_CLASSES = [
    "categories",
    "category",
    "category_id",
    "labels",
    "label",
    "classes",
    "class",
    "class_id",
]
_SIZES = (("width", "height"), ("image_width", "image_height"), ("img_width", "img_height"))
_VIA_SHAPE, _VIA_CLASS = "region_shape_attributes", "region_attributes"
_MORE_PATH_COLUMNS = ("#filename", "imageid")
# columns of tables without a header, and the number of fields
_RETINANET = ("path", "x1", "y1", "x2", "y2", "class")
_AUTOML = ("set", "path", "label", "x1", "y1", "x3", "y3", "x2", "y2", "x4", "y4")
_AUTOML_SETS = ("TRAIN", "TEST", "VALIDATION", "VALIDATE", "UNASSIGNED", "")
_HEAD_BYTES = 1 << 16  # 64 KiB: enough for the first line
_SLICE_ROWS = 1 << 14

Row = tuple[str, Mapping[str, Any]]  # place and values


def parse_table(
    rows: AnnotationRows, file: InputFile, settings: ParseSettings, finder: ImageFinder, folder: str
) -> None:
    """Reads the boxes of a table.

    Args:
        rows: Receives the boxes.
        file: The table.
        settings: Settings of all parsers.
        finder: Finds images, to detect the column with their names.
        folder: Folder of the table.

    Raises:
        UsageError: A column is missing.
        DataError: The table can't be read.
    """
    is_json = file.name.lower().endswith("jsonl")
    if is_json:
        table: Iterable[Row] = list(_json_rows(rows, file, settings))
        names = list(dict.fromkeys(key for _, values in table for key in values))
    else:
        table = _CsvTable(rows, file, settings.dialect)
        names = table.names
    columns = _TableColumns(names, file.name)
    columns.check_sizes(table)
    path = _path_column(columns, table, file.name, finder, folder)
    images: dict[str, int] = {}
    for place, values in table:
        name = ""
        try:
            if values.get(path) in (None, ""):
                raise BadRow(f"{path} is empty")
            name = to_text(values[path], path)
            size = columns.stated_size(values)
            if name not in images:
                images[name] = rows.add_image(ImageRow(name, place, size))
            image = images[name]
            if size != (first := rows.images[image].size):
                raise BadRow(
                    f"states {_format_size(size)}, and an earlier row {_format_size(first)}"
                )
            for box_place, edges, text in columns.boxes(values, place, rows, name):
                try:
                    if callable(text):
                        text = text()
                    rows.add_box(image, edges(), text, box_place)
                except BadRow as error:
                    rows.reject(box_place, as_message(error), name)
        except BadRow as error:
            rows.reject(place, as_message(error), name)
    rows.has_numbers = columns.has_numbers


def _format_size(size: tuple[float, float] | None) -> str:
    return "no size" if size is None else f"{size[0]:g} x {size[1]:g}"


class _TableColumns:
    """Finds the columns of a table that contain boxes, classes and sizes.

    Args:
        names: Names of all columns.
        name: Name of the file, for messages.

    Raises:
        UsageError: There are no columns of boxes or classes.
    """

    def __init__(self, names: Sequence[str], name: str) -> None:
        by_lower = {column.lower(): column for column in reversed(names)}
        self.by_lower, self.has_numbers = by_lower, False
        self._corners = self._first(_CORNERS)
        self._spans = None if self._corners else self._first(_CORNERS_AND_SIZES)
        self._box = next((by_lower[key] for key in _BOX_COLUMNS if key in by_lower), None)
        self._objects = by_lower.get("objects")
        self._is_via = _VIA_SHAPE in by_lower
        used = {*(self._spans or ())}
        sizes = self._first(_SIZES)
        self._size = None if sizes is None or used & {*sizes} else sizes
        self._class = next((by_lower[key] for key in _CLASSES if key in by_lower), None)
        shown = ", ".join(names)[:200]
        if self._objects is not None or self._is_via:
            return
        if self._corners is None and self._spans is None and self._box is None:
            raise UsageError(f"{name}: no columns of xmin, ymin, xmax and ymax; it has {shown}")
        if self._class is None:
            raise UsageError(
                f"{name}: no columns of a class ({', '.join(_CLASSES)}); it has {shown}. Add a column `class` "
                "with one name if all objects are of one class"
            )

    def _first(self, candidates: Sequence[tuple[str, ...]]) -> tuple[str, ...] | None:
        for keys in candidates:
            if self.by_lower.keys() >= {*keys}:
                return tuple(self.by_lower[key] for key in keys)
        return None

    def stated_size(self, values: Mapping[str, Any]) -> tuple[float, float] | None:
        """Returns (width, height) of the image according to a row, or None.

        Raises:
            BadRow: A value is not a number.
        """
        if self._size is None:
            return None
        return to_size(values.get(self._size[0]), values.get(self._size[1]))

    def check_sizes(self, table: Iterable[Row]) -> None:
        """Makes `stated_size` ignore the columns width and height if they belong to the box.

        The columns belong to the image if they differ from the size of the box in some row.
        """
        if self._size is None or self._corners is None:
            return
        for _, values in table:
            try:
                left, top, right, bottom = (
                    to_number(values.get(column), column) for column in self._corners
                )
                width, height = (to_number(values.get(column), column) for column in self._size)
            except BadRow:
                continue
            if abs(right - left - width) > 1 or abs(bottom - top - height) > 1:
                return
        self._size = None

    def boxes(
        self, values: Mapping[str, Any], place: str, rows: AnnotationRows, name: str
    ) -> Iterator[tuple[str, Any, Any]]:
        """Yields the boxes of a row.

        Args:
            values: The row, by column.
            place: Where the row is, for messages.
            rows: The rows of the file.
            name: Name of the image.

        Yields:
            (place of the box, a function that returns its edges, its class or a function that
            returns it). The functions raise BadRow if the values are not usable.
        """
        if self._objects is not None:
            yield from self._object_boxes(values.get(self._objects), place)
            return
        if self._is_via:
            shape = _parse_cell(values.get(self.by_lower[_VIA_SHAPE]), "the shape")
            if shape:
                attributes = values.get(self.by_lower.get(_VIA_CLASS, ""))
                yield place, lambda: _via_edges(shape), lambda: _via_class(attributes)
            return
        text = values.get(self._class) if self._class else None
        is_bare = text is None or text == ""
        columns = self._corners or self._spans
        if columns is None:
            cell = values.get(self._box or "")
            if (cell is None or cell == "") and is_bare:
                return
            yield place, lambda: span_edges(_parse_cell(cell, "bbox")), lambda: to_class(text)
            return
        numbers = [values.get(column) for column in columns]
        if all(number is None or number == "" for number in numbers) and is_bare:
            return

        def edges() -> tuple[float, ...]:
            for column, number in zip(columns, numbers, strict=True):
                if number is None or number == "":
                    raise BadRow(f"{column} is empty")
            if self._corners is None:
                return span_edges(numbers)
            pairs = zip(columns, numbers, strict=True)
            return tuple(to_number(number, column) for column, number in pairs)

        yield place, edges, lambda: to_class(text)

    def _object_boxes(self, objects: Any, place: str) -> Iterator[tuple[str, Any, Any]]:
        if isinstance(objects, str):
            objects = _parse_cell(objects, "objects")
        if objects is None:
            return
        if isinstance(objects, list):  # an object per box
            if not all(isinstance(entry, Mapping) for entry in objects):
                raise BadRow("objects is not a list of objects with a bbox")
            box_key = next((k for k in _BOX_COLUMNS if any(k in e for e in objects)), "bbox")
            key = next((k for k in _OBJECT_CLASSES if any(k in e for e in objects)), "category")
            boxes = [entry.get(box_key) for entry in objects]
            classes: Any = [entry.get(key) for entry in objects]
        elif isinstance(objects, Mapping):
            boxes = next((objects[key] for key in _BOX_COLUMNS if key in objects), [None])
            classes = next((objects[key] for key in _OBJECT_CLASSES if key in objects), None)
            if not isinstance(boxes, list) or not isinstance(classes, list):
                raise BadRow("objects lacks a list bbox or a list categories")
            if len(boxes) != len(classes):
                raise BadRow(f"objects has {len(boxes)} boxes and {len(classes)} categories")
        else:
            raise BadRow("objects is not an object with bbox and categories")
        for number, (box, kind) in enumerate(zip(boxes, classes, strict=True), 1):
            yield (
                f"{place}, box {number}",
                lambda box=box: span_edges(box),
                lambda kind=kind: self._object_class(kind),
            )

    def _object_class(self, kind: Any) -> str:
        if type(kind) is int:
            if not 0 <= kind < MAX_CLASSES:
                raise BadRow(
                    f"class {to_text(kind, 'the class')} is not from 0 to {MAX_CLASSES - 1}"
                )
            self.has_numbers = True
        return to_class(kind)


def span_edges(values: Any) -> tuple[float, float, float, float]:
    """Returns left, top, right and bottom of a box from a list [x, y, width, height].

    Raises:
        BadRow: The values are not four numbers, or the size is negative.
    """
    if not isinstance(values, list) or len(values) != 4:
        actual = f"{len(values)} numbers" if isinstance(values, list) else "no list"
        raise BadRow(f"bbox is {actual}, not four numbers")
    x, y, width, height = (to_number(value, "bbox") for value in values)
    if min(width, height) < 0:
        raise BadRow(f"bbox has a negative size: {width:g} x {height:g}")
    return x, y, x + width, y + height


def _parse_cell(cell: Any, name: str) -> Any:
    """Parses a cell that contains JSON. A value that is not text is returned as it is.

    Raises:
        BadRow: The text is not JSON.
    """
    if not isinstance(cell, str):
        return cell
    try:
        return parse_json(cell, name, allow_nan=True)
    except DataError as error:
        raise BadRow(Message("{name}: {reason}", name=name, reason=error.reason)) from None


def _via_edges(shape: Any) -> tuple[float, float, float, float]:
    if not isinstance(shape, Mapping):
        raise BadRow("the shape is not a JSON object")
    if shape.get("name") == "rect":
        return span_edges([shape.get(key) for key in ("x", "y", "width", "height")])
    horizontal, vertical = shape.get("all_points_x"), shape.get("all_points_y")
    if not isinstance(horizontal, list) or not isinstance(vertical, list):
        raise BadRow("the shape is not a rectangle or polygon")
    points = list(zip(horizontal, vertical, strict=False))
    return shape_edges("polygon", [(to_number(x, "x"), to_number(y, "y")) for x, y in points])


def _via_class(attributes: Any) -> str:
    values = _parse_cell(attributes, "the attributes")
    names = [value for value in values.values() if value] if isinstance(values, Mapping) else []
    if len(names) > 1:
        raise BadRow(f"the class is one of {len(names)} attributes: {', '.join(map(str, values))}")
    return to_class(names[0] if names else None)


def _path_column(
    columns: _TableColumns, table: Iterable[Row], name: str, finder: ImageFinder, folder: str
) -> str:
    """Returns the first column with names of images.

    Raises:
        UsageError: There is no such column.
    """
    keys = [key for key in (*PATH_COLUMNS, *_MORE_PATH_COLUMNS) if key in columns.by_lower]
    candidates = [columns.by_lower[key] for key in keys]
    examples = list[str]()
    for column in candidates:
        values = [values.get(column) for _, values in table]
        texts = dict.fromkeys(str(value) for value in values if isinstance(value, str | int))
        if any(finder.find(text, folder, name) >= 0 for text in texts):
            return column
        examples += [f"{column} has {text[:80]!a}" for text in texts][:1]
    raise UsageError(
        f"{name}: no column holds paths of the images: {', '.join(examples[:3]) or 'no column is called image'}, "
        f"and an image is {finder.example!a}"
    )


class _CsvTable:
    """The rows of a CSV file.

    The rows become Python values in slices, each time the table is iterated over.
    """

    def __init__(self, rows: AnnotationRows, file: InputFile, dialect: Mapping[str, Any]) -> None:
        if not dialect and (names := _missing_header(file)) is not None:
            dialect = {"header": False, "names": names}
        self._found = read_label_rows(table_planner(file.name, dialect), file, rejects=rows.rejects)
        self.names: list[str] = self._found.table.schema.names

    def __iter__(self) -> Iterator[Row]:
        table, places = self._found.table, self._found.places
        for begin in range(0, table.num_rows, _SLICE_ROWS):
            columns = [column.to_pylist() for column in table.slice(begin, _SLICE_ROWS).columns]
            for place, cells in zip(places[begin:], zip(*columns, strict=True), strict=False):
                yield place, dict(zip(self.names, cells, strict=True))


def is_box_table(head: bytes, ending: str) -> bool:
    """Returns whether the first line of a table has columns of boxes and classes.

    Args:
        head: The first bytes of the file.
        ending: The extension of the file: `csv`, `tsv` or `jsonl`.
    """
    line = next(iter(head.decode("utf-8-sig", "replace").splitlines()), "")
    try:
        names = (
            list(parse_json(line, ""))
            if ending == "jsonl"
            else next(csv.reader([line], delimiter=max(",;\t", key=line.count)), [])
        )
        _TableColumns([str(name).strip() for name in names], "")
    except (DataError, UsageError, TypeError, csv.Error):
        return False
    return True


def _missing_header(file: InputFile) -> tuple[str, ...] | None:
    """Returns the columns of a table that keras-retinanet or AutoML writes without a header.

    The result is None for other tables.
    """
    head = read_range(file.path, 0, _HEAD_BYTES).tobytes()
    line = head.decode("utf-8-sig", "replace").splitlines()[:1]
    try:
        fields = next(csv.reader(io.StringIO("".join(line))), [])
    except csv.Error:
        return None
    if len(fields) == len(_RETINANET) and _are_numbers(fields[1:5]) and not _is_number(fields[0]):
        return _RETINANET
    if (
        len(fields) == len(_AUTOML)
        and fields[0].upper() in _AUTOML_SETS
        and _are_numbers([*fields[3:5], *fields[7:9]])
    ):
        return _AUTOML
    return None


def _are_numbers(fields: Sequence[str]) -> bool:
    """Returns whether all fields are numbers, or all are empty."""
    return all(not field for field in fields) or all(map(_is_number, fields))


def _is_number(field: str) -> bool:
    try:
        return float(field) is not None
    except ValueError:
        return False


def _json_rows(rows: AnnotationRows, file: InputFile, settings: ParseSettings) -> Iterator[Row]:
    for number, line in enumerate(read_json_text(file, settings).split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            values = parse_json(line, file.name, allow_nan=True)
        except DataError as error:
            rows.reject(f"line {number}", error.reason)
            continue
        if not isinstance(values, dict):
            rows.reject(f"line {number}", "is not a JSON object")
            continue
        yield f"line {number}", values
