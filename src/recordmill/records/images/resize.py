"""Resizing of images, with the pixels of `tf.image.resize`.

Masks are resized to the nearest value.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from recordmill.base import native
from recordmill.base.buffers import Int64s, allocate
from recordmill.records.images.geometry import Part

_Float32s = npt.NDArray[np.float32]
_Uint32s = npt.NDArray[np.uint32]
# The weights for 1,024 pairs of source and target lengths are cached. Photographs have few sizes,
# but random crops have many.
_MAX_CACHED_WEIGHTS = 1024


def resize(
    pixels: npt.NDArray[Any],
    part: Part,
    out: npt.NDArray[Any],
    *,
    antialias: bool,
    factor: _Float32s | None = None,
    offset: _Float32s | None = None,
) -> None:
    """Resizes a part of an image bilinearly, as `tf.image.resize` does.

    If `out` is a float array, each value becomes `value * factor - offset`. Otherwise values are
    rounded, and `factor` and `offset` are not applied.

    Args:
        pixels: uint8 or uint16 [height, width, channels].
        part: The part of `pixels`, with sides that may be fractions of pixels. Pixels completely
            outside of it have no influence.
        out: [height, width, channels] of uint8, uint16, float16 or float32. Receives the result.
        factor: float32 [width * channels] of `out`. None is 1.
        offset: float32 [width * channels] of `out`. None is 0.
        antialias: Whether an image that becomes smaller is smoothed, so that every source pixel
            counts.
    """
    height, width, channels = out.shape
    factor = np.ones(width * channels, np.float32) if factor is None else factor
    offset = np.zeros(width * channels, np.float32) if offset is None else offset
    rows, columns = _Span.of(part[0], part[2]), _Span.of(part[1], part[3])
    # The kernel writes uint8 and float32. The others are converted at the end.
    result: npt.NDArray[Any] = (
        out if out.dtype in (np.uint8, np.float32) else allocate(out.shape, np.float32)
    )
    # Without a change of size, values are only copied or scaled.
    if rows.is_complete(height) and columns.is_complete(width):
        unscaled = pixels[rows.begin : rows.end, columns.begin : columns.end]
        if out.dtype.kind == "u":
            out[:] = unscaled
            return
        numbers = result.reshape(height, -1)
        np.multiply(unscaled.reshape(numbers.shape), factor, out=numbers, dtype=np.float32)
        numbers -= offset
    else:
        stride, num_columns = pixels.shape[1] * channels, (columns.end - columns.begin) * channels
        begin = rows.begin * stride + columns.begin * channels
        # The part is not copied. The kernel reads it with the stride of a complete line.
        lines = np.ascontiguousarray(pixels).reshape(-1)[
            begin : begin + (rows.end - rows.begin - 1) * stride + num_columns
        ]
        is_deep, is_rounded = pixels.dtype == np.uint16, result.dtype == np.uint8
        make_taps = _make_antialias_taps if antialias else _make_bilinear_taps
        row_taps = make_taps(rows.offset, rows.length, height, 1)
        column_taps = make_taps(columns.offset, columns.length, width, channels)
        native.resize(
            native.PixelLines(
                pixels=None if is_deep else lines,
                deep_pixels=lines if is_deep else None,
                stride=stride,
                width=num_columns,
            ),
            antialias,
            native.ResizeTaps(sources=row_taps[0], weights=row_taps[1]),
            native.ResizeTaps(sources=column_taps[0], weights=column_taps[1]),
            native.ResizeOutput(
                factor=factor,
                offset=offset,
                bytes=result if is_rounded else None,
                floats=None if is_rounded else result,
            ),
            np.empty(3 * len(factor) + num_columns, np.float32),
        )
    if result is not out:
        out[:] = np.rint(result) if out.dtype == np.uint16 else result


def resize_with_alpha(
    pixels: npt.NDArray[np.uint8],
    part: Part,
    out: npt.NDArray[np.uint8],
) -> None:
    """Resizes a part of an image with an alpha channel, with antialiasing.

    Alpha is the last channel. Colours are weighted by alpha. Otherwise the invisible colours of
    transparent pixels would appear at the border of a shape. An image without transparent pixels is
    resized by `resize`. Pixels that become transparent become black.

    Args:
        pixels: uint8 [height, width, channels].
        part: See `resize`.
        out: uint8 [height, width, channels]. Receives the result.
    """
    if pixels[..., -1].min() == 255:
        resize(pixels, part, out, antialias=True)
        return
    # A product of two uint8 fits into uint16, so that nothing is rounded before the end.
    weighted = pixels.astype(np.uint16)
    alpha = weighted[..., -1:].copy()
    weighted[..., -1] = 255
    weighted *= alpha
    out[:] = 0
    resized: _Float32s = np.empty(out.shape, np.float32)
    resize(weighted, part, resized, antialias=True)
    colours, alpha_sums = resized[..., :-1], resized[..., -1:]
    alphas = np.rint(alpha_sums / np.float32(255))
    colours *= np.float32(255)
    np.divide(colours, alpha_sums, out=colours, where=alphas > 0)
    np.rint(colours, out=out[..., :-1], where=alphas > 0, casting="unsafe")
    out[..., -1:] = alphas


class _Span(NamedTuple):
    """The pixels along one axis that a part contains, completely or partly.

    Attributes:
        begin: The first pixel.
        end: The end of the last pixel.
        offset: The start of the part in pixels, from the begin of the first pixel.
        length: The length of the part in pixels.
    """

    begin: int
    end: int
    offset: float
    length: float

    @classmethod
    def of(cls, start: float, length: float) -> _Span:
        """Returns the span of a part.

        >>> _Span.of(2.5, 3)
        _Span(begin=2, end=6, offset=0.5, length=3)
        """
        begin = math.floor(start)
        return cls(begin, math.ceil(start + length), start - begin, length)

    def is_complete(self, size: int) -> bool:
        """Returns whether the part consists of `size` complete pixels."""
        return self.offset == 0 and self.length == size


@functools.lru_cache(_MAX_CACHED_WEIGHTS)
def _make_bilinear_taps(
    offset: float, length: float, target_size: int, channels: int
) -> tuple[_Uint32s, _Float32s]:
    """Returns the two source numbers of each target number, and their weights.

    A number is the value of one channel of a pixel. The weights are computed in float32, as
    TensorFlow does.

    Args:
        offset: The start of the part, from 0 to 1 source pixels.
        length: The length of the part in source pixels.
        target_size: The number of target pixels.
        channels: The number of channels.

    Returns:
        (indices [2, numbers], weight of the upper one [numbers]).
    """
    source_size = math.ceil(offset + length)
    positions = (np.arange(target_size, dtype=np.float32) + np.float32(0.5)) * (
        np.float32(length) / np.float32(target_size)
    ) - np.float32(0.5 - offset)
    floor = np.floor(positions)
    pairs = np.clip(
        [floor.astype(np.int64), np.ceil(positions).astype(np.int64)], 0, source_size - 1
    )
    return _expand_channels(pairs, channels), np.repeat(positions - floor, channels)


@functools.lru_cache(_MAX_CACHED_WEIGHTS)
def _make_antialias_taps(
    offset: float, length: float, target_size: int, channels: int
) -> tuple[_Uint32s, _Float32s]:
    """Returns, for each number of a target line, its source numbers and their weights.

    A number is the value of one channel of a pixel. The weights form a triangle. On either side of
    its center, it is as wide as a target pixel, but at least as wide as a source pixel.

    Args:
        offset: The start of the part, from 0 to 1 source pixels.
        length: The length of the part in source pixels.
        target_size: The number of target pixels.
        channels: The number of channels.

    Returns:
        (indices, weights), both [taps, numbers]. Unused taps have the weight 0.
    """
    source_size = math.ceil(offset + length)
    unit = np.float32(1)
    inverse = unit / (np.float32(target_size) / np.float32(length))
    reach = max(inverse, unit)
    max_taps = min(2 * math.ceil(reach) + 1, source_size)
    centers = (np.arange(target_size, dtype=np.float32) + np.float32(0.5)) * inverse + np.float32(
        offset
    )
    first = np.clip(np.ceil(centers - reach - np.float32(0.5)).astype(np.int64), 0, source_size - 1)
    ends = (
        np.clip(np.floor(centers + reach - np.float32(0.5)).astype(np.int64), 0, source_size - 1)
        + 1
    )
    # All target numbers have the same number of taps. The surplus ones get the weight 0 below.
    indices = first + np.arange(max_taps)[:, None]
    source = indices.astype(np.float32) + np.float32(0.5)
    weights = np.maximum(unit - np.abs((source - centers) * (unit / reach)), np.float32(0)) * (
        indices < ends
    )
    weights *= unit / np.cumsum(weights, axis=0, dtype=np.float32)[-1]
    return _expand_channels(np.minimum(indices, source_size - 1), channels), np.repeat(
        weights, channels, axis=1
    )


def _expand_channels(indices: Int64s, channels: int) -> _Uint32s:
    """Converts indices of pixels [..., pixels] to indices of numbers [..., pixels * channels]."""
    numbers = indices[..., None] * channels + np.arange(channels)
    return numbers.reshape(*indices.shape[:-1], -1).astype(np.uint32)


def nearest_indices(source_size: int, target_size: int) -> Int64s:
    """Returns the nearest source index for each target index, [target_size].

    The computation is in float32, so that the result is the same as in TensorFlow.
    """
    positions = (np.arange(target_size, dtype=np.float32) + np.float32(0.5)) * (
        np.float32(source_size) / np.float32(target_size)
    )
    return np.minimum(positions.astype(np.int64), source_size - 1)
