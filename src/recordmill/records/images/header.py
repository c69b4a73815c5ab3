"""Headers of image files, and the errors for images that can't be used.

This module also maps extensions to formats. The parsers are in other modules.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from recordmill.base.errors import Fault

FORMATS_BY_EXTENSION: Mapping[str, str] = {
    **dict.fromkeys(("jpg", "jpeg", "jpe", "jfif", "jif", "mpo"), "JPEG"),
    **dict.fromkeys(("png", "apng"), "PNG"),
    **dict.fromkeys(("bmp", "dib"), "BMP"),
    **dict.fromkeys(("tif", "tiff"), "TIFF"),
    "gif": "GIF",
    "webp": "WebP",
}

# Pillow raises an error above this limit. It warns above half of it, which is a quarter of a GiB at
# 3 bytes per pixel.
MAX_PIXELS = 178_956_970

# values of `ImageHeader.colour`
GRAY, GRAY_ALPHA = "gray", "gray+alpha"
RGB, RGBA = "rgb", "rgba"
PALETTE = "palette"
CMYK = "cmyk"
OTHER_COLOURS = "other"

# values of `BadImage.reason`, which are also the reasons in rejects
UNKNOWN_IMAGE_FORMAT = "format"
TRUNCATED = "truncated"
CORRUPT = "corrupt"
CRC_MISMATCH = "crc"
TOO_LARGE = "size"
DECODE_FAILED = "decode"


class ImageHeader(NamedTuple):
    """Properties of the first image of a file.

    Attributes:
        format: `JPEG`, `PNG`, `GIF`, `BMP`, `WebP` or `TIFF`.
        height: The stored height in pixels. An EXIF rotation is not applied.
        width: The stored width in pixels.
        channels: The number of channels: 1 gray, 2 gray and alpha, 3 colour, 4 colour and alpha, or
            CMYK. An image with a palette has the number of channels of the palette's colours. A GIF
            has 3, because its transparency often only means "as in the previous frame".
        bits: The number of bits per channel.
        colour: One of GRAY, GRAY_ALPHA, RGB, RGBA, PALETTE, CMYK and OTHER_COLOURS.
        has_more_frames: Whether other images follow the first one.
        tensorflow_issue: The reason why `tf.io.decode_image` can't decode it, as far as the header
            shows. "" if it can.
        scans: The number of scans of a JPEG. Each scan passes over all pixels.
    """

    format: str
    height: int
    width: int
    channels: int
    bits: int
    colour: str
    has_more_frames: bool = False
    tensorflow_issue: str = ""
    scans: int = 1

    @property
    def pixels(self) -> int:
        """Height times width."""
        return self.height * self.width

    @property
    def kind(self) -> str:
        """The format, for notes. If TensorFlow can't decode the image, also the reason."""
        return (
            f"{self.format} that TensorFlow can't decode ({self.tensorflow_issue})"
            if self.tensorflow_issue
            else self.format
        )

    def traits(self) -> list[str]:
        """Returns a phrase for each property that differs from plain 8-bit gray or colour.

        >>> ImageHeader("PNG", 2, 2, 4, 16, RGBA).traits()
        ['alpha', '16-bit']
        """
        colour_traits = {
            CMYK: "CMYK",
            PALETTE: "palette",
            RGBA: "alpha",
            GRAY_ALPHA: "alpha",
            OTHER_COLOURS: "unusual colours",
        }
        words = [colour_traits[self.colour]] if self.colour in colour_traits else []
        if self.colour == PALETTE and self.channels == 4:
            words.append("alpha")
        if self.bits > 8:
            words.append(f"{self.bits}-bit")
        if self.has_more_frames:
            words.append("several frames")
        return words


class BadImage(Exception):
    """An image can't be used.

    Args:
        reason: One of UNKNOWN_IMAGE_FORMAT, TRUNCATED, CORRUPT, CRC_MISMATCH, TOO_LARGE and
            DECODE_FAILED. It is also the reason of the reject.
        message: The fault, and where in the file it is.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason, self.message = reason, message

    @property
    def fault(self) -> Fault:
        """The fault of the record that contains the image."""
        return Fault(self.reason, self.message)

    @property
    def text(self) -> str:
        """The message, for `render`."""
        return self.message
