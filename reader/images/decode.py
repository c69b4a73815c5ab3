"""One encoded image to uint8 pixels as stored, or turned upright: JPEGs by simplejpeg where it is installed (the same
pixels a third faster), everything else by Pillow. Both let other threads run.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from recordmill.base.room import room
from recordmill.images.check import check_structure
from recordmill.images.header import GRAY, RGB, ImageHeader
from recordmill.images.orientation import orientation_of
from recordmill.reader.images.options import Images
from recordmill.records.columns.decode_images import MAX_DECODED_PIXELS, Pixels, stored_pixels, work_bytes

_COLOURSPACES = {(RGB, 3): "RGB", (GRAY, 3): "RGB", (GRAY, 1): "GRAY", (RGB, 4): "RGBA", (GRAY, 4): "RGBA"}
SHRINKS = (8, 4, 2)  # by which a JPEG can be decoded smaller


class Encoded:
    """An encoded image [bytes] whose container is whole. height, width: once it is decoded, in full size.

    Raises:
        BadImage: it is none that is taken, or it is damaged.
    """

    def __init__(self, data: Pixels, wanted: Images) -> None:
        self._data, self._channels = data, wanted.channels
        self._header = check_structure(data, MAX_DECODED_PIXELS)
        self._turned = orientation_of(data, self._header.format) if wanted.orientation else 1
        height, width = self._header.height, self._header.width
        self.height, self.width = (width, height) if self._turned > 4 else (height, width)

    @property
    def work_bytes(self) -> int:
        """What decoding it takes at most."""
        return work_bytes(self._header)

    def shrink(self, height: int, width: int, wanted: Images) -> int:
        """The largest divisor by which a part [height, width] can be decoded smaller and is as large as wanted."""
        if not wanted.shrink or self._header.format != "JPEG":
            return 1
        fits = (by for by in SHRINKS if height // by >= wanted.height and width // by >= wanted.width)
        return next(fits, 1)

    def pixels(self, shrink: int = 1) -> Pixels:
        """[height, width, channels], or the shrink-th part of that (rounded up).

        Raises:
            BadImage: it can't be decoded.
        """
        found = _by_simplejpeg(self._data, self._header, self._channels, shrink)
        if found is None:
            found = stored_pixels(self._data, self._header, self._channels, shrink)
        return upright(found, self._turned)


def upright(pixels: Pixels, orientation: int) -> Pixels:
    """The pixels turned as EXIF's orientation says."""
    if orientation in (2, 3, 7, 8):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 6, 7):
        pixels = pixels[::-1]
    return pixels.swapaxes(0, 1) if orientation > 4 else pixels


def _by_simplejpeg(data: Pixels, header: ImageHeader, channels: int, shrink: int) -> Pixels | None:
    """None where it is not installed, does not take the image, or finds anything wrong: Pillow has the last word."""
    library, colours = _simplejpeg(), _COLOURSPACES.get((header.colour, channels))
    if library is None or colours is None or header.format != "JPEG" or header.beyond_tensorflow:
        return None
    height, width = -(-header.height // shrink), -(-header.width // shrink)
    least = {} if shrink == 1 else {"min_height": height, "min_width": width}
    try:
        found = library.decode_jpeg(
            data, colours, buffer=room(height * width * channels, np.uint8), strict=True, **least
        )
    except ValueError:
        return None
    return found if found.shape == (height, width, channels) else None


@functools.cache
def _simplejpeg() -> Any:
    try:
        import simplejpeg
    except ImportError:
        return None
    return simplejpeg
