"""Pixels, or a part of them, brought to the size wanted: bilinear with half-pixel centres, in float32, in the order in
which TensorFlow's own kernels reckon (`ResizeBilinear`, and `ScaleAndTranslate` for antialiasing), so that the results
are theirs.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import numpy.typing as npt

from recordmill.base.kernels import inlined, kernel
from recordmill.base.room import room
from recordmill.reader.images.crop import Box
from recordmill.reader.images.options import Floats, Images
from recordmill.records.columns.decode_images import Pixels

Ints = npt.NDArray[np.int64]
_REMEMBERED = 4096  # pairs of lengths whose weights are kept: photographs have few sizes, random crops many


def resize_into(pixels: Pixels, box: Box, wanted: Images, out: npt.NDArray[np.generic]) -> None:
    """A part of uint8 [height, width, channels] resized into out [wanted.height, wanted.width, channels] of the dtype
    wanted.
    """
    factor, offset = wanted.arithmetic()
    whole = out if out.dtype != np.float16 else room(out.shape, np.float32)
    pixels = np.ascontiguousarray(pixels)
    if box[2:] == out.shape[:2]:
        _copied(pixels, box.top, box.left, factor, offset, whole)
    elif wanted.antialias:
        rows, columns = _spans(box.height, wanted.height), _spans(box.width, wanted.width)
        _antialiased(pixels, box.top, box.left, *rows, *columns, factor, offset, whole)
    else:
        rows, columns = _taps(box.height, wanted.height), _taps(box.width, wanted.width)
        _bilinear(pixels, box.top, box.left, *rows, *columns, factor, offset, whole)
    if whole is not out:
        out[:] = whole


@functools.lru_cache(_REMEMBERED)
def _taps(have: int, want: int) -> tuple[Ints, Ints, Floats]:
    """(lower, upper, weight of the upper) source index of each pixel wanted, in float32 as TensorFlow reckons."""
    at = (np.arange(want, dtype=np.float32) + np.float32(0.5)) * (np.float32(have) / np.float32(want)) - np.float32(0.5)
    floor = np.floor(at)
    lower, upper = np.maximum(floor.astype(np.int64), 0), np.minimum(np.ceil(at).astype(np.int64), have - 1)
    return lower, upper, at - floor


@functools.lru_cache(_REMEMBERED)
def _spans(have: int, want: int) -> tuple[Ints, Ints, Floats]:
    """([want] first source index, [want] how many, [want, most] weights) of each pixel wanted: a triangle as wide as a
    pixel wanted is, but no narrower than a source pixel.
    """
    one = np.float32(1)
    inverse = one / (np.float32(want) / np.float32(have))
    reach = max(inverse, one)
    most = min(2 * math.ceil(reach) + 1, have)
    at = (np.arange(want, dtype=np.float32) + np.float32(0.5)) * inverse
    first = np.clip(np.ceil(at - reach - np.float32(0.5)).astype(np.int64), 0, have - 1)
    behind = np.clip(np.floor(at + reach - np.float32(0.5)).astype(np.int64), 0, have - 1) + 1
    weights = np.zeros((want, most), np.float32)
    for index in range(want):
        source = np.arange(first[index], behind[index]).astype(np.float32) + np.float32(0.5)
        own = np.maximum(one - np.abs((source - at[index]) * (one / reach)), np.float32(0))
        weights[index, : len(own)] = own * (one / np.cumsum(own)[-1])
    return first, behind - first, weights


@inlined
def _store(line: Floats, factor: Floats, offset: Floats, row: npt.NDArray[np.generic]) -> None:
    """A row of pixels [width * channels] as it is wanted."""
    if row.itemsize == 1:
        for at in range(len(line)):
            row[at] = np.uint8(np.rint(line[at]))
        return
    channels, at = len(factor), 0
    for _ in range(len(line) // channels):
        for channel in range(channels):
            row[at] = line[at] * factor[channel] - offset[channel]
            at += 1


@kernel
def _copied(
    pixels: Pixels, top: int, left: int, factor: Floats, offset: Floats, out: npt.NDArray[np.generic]
) -> None:  # fmt: skip
    height, width, channels = out.shape
    line = np.empty(width * channels, np.float32)
    for y in range(height):
        source = pixels[top + y].reshape(-1)
        for at in range(len(line)):
            line[at] = np.float32(source[left * channels + at])
        _store(line, factor, offset, out[y].reshape(-1))


@inlined
def _line(row: npt.NDArray[np.uint8], left: int, lower: Ints, upper: Ints, along: Floats, line: Floats) -> None:
    """A source row at the columns wanted."""
    channels = row.shape[1]
    at = 0
    for x in range(len(lower)):
        low, high, weight = left + lower[x], left + upper[x], along[x]
        for channel in range(channels):
            value = np.float32(row[low, channel])
            line[at] = value + (np.float32(row[high, channel]) - value) * weight
            at += 1


@kernel
def _bilinear(
    pixels: Pixels, top: int, left: int, above: Ints, below: Ints, down: Floats, lower: Ints, upper: Ints,
    along: Floats, factor: Floats, offset: Floats, out: npt.NDArray[np.generic]
) -> None:  # fmt: skip
    height, width, channels = out.shape
    upper_line, lower_line = np.empty(width * channels, np.float32), np.empty(width * channels, np.float32)
    line = np.empty(width * channels, np.float32)
    in_upper = in_lower = -1
    for y in range(height):
        if above[y] == in_lower:
            upper_line, lower_line = lower_line, upper_line
            in_upper, in_lower = in_lower, in_upper
        if above[y] != in_upper:
            in_upper = above[y]
            _line(pixels[top + in_upper], left, lower, upper, along, upper_line)
        if below[y] != in_lower:
            in_lower = below[y]
            _line(pixels[top + in_lower], left, lower, upper, along, lower_line)
        weight = down[y]
        for at in range(len(line)):
            line[at] = upper_line[at] + (lower_line[at] - upper_line[at]) * weight
        _store(line, factor, offset, out[y].reshape(-1))


@kernel
def _antialiased(
    pixels: Pixels, top: int, left: int, first_rows: Ints, row_counts: Ints, row_weights: Floats, first_columns: Ints,
    column_counts: Ints, column_weights: Floats, factor: Floats, offset: Floats, out: npt.NDArray[np.generic]
) -> None:  # fmt: skip
    height, width, channels = out.shape
    begin = left * channels
    sums = np.empty((first_columns[width - 1] + column_counts[width - 1]) * channels, np.float32)
    line = np.empty(width * channels, np.float32)
    for y in range(height):
        sums[:] = np.float32(0)
        for i in range(row_counts[y]):
            source = pixels[top + first_rows[y] + i].reshape(-1)
            weight = row_weights[y, i]
            for at in range(len(sums)):
                sums[at] += np.float32(source[begin + at]) * weight
        for x in range(width):
            first = first_columns[x] * channels
            for channel in range(channels):
                total = np.float32(0)
                for i in range(column_counts[x]):
                    total += sums[first + i * channels + channel] * column_weights[x, i]
                line[x * channels + channel] = total
        _store(line, factor, offset, out[y].reshape(-1))
