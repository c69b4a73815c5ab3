"""TIFF and BigTIFF: the chain of image file directories, with every strip and tile of each inside the file;
nothing is decompressed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from recordmill.base.arrays import Int64s
from recordmill.records.images.header import (
    CMYK,
    CORRUPT,
    GRAY,
    GRAY_ALPHA,
    OTHER_FORMAT,
    PALETTE,
    RGB,
    RGBA,
    TRUNCATED,
    BadImage,
    ImageHeader,
)

_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _PHOTOMETRIC, _STRIPS, _SAMPLES, _ROWS, _STRIP_BYTES = (
    256,
    257,
    258,
    259,
    262,
    273,
    277,
    278,
    279,
)
_PLANAR, _TILES, _TILE_BYTES, _JPEG, _JPEG_BYTES = 284, 324, 325, 513, 514
_WANTED = frozenset(
    (
        _WIDTH,
        _HEIGHT,
        _BITS,
        _COMPRESSION,
        _PHOTOMETRIC,
        _STRIPS,
        _SAMPLES,
        _ROWS,
        _STRIP_BYTES,
        _PLANAR,
        _TILES,
        _TILE_BYTES,
        _JPEG,
        _JPEG_BYTES,
    )
)
_TYPES = {1: "u1", 2: "u1", 3: "u2", 4: "u4", 6: "i1", 8: "i2", 9: "i4", 13: "u4", 16: "u8", 17: "i8", 18: "u8"}
_MAX_FRAMES = 65_535  # a longer chain is an attack: real multi-page files have some thousands
_UNCOMPRESSED = 1
# BigTIFF's 64 bits could say more than any image has, and more than can be multiplied
_MOST_PIXELS, _MOST_SAMPLES, _MOST_BITS = (1 << 31) - 1, 65_535, 64

_EMPTY = np.empty(0, np.int64)


class _Layout(NamedTuple):
    order: str  # "<" or ">"
    big: bool

    def number(self, data: memoryview, at: int, size: int) -> int:
        if at + size > len(data):
            raise BadImage(TRUNCATED, f"a directory goes beyond the end of the file at byte {at}")
        return int.from_bytes(data[at : at + size], "little" if self.order == "<" else "big")


def read_tiff(data: npt.NDArray[np.uint8]) -> ImageHeader:
    """The header of a TIFF file that starts with II or MM and 42 or 43;
    of its first image, with the number of directories as frames.

    Raises:
        BadImage: `truncated` where a directory, strip or tile lies beyond the end of the file; `corrupt` for an image
            without size or pixels.
    """
    view = data.data
    order = "<" if view[0] == 0x49 else ">"
    layout = _Layout(order, view[3 if order == ">" else 2] == 43)
    at = layout.number(view, 8, 8) if layout.big else layout.number(view, 4, 4)
    first: ImageHeader | None = None
    seen: set[int] = set()
    spent = most = 0
    while at:
        if at in seen:  # a chain that comes back to itself: every reader takes that as its end
            break
        if len(seen) >= _MAX_FRAMES:
            raise BadImage(CORRUPT, f"more than {_MAX_FRAMES} directories")
        seen.add(at)
        tags, at, used = _read_directory(view, layout, at)
        spent += used
        # directories that overlap make an effort that grows with the square of the file's size
        if spent > 4 * len(view):
            raise BadImage(CORRUPT, "directories and their values lie upon each other")
        header = _describe(tags)
        _check_data(tags, header, len(view))
        first, most = first or header, max(most, header.pixels)
    if first is None:
        raise BadImage(CORRUPT, "no directory, so no image")
    return first._replace(frames=len(seen), beyond_tensorflow="the format", frame_pixels=most)


def _read_directory(view: memoryview, layout: _Layout, at: int) -> tuple[dict[int, Int64s], int, int]:
    """The tags that matter, the next directory's offset, and how many bytes this took at least."""
    head, entry_bytes, word = (8, 20, 8) if layout.big else (2, 12, 4)
    count = layout.number(view, at, head)
    end = at + head + count * entry_bytes
    if end + word > len(view):
        raise BadImage(TRUNCATED, f"the directory at byte {at} with {count} entries goes beyond the end of the file")
    tags = {}
    for entry in range(at + head, end, entry_bytes):
        tag = layout.number(view, entry, 2)
        if tag in _WANTED:
            tags[tag] = _values(view, layout, entry, word)
    return tags, layout.number(view, end, word), end - at + sum(map(len, tags.values()))


