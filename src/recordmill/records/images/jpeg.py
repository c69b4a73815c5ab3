"""JPEG (ITU-T T.81): the segments from SOI to EOI, and the frame header among them;
entropy-coded data is passed over, not decoded.

What stands behind the first EOI (more pictures of an MPO file, padding) is not looked at, so a cut there is no damage
to the image.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from recordmill.base.byte_masks import LANES, equal_mask, first_bit
from recordmill.base.kernels import inlined, kernel
from recordmill.records.images.header import CMYK, CORRUPT, GRAY, OTHER_FORMAT, RGB, TRUNCATED, BadImage, ImageHeader

_OK, _CUT, _NO_EOI, _LENGTH, _TWICE, _NO_FRAME, _NO_SCAN, _FRAME, _OTHER = range(9)
_MESSAGES = {
    _CUT: (TRUNCATED, "the segment at byte {} goes beyond the end of the file"),
    _NO_EOI: (TRUNCATED, "no end-of-image marker up to the end of the file"),
    _LENGTH: (CORRUPT, "a segment's length is below 2 at byte {}"),
    _TWICE: (CORRUPT, "a second start of image or frame header at byte {}"),
    _NO_FRAME: (CORRUPT, "a scan or the end of the image at byte {} comes before any frame header"),
    _NO_SCAN: (CORRUPT, "the image ends at byte {} without any scan"),
    _FRAME: (CORRUPT, "the frame header at byte {} has no size, no components or the wrong length"),
}
# frame headers that TensorFlow's decoder takes: baseline, extended, progressive, and the latter two arithmetic
_TAKEN_BY_TENSORFLOW = (0xC0, 0xC1, 0xC2, 0xC9, 0xCA)
_LOSSLESS = (0xC3, 0xC7, 0xCB, 0xCF)
_COLOURS = {1: GRAY, 3: RGB, 4: CMYK}


@inlined
def _next_marker(data: npt.NDArray[np.uint8], at: int) -> int:
    """Where the next marker stands, or len(data) - 1:
    FF and neither 00 (a stuffed FF of the entropy-coded data) nor FF (fill).
    """
    size = len(data)
    while at + LANES < size:
        begins = equal_mask(data, at, 0xFF)
        if begins != 0:
            begins &= ~(equal_mask(data, at + 1, 0) | equal_mask(data, at + 1, 0xFF))
            if begins != 0:
                return int(at + first_bit(begins))
        at += LANES
    while at + 1 < size and not (data[at] == 0xFF and data[at + 1] != 0 and data[at + 1] != 0xFF):
        at += 1
    return at


@kernel
def _walk(data: npt.NDArray[np.uint8], about: npt.NDArray[np.int64]) -> int:
    """Fills about with [height, width, components, bits, place, frame marker, scans]; gives one of the codes above."""
    size, at, frames, scans = len(data), 2, 0, 0
    while True:
        at = _next_marker(data, at)  # stray bytes between segments are skipped as libjpeg does
        about[4] = at
        if at + 1 >= size:
            return _NO_EOI
        marker = data[at + 1]
        if 0xD0 <= marker <= 0xD7 or marker == 0x01:  # RSTn, TEM: markers without a segment
            at += 2
            continue
        if marker == 0xD9:
            return _NO_FRAME if frames == 0 else _NO_SCAN if scans == 0 else _OK
        if marker == 0xD8:
            return _TWICE
        if at + 4 > size:
            return _CUT
        length = (np.int64(data[at + 2]) << 8) | data[at + 3]
        if length < 2:
            return _LENGTH
        if at + 2 + length > size:
            return _CUT
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            if frames:
                return _TWICE
            frames = 1
            if length < 8:
                return _FRAME
            about[0] = (np.int64(data[at + 5]) << 8) | data[at + 6]
            about[1] = (np.int64(data[at + 7]) << 8) | data[at + 8]
            about[2], about[3], about[5] = data[at + 9], data[at + 4], marker
            if about[0] == 0 or about[1] == 0 or about[2] == 0 or length != 8 + 3 * about[2]:
                return _FRAME
        elif marker == 0xDA:
            if frames == 0:
                return _NO_FRAME
            scans += 1
            about[6] = scans
        at += 2 + length


@kernel
def _walk_each(
    data: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64], about: npt.NDArray[np.int64], codes: npt.NDArray[np.int64]
) -> None:
    """`_walk` of each of the images that stand one behind the other; `_OTHER` for what does not begin as a JPEG."""
    start = 0
    for i in range(len(ends)):
        one = data[start : ends[i]]
        codes[i] = _OTHER
        if len(one) >= 3 and one[0] == 0xFF and one[1] == 0xD8 and one[2] == 0xFF:
            codes[i] = _walk(one, about[i])
        start = ends[i]


def read_jpegs(data: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64]) -> list[ImageHeader | BadImage | None]:
    """`read_jpeg` of each of the images that stand one behind the other and end there, with what it would raise as a
    value; None for what does not begin with FF D8 FF.
    """
    about, codes = np.zeros((len(ends), 7), np.int64), np.empty(len(ends), np.int64)
    _walk_each(data, ends, about, codes)
    return [
        None if code == _OTHER else _header(values) if code == _OK else _bad(code, values[4])
        for code, values in zip(codes.tolist(), about.tolist(), strict=True)
    ]


def read_jpeg(data: npt.NDArray[np.uint8]) -> ImageHeader:
    """The header of a JPEG file whose first bytes are FF D8 FF.

    Raises:
        BadImage: `truncated` without an EOI or inside a segment, `corrupt` where the segments contradict the standard.
    """
    about = np.zeros(7, np.int64)
    code = _walk(data, about)
    if code != _OK:
        raise _bad(code, int(about[4]))
    return _header(about.tolist())


def _bad(code: int, place: int) -> BadImage:
    reason, message = _MESSAGES[code]
    return BadImage(reason, message.format(place))


def _header(about: list[int]) -> ImageHeader:
    height, width, components, bits, _, marker, scans = about
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
