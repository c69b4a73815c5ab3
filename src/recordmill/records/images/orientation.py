"""How an image is to be turned to stand upright: the orientation (1 to 8) that its EXIF data, or a TIFF's own
directory, says; and pixels as a file stores them, since Pillow turns those of a TIFF when it loads them, unlike its
other plugins and unlike tf.io.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from PIL import Image


_TAG, _SHORT = 0x0112, 3
_EXIF = b"Exif\0\0"
_MOST_ENTRIES = 4096  # of a directory; a camera writes dozens
_APP1, _SCAN, _END = 0xE1, 0xDA, 0xD9


def orientation_of(data: npt.NDArray[np.uint8], name: str) -> int:
    """Of the image file in data, whose format has this name (see `records.images.check`); 1 where nothing says
    otherwise.
    """
    view = memoryview(data)
    try:
        return _in_directory(_exif(view, name))
    except (IndexError, ValueError):  # it ends where more should stand
        return 1


def _exif(view: memoryview, name: str) -> memoryview:
    """The TIFF structure that may say it, of no bytes where there is none."""
    if name == "TIFF":
        return view
    parts = {"JPEG": _of_jpeg, "PNG": _of_png, "WebP": _of_webp}.get(name)
    found = view[:0] if parts is None else next(parts(view), view[:0])
    return found[len(_EXIF) :] if bytes(found[: len(_EXIF)]) == _EXIF else found


def _of_jpeg(view: memoryview) -> Iterator[memoryview]:
    at = 2
    while view[at] == 0xFF:
        marker = view[at + 1]
        if marker in (_SCAN, _END):
            return
        if marker == 0xFF or marker == 0x01 or 0xD0 <= marker <= 0xD7:  # fill, and markers without a segment
            at += 1 if marker == 0xFF else 2
            continue
        length = int.from_bytes(view[at + 2 : at + 4], "big")
        if marker == _APP1 and bytes(view[at + 4 : at + 4 + len(_EXIF)]) == _EXIF:
            yield view[at + 4 : at + 2 + length]
        at += 2 + max(length, 2)


def _of_png(view: memoryview) -> Iterator[memoryview]:
    at = 8
    while at + 8 <= len(view):
        length = int.from_bytes(view[at : at + 4], "big")
        if bytes(view[at + 4 : at + 8]) == b"eXIf":
            yield view[at + 8 : at + 8 + length]
        at += 12 + length


def _of_webp(view: memoryview) -> Iterator[memoryview]:
    at = 12
    while at + 8 <= len(view):
        length = int.from_bytes(view[at + 4 : at + 8], "little")
        if bytes(view[at : at + 4]) == b"EXIF":
            yield view[at + 8 : at + 8 + length]
        at += 8 + length + length % 2


def _in_directory(tiff: memoryview) -> int:
    order = {b"II": "little", b"MM": "big"}.get(bytes(tiff[:2]))
    if order is None:
        return 1

    def number(at: int, size: int) -> int:
        part = tiff[at : at + size]
        if len(part) < size:
            raise ValueError(at)
        return int.from_bytes(part, "little" if order == "little" else "big")

    big = number(2, 2) == 43  # BigTIFF: places, counts and entries are wider
    at = number(8, 8) if big else number(4, 4)
    count, width = number(at, 8 if big else 2), 20 if big else 12
    at += 8 if big else 2
    for entry in range(at, at + width * min(count, _MOST_ENTRIES), width):
        if number(entry, 2) == _TAG and number(entry + 2, 2) == _SHORT:
            found = number(entry + (12 if big else 8), 2)
            return found if 1 <= found <= 8 else 1
    return 1


_ORIENTATION = 0x0112  # the tag, in TIFF as in EXIF


def load_stored(image: Image.Image) -> Image.Image:
    """The opened image, loaded, with [height, width] as stored whatever its orientation says.

    Raises:
        what Pillow's plugins raise for data that they can't decode.
    """
    from PIL.Image import Transpose

    undo = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_90,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_270,
    }
    if image.format != "TIFF":
        image.load()
        return image
    before = image.getexif().get(_ORIENTATION, 1)
    image.load()
    if before not in undo or _ORIENTATION in image.getexif():  # Pillow drops the tag when it has obeyed it
        return image
    return image.transpose(undo[before])


def stored_size(image: Image.Image) -> tuple[int, int]:
    """(height, width) as stored, of an image that is opened and not loaded."""
    sideways = image.format == "TIFF" and image.getexif().get(_ORIENTATION) in (5, 6, 7, 8)
    return (image.width, image.height) if sideways else (image.height, image.width)
