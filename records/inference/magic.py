"""What a bytes value looks like by its first bytes: the image formats that data sets hold, and text."""

from __future__ import annotations

from recordmill.base.kernels import kernel
from recordmill.base.memory import address, load8, load32, load64
from recordmill.records.protobuf.wire import Bytes, Ints, is_utf8

MAGIC_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WebP", "TIFF")

_JPEG, _PNG = 0xFFD8FF, 0x0A1A0A0D474E5089  # the start-of-image marker and the next one's first byte; the signature
_GIF, _BMP, _RIFF, _WEBP, _TIFF_LITTLE, _TIFF_BIG = 0x38464947, 0x4D42, 0x46464952, 0x50424557, 0x002A4949, 0x2A004D4D
_SPACES = 0x2020202020202020
_HIGH_BITS = -0x7F7F7F7F7F7F7F80


@kernel
def image_format(at: int, size: int) -> int:
    """1 + the index in FORMATS of the image that the bytes begin, or 0."""
    if size < 12:
        return 0
    head = load32(at)
    if load8(at) << 16 | load8(at + 1) << 8 | load8(at + 2) == _JPEG:
        return 1
    if load64(at) == _PNG:
        return 2
    if head == _GIF:
        return 3
    # two reserved numbers, which text beginning with BM does not have
    if head & 0xFFFF == _BMP and load32(at + 6) == 0:
        return 4
    if head == _RIFF and load32(at + 8) == _WEBP:
        return 5
    return 6 if head in (_TIFF_LITTLE, _TIFF_BIG) else 0


@kernel
def has_control(at: int, end: int) -> bool:
    """Whether the bytes have a control character that text does not:
    all below the space but tab, line feeds, carriage return and escape.
    """
    while at < end:
        if at + 8 <= end:
            word = load64(at)
            if (word - _SPACES) & ~word & _HIGH_BITS == 0:
                at += 8
                continue
        byte = load8(at)
        if byte < 0x20 and not (0x09 <= byte <= 0x0D or byte == 0x1B):
            return True
        at += 1
    return False


@kernel
def is_text(at: int, size: int) -> bool:
    """Whether the bytes are UTF-8 without such control characters; nothing at all is text."""
    return is_utf8(at, at + size) and not has_control(at, at + size)


@kernel
def all_text(values: Bytes, ends: Ints) -> bool:
    """Whether none of the values is an image or no text, of which is known that they are UTF-8: value i is
    values[ends[i] : ends[i + 1]].
    """
    base = address(values)
    if has_control(base + ends[0], base + ends[-1]):
        return False
    for i in range(len(ends) - 1):  # noqa: SIM110 - Numba compiles no generators
        if image_format(base + ends[i], ends[i + 1] - ends[i]):
            return False
    return True
