"""BMP with any of its headers (OS/2 1 and 2, Windows 3 to 5): the size of the pixels against the file's; run-length
data is walked to its end.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from recordmill.base.kernels import kernel
from recordmill.records.images.header import CORRUPT, PALETTE, RGB, RGBA, TRUNCATED, BadImage, ImageHeader

_HEADERS = (12, 16, 40, 52, 56, 64, 108, 124)  # sizes of the second header
_RAW, _RLE8, _RLE4, _BITFIELDS, _JPEG, _PNG, _ALPHABITFIELDS = range(7)
_BITS = (1, 2, 4, 8, 16, 24, 32)


@kernel
def _rle_end(data: npt.NDArray[np.uint8], at: int, height: int) -> int:
    """Where run-length data that begins at `at` ends, behind its end-of-bitmap code; -1 where the file ends first.

    A bitmap whose every row is ended needs no end code: decoders stop there.
    """
    size, rows, four_bit = len(data), 0, height < 0
    height = abs(height)
    while at + 1 < size:
        count, value = data[at], data[at + 1]
        at += 2
        if count:
            continue
        if value == 1:
            return at
        if value == 0:
            rows += 1
            if rows >= height and at + 1 >= size:
                return at
        elif value == 2:
            at += 2
        else:
            used = (int(value) + 1) // 2 if four_bit else int(value)
            at += (used + 1) // 2 * 2  # padded to 16 bits
    return at if rows >= height and at <= size else -1


def read_bmp(data: npt.NDArray[np.uint8]) -> ImageHeader:
    """The header of a BMP file that starts with BM.

    Raises:
        BadImage: `truncated` where pixels are missing, `corrupt` for a header that no BMP has.
    """
    view = data.data
    if len(view) < 26:
        raise BadImage(TRUNCATED, f"{len(view)} bytes can't hold the headers")
    offset, header_bytes = struct.unpack_from("<II", view, 10)
    if header_bytes not in _HEADERS:
        raise BadImage(CORRUPT, f"no BMP has a header of {header_bytes} bytes")
    if len(view) < 14 + header_bytes:
        raise BadImage(TRUNCATED, f"{len(view)} bytes can't hold a header of {header_bytes} bytes")
    compression = _RAW
    if header_bytes == 12:
        width, height, _, bits = struct.unpack_from("<HHHH", view, 18)
    else:
        width, height, _, bits = struct.unpack_from("<iiHH", view, 18)
        if header_bytes >= 40:
            (compression,) = struct.unpack_from("<I", view, 30)
    if (
        width <= 0
        or height == 0
        or bits not in _BITS
        or compression not in (_RAW, _RLE8, _RLE4, _BITFIELDS, _ALPHABITFIELDS)
    ):
        raise BadImage(CORRUPT, f"{height} x {width}, {bits} bits, compression {compression}")
    _check_pixels(data, offset, width, height, bits, compression)
    alpha = bits in (16, 32) and _has_alpha(view, header_bytes, compression)
    colour, channels = (RGBA, 4) if alpha else (PALETTE, 3) if bits <= 8 else (RGB, 3)
    beyond = _beyond_tensorflow(view)
    return ImageHeader("BMP", abs(height), width, channels, bits if bits < 8 else 8, colour, beyond_tensorflow=beyond)


def _beyond_tensorflow(view: memoryview) -> str:
    """TensorFlow reads each BMP by the layout of Windows 3, as uncompressed pixels of 1, 3 or 4 whole bytes, with less
    than a word behind them.
    """
    if len(view) < 32:
        return "a header of OS/2"
    offset, _, width, height, _, bits = struct.unpack_from("<iiiiHH", view, 10)
    if bits // 8 not in (1, 3, 4):
        return "a header of OS/2" if view[14] == 12 else f"{bits} bits per pixel"
    behind = len(view) - offset - (bits // 8 * width + 3) // 4 * 4 * abs(height)
    return "" if 0 <= behind <= 3 else "compressed, or data behind the pixels"


def _check_pixels(
    data: npt.NDArray[np.uint8], offset: int, width: int, height: int, bits: int, compression: int
) -> None:
    if compression in (_RLE8, _RLE4):
        if offset >= len(data) or _rle_end(data, offset, -abs(height) if compression == _RLE4 else abs(height)) < 0:
            raise BadImage(TRUNCATED, f"the run-length data at byte {offset} has no end")
        return
    row_bytes = (width * bits + 31) // 32 * 4
    needed = offset + row_bytes * abs(height)
    if needed > len(data):
        raise BadImage(
            TRUNCATED, f"{abs(height)} x {width} pixels of {bits} bits need {needed} bytes, the file has {len(data)}"
        )


def _has_alpha(view: memoryview, header_bytes: int, compression: int) -> bool:
    """The alpha mask stands at byte 66 of headers of 56 bytes and more,
    and behind a header of 40 bytes for ALPHABITFIELDS.
    """
    if header_bytes < 56 and not (header_bytes == 40 and compression == _ALPHABITFIELDS):
        return False
    return (
        len(view) >= 70 and compression in (_BITFIELDS, _ALPHABITFIELDS) and struct.unpack_from("<I", view, 66)[0] != 0
    )
