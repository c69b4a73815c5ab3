"""PNG and APNG (W3C PNG, third edition): the chunks from IHDR to IEND with the CRC-32 of each; nothing is inflated.

Bytes after IEND are not looked at.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np
import numpy.typing as npt

from recordmill.base.magic import PNG_SIGNATURE
from recordmill.records.images.header import (
    CORRUPT,
    CRC,
    GRAY,
    GRAY_ALPHA,
    PALETTE,
    RGB,
    RGBA,
    TRUNCATED,
    BadImage,
    ImageHeader,
)

_COLOURS = {0: (GRAY, 1), 2: (RGB, 3), 3: (PALETTE, 3), 4: (GRAY_ALPHA, 2), 6: (RGBA, 4)}
_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
_LENGTH = struct.Struct(">I")
_CHUNK = struct.Struct(">I4s")
_IHDR = struct.Struct(">IIBBBBB")


def read_png(data: npt.NDArray[np.uint8]) -> ImageHeader:
    """The header of a PNG file that starts with the signature.

    Raises:
        BadImage: `truncated` before the end of IEND, `crc` for a chunk that was changed, `corrupt` for what the
            standard forbids.
    """
    view = data.data
    size, at = len(view), len(PNG_SIGNATURE)
    header, palette, alpha, pixels, animated, frames = None, False, False, False, False, 0
    while True:
        if at + 12 > size:
            raise BadImage(TRUNCATED, f"the file ends inside a chunk that begins at byte {at}, before IEND")
        length, kind = _CHUNK.unpack_from(view, at)
        end = at + 12 + length
        if end > size:
            raise BadImage(
                TRUNCATED, f"chunk {_name(kind)} at byte {at} needs {length} bytes, {max(size - at - 12, 0)} are left"
            )
        if zlib.crc32(view[at + 4 : end - 4]) != _LENGTH.unpack_from(view, end - 4)[0]:
            raise BadImage(CRC, f"the CRC of chunk {_name(kind)} at byte {at} is wrong")
        if header is None:
            header = _read_ihdr(kind, view[at + 8 : end - 4])
        elif kind == b"IDAT":
            pixels = True
        elif kind == b"PLTE":
            palette = True
        elif kind == b"tRNS":
            alpha = True
        elif kind == b"acTL":
            animated = True
        elif kind == b"fcTL":
            frames += 1
        elif kind == b"IEND":
            break
        at = end
    return _finish(header, palette=palette, pixels=pixels, alpha=alpha, several_frames=animated and frames > 1)


def _read_ihdr(kind: bytes, body: memoryview) -> ImageHeader:
    if kind != b"IHDR" or len(body) != _IHDR.size:
        raise BadImage(CORRUPT, f"the first chunk is {_name(kind)} of {len(body)} bytes instead of IHDR of 13")
    width, height, bits, colour, compression, filtering, interlace = _IHDR.unpack(body)
    if not 0 < width < 1 << 31 or not 0 < height < 1 << 31:
        raise BadImage(CORRUPT, f"size {height} x {width}")
    if bits not in _DEPTHS.get(colour, ()) or compression or filtering or interlace > 1:
        raise BadImage(
            CORRUPT,
            f"IHDR says bit depth {bits}, colour type {colour}, compression {compression}, filter "
            f"{filtering}, interlace {interlace}",
        )
    name, channels = _COLOURS[colour]
    return ImageHeader("PNG", height, width, channels, bits, name)


def _finish(header: ImageHeader, *, palette: bool, pixels: bool, alpha: bool, several_frames: bool) -> ImageHeader:
    if not pixels:
        raise BadImage(CORRUPT, "no IDAT chunk, so no pixels")
    if header.colour == PALETTE and not palette:
        raise BadImage(CORRUPT, "palette colours without a PLTE chunk")
    channels = 4 if alpha and header.colour == PALETTE else header.channels
    return header._replace(several_frames=several_frames, channels=channels)


def _name(kind: bytes) -> str:
    return ascii(kind)[2:-1]
