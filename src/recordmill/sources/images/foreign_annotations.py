"""Recognition of annotation formats other than COCO, VOC, YOLO and tables.

LabelMe is read, and so are the shapes of CVAT's XML. For any other known format, an error names it.
The error also suggests a supported format that the same tool can export.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from recordmill.base.errors import DataError
from recordmill.base.messages import as_message
from recordmill.sources.images.annotation_rows import (
    PIXELS,
    AnnotationRows,
    BadRow,
    ImageRow,
    to_class,
    to_number,
    to_size,
)

_LABELME_KEYS = {"shapes", "imagePath"}


def read_foreign_json(rows: AnnotationRows, document: Any, name: str) -> bool:
    """Reads the boxes of a LabelMe document, and returns whether the document is one.

    Args:
        rows: Receives the boxes.
        document: The value of the JSON file.
        name: Name of the file, for messages.

    Raises:
        DataError: The document has another known format that is not read, or is a damaged LabelMe
            document.
    """
    if isinstance(document, Mapping) and document.keys() >= _LABELME_KEYS:
        _read_labelme(rows, document, name)
        return True
    if (format_name := _name_json_format(document)) is not None:
        raise DataError(
            f"is {format_name}, which is not supported; export COCO or YOLO instead", source=name
        )
    return False


def _name_json_format(document: Any) -> str | None:
    if isinstance(document, Mapping):
        if "_via_img_metadata" in document or "_via_settings" in document:
            return "a project of the VGG Image Annotator (VIA)"
        first = next(iter(document.values()), None)
        if isinstance(first, Mapping) and {"filename", "regions"} <= first.keys():
            return "JSON of the VGG Image Annotator (VIA)"
        if {"annotations", "images"} <= document.keys() and "categories" not in document:
            entries = document["annotations"]
            if isinstance(entries, list) and entries and isinstance(entries[0], Mapping):
                return "COCO's captions" if "caption" in entries[0] else None
        return None
    if not isinstance(document, list) or not document or not isinstance(document[0], Mapping):
        return None
    first = document[0]
    if "image" in first and isinstance(first.get("annotations"), list):
        return "CreateML's JSON"
    if "data" in first and {"annotations", "completions", "predictions"} & first.keys():
        return "JSON of Label Studio"
    return None


def _read_labelme(rows: AnnotationRows, document: Mapping[str, Any], name: str) -> None:
    rows.unit, rows.format_name = PIXELS, "LabelMe"
    stem = name.rpartition("/")[2].rpartition(".")[0]
    image_path = document["imagePath"]
    try:
        size = to_size(document.get("imageWidth"), document.get("imageHeight"))
    except BadRow as error:
        raise DataError(f"states no size of the image: {error}", source=name) from None
    other_name = image_path if isinstance(image_path, str) else ""
    image = rows.add_image(ImageRow(stem, "", size, is_stem=True, other_name=other_name))
    shapes = document["shapes"]
    if not isinstance(shapes, list):
        raise DataError("has no list of shapes, as LabelMe writes it", source=name)
    for number, shape in enumerate(shapes, 1):
        place = f"shape {number}"
        try:
            if not isinstance(shape, Mapping) or not isinstance(shape.get("points"), list):
                raise BadRow("has no points")
            points = [_to_point(point) for point in shape["points"]]
            edges = shape_edges(shape.get("shape_type") or "polygon", points)
            rows.add_box(image, edges, to_class(shape.get("label")), place)
        except BadRow as error:
            rows.reject(place, as_message(error), other_name or name)


def shape_edges(
    kind: Any, points: Sequence[tuple[float, float]]
) -> tuple[float, float, float, float]:
    """Returns left, top, right and bottom of the box around a rectangle or polygon.

    Args:
        kind: Kind of the shape, as the file names it.
        points: (x, y) of its corners.

    Raises:
        BadRow: The shape has another kind, such as a point or a line, or too few points.
    """
    if kind not in ("rectangle", "polygon") or len(points) < (2 if kind == "rectangle" else 3):
        raise BadRow(f"{str(kind)[:40]!a} of {len(points)} points is not a box")
    horizontal, vertical = zip(*points, strict=True)
    return min(horizontal), min(vertical), max(horizontal), max(vertical)


def _to_point(point: Any) -> tuple[float, float]:
    if not isinstance(point, list) or len(point) != 2:
        raise BadRow("a point is not two numbers")
    return to_number(point[0], "x"), to_number(point[1], "y")
