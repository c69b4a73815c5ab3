"""Boxes of objects in images, as lists per image.

Annotations are COCO's JSON, Pascal VOC's XML, YOLO's text files, or a CSV. Records have the names
and units of TensorFlow's Object Detection API: edges are shares of the width and height of the
image, from 0 to 1.

Sources: cocodataset.org/#format-data; the development kit of VOC2012;
docs.ultralytics.com/datasets/detect; github.com/tensorflow/models,
research/object_detection/g3doc/using_your_own_dataset.md.
"""

from __future__ import annotations

import json
import math
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base.errors import DataError, Reject, UsageError
from recordmill.base.option_names import option
from recordmill.records.images.header import ImageHeader
from recordmill.records.images.resize import Placement, apply_orientation_to_edges, clip_span
from recordmill.schemas.feature import Feature
from recordmill.sources.images.labels_file import FileFinder, path_column, read_label_file
from recordmill.sources.values.labels import sort_classes
from recordmill.storage.file_table import FileTable, InputFile, encode_column
from recordmill.storage.folders import is_file, join, real_path
from recordmill.storage.json_fields import parse_json, read_bounded
from recordmill.storage.listing import InputRoot, list_inputs
from recordmill.storage.yaml_file import read_yaml

_ROUNDING = 1e-6  # error of a share from float32 or from decimals in text
_OBJECT = "image/object/"
_EDGES = tuple(f"{_OBJECT}bbox/{edge}" for edge in ("xmin", "ymin", "xmax", "ymax"))
_OBJECT_TEXT, OBJECT_LABEL = f"{_OBJECT}class/text", f"{_OBJECT}class/label"
# the image's own features under the names of the Object Detection API
OBJECT_NAMES = {
    "image/encoded": "image",
    "image/format": "format",
    "image/height": "height",
    "image/width": "width",
    "image/channels": "channels",
    "image/filename": "source",
    "image/source_id": "source",
}
_TYPES = {
    "is_crowd": pa.int64(),
    "area": pa.float32(),
    "segmentation": pa.large_string(),
    "difficult": pa.int64(),
    "truncated": pa.int64(),
    "view": pa.large_string(),
}
_BYTES_PER_BYTE = 8  # largest memory of Python objects per byte of JSON
_MAX_FILE_BYTES = 16 << 20  # of an XML or text file with the objects of one image
_TABLE_EDGES = (
    ("xmin", "ymin", "xmax", "ymax"),
    ("x_min", "y_min", "x_max", "y_max"),
    ("x1", "y1", "x2", "y2"),
)
_TABLE_CLASSES = ("class", "label", "category", "class_name", "name", "cell_type", "object")
# endings of annotation files, the most certain first, and the name of the format
_FORMAT_NAMES = {
    "xml": "Pascal VOC",
    "txt": "YOLO",
    "json": "COCO",
    "csv": "a CSV",
    "tsv": "a CSV",
    "jsonl": "JSON Lines",
}
_NAME_FILES = ("data.yaml", "dataset.yaml", "data.yml", "classes.txt", "obj.names", "names.txt")


@dataclass(frozen=True)
class BoxColumns:
    """Object features of all files.

    Attributes:
        columns: [files] A list for each file, by feature name.
        classes: Classes of OBJECT_LABEL.
        absolute: Boxes are in pixels.
        rejects: Annotations without an image.
    """

    columns: Mapping[str, pa.Array]
    classes: tuple[str, ...]
    absolute: bool
    rejects: tuple[Reject, ...] = ()
    notes: tuple[str, ...] = ()


class _Objects:
    """Collects the objects of annotations."""

    def __init__(self) -> None:
        self.owners = array("q")
        self.edges = array("d")  # four per object
        self.texts: list[str] = []
        self.attributes: dict[str, list[Any]] = {}
        self.ids: dict[int, str] = {}  # of the images, by ordinal
        self.rejects: list[Reject] = []
        self.names: Sequence[str] | None = None  # of the classes, by number
        self.absolute = True

    def add(self, owner: int, edges: Sequence[float], text: str, **attributes: Any) -> None:
        if len(edges) != 4 or not all(map(math.isfinite, edges)):
            raise ValueError(f"a box is four finite numbers, not {[*edges]}")
        self.owners.append(owner)
        self.edges.extend(edges)
        self.texts.append(sys.intern(text))
        for name, value in attributes.items():
            self.attributes.setdefault(name, []).append(
                sys.intern(value) if name == "view" else value
            )

    def add_missing(self, source: str, place: str, image: str) -> None:
        self.rejects.append(
            Reject(source, place, "no file", f"{image!r} is no image of this input"[:280])
        )


