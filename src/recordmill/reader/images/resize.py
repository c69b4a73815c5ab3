"""Pixels, or a part of them, brought to the size wanted: bilinear with half-pixel centres, in float32, in the order in
which TensorFlow's own kernels reckon (`ResizeBilinear`, and `ScaleAndTranslate` for antialiasing), so that the results
are theirs.

A line of pixels is [width * channels] numbers. Indices and weights of each number stand ready, which is what lets the
compiler make vector code.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import numpy.typing as npt

from recordmill.base.arrays import Int64s
from recordmill.base.buffers import room
from recordmill.base.kernels import allocating, inlined
from recordmill.reader.images.decode import Box
from recordmill.reader.options.images import Floats, Images
from recordmill.records.columns.decode_images import Pixels

Places = npt.NDArray[np.uint32]  # not signed: Numba would look at each for counting from the end
_REMEMBERED = 1024  # pairs of lengths whose weights are kept: photographs have few sizes, random crops many
_ROUNDS = np.float32(3 << 22)  # 1.5 * 2^23: added to a number below 2^22, and taken off, it rounds half to even


def resize_into(pixels: Pixels, box: Box, wanted: Images, out: npt.NDArray[np.generic]) -> None:
    """A part of uint8 [height, width, channels] resized into out [wanted.height, wanted.width, channels] of the dtype
    wanted.
    """
    factor, offset = _arithmetic(wanted)
    whole = (out if out.dtype != np.float16 else room(out.shape, np.float32)).reshape(wanted.height, -1)
    lines = np.ascontiguousarray(pixels).reshape(len(pixels), -1)
    lines = lines[box.top : box.top + box.height, box.left * wanted.channels :]
    if box[2:] == out.shape[:2]:
        _copied(lines, factor, offset, whole)
    elif wanted.antialias:
        across = _spans(box.width, wanted.width, wanted.channels)
        _antialiased(lines, *_spans(box.height, wanted.height, 1), *across, factor, offset, whole)
    else:
        along = _taps(box.width, wanted.width, wanted.channels)
        _bilinear(lines, *_taps(box.height, wanted.height, 1), *along, factor, offset, whole)
    if out.dtype == np.float16:
        out[:] = whole.reshape(out.shape)


@functools.lru_cache(64)
def _arithmetic(wanted: Images) -> tuple[Floats, Floats]:
    """([width * channels] factor, [width * channels] offset)."""
    factor, offset = (np.tile(one, wanted.width) for one in wanted.arithmetic())
    return factor, offset


@functools.lru_cache(_REMEMBERED)
def _taps(have: int, want: int, channels: int) -> tuple[Places, Places, Floats]:
    """(lower, upper, weight of the upper) source index of each number wanted, in float32 as TensorFlow reckons."""
    at = (np.arange(want, dtype=np.float32) + np.float32(0.5)) * (np.float32(have) / np.float32(want)) - np.float32(0.5)
    floor = np.floor(at)
    lower, upper = np.maximum(floor.astype(np.int64), 0), np.minimum(np.ceil(at).astype(np.int64), have - 1)
    return _each_channel(lower, channels), _each_channel(upper, channels), np.repeat(at - floor, channels)


@functools.lru_cache(_REMEMBERED)
def _spans(have: int, want: int, channels: int) -> tuple[Places, Floats]:
    """([most, numbers] source indices, [most, numbers] weights, 0 behind the last) of each number wanted: a triangle as
    wide as a pixel wanted is, but no narrower than a source pixel.
    """
    one = np.float32(1)
    inverse = one / (np.float32(want) / np.float32(have))
    reach = max(inverse, one)
    most = min(2 * math.ceil(reach) + 1, have)
    at = (np.arange(want, dtype=np.float32) + np.float32(0.5)) * inverse
    first = np.clip(np.ceil(at - reach - np.float32(0.5)).astype(np.int64), 0, have - 1)
    behind = np.clip(np.floor(at + reach - np.float32(0.5)).astype(np.int64), 0, have - 1) + 1
    places = first + np.arange(most)[:, None]
    source = places.astype(np.float32) + np.float32(0.5)
    weights = np.maximum(one - np.abs((source - at) * (one / reach)), np.float32(0)) * (places < behind)
    weights *= one / np.cumsum(weights, axis=0, dtype=np.float32)[-1]
    return _each_channel(np.minimum(places, have - 1), channels), np.repeat(weights, channels, axis=1)


def _each_channel(places: Int64s, channels: int) -> Places:
    """[..., pixels] indices of pixels to [..., pixels * channels] of numbers."""
    numbers = places[..., None] * channels + np.arange(channels)
    return numbers.reshape(*places.shape[:-1], -1).astype(np.uint32)


@inlined
def _store(line: Floats, factor: Floats, offset: Floats, row: npt.NDArray[np.generic]) -> None:
    if row.itemsize == 1:
        for at in range(len(row)):
            row[at] = np.uint8(np.int32((line[at] + _ROUNDS) - _ROUNDS))
    else:
        for at in range(len(row)):
            row[at] = line[at] * factor[at] - offset[at]


@allocating
def _copied(lines: Pixels, factor: Floats, offset: Floats, out: npt.NDArray[np.generic]) -> None:
    line = np.empty(out.shape[1], np.float32)
    for y in range(len(out)):
        for at in range(len(line)):
            line[at] = np.float32(lines[y, at])
        _store(line, factor, offset, out[y])


@inlined
def _gathered(source: Pixels, numbers: Floats, lower: Places, upper: Places, along: Floats, line: Floats) -> None:
    """A source line at the columns wanted. numbers: room for the line."""
    for at in range(len(source)):
        numbers[at] = np.float32(source[at])
    for at in range(len(line)):
        value = numbers[lower[at]]
        line[at] = value + (numbers[upper[at]] - value) * along[at]


@allocating
def _bilinear(
    lines: Pixels, above: Places, below: Places, down: Floats, lower: Places, upper: Places, along: Floats,
    factor: Floats, offset: Floats, out: npt.NDArray[np.generic]
) -> None:  # fmt: skip
    numbers = np.empty(lines.shape[1], np.float32)
    upper_line, lower_line = np.empty(out.shape[1], np.float32), np.empty(out.shape[1], np.float32)
    line = np.empty(out.shape[1], np.float32)
    in_upper = in_lower = np.int64(-1)
    for y in range(len(out)):
        top, bottom, weight = np.int64(above[y]), np.int64(below[y]), down[y]
        if top == in_lower:
            upper_line, lower_line = lower_line, upper_line
            in_upper, in_lower = in_lower, in_upper
        if top != in_upper:
            in_upper = top
            _gathered(lines[top], numbers, lower, upper, along, upper_line)
        if bottom != in_lower:
            in_lower = bottom
            _gathered(lines[bottom], numbers, lower, upper, along, lower_line)
        for at in range(len(line)):
            line[at] = upper_line[at] + (lower_line[at] - upper_line[at]) * weight
        _store(line, factor, offset, out[y])


@allocating
def _antialiased(
    lines: Pixels, rows: Places, row_weights: Floats, columns: Places, column_weights: Floats, factor: Floats,
    offset: Floats, out: npt.NDArray[np.generic]
) -> None:  # fmt: skip
    sums, line = np.empty(lines.shape[1], np.float32), np.empty(out.shape[1], np.float32)
    for y in range(len(out)):
        sums[:] = np.float32(0)
        for i in range(len(rows)):
            weight = row_weights[i, y]
            if weight != 0:
                source = lines[np.int64(rows[i, y])]
                for at in range(len(sums)):
                    sums[at] += np.float32(source[at]) * weight
        line[:] = np.float32(0)
        for i in range(len(columns)):
            places, weights = columns[i], column_weights[i]
            for at in range(len(line)):
                line[at] += sums[places[at]] * weights[at]
        _store(line, factor, offset, out[y])
