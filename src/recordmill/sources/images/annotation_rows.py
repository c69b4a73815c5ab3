"""Images and boxes of one annotation file, before they are matched and converted.

The parser of a format only fills `AnnotationRows`. `box_columns` then matches the images, decides
the unit and builds columns. `boxes` compares sizes, converts and clips when an image is read.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from recordmill.base.documents import describe_value
from recordmill.base.errors import DataError, Reject
from recordmill.base.messages import Message, shorten
from recordmill.base.option_names import option
from recordmill.storage.file_table import InputFile
from recordmill.storage.files import read_range

PIXELS, SHARES, AUTO_UNIT = "pixels", "shares", "auto"
BOX_REASON = "box"  # the reason of rejected boxes
MAX_ANNOTATION_BYTES = 16 << 20  # 16 MiB: largest XML or text file with the objects of one image
MAX_CLASSES = 1 << 16  # 65,536: class numbers in files must be smaller
_BYTES_PER_BYTE = 8  # Python objects take up to 8 bytes of memory per byte of JSON
_MAX_EDGE = 1e9  # in pixels: float32 has enough digits for images of this size
_MAX_FLOAT32 = 3.4e38
_MAX_MESSAGE_CHARS = 280

KeyPoint = tuple[float, float, int]  # x, y, visibility


class BadRow(Exception):
    """A box or image that can't be used.

    Attributes:
        text: The reason, as a message.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


@dataclass(frozen=True, slots=True)
class ImageRow:
    """An image, as an annotation file names it.

    Attributes:
        name: Path, URL or id.
        place: Where in the annotation file the image is, for messages.
        size: (width, height) in pixels that the file states, or None.
        source_id: Id of the image in the annotation file, or None.
        is_stem: Whether `name` is the name of the annotation file without its extension, because
            the format does not name the image.
        other_name: A second name, to be tried if no image has the first one. "" if there is none.
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
        class_names: Class names by class number, from a file next to YOLO annotations. None if
            there is no such file.
        names_file: Name of that file.
        keypoint_shape: (key points per box, values per key point) of YOLO files. None if boxes have
            no key points.
        dialect: The user's `CsvDialect.dialect` for tables.
    """

    unit: str
    memory_bytes: int
    class_names: Sequence[str] | None = None
    names_file: str = ""
    keypoint_shape: tuple[int, int] | None = None
    dialect: Mapping[str, Any] = field(default_factory=dict)


def read_json_text(file: InputFile, settings: ParseSettings) -> bytes:
    """Returns the content of a JSON file without its byte order mark.

    Raises:
        DataError: Parsing the file may need more than `settings.memory_bytes`.
    """
    size = file.stat.size_bytes
    if size * _BYTES_PER_BYTE > settings.memory_bytes:
        raise DataError(
            "parsing its {size} bytes may need more memory than {memory} allows; use {enough}",
            size=f"{size:,}",
            memory=option("memory", f"{settings.memory_bytes >> 20}MiB"),
            enough=option("memory", f"{(size * _BYTES_PER_BYTE >> 20) + 1}MiB"),
            source=file.name,
        )
    return read_range(file.path, max_bytes=size).tobytes().removeprefix(b"\xef\xbb\xbf")


class AnnotationRows:
    """Images and boxes of one annotation file.

    Edges and key points are in pixels, or in shares of the width and height of the image.

    Args:
        source: Name of the file, for messages.

    Attributes:
        images: The images.
        owners: [boxes] The index in `images` of the image of each box.
        edges: [boxes * 4] Left, top, right and bottom.
        texts: [boxes] Class names.
        places: [boxes] Where in the file the box is, for messages.
        keypoints: [boxes] Key points.
        extras: [boxes] Further values, by feature name.
        unit: PIXELS or SHARES, if the format prescribes it. None if the format permits both.
        classes: Class names by class number. None if the file only has the names of its boxes.
        has_numbers: Whether the class names are numbers, which are used as class numbers.
        format_name: Name of the format, if it is not the usual one of such files.
        rejects: Boxes and images that can't be used.
        counts: Number of boxes for each message to the user.
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
        self.format_name = ""
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
            place: Where in the file the box is.
            keypoints: The key points of the box. Empty if it has none.
            extras: Further values by feature name. All boxes of a file have the same names.

        Raises:
            BadRow: The edges are not finite numbers, or the box has no area.
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
        """Adds a reject for a box or an image.

        Args:
            place: Where in the file the box or image is.
            message: The fault of the box or image.
            image: Name of the image, for the message.
            reason: Short name of the reason. Rejects are counted by reason.
        """
        where = f" (image {image[:100]!a})" if image else ""
        message = Message(
            "{message}{where}",
            message=shorten(message, _MAX_MESSAGE_CHARS - len(where)),
            where=where,
        )
        self.rejects.append(Reject(self.source, place, reason, message))


def to_number(value: Any, name: str) -> float:
    """Converts a value from JSON, CSV or text to a float.

    Args:
        value: The value.
        name: Name of the value, for messages. The functions below have the same argument.

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
    """Converts a value to a float, which must be in the range of float32.

    Raises:
        BadRow: The value is not a finite number, or is out of range.
    """
    if abs(number := to_number(value, name)) > _MAX_FLOAT32:
        raise BadRow(f"{name} is {number:g}, more than float32 holds")
    return number


def to_whole(value: Any, name: str, maximum: int = 2**63 - 1) -> int:
    """Converts a value to an int from 0 to `maximum`. Booleans become 0 and 1.

    Raises:
        BadRow: The value is not a whole number in this range.
    """
    if isinstance(value, bool):
        return int(value)
    # an int is compared as it is, because a float has fewer digits
    number = value if isinstance(value, int) else to_number(value, name)
    if not 0 <= number <= maximum or number != int(number):
        raise BadRow(f"{name} is {_format_value(value)}, not a whole number from 0 to {maximum}")
    return int(number)


def to_class(value: Any) -> str:
    """Converts a value to a class name.

    Raises:
        BadRow: The value is missing or blank, or is not a text or number.
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        raise BadRow("has no class")
    return to_text(value, "the class")


def to_text(value: Any, name: str) -> str:
    """Converts a text or number to a text.

    Raises:
        BadRow: The value has another type, or can't be written as UTF-8.
    """
    if not isinstance(value, str | int | float) or (
        isinstance(value, int) and value.bit_length() > 200
    ):
        raise BadRow(f"{name} is {_format_value(value)}, not a text")
    text = str(value)
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise BadRow(f"{name} is {text[:60]!a}, which is half a UTF-16 character")
    return text


def to_size(width: Any, height: Any) -> tuple[float, float] | None:
    """Converts a stated size of an image to (width, height) in pixels.

    Returns:
        The size. None if a value is missing or empty, less than 1, or too large to be true.

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
        else describe_value(value)
    )


def _format_numbers(values: Sequence[float]) -> str:
    return "[" + ", ".join(f"{value:g}" for value in values) + "]"
