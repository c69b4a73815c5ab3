"""Headers of image files: an `ImageHeader`, or a `BadImage` with the reason why the file can't be used; and the
extensions of image files with the format that each promises. It parses nothing itself and loads nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

FORMATS_BY_EXTENSION: Mapping[str, str] = {
    **dict.fromkeys(("jpg", "jpeg", "jpe", "jfif", "jif", "mpo"), "JPEG"),
    **dict.fromkeys(("png", "apng"), "PNG"),
    **dict.fromkeys(("bmp", "dib"), "BMP"),
    **dict.fromkeys(("tif", "tiff"), "TIFF"),
    "gif": "GIF",
    "webp": "WebP",
}

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
        height: In pixels, as stored (an EXIF rotation is not applied).
        width: Likewise.
        channels: Of the colours as stored, with a palette taken as what it stands for: 1 gray, 2 gray and alpha, 3
            colour, 4 colour and alpha, or CMYK. A GIF has 3: there transparency says as often "as in the frame before"
            as "see-through".
        bits: Per channel.
        colour: One of the constants above.
        has_more_frames: Other images follow the first one.
        tensorflow_issue: Why `tf.io.decode_image` can't take it, as far as headers say; else empty.
        scans: Of a JPEG, each of which passes over all pixels.
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
        """The format, and what TensorFlow can't take of it, as a summary counts it."""
        return (
            f"{self.format} that TensorFlow can't decode ({self.tensorflow_issue})"
            if self.tensorflow_issue
            else self.format
        )

    def traits(self) -> list[str]:
        """Returns what is not plain 8-bit gray or colour, in words that a summary counts.

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
    """An image that can't be used: reason is one of the constants above, message says what is wrong where."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason, self.message = reason, message
