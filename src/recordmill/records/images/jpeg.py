"""JPEG (ITU-T T.81): the segments from SOI to EOI, and the frame header among them; entropy-coded data is passed over,
not decoded.

What stands after the first EOI (more pictures of an MPO file, padding) is not looked at, so a cut there is no damage
to the image.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from recordmill.base import native
from recordmill.records.images.header import CMYK, CORRUPT, GRAY, OTHER_FORMAT, RGB, TRUNCATED, BadImage, ImageHeader

_MESSAGES = {
    native.JPEG_CUT: (TRUNCATED, "the segment at byte {} goes beyond the end of the file"),
    native.JPEG_NO_END: (TRUNCATED, "no end-of-image marker up to the end of the file"),
    native.JPEG_LENGTH: (CORRUPT, "a segment's length is below 2 at byte {}"),
    native.JPEG_TWICE: (CORRUPT, "a second start of image or frame header at byte {}"),
    native.JPEG_NO_FRAME: (CORRUPT, "a scan or the end of the image at byte {} comes before any frame header"),
    native.JPEG_NO_SCAN: (CORRUPT, "the image ends at byte {} without any scan"),
    native.JPEG_FRAME: (CORRUPT, "the frame header at byte {} has no size, no components or the wrong length"),
}
# frame headers that TensorFlow's decoder takes: baseline, extended, progressive, and the latter two arithmetic
_TAKEN_BY_TENSORFLOW = (0xC0, 0xC1, 0xC2, 0xC9, 0xCA)
_LOSSLESS = (0xC3, 0xC7, 0xCB, 0xCF)
_COLOURS = {1: GRAY, 3: RGB, 4: CMYK}


def read_jpegs(data: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64]) -> list[ImageHeader | BadImage | None]:
    """Returns `read_jpeg` of each of the images that stand one after the other and end there, with what it would
    raise as a value; None for what does not begin with FF D8 FF.
    """
    facts = np.empty(len(ends), native.JpegFacts)
    native.walk_jpegs(np.ascontiguousarray(data), np.ascontiguousarray(ends, np.int64), facts)
    return [_outcome(*values) for values in facts.tolist()]


def read_jpeg(data: npt.NDArray[np.uint8]) -> ImageHeader:
    """The header of a JPEG file whose first bytes are FF D8 FF.

    Raises:
        BadImage: `truncated` without an EOI or inside a segment, `corrupt` where the segments contradict the standard.
    """
    (header,) = read_jpegs(data, np.array([len(data)]))
    if isinstance(header, BadImage):
        raise header
    assert header is not None
    return header


def _outcome(
    code: int, place: int, height: int, width: int, components: int, bits: int, marker: int, scans: int
) -> ImageHeader | BadImage | None:
    if code == native.JPEG_OTHER:
        return None
    if code != native.JPEG_GOOD:
        reason, message = _MESSAGES[code]
        return BadImage(reason, message.format(place))
    beyond = _beyond_tensorflow(marker, bits, components)
    colour = _COLOURS.get(components, OTHER_FORMAT)
    return ImageHeader("JPEG", height, width, components, bits, colour, beyond_tensorflow=beyond, scans=scans)


def _beyond_tensorflow(marker: int, bits: int, components: int) -> str:
    if components not in _COLOURS:
        return f"{components} components"
    if marker in _LOSSLESS:
        return "lossless"
    if marker not in _TAKEN_BY_TENSORFLOW:
        return "hierarchical"
    return "" if bits == 8 else f"{bits} bits"