def box_columns(
    path: str, files: FileTable, roots: Sequence[InputRoot], *, first_label: int, memory_bytes: int
) -> BoxColumns:
    """Reads all annotations at a path, and groups their objects by image.

    Args:
        path: A file, or a folder of files with one format.
        files: The images.
        roots: The inputs.
        first_label: Number of the first class.
        memory_bytes: Memory that a JSON document may use.

    Raises:
        UsageError: There are no annotations, or none belongs to an image.
        DataError: An annotation is malformed. The message has its file and place.
    """
    # an empty YOLO file is an image without objects
    listing = list_inputs([path], data_extensions=("txt",))
    endings = Counter(name.rpartition(".")[2].lower() for name in listing.files.names())
    ending = next((candidate for candidate in _FORMAT_NAMES if endings[candidate]), None)
    if ending is None:
        raise UsageError(
            f"{option('boxes', path)}: a COCO .json, a .csv, or a folder of .xml or .txt is needed"
        )
    objects, stems = _Objects(), _StemFinder(files)
    annotations = [file for file in listing.files if file.name.lower().endswith(f".{ending}")]
    if ending == "txt":
        objects.names, objects.absolute = _yolo_names(listing.roots[0].path), False
        annotations = [
            file for file in annotations if file.name.rpartition("/")[2] not in _NAME_FILES
        ]
    for file in annotations:
        folder = real_path(file.path.rpartition("/")[0] or ".")
        try:
            if ending in _FORMATS:
                _FORMATS[ending](objects, file, stems)
            elif ending == "json":
                _add_coco(objects, file, FileFinder(files, roots, folder), memory_bytes)
            else:
                _add_table(objects, file, FileFinder(files, roots, folder))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            if isinstance(error, DataError | UsageError):
                raise
            problem = f"lacks {error}" if isinstance(error, KeyError) else str(error)
            raise DataError(
                f"no annotation as {_FORMAT_NAMES[ending]} writes it: {problem}"[:280],
                source=file.name,
            ) from None
    if ending in ("csv", "tsv", "jsonl"):  # the unit is not known from the format
        edges = np.array(objects.edges)
        objects.absolute = not bool(((edges >= 0) & (edges <= 1)).all())
    if not objects.owners:
        raise UsageError(f"{option('boxes', path)}: no annotation of it is of one of the images")
    return _build_columns(objects, len(files), _FORMAT_NAMES[ending], first_label)


def _build_columns(objects: _Objects, files: int, format_name: str, first_label: int) -> BoxColumns:
    classes = tuple(objects.names) if objects.names is not None else sort_classes(objects.texts)
    numbers = {name: number for number, name in enumerate(classes, first_label)}
    owners = np.array(objects.owners, np.int64)
    order, counts = np.argsort(owners, kind="stable"), np.bincount(owners, minlength=files)
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]))
    edges = np.array(objects.edges).reshape(-1, 4).astype(np.float32)
    values = {name: pa.array(edges[:, index]) for index, name in enumerate(_EDGES)}
    values[_OBJECT_TEXT] = pa.array(objects.texts, pa.large_string())
    values[OBJECT_LABEL] = pa.array([numbers[text] for text in objects.texts], pa.int64())
    values |= {
        f"{_OBJECT}{name}": pa.array(column, _TYPES[name])
        for name, column in objects.attributes.items()
    }
    take = pa.array(order)
    columns = {
        name: pa.LargeListArray.from_arrays(offsets, column.take(take))
        for name, column in values.items()
    }
    if objects.ids:
        columns["image/source_id"] = encode_column(
            (objects.ids.get(index) for index in range(files)), files
        )
    bare = int((counts == 0).sum())
    notes = [f"boxes: {len(owners):,} of {len(classes):,} classes, as {format_name} has them"]
    notes += (
        []
        if objects.absolute or format_name == "YOLO"
        else ["boxes: all lie between 0 and 1, and are read as shares"]
    )
    notes += [f"boxes: {bare:,} image(s) have none, and are kept"] if bare else []
    classes = ("background",) * first_label + classes
    return BoxColumns(columns, classes, objects.absolute, tuple(objects.rejects), tuple(notes))


