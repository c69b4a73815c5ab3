"""GIF 87a and 89a: the blocks from the logical screen to the trailer;
LZW data is passed over by its sub-blocks, not decoded.

What stands behind the trailer is not looked at.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from recordmill.base.kernels import inlined, kernel
from recordmill.records.images.header import CORRUPT, PALETTE, TRUNCATED, BadImage, ImageHeader

_OK, _CUT, _UNKNOWN = range(3)


@inlined
def _load16(data: npt.NDArray[np.uint8], at: int) -> int:
    """A number of two bytes, little-endian."""
    return int(data[at]) | int(data[at + 1]) << 8


@kernel
def _walk(data: npt.NDArray[np.uint8], about: npt.NDArray[np.int64]) -> int:
    """Fills about with [frames, place, right, bottom], the latter two of all frames; gives one of the codes above."""
    size = len(data)
    at = 13 + (3 << ((data[10] & 7) + 1) if data[10] & 0x80 else 0)
    while True:
        about[1] = at
        if at >= size:
            return _CUT
        block = data[at]
        if block == 0x3B:
            return _OK
        if block == 0x21:
            at += 2  # the extension's label
        elif block == 0x2C:
            if at + 10 > size:
                return _CUT
            about[0] += 1
            about[2] = max(about[2], _load16(data, at + 1) + _load16(data, at + 5))
            about[3] = max(about[3], _load16(data, at + 3) + _load16(data, at + 7))
            local = data[at + 9]
            at += 11 + (3 << ((local & 7) + 1) if local & 0x80 else 0)  # with the LZW code size
        elif block == 0:  # a stray block terminator: decoders pass over it
            at += 1
            continue
        else:
            return _UNKNOWN
        while True:
            if at >= size:
                return _CUT
            length = data[at]
            at += 1 + int(length)
            if length == 0:
                break


def read_gif(data: npt.NDArray[np.uint8]) -> ImageHeader:
    """The header of a GIF file that starts with GIF87a or GIF89a.

    Raises:
        BadImage: `truncated` before the trailer, `corrupt` for an unknown block, no frame or a screen without size.
    """
    if len(data) < 13:
        raise BadImage(TRUNCATED, f"{len(data)} bytes can't hold the logical screen")
    width, height = _load16(data, 6), _load16(data, 8)
    about = np.zeros(4, np.int64)
    code = _walk(data, about)
    frames, place, right, bottom = about.tolist()
    if code == _CUT:
        raise BadImage(
            TRUNCATED, f"the file ends before the trailer, in the block at byte {place}, after {frames} frame(s)"
        )
    if code == _UNKNOWN:
        raise BadImage(CORRUPT, f"byte {place} begins no block (0x{int(data[place]):02x})")
    if width == 0 or height == 0 or frames == 0:
        raise BadImage(CORRUPT, f"{frames} frame(s) on a screen of {height} x {width}")
    # decoders have the screen grow to a frame that reaches beyond it
    most = max(width, right) * max(height, bottom)
    return ImageHeader("GIF", height, width, 3, 8, PALETTE, frames, frame_pixels=most)
