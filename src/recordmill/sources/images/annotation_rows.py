"""Rows of one annotation file: its images and boxes, as the file states them.

A parser fills `AnnotationRows`. It knows its format and nothing else. `box_columns` matches the
images, decides the unit and builds columns. `boxes` compares sizes, converts and clips.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from recordmill.base.errors import Reject
from recordmill.storage.json_fields import format_json_value

PIXELS, SHARES, AUTO_UNIT = "pixels", "shares", "auto"
BOX_REASON = "box"  # the reason of rejected boxes
MAX_ANNOTATION_BYTES = 16 << 20  # 16 MiB: of an XML or text file with the objects of one image
MAX_CLASSES = 1 << 16  # class numbers in files are smaller
BYTES_PER_BYTE = 8  # largest memory of Python objects per byte of JSON
_MAX_EDGE = 1e9  # in pixels. float32 has enough digits for images of this size
_MAX_FLOAT32 = 3.4e38
_MAX_MESSAGE_CHARS = 280

KeyPoint = tuple[float, float, int]  # x, y, visibility


class BadRow(Exception):
    """A box or image that can't be used. The message is the reason."""


@dataclass(frozen=True, slots=True)
class ImageRow:
    """An image, as an annotation file names it.

    Attributes:
        name: Path, URL or id.
        place: Position in the annotation file.
        size: Stated (width, height) in pixels, or None.
        source_id: Id of the image in the annotation file.
        is_stem: The name has no extension, because it is the name of the annotation file.
        other_name: A second name, for the case that the first one is unknown.
    """

    name: str
    place: str = ""
    size: tuple[float, float] | None = None
    source_id: str | None = None
    is_stem: bool = False
    other_name: str = ""


@dataclass(frozen=True)
class ParseSettings:
    """Settings of all parsers.

    Attributes:
        unit: PIXELS, SHARES or AUTO_UNIT, as the user chose.
        memory_bytes: Memory that a JSON document may use.
        class_names: Names of class numbers, from a file next to the annotations.
        names_file: That file.
        keypoint_shape: (key points per box, values per key point) of YOLO files.
    """

    unit: str
    memory_bytes: int
    class_names: Sequence[str] | None = None
    names_file: str = ""
    keypoint_shape: tuple[int, int] | None = None