class _StemFinder:
    """Finds the image of an annotation file with the same stem.

    The image may be in the same folder, or in a folder of its own.
    """

    def __init__(self, files: FileTable) -> None:
        self._by_stem: dict[str, int] = {}
        for file_id, name in enumerate(files.names()):
            for key in self._keys(name):
                self._by_stem[key] = (
                    file_id if key not in self._by_stem else -1
                )  # -1: several images have this stem

    @staticmethod
    def _keys(name: str) -> tuple[str, str]:
        folder, _, base = name.rpartition("/")
        stem = base.rpartition(".")[0] or base
        return f"{folder.rpartition('/')[2]}/{stem}", stem

    def find(self, name: str) -> int | None:
        candidates = [self._by_stem.get(key, -1) for key in self._keys(name)]
        return next((file_id for file_id in candidates if file_id >= 0), None)


def _add_coco(objects: _Objects, file: InputFile, finder: FileFinder, memory_bytes: int) -> None:
    size = file.stat.size_bytes
    if size * _BYTES_PER_BYTE > memory_bytes:
        enough = option("memory", f"{(size * _BYTES_PER_BYTE >> 20) + 1}MiB")
        raise DataError(
            f"its {size:,} bytes take more memory than there is; {enough} is enough",
            source=file.name,
        )
    document = parse_json(read_bounded(file.path, size), file.name)
    names = {
        entry["id"]: str(entry["name"])
        for entry in sorted(document["categories"], key=lambda one: one["id"])
    }
    objects.names = list(dict.fromkeys([*(objects.names or ()), *names.values()]))
    images = document["images"]
    owners = finder.owners(
        pa.array([str(entry["file_name"]) for entry in images], pa.large_string())
    ).tolist()
    owner_of = {entry["id"]: owner for entry, owner in zip(images, owners, strict=True)}
    for entry, owner in zip(images, owners, strict=True):
        objects.ids[owner] = str(entry["id"])
        if owner < 0:
            objects.add_missing(file.name, f"image {entry['id']}", str(entry["file_name"]))
    objects.ids.pop(-1, None)
    for entry in document["annotations"]:
        if (owner := owner_of[entry["image_id"]]) >= 0:
            x_begin, y_begin, width, height = map(float, entry["bbox"])
            crowd, area = int(entry.get("iscrowd", 0)), float(entry.get("area", width * height))
            shape = json.dumps(entry.get("segmentation", []), separators=(",", ":"))
            edges, text = (
                (x_begin, y_begin, x_begin + width, y_begin + height),
                names[entry["category_id"]],
            )
            objects.add(owner, edges, text, is_crowd=crowd, area=area, segmentation=shape)


def _add_voc(objects: _Objects, file: InputFile, stems: _StemFinder) -> None:
    from xml.etree import ElementTree

    data = read_bounded(file.path, _MAX_FILE_BYTES)
    if b"<!ENTITY" in data:
        raise DataError("declares entities, which annotations have not", source=file.name)
    try:
        root = ElementTree.fromstring(data)
    except ElementTree.ParseError as error:
        raise DataError(f"is no XML: {error}", source=file.name) from None
    if (owner := stems.find(file.name)) is None and (
        owner := stems.find(root.findtext("filename", ""))
    ) is None:
        objects.add_missing(file.name, "", root.findtext("filename", file.name))
        return
    for element in root.iter("object"):
        box = element.find("bndbox")
        x_begin, y_begin, right, bottom = (
            float(_child_text(box, edge)) for edge in ("xmin", "ymin", "xmax", "ymax")
        )
        flags = {name: int(element.findtext(name) or 0) for name in ("difficult", "truncated")}
        edges = (
            x_begin - 1,
            y_begin - 1,
            right,
            bottom,
        )  # pixels count from 1, and the last one is inside the box
        objects.add(
            owner,
            edges,
            _child_text(element, "name"),
            **flags,
            view=element.findtext("pose") or "Unspecified",
        )


def _child_text(element: Any, name: str) -> str:
    text = None if element is None else element.findtext(name)
    if text is None:
        raise KeyError(name)
    return str(text).strip()


def _add_yolo(objects: _Objects, file: InputFile, stems: _StemFinder) -> None:
    if (owner := stems.find(file.name)) is None:
        objects.add_missing(file.name, "", file.name)
        return
    for number, line in enumerate(
        read_bounded(file.path, _MAX_FILE_BYTES).decode().splitlines(), 1
    ):
        if not (words := line.split()):
            continue
        try:
            kind, values = int(words[0]), [float(word) for word in words[1:]]
            name = str(kind) if objects.names is None else objects.names[kind]
            if len(values) == 4:
                x, y, width, height = values
                edges = x - width / 2, y - height / 2, x + width / 2, y + height / 2
            else:  # the corners of a polygon
                edges = min(values[::2]), min(values[1::2]), max(values[::2]), max(values[1::2])
            if kind < 0 or len(values) % 2 or len(values) == 2:
                raise ValueError(f"{len(values)} numbers after class {kind}")
            objects.add(owner, edges, name)
        except (ValueError, IndexError) as error:
            reason = (
                f"class {kind} has no name"
                if isinstance(error, IndexError) and values
                else str(error)
            )
            raise DataError(
                f"is no box: {reason}", source=file.name, place=f"line {number}"
            ) from None


