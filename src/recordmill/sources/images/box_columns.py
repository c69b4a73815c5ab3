"""Columns with the boxes of annotation files, one list for each image.

Annotations are COCO's JSON, Pascal VOC's XML, YOLO's text files, or tables. The parser of each
format returns `AnnotationRows`. This module matches their images, decides the unit of the edges and
builds the columns. `boxes` fits the boxes to the images when these are read.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base.buffers import to_offsets
from recordmill.base.errors import DataError, Reject, UsageError
from recordmill.base.messages import Message
from recordmill.base.option_names import option
from recordmill.sources.images.annotation_rows import (
    AUTO_UNIT,
    BOX_REASON,
    PIXELS,
    SHARES,
    AnnotationRows,
    ImageRow,
    KeyPoint,
    ParseSettings,
)
from recordmill.sources.images.box_table import parse_table
from recordmill.sources.images.coco import parse_coco
from recordmill.sources.images.image_finder import AMBIGUOUS, ImageFinder
from recordmill.sources.images.labels_file import check_unused_dialect
from recordmill.sources.images.voc import parse_voc
from recordmill.sources.images.yolo import (
    find_yolo_names,
    is_file_list,
    is_label_name,
    parse_yolo,
)
from recordmill.sources.values.labels import sort_classes
from recordmill.storage.file_table import FileTable, InputFile, encode_column
from recordmill.storage.folders import real_path
from recordmill.storage.listing import InputRoot, list_inputs

OBJECT_PREFIX = "image/object/"
EDGE_NAMES = tuple(f"{OBJECT_PREFIX}bbox/{edge}" for edge in ("xmin", "ymin", "xmax", "ymax"))
OBJECT_LABEL = f"{OBJECT_PREFIX}class/label"
_OBJECT_TEXT = f"{OBJECT_PREFIX}class/text"
KEYPOINT_NAMES = tuple(f"{OBJECT_PREFIX}keypoint/{name}" for name in ("x", "y", "visibility"))
# Columns of the file table that do not become features.
STATED_WIDTH, STATED_HEIGHT = "annotation/width", "annotation/height"
ANNOTATION_FILE, BOX_PLACES = "annotation/file", "annotation/places"
BOX_PIXELS = "annotation/in_pixels"
HIDDEN_COLUMNS = (STATED_WIDTH, STATED_HEIGHT, ANNOTATION_FILE, BOX_PLACES, BOX_PIXELS)
PLACE_SEPARATOR = "\0"  # between file and place in BOX_PLACES

_TYPES = {
    "is_crowd": pa.int64(),
    "area": pa.float32(),
    "segmentation": pa.large_string(),
    "difficult": pa.int64(),
    "truncated": pa.int64(),
    "view": pa.large_string(),
}
# Name of the format of annotation files, by ending. If a folder has files of several endings, the
# first one is used.
_FORMAT_NAMES = {
    "xml": "Pascal VOC",
    "txt": "YOLO",
    "json": "COCO",
    "csv": "a CSV",
    "tsv": "a CSV",
    "jsonl": "JSON Lines",
}
_TABLES = ("csv", "tsv", "jsonl")
_NO_BOX_TABLES = ("_classes.csv",)  # Roboflow's classes of whole images
# Edges in shares may be outside of the image by half of its size. Larger numbers are pixels.
_SHARE_MARGIN = 0.5


@dataclass(frozen=True)
class BoxColumns:
    """Object features of all image files.

    Attributes:
        columns: [files] A list for each file, by feature name.
        hidden: [files] Columns of the file table that do not become features, see HIDDEN_COLUMNS.
        classes: Class names of OBJECT_LABEL. The number of a class is its index.
        keep: [files] Mask of the images to use. The others have an annotation file that can't be
            read.
        rejects: Boxes and annotations that can't be used.
        notes: Notes for the user.
        folder: Folder of Pascal VOC's annotations, which may have lists of splits next to it. ""
            for other formats.
    """

    columns: Mapping[str, pa.Array]
    hidden: Mapping[str, pa.Array]
    classes: tuple[str, ...]
    keep: npt.NDArray[np.bool_]
    rejects: tuple[Reject, ...] = ()
    notes: tuple[str, ...] = ()
    folder: str = ""


def read_box_columns(
    path: str,
    files: FileTable,
    roots: Sequence[InputRoot],
    *,
    first_label: int,
    memory_bytes: int,
    unit: str = AUTO_UNIT,
    dialect: Mapping[str, Any] = MappingProxyType({}),
) -> BoxColumns:
    """Reads all annotations at a path, and groups their boxes by image.

    Args:
        path: A file, or a folder of files with one format.
        files: The images.
        roots: The inputs.
        first_label: Number of the first class.
        memory_bytes: Memory that a JSON document may use.
        unit: PIXELS or SHARES. AUTO_UNIT uses the unit of the format, or detects the unit of each
            table.
        dialect: The user's `CsvDialect.dialect` for tables.

    Raises:
        UsageError: There are no annotations, none belongs to an image, or a table mixes units.
        DataError: A file with the annotations of many images can't be read, or no box can be used.
    """
    # An empty file of YOLO is an image without objects, and an empty XML or JSON file is damaged.
    listing = list_inputs([path], data_extensions=("txt", "xml", "json"))
    names = [name for name in listing.files.names() if _may_have_boxes(name)]
    endings = Counter(name.rpartition(".")[2].lower() for name in names)
    ending = next((candidate for candidate in _FORMAT_NAMES if endings[candidate]), None)
    if ending is None:
        raise UsageError(
            "{boxes}: a COCO .json, a .csv, or a folder of .xml or .txt is needed",
            boxes=option("boxes", path),
        )
    annotations = [
        file
        for file in listing.files
        if file.name.lower().endswith(f".{ending}") and _may_have_boxes(file.name)
    ]
    settings = ParseSettings(unit, memory_bytes, dialect=dialect)
    if ending not in ("csv", "tsv"):
        check_unused_dialect(dialect, _FORMAT_NAMES[ending])
    if ending == "txt":
        root = listing.roots[0].path
        class_names, names_file, shape = find_yolo_names(
            root if listing.roots[0].is_folder else root.rpartition("/")[0]
        )
        settings = ParseSettings(unit, memory_bytes, class_names, names_file, shape)
    collected = _Collector(files, ImageFinder(files, roots))
    label = "" if not listing.roots[0].is_folder else f"{listing.roots[0].label}/"
    if not label:
        label = f"{real_path(path).rpartition('/')[0].rpartition('/')[2]}/"
    for file in annotations:
        folder = real_path(file.path.rpartition("/")[0] or ".")
        rows = AnnotationRows(file.name)
        try:
            if ending in _TABLES:
                parse_table(rows, file, settings, collected.finder, folder)
            else:
                _PARSERS[ending](rows, file, settings)
        except (DataError, RecursionError) as error:
            fault = (
                error
                if isinstance(error, DataError)
                else DataError("is nested too deeply", source=file.name)
            )
            if len(annotations) == 1 or ending in _TABLES:
                raise fault from None
            collected.add_unreadable(rows, fault, folder, label)
            continue
        if ending == "txt" and collected.skip_file_list(rows, file, folder, label):
            continue
        collected.add(rows, folder, label, unit)
    columns = collected.to_columns(path, _FORMAT_NAMES[ending], first_label)
    is_voc_folder = ending == "xml" and listing.roots[0].is_folder
    return replace(columns, folder=listing.roots[0].path) if is_voc_folder else columns


_PARSERS: dict[str, Callable[[AnnotationRows, InputFile, ParseSettings], None]] = {
    "xml": parse_voc,
    "txt": parse_yolo,
    "json": parse_coco,
}


def _may_have_boxes(name: str) -> bool:
    base = name.rpartition("/")[2].lower()
    return base not in _NO_BOX_TABLES and (not base.endswith(".txt") or is_label_name(name))


class _Collector:
    """Collects the boxes of all annotation files, and finds their images.

    Args:
        files: The images.
        finder: Finds them by name.
    """

    def __init__(self, files: FileTable, finder: ImageFinder) -> None:
        self._files, self.finder = files, finder
        self._owners, self._edges = array("q"), array("d")
        self._texts: list[str] = []
        self._places: list[str] = []
        self._pixels = array("b")
        self._keypoints: list[Sequence[KeyPoint]] = []
        self._extras: dict[str, list[Any]] = {}
        self._ids: dict[int, str] = {}
        self._sizes: dict[int, tuple[float, float]] = {}
        self._annotation_files: dict[int, str] = {}
        self._classes: list[str] | None = None
        self._has_numbers = False
        self._unclear: list[tuple[int, int]] = []  # (begin, end) of boxes whose unit is unclear
        self._table_units: set[str] = set()
        self._unmatched = ""  # the first name without an image
        self._dropped: set[int] = set()
        self._rejects: list[Reject] = []
        self._counts: Counter[str] = Counter()
        self._formats: dict[str, None] = {}  # a set in order
        self._notes: list[str] = []

    def _find(self, image: ImageRow, source: str, folder: str, label: str) -> int:
        annotation = label + source
        image_id = self.finder.find(image.name, folder, annotation, is_stem=image.is_stem)
        if image_id < 0 and image.other_name:
            other_id = self.finder.find(image.other_name, folder, annotation)
            if other_id < 0:  # its extension may be that of the image before it was converted
                base = image.other_name.replace("\\", "/").rpartition("/")[2]
                stem = base.rpartition(".")[0] or base
                other_id = self.finder.find(stem, folder, annotation, is_stem=True)
            return other_id if other_id >= 0 else image_id
        return image_id

    def skip_file_list(
        self, rows: AnnotationRows, file: InputFile, folder: str, label: str
    ) -> bool:
        """Skips a text file that lists files, such as train.txt, with a note.

        Other text files contain boxes of YOLO. A file is a list if there is no image with its name
        and its lines look like paths.

        Returns:
            Whether the file is a list.
        """
        if self._find(rows.images[0], rows.source, folder, label) >= 0 or not is_file_list(file):
            return False
        self._notes.append(f"boxes: {file.name} lists files, so it is left out")
        return True

    def add_unreadable(
        self, rows: AnnotationRows, error: DataError, folder: str, label: str
    ) -> None:
        """Rejects an annotation file that can't be read, and drops its image.

        Args:
            rows: The rows of the file, without boxes.
            error: Why it can't be read.
            folder: Folder of the file.
            label: Name of the annotations folder, which may determine a split.
        """
        stem = rows.source.rpartition("/")[2].rpartition(".")[0]
        owner = self._find(ImageRow(stem, is_stem=True), rows.source, folder, label)
        name = self._files[owner].name if owner >= 0 else ""
        rows.reject(error.place or "", error.reason, name)
        self._rejects += rows.rejects
        if owner >= 0:
            self._dropped.add(owner)

    def add(self, rows: AnnotationRows, folder: str, label: str, unit: str) -> None:
        """Adds the rows of an annotation file.

        Boxes of images that are unknown or have another stated size become rejects.

        Args:
            rows: The rows.
            folder: Folder of the file.
            label: Name of the annotations folder, which may determine a split.
            unit: PIXELS, SHARES or AUTO_UNIT, as the user chose.

        Raises:
            UsageError: The file mixes pixels and shares.
        """
        counts = np.bincount(np.array(rows.owners, np.int64), minlength=len(rows.images))
        owners = [self._find(image, rows.source, folder, label) for image in rows.images]
        for index, (image, owner) in enumerate(zip(rows.images, owners, strict=True)):
            if owner < 0:
                self._reject_image(rows, image, owner, int(counts[index]))
                continue
            if image.source_id is not None:
                self._ids[owner] = image.source_id
            self._annotation_files[owner] = rows.source
            if image.size is not None and self._sizes.setdefault(owner, image.size) != image.size:
                first = "{:g} x {:g}".format(*self._sizes[owner])
                rows.reject(
                    image.place,
                    f"states {image.size[0]:g} x {image.size[1]:g}, and another annotation {first}; "
                    f"its {counts[index]:,} box(es) are left out",
                    image.name,
                    "size",
                )
                owners[index] = -1
        self._rejects += rows.rejects
        self._counts += rows.counts
        self._formats[rows.format_name] = None
        self._has_numbers |= rows.has_numbers
        if rows.classes is not None:
            self._classes = list(dict.fromkeys([*(self._classes or ()), *rows.classes]))
        begin = len(self._owners)
        own_unit = unit if unit != AUTO_UNIT else rows.unit or detect_unit(rows)
        defaults = self._extra_defaults(rows)
        for box, image_index in enumerate(rows.owners):
            if (owner := owners[image_index]) < 0:
                continue
            self._owners.append(owner)
            self._edges.extend(rows.edges[4 * box : 4 * box + 4])
            self._texts.append(rows.texts[box])
            self._places.append(f"{rows.source}{PLACE_SEPARATOR}{rows.places[box]}")
            self._pixels.append(own_unit != SHARES)
            self._keypoints.append(rows.keypoints[box])
            for name, values in self._extras.items():
                values.append(rows.extras[name][box] if name in rows.extras else defaults[name])
        if rows.unit is None and unit == AUTO_UNIT:
            if own_unit is None:
                self._unclear.append((begin, len(self._owners)))
            else:
                self._table_units.add(own_unit)

    def _extra_defaults(self, rows: AnnotationRows) -> dict[str, Any]:
        for name in rows.extras:  # boxes of earlier files lack this value
            self._extras.setdefault(name, [_DEFAULTS[name]] * len(self._owners))
        return {name: _DEFAULTS[name] for name in self._extras}

    def _reject_image(self, rows: AnnotationRows, image: ImageRow, owner: int, boxes: int) -> None:
        name = image.other_name or image.name
        if owner == AMBIGUOUS:
            problem = "is the name of several images"
        else:
            problem = "is not an image of this input"
            self._unmatched = self._unmatched or name
        left_out = f"; its {boxes:,} box(es) are left out" if boxes else ""
        rows.reject(image.place, f"{name[:160]!a} {problem}{left_out}", reason="no file")

    def to_columns(self, path: str, format_name: str, first_label: int) -> BoxColumns:
        """Returns the columns of all boxes.

        Args:
            path: The option of the user, for messages.
            format_name: Usual format of such files, for notes.
            first_label: Number of the first class.

        Raises:
            UsageError: No box belongs to an image.
            DataError: No box can be used.
        """
        if not self._owners:
            self._raise_no_boxes(path)
        count = len(self._files)
        for begin, end in self._unclear:  # every edge is 0 or 1
            in_pixels = self._table_units == {PIXELS}
            self._pixels[begin:end] = array("b", [in_pixels] * (end - begin))
        classes = self._class_names()
        numbers = {name: number for number, name in enumerate(classes, first_label)}
        owners = np.array(self._owners, np.int64)
        order, counts = np.argsort(owners, kind="stable"), np.bincount(owners, minlength=count)
        offsets = pa.array(to_offsets(counts))
        edges = np.array(self._edges).reshape(-1, 4).astype(np.float32)
        values = {name: pa.array(edges[:, index]) for index, name in enumerate(EDGE_NAMES)}
        values[_OBJECT_TEXT] = pa.array(self._texts, pa.large_string())
        values[OBJECT_LABEL] = pa.array([numbers[text] for text in self._texts], pa.int64())
        values |= {
            f"{OBJECT_PREFIX}{name}": pa.array(column, _TYPES[name])
            for name, column in self._extras.items()
        }
        values[BOX_PLACES] = pa.array(self._places, pa.large_string())
        values[BOX_PIXELS] = pa.array(np.array(self._pixels, np.bool_))
        take = pa.array(order)
        columns = {
            name: pa.LargeListArray.from_arrays(offsets, column.take(take))
            for name, column in values.items()
        }
        columns |= self._keypoint_columns(order, counts)
        hidden = {name: columns.pop(name) for name in (BOX_PLACES, BOX_PIXELS)}
        hidden |= self._image_columns(count)
        if self._ids:
            columns["image/source_id"] = encode_column(
                (self._ids.get(index) for index in range(count)), count
            )
        keep = np.ones(count, np.bool_)
        keep[[*self._dropped]] = False
        return BoxColumns(
            columns,
            hidden,
            ("background",) * first_label + classes,
            keep,
            tuple(self._rejects),
            tuple(self._describe(format_name, classes, int((counts == 0).sum()), first_label)),
        )

    def _raise_no_boxes(self, path: str) -> None:
        if self._unmatched:
            raise UsageError(
                "{boxes}: none of its annotations belongs to one of the images: it "
                "names {unmatched}, and an image is {example}",
                boxes=option("boxes", path),
                unmatched=ascii(self._unmatched[:100]),
                example=ascii(self.finder.example[:100]),
            )
        if first := next((reject for reject in self._rejects if reject.reason == BOX_REASON), None):
            raise DataError(
                "{message}. No box can be used",
                message=first.message,
                source=first.source,
                place=first.place,
            )
        raise UsageError(
            "{boxes}: none of its annotations belongs to one of the images",
            boxes=option("boxes", path),
        )

    def _class_names(self) -> tuple[str, ...]:
        texts = {*self._texts}
        if self._classes is not None and texts <= {*self._classes}:
            return tuple(self._classes)
        if self._has_numbers and all(text.isdecimal() for text in texts):
            return tuple(map(str, range(max(map(int, texts)) + 1)))
        return sort_classes(texts)

    def _keypoint_columns(
        self, order: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]
    ) -> dict[str, pa.Array]:
        """Returns the key points of all boxes as flat lists, one for each image.

        Each box has the same number of key points. Missing ones are (0, 0) with visibility 0, as in
        the Object Detection API.

        Args:
            order: The indices of the boxes, sorted by image.
            counts: [files] Number of boxes of each image.
        """
        if not (most := max(map(len, self._keypoints))):
            return {}
        points = np.zeros((len(self._keypoints), most, 3))
        for box, keypoints in enumerate(self._keypoints):
            points[box, : len(keypoints)] = np.reshape(keypoints, (-1, 3))
        flat = points[order].reshape(-1, 3)
        offsets = pa.array(to_offsets(counts * most))
        types = (np.float32, np.float32, np.int64)
        return {
            name: pa.LargeListArray.from_arrays(offsets, pa.array(flat[:, axis].astype(dtype)))
            for axis, (name, dtype) in enumerate(zip(KEYPOINT_NAMES, types, strict=True))
        }

    def _image_columns(self, count: int) -> dict[str, pa.Array]:
        sizes = np.zeros((count, 2))
        for owner, size in self._sizes.items():
            sizes[owner] = size
        return {
            STATED_WIDTH: pa.array(sizes[:, 0]),
            STATED_HEIGHT: pa.array(sizes[:, 1]),
            ANNOTATION_FILE: encode_column(
                (self._annotation_files.get(index) for index in range(count)), count
            ),
        }

    def _describe(
        self, format_name: str, classes: Sequence[str], bare: int, first_label: int
    ) -> list[str]:
        """Returns notes on the boxes that were read.

        Args:
            format_name: Usual format of such files.
            classes: The class names.
            bare: Number of images without boxes.
            first_label: Number of the first class.
        """
        boxes = len(self._owners)
        formats = " and ".join(name or format_name for name in self._formats)
        count = f"{boxes:,} {'box' if boxes == 1 else 'boxes'}"
        class_count = f"{len(classes):,} {'class' if len(classes) == 1 else 'classes'}"
        notes = [f"boxes: {count} in {class_count}, read as {formats}"]
        shares = boxes - int(np.count_nonzero(self._pixels))
        if shares and (self._table_units or self._unclear):
            which = "all" if shares == boxes else f"{shares:,}"
            notes.append(
                f"boxes: {which} are read as shares of the image, since no edge is far outside 0 to 1"
            )
        if self._has_numbers and classes and classes[-1].isdecimal():
            notes.append(
                "boxes: no file contains names of the classes, so their "
                "numbers are used as they are"
            )
        if not first_label:
            notes.append(
                Message(
                    "boxes: the first class is number 0; to keep 0 for the "
                    "background: {label_offset}, as the Object Detection API does",
                    label_offset=option("label_offset", 1),
                )
            )
        notes += [f"boxes: {bare:,} image(s) have no boxes, and are kept"] if bare else []
        notes += [f"boxes: {text}: {number:,}" for text, number in self._counts.items() if number]
        return [*notes, *self._notes]


_DEFAULTS: dict[str, Any] = {
    "is_crowd": 0,
    "area": 0.0,
    "segmentation": "[]",
    "difficult": 0,
    "truncated": 0,
    "view": "Unspecified",
}


def detect_unit(rows: AnnotationRows) -> str | None:
    """Detects the unit of the edges in a table.

    Returns:
        PIXELS or SHARES. None if all edges are 0 or 1, which is possible in both units.

    Raises:
        UsageError: Some boxes are in pixels, and others in shares.
    """
    edges = np.array(rows.edges).reshape(-1, 4)
    in_pixels = ((edges < -_SHARE_MARGIN) | (edges > 1 + _SHARE_MARGIN)).any(1)
    in_shares = ~in_pixels & (edges != np.round(edges)).any(1)
    if in_pixels.any() and in_shares.any():
        fewer = in_pixels if in_pixels.sum() <= in_shares.sum() else in_shares
        row = int(np.flatnonzero(fewer)[0])
        units = ("pixels", "shares") if fewer is in_pixels else ("shares", "pixels")
        shown = ", ".join(f"{edge:g}" for edge in edges[row])
        raise UsageError(
            "{file}: {places}: [{shown}] is in {units}, and other boxes are in {units2}; "
            "{box_unit} reads all as {units2}",
            file=rows.source,
            places=rows.places[row],
            shown=shown,
            units=units[0],
            units2=units[1],
            box_unit=option("box_unit", units[1]),
        )
    return PIXELS if in_pixels.any() else SHARES if in_shares.any() else None
