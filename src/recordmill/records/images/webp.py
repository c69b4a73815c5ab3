"""WebP: the RIFF container's chunks up to the length that it states; the frames' VP8 and VP8L headers are read, their
data is not decoded.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from recordmill.records.images.header import CORRUPT, RGB, RGBA, TRUNCATED, BadImage, ImageHeader

_CHUNK = struct.Struct("<4sI")
_ALPHA = 0x10  # flag of VP8X


def read_webp(data: npt.NDArray[np.uint8]) -> ImageHeader:
    """The header of a file that starts with RIFF....WEBP.

    Raises:
        BadImage: `truncated` where the file is shorter than RIFF says, `corrupt` where the chunks contradict each
            other.
    """
    view = data.data
    end = 8 + struct.unpack_from("<I", view, 4)[0]
    if end > len(view):
        raise BadImage(TRUNCATED, f"RIFF announces {end} bytes, the file has {len(view)}")
    first, frames, canvas = None, 0, None
    for kind, start, stop in _chunks(view, 12, end):
        if kind == b"VP8X" and stop - start >= 10:
            canvas = (_u24(view, start + 7) + 1, _u24(view, start + 4) + 1, bool(view[start] & _ALPHA))
        elif kind in (b"VP8 ", b"VP8L"):
            first = first or _read_frame(kind, view, start, stop)
            frames += 1
        elif kind == b"ANMF":
            inner = [
                _read_frame(k, view, a, b) for k, a, b in _chunks(view, start + 16, stop) if k in (b"VP8 ", b"VP8L")
            ]
            if not inner:
                raise BadImage(CORRUPT, f"the frame at byte {start} holds no image data")
            first = first or inner[0]
            frames += 1
    if first is None:
        raise BadImage(CORRUPT, "no image data in the container")
    height, width, alpha = canvas or first
    return ImageHeader("WebP", height, width, 4 if alpha else 3, 8, RGBA if alpha else RGB, frames)


def _chunks(view: memoryview, at: int, end: int) -> list[tuple[bytes, int, int]]:
    """(kind, start, stop) of each chunk's body in [at, end)."""
    found = []
    while at + 8 <= end:
        kind, length = _CHUNK.unpack_from(view, at)
        if at + 8 + length > end:
            raise BadImage(
                TRUNCATED, f"chunk {ascii(kind)[2:-1]} at byte {at} needs {length} bytes, {end - at - 8} are left"
            )
        found.append((kind, at + 8, at + 8 + length))
        at += 8 + length + (length & 1)
    return found


def _read_frame(kind: bytes, view: memoryview, start: int, stop: int) -> tuple[int, int, bool]:
    """(height, width, alpha) by the bitstream's own header."""
    if kind == b"VP8L":
        if stop - start < 5 or view[start] != 0x2F:
            raise BadImage(CORRUPT, f"no VP8L signature at byte {start}")
        (packed,) = struct.unpack_from("<I", view, start + 1)
        return (packed >> 14 & 0x3FFF) + 1, (packed & 0x3FFF) + 1, bool(packed >> 28 & 1)
    if stop - start < 10 or bytes(view[start + 3 : start + 6]) != b"\x9d\x01\x2a":
        raise BadImage(CORRUPT, f"no VP8 key frame at byte {start}")
    width, height = struct.unpack_from("<HH", view, start + 6)
    if not (width & 0x3FFF and height & 0x3FFF):
        raise BadImage(CORRUPT, "the VP8 frame has no size")
    return height & 0x3FFF, width & 0x3FFF, False


def _u24(view: memoryview, at: int) -> int:
    return int.from_bytes(view[at : at + 3], "little")