_FORMATS: dict[str, Callable[[_Objects, InputFile, _StemFinder], None]] = {
    "xml": _add_voc,
    "txt": _add_yolo,
}


def _yolo_names(folder: str) -> Sequence[str] | None:
    """Returns the names of the classes, or None.

    They are read from a file in the folder of the annotations, or up to two folders above.
    """
    above = folder.rstrip("/").rpartition("/")[0]
    for path in (
        join(parent, name)
        for parent in (folder, above, above.rpartition("/")[0])
        for name in _NAME_FILES
    ):
        if not is_file(path):
            continue
        if path.endswith((".txt", ".names")):
            return [
                line.strip()
                for line in read_bounded(path, _MAX_FILE_BYTES).decode().splitlines()
                if line.strip()
            ]
        names = read_yaml(path, path, "names").get("names")
        if isinstance(names, Mapping):
            names = [
                names.get(number, str(number))
                for number in range(max(map(int, names), default=-1) + 1)
            ]
        if isinstance(names, list):
            return [str(name) for name in names]
    return None


def _add_table(objects: _Objects, file: InputFile, finder: FileFinder) -> None:
    rows = read_label_file(file.path)
    names = {name.lower(): name for name in reversed(rows.table.schema.names)}
    edges = next(
        (names_of_edges for names_of_edges in _TABLE_EDGES if names.keys() >= {*names_of_edges}),
        None,
    )
    kind = next((candidate for candidate in _TABLE_CLASSES if candidate in names), None)
    if edges is None or kind is None:
        missing = (
            "xmin, ymin, xmax and ymax"
            if edges is None
            else f"a class ({', '.join(_TABLE_CLASSES)})"
        )
        raise UsageError(
            f"{file.name}: no columns of {missing}; it has {', '.join(rows.table.schema.names)}"
        )
    column = path_column(None, rows.table, finder, file.name)
    owners, paths = finder.owners(rows.table.column(column)), rows.table.column(column).to_pylist()
    boxes = np.stack(
        [np.array(rows.table.column(names[edge]).to_pylist(), np.float64) for edge in edges], axis=1
    )
    for row, (owner, text) in enumerate(
        zip(owners.tolist(), rows.table.column(names[kind]).to_pylist(), strict=True)
    ):
        if owner < 0:
            objects.add_missing(file.name, rows.places[row], str(paths[row]))
        elif text is not None:
            objects.add(owner, boxes[row].tolist(), str(text))


