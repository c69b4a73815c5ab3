"""Parser of COCO's JSON. Sources: cocodataset.org/#format-data."""

from __future__ import annotations

import json
import math
from collections.abc import Container, Mapping, Sequence
from typing import Any

from recordmill.base.documents import describe_value
from recordmill.base.errors import DataError
from recordmill.base.messages import as_message
from recordmill.sources.images.annotation_rows import (
    PIXELS,
    AnnotationRows,
    BadRow,
    ImageRow,
    KeyPoint,
    ParseSettings,
    read_json_text,
    to_class,
    to_float32,
    to_number,
    to_size,
    to_text,
    to_whole,
)
from recordmill.sources.images.foreign_annotations import read_foreign_json
from recordmill.storage.file_table import InputFile
from recordmill.storage.json_fields import parse_json

_LISTS = ("images", "annotations", "categories")


def parse_coco(rows: AnnotationRows, file: InputFile, settings: ParseSettings) -> None:
    """Reads the boxes of a COCO document.

    Other JSON documents that `foreign_annotations` knows are read as well.

    Raises:
        DataError: The document has another form, or takes too much memory.
    """
    document = read_json(file, settings)
    if read_foreign_json(rows, document, file.name):
        return
    if not isinstance(document, Mapping) or not {"images", "annotations"} & document.keys():
        raise DataError(
            "is not a COCO annotation file: it has no images, annotations and categories",
            source=file.name,
        )
    for name in _LISTS:
        if not isinstance(document.get(name), list):
            problem = "lacks" if name not in document else "has no list of"
            raise DataError(f"not a COCO annotation file: {problem} {name!r}", source=file.name)
    rows.unit = PIXELS
    names = _read_categories(rows, document["categories"])
    rows.classes = list(dict.fromkeys(names.values()))
    images, dropped_images = _read_images(rows, document["images"])
    for position, entry in enumerate(document["annotations"]):
        place, image_name = _format_place("annotation", position, entry), ""
        try:
            if not isinstance(entry, Mapping):
                raise BadRow("is not a JSON object")
            image_id = _read_id(entry, "image_id")
            if image_id in dropped_images:
                raise BadRow(f"its image {describe_value(image_id)} can't be used")
            if image_id not in images:
                raise BadRow(f"there is no image with id {describe_value(image_id)}")
            image_name = rows.images[images[image_id]].name
            _add_annotation(rows, entry, images[image_id], names, place)
        except BadRow as error:
            rows.reject(place, as_message(error), image_name)


def read_json(file: InputFile, settings: ParseSettings) -> Any:
    """Returns the value of a JSON file.

    NaN and infinity become floats, and a byte order mark is ignored.

    Raises:
        DataError: The file is not JSON, or takes too much memory.
    """
    return parse_json(read_json_text(file, settings), file.name, allow_nan=True)


def _read_categories(rows: AnnotationRows, entries: Sequence[Any]) -> dict[Any, str]:
    """Returns the class names by category id, in the order of the ids.

    A category that can't be used becomes a reject.
    """
    names: dict[Any, str] = {}
    for position, entry in enumerate(entries):
        place = _format_place("category", position, entry)
        try:
            number = _read_own_id(entry, names, "category")
            names[number] = to_class(entry.get("name"))
        except BadRow as error:
            rows.reject(place, str(error).replace("has no class", "has no name"))
    return dict(sorted(names.items(), key=lambda item: (isinstance(item[0], str), item[0])))


def _read_images(rows: AnnotationRows, entries: Sequence[Any]) -> tuple[dict[Any, int], set[Any]]:
    """Adds the images to `rows`. An image that can't be used becomes a reject.

    Returns:
        (index in `rows.images` by image id, ids of images that can't be used).
    """
    images: dict[Any, int] = {}
    dropped: set[Any] = set()
    for position, entry in enumerate(entries):
        place = _format_place("image", position, entry)
        try:
            number = _read_own_id(entry, images, "image")
            dropped.add(number)
            if not isinstance(name := entry.get("file_name"), str) or not name:
                raise BadRow("has no file_name")
            size = to_size(entry.get("width"), entry.get("height"))
            images[number] = rows.add_image(ImageRow(name, place, size, to_text(number, "the id")))
            dropped.discard(number)
        except BadRow as error:
            rows.reject(place, as_message(error), reason="no file")
    return images, dropped


def _add_annotation(
    rows: AnnotationRows, entry: Mapping[str, Any], image: int, names: Mapping[Any, str], place: str
) -> None:
    box = entry.get("bbox")
    if not isinstance(box, list) or len(box) != 4:
        actual = f"{len(box)} numbers" if isinstance(box, list) else describe_value(box)
        raise BadRow(f"bbox is {actual}, not four numbers")
    x, y, width, height = (to_number(value, "bbox") for value in box)
    category = _read_id(entry, "category_id")
    if category not in names:
        raise BadRow(f"there is no category with id {describe_value(category)}")
    if min(width, height) < 0:
        raise BadRow(f"bbox has a negative size: {width:g} x {height:g}")
    # null is how some tools write that a value is missing
    crowd = to_whole(entry.get("iscrowd") or 0, "iscrowd")
    area = entry.get("area")
    shape = entry.get("segmentation")
    rows.add_box(
        image,
        (x, y, x + width, y + height),
        names[category],
        place,
        keypoints=_read_keypoints(entry.get("keypoints")),
        is_crowd=crowd,
        area=to_float32(width * height if area is None else area, "area"),
        segmentation=_format_shape([] if shape is None else shape),
    )


def _format_shape(shape: Any) -> str:
    try:
        return to_text(
            json.dumps(shape, separators=(",", ":"), allow_nan=False), "the segmentation"
        )
    except (ValueError, RecursionError):  # NaN, or a number of thousands of digits
        raise BadRow("segmentation has a value that JSON has not") from None


def _read_keypoints(values: Any) -> tuple[KeyPoint, ...]:
    if not values:
        return ()
    if not isinstance(values, list) or len(values) % 3:
        raise BadRow("keypoints are not x, y and visibility of each")
    numbers = [to_float32(value, "keypoints") for value in values]
    visibilities = [to_whole(value, "visibility", 2) for value in values[2::3]]
    return tuple(zip(numbers[::3], numbers[1::3], visibilities, strict=True))


def _read_own_id(entry: Any, known_ids: Container[Any], noun: str) -> Any:
    """Returns the id of a category or an image.

    Args:
        entry: The entry of the document.
        known_ids: The ids of earlier entries.
        noun: "category" or "image", for messages.

    Raises:
        BadRow: The entry is not an object, or its id is missing or in `known_ids`.
    """
    if not isinstance(entry, Mapping):
        raise BadRow("is not a JSON object")
    number = _read_id(entry, "id")
    if number in known_ids:
        raise BadRow(f"another {noun} has the same id")
    return number


def _read_id(entry: Mapping[str, Any], name: str) -> Any:
    value = entry.get(name)
    if (
        isinstance(value, str | int | float)
        and not isinstance(value, bool)
        and not (isinstance(value, float) and not math.isfinite(value))
    ):
        return value
    raise BadRow(f"{name} is {describe_value(value)}, not a number or text")


def _format_place(kind: str, position: int, entry: Any) -> str:
    number = entry.get("id") if isinstance(entry, Mapping) else None
    return f"{kind} {position if number is None else describe_value(number)}"
