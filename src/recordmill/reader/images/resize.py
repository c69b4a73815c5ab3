"""Pixels, or a part of them, brought to the size wanted: bilinear with half-pixel centres, in float32, in the order in
which TensorFlow's own kernels reckon (`ResizeBilinear`, and `ScaleAndTranslate` for antialiasing), so that the results
are theirs.

A line of pixels is [width * channels] numbers. Indices and weights of each number stand ready, which is what lets the
compiler make vector code.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from recordmill.base import native
from recordmill.base.arrays import Int64s
from recordmill.base.buffers import room
from recordmill.reader.images.decode import Box
from recordmill.reader.options.images import Floats, Images
from recordmill.records.columns.decode_images import Pixels

Places = npt.NDArray[np.uint32]
_REMEMBERED = 1024  # pairs of lengths whose weights are kept: photographs have few sizes, random crops many


def resize_into(pixels: Pixels, box: Box, wanted: Images, out: npt.NDArray[np.generic]) -> None:
    """A part of uint8 [height, width, channels] resized into out [wanted.height, wanted.width, channels] of the dtype
    wanted.
    """
    factor, offset = _arithmetic(wanted)
    whole: npt.NDArray[Any] = out if out.dtype != np.float16 else room(out.shape, np.float32)
    lines = np.ascontiguousarray(pixels).reshape(len(pixels), -1)
    columns = box.width * wanted.channels
    part = native.PixelPart(lines.shape[1], box.top, box.height, box.left * wanted.channels, columns)
    scratch = np.empty(3 * len(factor) + columns, np.float32)
    is_rounded = whole.dtype == np.uint8
    target = (factor, offset, scratch, whole if is_rounded else None, None if is_rounded else whole)
    if box[2:] == out.shape[:2]:
        same = pixels[box.top : box.top + box.height, box.left : box.left + box.width].reshape(len(out), -1)
        numbers = whole.reshape(same.shape)
        if is_rounded:
            numbers[:] = same
        else:
            np.multiply(same, factor, out=numbers, dtype=np.float32)
            numbers -= offset
    elif wanted.antialias:
        rows, row_weights = _spans(box.height, wanted.height, 1)
        numbers, weights = _spans(box.width, wanted.width, wanted.channels)
        native.resize_antialiased(lines, part, rows, row_weights, numbers, weights, *target)
    else:
        above, below, down = _taps(box.height, wanted.height, 1)
        lower, upper, along = _taps(box.width, wanted.width, wanted.channels)
        native.resize_bilinear(lines, part, above, below, down, lower, upper, along, *target)
    if out.dtype == np.float16:
        out[:] = whole.reshape(out.shape)


@functools.lru_cache(64)
def _arithmetic(wanted: Images) -> tuple[Floats, Floats]:
    """Returns ([width * channels] factor, [width * channels] offset)."""
    factor, offset = (np.tile(one, wanted.width) for one in wanted.arithmetic())
    return factor, offset


@functools.lru_cache(_REMEMBERED)
def _taps(have: int, want: int, channels: int) -> tuple[Places, Places, Floats]:
    """Returns (lower, upper, weight of the upper) source index of each number wanted, in float32 as TensorFlow
    reckons.
    """
    at = (np.arange(want, dtype=np.float32) + np.float32(0.5)) * (np.float32(have) / np.float32(want)) - np.float32(0.5)
    floor = np.floor(at)
    lower, upper = np.maximum(floor.astype(np.int64), 0), np.minimum(np.ceil(at).astype(np.int64), have - 1)
    return _each_channel(lower, channels), _each_channel(upper, channels), np.repeat(at - floor, channels)


@functools.lru_cache(_REMEMBERED)
def _spans(have: int, want: int, channels: int) -> tuple[Places, Floats]:
    """Returns ([most, numbers] source indices, [most, numbers] weights, 0 after the last) of each number wanted: a
    triangle as wide as a pixel wanted is, but no narrower than a source pixel.
    """
    one = np.float32(1)
    inverse = one / (np.float32(want) / np.float32(have))
    reach = max(inverse, one)
    most = min(2 * math.ceil(reach) + 1, have)
    at = (np.arange(want, dtype=np.float32) + np.float32(0.5)) * inverse
    first = np.clip(np.ceil(at - reach - np.float32(0.5)).astype(np.int64), 0, have - 1)
    ends = np.clip(np.floor(at + reach - np.float32(0.5)).astype(np.int64), 0, have - 1) + 1
    places = first + np.arange(most)[:, None]
    source = places.astype(np.float32) + np.float32(0.5)
    weights = np.maximum(one - np.abs((source - at) * (one / reach)), np.float32(0)) * (places < ends)
    weights *= one / np.cumsum(weights, axis=0, dtype=np.float32)[-1]
    return _each_channel(np.minimum(places, have - 1), channels), np.repeat(weights, channels, axis=1)


def _each_channel(places: Int64s, channels: int) -> Places:
    """Returns [..., pixels] indices of pixels to [..., pixels * channels] of numbers."""
    numbers = places[..., None] * channels + np.arange(channels)
    return numbers.reshape(*places.shape[:-1], -1).astype(np.uint32)