def fit_boxes(
    columns: Mapping[str, pa.Array],
    headers: Sequence[ImageHeader],
    absolute: bool,
    placements: Sequence[Placement],
) -> tuple[dict[str, pa.Array], Counter[str]]:
    """Converts object lists to shares of the image sizes, clipped at the borders.

    Boxes without an area are left out and counted. Boxes beyond the border have no area after
    clipping.

    Args:
        columns: The columns of the images, by feature name.
        headers: The header of each image.
        absolute: Boxes are in pixels.
        placements: Placement of each rewritten image. Objects follow it. Empty if images are not
            rewritten.

    Returns:
        (lists by feature name, counts for messages).
    """
    objects = [name for name in columns if name.startswith(_OBJECT)]
    if not objects:
        return {}, Counter()
    lists = {name: columns[name] for name in objects}
    lengths = np.diff(lists[_EDGES[0]].offsets.to_numpy())
    rows = np.repeat(np.arange(len(headers)), lengths)
    edges = np.stack(
        [lists[name].flatten().to_numpy().astype(np.float64) for name in _EDGES], axis=1
    )
    sizes = np.array([(header.width, header.height) for header in headers], np.float64).reshape(
        -1, 2
    )
    if absolute:
        edges /= np.tile(sizes, 2)[rows]
    crossing = ((edges < -_ROUNDING) | (edges > 1 + _ROUNDING)).any(1)
    counts = Counter({"boxes across the image's border, clipped": int(crossing.sum())})
    edges = np.clip(edges, 0, 1)
    is_kept = (edges[:, 2] > edges[:, 0]) & (edges[:, 3] > edges[:, 1])
    counts["boxes without an area, left out"] = int((~is_kept).sum())
    flat = {name: column.flatten() for name, column in lists.items()}
    if placements:
        regions = np.array([placement.visible_region for placement in placements])[rows]
        edges = apply_orientation_to_edges(
            edges, np.array([placement.orientation for placement in placements])[rows]
        )
        is_left = np.ones(len(rows), np.bool_)
        for axis in (0, 1):
            if (regions[:, [axis, axis + 2]] != (0, 1)).any():
                spans = clip_span(
                    edges[:, axis], edges[:, axis + 2], regions[:, axis], regions[:, axis + 2]
                )
                edges[:, axis], edges[:, axis + 2], inside = spans
                is_left &= inside
        counts["boxes beyond the part that is kept, left out"] = int((is_kept & ~is_left).sum())
        is_kept &= is_left
        flat |= _transform_shapes(flat, rows, sizes, placements, counts)
    offsets = pa.array(
        np.concatenate([[0], np.cumsum(np.bincount(rows[is_kept], minlength=len(headers)))])
    )
    values = {name: column.filter(pa.array(is_kept)) for name, column in flat.items()}
    values |= {
        name: pa.array(edges[is_kept, index].astype(np.float32))
        for index, name in enumerate(_EDGES)
    }
    lists_by_name = {
        name: pa.LargeListArray.from_arrays(offsets, column) for name, column in values.items()
    }
    return lists_by_name, +counts


def _transform_shapes(
    flat: Mapping[str, pa.Array],
    rows: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.float64],
    placements: Sequence[Placement],
    counts: Counter[str],
) -> dict[str, pa.Array]:
    """Returns COCO's areas and polygons in pixels of the rewritten images.

    Args:
        flat: Object features.
        rows: [objects] Image of each object.
        sizes: [images, 2] Width and height of the files.
        placements: Placement of each image.
        counts: Receives the number of run-length masks, which can't be transformed.
    """
    shapes: dict[str, pa.Array] = {}
    image_sizes = np.array([placement.output_size[::-1] for placement in placements], np.float64)
    regions = np.array([placement.visible_region for placement in placements])
    if (name := f"{_OBJECT}area") in flat:
        scale = (image_sizes / (regions[:, 2:] * sizes)).prod(1) if len(sizes) else np.ones(0)
        shapes[name] = pa.array((flat[name].to_numpy() * scale[rows]).astype(np.float32))
    if (name := f"{_OBJECT}segmentation") in flat:
        texts = flat[name].to_pylist()
        for index, (text, row) in enumerate(zip(texts, rows.tolist(), strict=True)):
            if placements[row].is_unchanged:
                continue
            try:
                polygons = [
                    np.array(polygon, np.float64).reshape(-1, 2) / sizes[row]
                    for polygon in json.loads(text)
                ]
                turned = np.full(sum(map(len, polygons)), placements[row].orientation)
                points = np.concatenate([np.zeros((0, 2)), *polygons])
                points = apply_orientation_to_edges(np.tile(points, 2), turned)[:, :2]
                points = ((points - regions[row, :2]) / regions[row, 2:] * image_sizes[row]).round(
                    2
                )
                ends = np.cumsum([polygon.size // 2 for polygon in polygons])[:-1]
                shape = (
                    [polygon.reshape(-1).tolist() for polygon in np.split(points, ends)]
                    if polygons
                    else []
                )
                texts[index] = json.dumps(shape, separators=(",", ":"))
            except (TypeError, ValueError, OverflowError):
                texts[index] = "[]"
                counts["segmentations that are no polygons and can't be resized, left out"] += 1
        shapes[name] = pa.array(texts, pa.large_string())
    return shapes


def object_features(features: Sequence[Feature], names: Sequence[str]) -> tuple[Feature, ...]:
    """Returns the image's own features under the names of the Object Detection API.

    Features in `names` are left out, and a mask keeps its name.

    Args:
        features: The image's own features.
        names: Names of features that come from annotations.
    """
    dtypes = {feature.name: feature.dtype for feature in features}
    first, *renamed_features = (
        Feature(name, dtypes[own_name], required=True) for name, own_name in OBJECT_NAMES.items()
    )
    mask_features = [feature for feature in features if feature.name not in OBJECT_NAMES.values()]
    return (
        first,
        *mask_features,
        *(feature for feature in renamed_features if feature.name not in names),
    )