def _values(view: memoryview, layout: _Layout, entry: int, word: int) -> Int64s:
    kind, count = layout.number(view, entry + 2, 2), layout.number(view, entry + 4, word)
    if kind not in _TYPES:
        return _EMPTY
    dtype = np.dtype(layout.order + _TYPES[kind])
    at = entry + 4 + word
    if count * dtype.itemsize > word:
        at = layout.number(view, at, word)
    if at + count * dtype.itemsize > len(view):
        raise BadImage(TRUNCATED, f"a tag's {count} values at byte {at} go beyond the end of the file")
    return np.frombuffer(view, dtype, count, at).astype(np.int64)


def _one(tags: dict[int, Int64s], tag: int, default: int) -> int:
    values = tags.get(tag, _EMPTY)
    return int(values[0]) if len(values) else default


def _describe(tags: dict[int, Int64s]) -> ImageHeader:
    width, height = _one(tags, _WIDTH, 0), _one(tags, _HEIGHT, 0)
    if not (0 < width <= _MOST_PIXELS and 0 < height <= _MOST_PIXELS):
        raise BadImage(CORRUPT, f"an image of {height} x {width}")
    samples, bits, photometric = _one(tags, _SAMPLES, 1), _one(tags, _BITS, 1), _one(tags, _PHOTOMETRIC, 1)
    if not (0 < samples <= _MOST_SAMPLES and 0 < bits <= _MOST_BITS):
        raise BadImage(CORRUPT, f"pixels of {samples} samples with {bits} bits")
    if photometric == 3:
        return ImageHeader("TIFF", height, width, 3, bits, PALETTE)
    if photometric in (0, 1):
        colour = {1: GRAY, 2: GRAY_ALPHA}.get(samples, OTHER_FORMAT)
    elif photometric in (2, 6):  # RGB, YCbCr
        colour = {3: RGB, 4: RGBA}.get(samples, OTHER_FORMAT)
    else:
        colour = CMYK if photometric == 5 and samples == 4 else OTHER_FORMAT
    return ImageHeader("TIFF", height, width, samples, bits, colour)


def _check_data(tags: dict[int, Int64s], header: ImageHeader, size: int) -> None:
    offsets, counts = tags.get(_TILES, _EMPTY), tags.get(_TILE_BYTES, _EMPTY)
    if not len(offsets):
        offsets, counts = tags.get(_STRIPS, _EMPTY), tags.get(_STRIP_BYTES, _EMPTY)
        needed = _strip_bytes(tags, header, len(offsets))
        counts = np.minimum(counts, needed) if len(counts) == len(needed) else counts if len(counts) else needed
    if not len(offsets) and len(tags.get(_JPEG, _EMPTY)):  # old-style JPEG in one piece
        offsets, counts = tags[_JPEG], tags.get(_JPEG_BYTES, _EMPTY)
    if not len(offsets):
        raise BadImage(CORRUPT, "no strips and no tiles, so no pixels")
    if len(counts) < len(offsets):
        counts = np.concatenate((counts, np.zeros(len(offsets) - len(counts), np.int64)))
    ends = offsets + counts[: len(offsets)]
    if (offsets < 0).any() or (ends < offsets).any() or int(ends.max()) > size:
        raise BadImage(TRUNCATED, f"strips or tiles reach byte {int(ends.max())}, the file has {size} bytes")


def _strip_bytes(tags: dict[int, Int64s], header: ImageHeader, strips: int) -> Int64s:
    """What each strip of an uncompressed image can hold at most, whatever its byte count claims;
    nothing is known of a compressed one.
    """
    if not strips or _one(tags, _COMPRESSION, _UNCOMPRESSED) != _UNCOMPRESSED:
        return _EMPTY
    per_pixel = 1 if _one(tags, _PLANAR, 1) == 2 else _one(tags, _SAMPLES, 1)
    row_bytes = min((header.width * header.bits * per_pixel + 7) // 8, _MOST_PIXELS)
    rows = min(max(_one(tags, _ROWS, header.height), 1), header.height)
    starts = np.arange(strips, dtype=np.int64) % -(-header.height // rows) * rows
    return row_bytes * np.minimum(rows, header.height - starts)
