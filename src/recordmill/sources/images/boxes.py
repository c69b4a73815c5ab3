"""Boxes of objects in images, from COCO's JSON, Pascal VOC's XML, YOLO's text files or a CSV, as lists per image.

Records have the names and units of TensorFlow's Object Detection API: edges are shares of the
image's width and height, from 0 to 1.

Sources: cocodataset.org/#format-data; the development kit of VOC2012; docs.ultralytics.com/datasets/detect;
github.com/tensorflow/models, research/object_detection/g3doc/using_your_own_dataset.md.
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
from recordmill.records.images.resize import Placement, clip_span, upright_edges
from recordmill.schemas.feature import Feature
from recordmill.sources.images.labels_file import Finder, path_column, read_label_file
from recordmill.sources.values.labels import sort_classes
from recordmill.storage.file_table import FileTable, InputFile, coded_of
from recordmill.storage.folders import is_file, join, real_path
from recordmill.storage.json_fields import parse, read_bounded
from recordmill.storage.listing import Root, list_inputs
from recordmill.storage.yaml_file import read_yaml

_ROUNDED = 1e-6  # of a share: what float32 and decimals in text leave
_OBJECT = "image/object/"
_EDGES = tuple(f"{_OBJECT}bbox/{edge}" for edge in ("xmin", "ymin", "xmax", "ymax"))
_TEXT, LABEL = f"{_OBJECT}class/text", f"{_OBJECT}class/label"
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
_BYTES_PER_BYTE = 8  # of Python's objects to a byte of JSON, at most
_MOST_BYTES = 16 << 20  # 16 MiB: of an XML or text file of one image
_TABLE_EDGES = (
    ("xmin", "ymin", "xmax", "ymax"),
    ("x_min", "y_min", "x_max", "y_max"),
    ("x1", "y1", "x2", "y2"),
)
_TABLE_CLASSES = ("class", "label", "category", "class_name", "name", "cell_type", "object")
# endings of annotations, the surest first, and what writes them
_SAID = {
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
    """Features of objects: per feature a list for each file. classes: of LABEL. absolute: boxes are in pixels."""

    columns: Mapping[str, pa.Array]
    classes: tuple[str, ...]
    absolute: bool
    rejects: tuple[Reject, ...] = ()
    notes: tuple[str, ...] = ()


class _Objects:
    """The objects that annotations name, a row each."""

    def __init__(self) -> None:
        self.owners = array("q")
        self.edges = array("d")  # four a row
        self.texts: list[str] = []
        self.more: dict[str, list[Any]] = {}
        self.ids: dict[int, str] = {}  # of images
        self.rejects: list[Reject] = []
        self.names: Sequence[str] | None = None  # of the classes in the order of their numbers
        self.absolute = True

    def add(self, owner: int, edges: Sequence[float], text: str, **more: Any) -> None:
        if len(edges) != 4 or not all(map(math.isfinite, edges)):
            raise ValueError(f"a box is four finite numbers, not {[*edges]}")
        self.owners.append(owner)
        self.edges.extend(edges)
        self.texts.append(sys.intern(text))
        for name, value in more.items():
            self.more.setdefault(name, []).append(sys.intern(value) if name == "view" else value)

    def lack(self, source: str, place: str, image: str) -> None:
        self.rejects.append(
            Reject(source, place, "no file", f"{image!r} is no image of this input"[:280])
        )


def box_columns(
    path: str, files: FileTable, roots: Sequence[Root], *, first_label: int, memory_bytes: int
) -> BoxColumns:
    """Returns the objects of all annotations at path (a file, or a folder of files of one format), by image file.

    Raises:
        UsageError: there are no annotations. DataError: one is malformed; with its file and place.
    """
    listing = list_inputs(
        [path], data_extensions=("txt",)
    )  # an empty one says that nothing is seen
    endings = Counter(name.rpartition(".")[2].lower() for name in listing.files.names())
    ending = next((one for one in _SAID if endings[one]), None)
    if ending is None:
        raise UsageError(
            f"{option('boxes', path)}: a COCO .json, a .csv, or a folder of .xml or .txt is needed"
        )
    found, places = _Objects(), _Places(files)
    annotations = [file for file in listing.files if file.name.lower().endswith(f".{ending}")]
    if ending == "txt":
        found.names, found.absolute = _yolo_names(listing.roots[0].path), False
        annotations = [
            file for file in annotations if file.name.rpartition("/")[2] not in _NAME_FILES
        ]
    for file in annotations:
        folder = real_path(file.path.rpartition("/")[0] or ".")
        try:
            if ending in _FORMATS:
                _FORMATS[ending](found, file, places)
            elif ending == "json":
                _add_coco(found, file, Finder(files, roots, folder), memory_bytes)
            else:
                _add_table(found, file, Finder(files, roots, folder))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            if isinstance(error, DataError | UsageError):
                raise
            what = f"lacks {error}" if isinstance(error, KeyError) else str(error)
            raise DataError(
                f"no annotation as {_SAID[ending]} writes it: {what}"[:280], source=file.name
            ) from None
    if ending in ("csv", "tsv", "jsonl"):  # which don't say the unit
        edges = np.array(found.edges)
        found.absolute = not bool(((edges >= 0) & (edges <= 1)).all())
    if not found.owners:
        raise UsageError(f"{option('boxes', path)}: no annotation of it is of one of the images")
    return _columns(found, len(files), _SAID[ending], first_label)


def _columns(found: _Objects, files: int, said: str, first_label: int) -> BoxColumns:
    classes = tuple(found.names) if found.names is not None else sort_classes(found.texts)
    numbers = {name: number for number, name in enumerate(classes, first_label)}
    owners = np.array(found.owners, np.int64)
    order, counts = np.argsort(owners, kind="stable"), np.bincount(owners, minlength=files)
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]))
    edges = np.array(found.edges).reshape(-1, 4).astype(np.float32)
    values = {name: pa.array(edges[:, at]) for at, name in enumerate(_EDGES)}
    values[_TEXT] = pa.array(found.texts, pa.large_string())
    values[LABEL] = pa.array([numbers[text] for text in found.texts], pa.int64())
    values |= {
        f"{_OBJECT}{name}": pa.array(column, _TYPES[name]) for name, column in found.more.items()
    }
    take = pa.array(order)
    columns = {
        name: pa.LargeListArray.from_arrays(offsets, column.take(take))
        for name, column in values.items()
    }
    if found.ids:
        columns["image/source_id"] = coded_of((found.ids.get(at) for at in range(files)), files)
    bare = int((counts == 0).sum())
    notes = [f"boxes: {len(owners):,} of {len(classes):,} classes, as {said} has them"]
    notes += (
        []
        if found.absolute or said == "YOLO"
        else ["boxes: all lie between 0 and 1, and are read as shares"]
    )
    notes += [f"boxes: {bare:,} image(s) have none, and are kept"] if bare else []
    classes = ("background",) * first_label + classes
    return BoxColumns(columns, classes, found.absolute, tuple(found.rejects), tuple(notes))


class _Places:
    """Finds the image to which an annotation file of the same stem belongs: beside it, or in a folder of its own."""

    def __init__(self, files: FileTable) -> None:
        self._by_stem: dict[str, int] = {}
        for at, name in enumerate(files.names()):
            for key in self._keys(name):
                self._by_stem[key] = (
                    at if key not in self._by_stem else -1
                )  # -1: more than one image has it

    @staticmethod
    def _keys(name: str) -> tuple[str, str]:
        folder, _, base = name.rpartition("/")
        stem = base.rpartition(".")[0] or base
        return f"{folder.rpartition('/')[2]}/{stem}", stem

    def find(self, name: str) -> int | None:
        found = [self._by_stem.get(key, -1) for key in self._keys(name)]
        return next((at for at in found if at >= 0), None)


def _add_coco(found: _Objects, file: InputFile, finder: Finder, memory_bytes: int) -> None:
    size = file.stat.size_bytes
    if size * _BYTES_PER_BYTE > memory_bytes:
        enough = option("memory", f"{(size * _BYTES_PER_BYTE >> 20) + 1}MiB")
        raise DataError(
            f"its {size:,} bytes take more memory than there is; {enough} is enough",
            source=file.name,
        )
    document = parse(read_bounded(file.path, size), file.name)
    names = {
        one["id"]: str(one["name"])
        for one in sorted(document["categories"], key=lambda one: one["id"])
    }
    found.names = list(dict.fromkeys([*(found.names or ()), *names.values()]))
    images = document["images"]
    owners = finder.owners(
        pa.array([str(one["file_name"]) for one in images], pa.large_string())
    ).tolist()
    owner_of = {one["id"]: owner for one, owner in zip(images, owners, strict=True)}
    for one, owner in zip(images, owners, strict=True):
        found.ids[owner] = str(one["id"])
        if owner < 0:
            found.lack(file.name, f"image {one['id']}", str(one["file_name"]))
    found.ids.pop(-1, None)
    for one in document["annotations"]:
        if (owner := owner_of[one["image_id"]]) >= 0:
            left, top, width, height = map(float, one["bbox"])
            crowd, area = int(one.get("iscrowd", 0)), float(one.get("area", width * height))
            shape = json.dumps(one.get("segmentation", []), separators=(",", ":"))
            edges, text = (left, top, left + width, top + height), names[one["category_id"]]
            found.add(owner, edges, text, is_crowd=crowd, area=area, segmentation=shape)


def _add_voc(found: _Objects, file: InputFile, places: _Places) -> None:
    from xml.etree import ElementTree

    data = read_bounded(file.path, _MOST_BYTES)
    if b"<!ENTITY" in data:
        raise DataError("declares entities, which annotations have not", source=file.name)
    try:
        root = ElementTree.fromstring(data)
    except ElementTree.ParseError as error:
        raise DataError(f"is no XML: {error}", source=file.name) from None
    if (owner := places.find(file.name)) is None and (
        owner := places.find(root.findtext("filename", ""))
    ) is None:
        found.lack(file.name, "", root.findtext("filename", file.name))
        return
    for one in root.iter("object"):
        box = one.find("bndbox")
        left, top, right, bottom = (
            float(_text(box, edge)) for edge in ("xmin", "ymin", "xmax", "ymax")
        )
        more = {name: int(one.findtext(name) or 0) for name in ("difficult", "truncated")}
        edges = left - 1, top - 1, right, bottom  # the first pixel is 1, and the last one is inside
        found.add(
            owner, edges, _text(one, "name"), **more, view=one.findtext("pose") or "Unspecified"
        )


def _text(element: Any, name: str) -> str:
    text = None if element is None else element.findtext(name)
    if text is None:
        raise KeyError(name)
    return str(text).strip()


def _add_yolo(found: _Objects, file: InputFile, places: _Places) -> None:
    if (owner := places.find(file.name)) is None:
        found.lack(file.name, "", file.name)
        return
    for number, line in enumerate(read_bounded(file.path, _MOST_BYTES).decode().splitlines(), 1):
        if not (words := line.split()):
            continue
        try:
            kind, values = int(words[0]), [float(word) for word in words[1:]]
            name = str(kind) if found.names is None else found.names[kind]
            if len(values) == 4:
                x, y, width, height = values
                edges = x - width / 2, y - height / 2, x + width / 2, y + height / 2
            else:  # the corners of a polygon
                edges = min(values[::2]), min(values[1::2]), max(values[::2]), max(values[1::2])
            if kind < 0 or len(values) % 2 or len(values) == 2:
                raise ValueError(f"{len(values)} numbers after class {kind}")
            found.add(owner, edges, name)
        except (ValueError, IndexError) as error:
            reason = (
                f"class {kind} has no name"
                if isinstance(error, IndexError) and values
                else str(error)
            )
            raise DataError(
                f"is no box: {reason}", source=file.name, place=f"line {number}"
            ) from None


_FORMATS: dict[str, Callable[[_Objects, InputFile, _Places], None]] = {
    "xml": _add_voc,
    "txt": _add_yolo,
}


def _yolo_names(folder: str) -> Sequence[str] | None:
    """The names of the classes, from a file beside the annotations or one or two folders above them."""
    above = folder.rstrip("/").rpartition("/")[0]
    for path in (
        join(one, name) for one in (folder, above, above.rpartition("/")[0]) for name in _NAME_FILES
    ):
        if not is_file(path):
            continue
        if path.endswith((".txt", ".names")):
            return [
                line.strip()
                for line in read_bounded(path, _MOST_BYTES).decode().splitlines()
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


def _add_table(found: _Objects, file: InputFile, finder: Finder) -> None:
    rows = read_label_file(file.path)
    names = {name.lower(): name for name in reversed(rows.table.schema.names)}
    edges = next((some for some in _TABLE_EDGES if names.keys() >= {*some}), None)
    kind = next((one for one in _TABLE_CLASSES if one in names), None)
    if edges is None or kind is None:
        what = (
            "xmin, ymin, xmax and ymax"
            if edges is None
            else f"a class ({', '.join(_TABLE_CLASSES)})"
        )
        raise UsageError(
            f"{file.name}: no columns of {what}; it has {', '.join(rows.table.schema.names)}"
        )
    column = path_column(None, rows.table, finder, file.name)
    owners, given = finder.owners(rows.table.column(column)), rows.table.column(column).to_pylist()
    boxes = np.stack(
        [np.array(rows.table.column(names[edge]).to_pylist(), np.float64) for edge in edges], axis=1
    )
    for at, (owner, text) in enumerate(
        zip(owners.tolist(), rows.table.column(names[kind]).to_pylist(), strict=True)
    ):
        if owner < 0:
            found.lack(file.name, rows.places[at], str(given[at]))
        elif text is not None:
            found.add(owner, boxes[at].tolist(), str(text))


def fit_boxes(
    columns: Mapping[str, pa.Array],
    headers: Sequence[ImageHeader],
    absolute: bool,
    placements: Sequence[Placement],
) -> tuple[dict[str, pa.Array], Counter[str]]:
    """Returns (the lists of objects with edges as shares of the images' sizes, clipped at their borders; counts).

    A box without an area, as one beyond the border has then, is left out, and counted. placements: of images that are
    written anew, which their objects follow.
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
    crossing = ((edges < -_ROUNDED) | (edges > 1 + _ROUNDED)).any(1)
    counts = Counter({"boxes across the image's border, clipped": int(crossing.sum())})
    edges = np.clip(edges, 0, 1)
    there = (edges[:, 2] > edges[:, 0]) & (edges[:, 3] > edges[:, 1])
    counts["boxes without an area, left out"] = int((~there).sum())
    flat = {name: column.flatten() for name, column in lists.items()}
    if placements:
        kept = np.array([placement.kept for placement in placements])[rows]
        edges = upright_edges(
            edges, np.array([placement.orientation for placement in placements])[rows]
        )
        is_left = np.ones(len(rows), np.bool_)
        for axis in (0, 1):
            if (kept[:, [axis, axis + 2]] != (0, 1)).any():
                spans = clip_span(
                    edges[:, axis], edges[:, axis + 2], kept[:, axis], kept[:, axis + 2]
                )
                edges[:, axis], edges[:, axis + 2], inside = spans
                is_left &= inside
        counts["boxes beyond the part that is kept, left out"] = int((there & ~is_left).sum())
        there &= is_left
        flat |= _moved_shapes(flat, rows, sizes, placements, counts)
    offsets = pa.array(
        np.concatenate([[0], np.cumsum(np.bincount(rows[there], minlength=len(headers)))])
    )
    values = {name: column.filter(pa.array(there)) for name, column in flat.items()}
    values |= {
        name: pa.array(edges[there, at].astype(np.float32)) for at, name in enumerate(_EDGES)
    }
    made = {name: pa.LargeListArray.from_arrays(offsets, column) for name, column in values.items()}
    return made, +counts


def _moved_shapes(
    flat: Mapping[str, pa.Array],
    rows: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.float64],
    placements: Sequence[Placement],
    counts: Counter[str],
) -> dict[str, pa.Array]:
    """Returns COCO's areas and polygons in pixels of the images that are written.

    Args:
        flat: Features of objects.
        rows: [objects] their images.
        sizes: [images, 2] widths and heights of the files.
        placements: Of the images.
        counts: Where run lengths are counted, which can't be moved.
    """
    found: dict[str, pa.Array] = {}
    shown = np.array([placement.size[::-1] for placement in placements], np.float64)
    kept = np.array([placement.kept for placement in placements])
    if (name := f"{_OBJECT}area") in flat:
        scale = (shown / (kept[:, 2:] * sizes)).prod(1) if len(sizes) else np.ones(0)
        found[name] = pa.array((flat[name].to_numpy() * scale[rows]).astype(np.float32))
    if (name := f"{_OBJECT}segmentation") in flat:
        texts = flat[name].to_pylist()
        for at, (text, row) in enumerate(zip(texts, rows.tolist(), strict=True)):
            if placements[row].is_as_stored:
                continue
            try:
                polygons = [
                    np.array(one, np.float64).reshape(-1, 2) / sizes[row]
                    for one in json.loads(text)
                ]
                turned = np.full(sum(map(len, polygons)), placements[row].orientation)
                points = np.concatenate([np.zeros((0, 2)), *polygons])
                points = upright_edges(np.tile(points, 2), turned)[:, :2]
                points = ((points - kept[row, :2]) / kept[row, 2:] * shown[row]).round(2)
                ends = np.cumsum([one.size // 2 for one in polygons])[:-1]
                shape = (
                    [one.reshape(-1).tolist() for one in np.split(points, ends)] if polygons else []
                )
                texts[at] = json.dumps(shape, separators=(",", ":"))
            except (TypeError, ValueError, OverflowError):
                texts[at] = "[]"
                counts["segmentations that are no polygons and can't be resized, left out"] += 1
        found[name] = pa.array(texts, pa.large_string())
    return found


def object_features(own: Sequence[Feature], given: Sequence[str]) -> tuple[Feature, ...]:
    """Returns the image's own features under the names of the Object Detection API, but for those given otherwise; that
    of a mask keeps its name.
    """
    dtypes = {feature.name: feature.dtype for feature in own}
    first, *others = (
        Feature(name, dtypes[one], required=True) for name, one in OBJECT_NAMES.items()
    )
    more = [feature for feature in own if feature.name not in OBJECT_NAMES.values()]
    return (first, *more, *(feature for feature in others if feature.name not in given))