class AnnotationRows:
    """Images and boxes of one annotation file.

    Args:
        source: Name of the file, for messages.

    Attributes:
        images: The images.
        owners: [boxes] Index of the image.
        edges: [boxes * 4] Left, top, right and bottom, in `unit`.
        texts: [boxes] Class names.
        places: [boxes] Position in the file.
        keypoints: [boxes] Key points, in `unit`.
        extras: [boxes] Further values, by feature name.
        unit: Unit that the format prescribes. None if the format permits both.
        classes: Classes by number, or None if only the names of the boxes are known.
        has_numbers: Class names are numbers, and are used as they are.
        rejects: Boxes and images that can't be used.
        counts: Counts for notes.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self.images: list[ImageRow] = []
        self.owners = array("q")
        self.edges = array("d")
        self.texts: list[str] = []
        self.places: list[str] = []
        self.keypoints: list[Sequence[KeyPoint]] = []
        self.extras: dict[str, list[Any]] = {}
        self.unit: str | None = None
        self.classes: Sequence[str] | None = None
        self.has_numbers = False
        self.rejects: list[Reject] = []
        self.counts: Counter[str] = Counter()

    def add_image(self, image: ImageRow) -> int:
        """Adds an image, and returns its index."""
        self.images.append(image)
        return len(self.images) - 1

    def add_box(
        self,
        image: int,
        edges: Sequence[float],
        text: str,
        place: str,
        keypoints: Sequence[KeyPoint] = (),
        **extras: Any,
    ) -> None:
        """Adds a box.

        Args:
            image: Index of its image.
            edges: Left, top, right and bottom.
            text: Class name.
            place: Position in the file.
            keypoints: Its key points, or nothing.
            extras: Further values. Each box of a file has the same names.

        Raises:
            BadRow: The edges are no box.
        """
        left, top, right, bottom = edges
        if not all(abs(edge) <= _MAX_EDGE for edge in edges):  # also false if an edge is NaN
            raise BadRow(f"a box has four finite numbers, not {_format_numbers(edges)}")
        for low, high, names in ((left, right, "x"), (top, bottom, "y")):
            if high < low:
                raise BadRow(f"{names}max {high:g} is less than {names}min {low:g}")
            if high == low:
                raise BadRow(f"has no area: {names}min and {names}max are {low:g}")
        self.owners.append(image)
        self.edges.extend(edges)
        self.texts.append(sys.intern(text))
        self.places.append(place)
        self.keypoints.append(keypoints)
        for name, value in extras.items():
            self.extras.setdefault(name, []).append(value)

    def reject(self, place: str, message: str, image: str = "", reason: str = BOX_REASON) -> None:
        """Adds a reject."""
        where = f" (image {image[:100]!a})" if image else ""
        message = message[: _MAX_MESSAGE_CHARS - len(where)] + where
        self.rejects.append(Reject(self.source, place, reason, message))


def to_number(value: Any, name: str) -> float:
    """Returns a number from JSON, CSV or text as a float.

    Raises:
        BadRow: The value is not a finite number.
    """
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            number = float(value)
        except (ValueError, OverflowError):
            number = math.nan
        if math.isfinite(number):
            return number
    raise BadRow(f"{name} is {_format_value(value)}, not a finite number")


def to_float32(value: Any, name: str) -> float:
    """Returns a number that float32 can hold. Raises BadRow for any other value."""
    if abs(number := to_number(value, name)) > _MAX_FLOAT32:
        raise BadRow(f"{name} is {number:g}, more than float32 holds")
    return number


def to_whole(value: Any, name: str, maximum: int = 2**63 - 1) -> int:
    """Returns a whole number from 0 to a maximum. Booleans are 0 and 1.

    Raises:
        BadRow: The value is another one.
    """
    if isinstance(value, bool):
        return int(value)
    # an int is compared as it is, because a float has fewer digits
    number = value if isinstance(value, int) else to_number(value, name)
    if not 0 <= number <= maximum or number != int(number):
        raise BadRow(f"{name} is {_format_value(value)}, not a whole number from 0 to {maximum}")
    return int(number)


def to_class(value: Any) -> str:
    """Returns a class name. Raises BadRow if there is none, or if it is not a text or number."""
    if value is None or (isinstance(value, str) and not value.strip()):
        raise BadRow("has no class")
    return to_text(value, "the class")


def to_text(value: Any, name: str) -> str:
    """Returns a text or number as a text. Raises BadRow if it can't be written as UTF-8."""
    if not isinstance(value, str | int | float) or (
        isinstance(value, int) and value.bit_length() > 200
    ):
        raise BadRow(f"{name} is {_format_value(value)}, not a text")
    text = str(value)
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise BadRow(f"{name} is {text[:60]!a}, which is half a character of UTF-16")
    return text


def to_size(width: Any, height: Any) -> tuple[float, float] | None:
    """Returns a stated size, or None if it is not stated: less than a pixel, or empty.

    Raises:
        BadRow: A value is not a number.
    """
    if width in (None, "") or height in (None, ""):
        return None
    size = to_number(width, "width"), to_number(height, "height")
    return size if min(size) >= 1 and max(size) <= _MAX_EDGE else None


def _format_value(value: Any) -> str:
    return (
        f"{value:g}"
        if isinstance(value, float)
        else str(value)
        if isinstance(value, int) and abs(value) < 1 << 63
        else format_json_value(value)
    )


def _format_numbers(values: Sequence[float]) -> str:
    return "[" + ", ".join(f"{value:g}" for value in values) + "]"
