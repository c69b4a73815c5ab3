"""Resizing of images, with the pixels of `tf.image.resize`.

Masks are resized to the nearest value.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from recordmill.base import native
from recordmill.base.buffers import Int64s, allocate
from recordmill.records.images.geometry import Box

_Float32s = npt.NDArray[np.float32]
_Uint32s = npt.NDArray[np.uint32]
# The weights for 1,024 pairs of source and target lengths are cached. Photographs have few sizes,
# but random crops have many.
_MAX_CACHED_WEIGHTS = 1024


def resample(
    pixels: npt.NDArray[Any],
    box: Box,
    out: npt.NDArray[Any],
    factor: _Float32s,
    offset: _Float32s,
    *,
    antialias: bool,
) -> None:
    """Resizes a part of an image bilinearly, as `tf.image.resize` does.

    If `out` is a float array, each value becomes `value * factor - offset`. If it is uint8, values
    are rounded, and `factor` and `offset` are not applied.

    Args:
        pixels: uint8 [height, width, channels].
        box: The part of `pixels`.
        out: [height, width, channels] of uint8, float16 or float32. Receives the result.
        factor: float32 [width * channels] of `out`.
        offset: float32 [width * channels] of `out`.
        antialias: Whether an image that becomes smaller is smoothed, so that every source pixel
            counts.
    """
    channels = out.shape[2]
    # The kernel writes no float16, so float32 is converted at the end.
    result: npt.NDArray[Any] = out if out.dtype != np.float16 else allocate(out.shape, np.float32)
    stride, columns = pixels.shape[1] * channels, box.width * channels
    begin = box.top * stride + box.left * channels
    # The box is not copied. The kernel reads it with the stride of a complete line.
    part = np.ascontiguousarray(pixels).reshape(-1)[
        begin : begin + (box.height - 1) * stride + columns
    ]
    scratch = np.empty(3 * len(factor) + columns, np.float32)
    is_rounded = result.dtype == np.uint8
    # Without a change of size, values are only copied or scaled.
    if box[2:] == out.shape[:2]:
        unscaled = pixels[box.top : box.top + box.height, box.left : box.left + box.width].reshape(
            len(out), -1
        )
        numbers = result.reshape(unscaled.shape)
        if is_rounded:
            numbers[:] = unscaled
        else:
            np.multiply(unscaled, factor, out=numbers, dtype=np.float32)
            numbers -= offset
    else:
        make_taps = _make_antialias_taps if antialias else _make_bilinear_taps
        row_taps = make_taps(box.height, out.shape[0], 1)
        column_taps = make_taps(box.width, out.shape[1], channels)
        native.resize(
            native.PixelLines(pixels=part, stride=stride, width=columns),
            antialias,
            native.ResizeTaps(sources=row_taps[0], weights=row_taps[1]),
            native.ResizeTaps(sources=column_taps[0], weights=column_taps[1]),
            native.ResizeOutput(
                factor=factor,
                offset=offset,
                bytes=result if is_rounded else None,
                floats=None if is_rounded else result,
            ),
            scratch,
        )
    if out.dtype == np.float16:
        out[:] = result.reshape(out.shape)


@functools.lru_cache(_MAX_CACHED_WEIGHTS)
def _make_bilinear_taps(
    source_size: int, target_size: int, channels: int
) -> tuple[_Uint32s, _Float32s]:
    """Returns the two source numbers of each target number, and their weights.

    A number is the value of one channel of a pixel. The weights are computed in float32, as
    TensorFlow does.

    Args:
        source_size: The number of source pixels along the axis.
        target_size: The number of target pixels.
        channels: The number of channels.

    Returns:
        (indices [2, numbers], weight of the upper one [numbers]).
    """
    positions = (np.arange(target_size, dtype=np.float32) + np.float32(0.5)) * (
        np.float32(source_size) / np.float32(target_size)
    ) - np.float32(0.5)
    floor = np.floor(positions)
    pairs = np.clip(
        [floor.astype(np.int64), np.ceil(positions).astype(np.int64)], 0, source_size - 1
    )
    return _expand_channels(pairs, channels), np.repeat(positions - floor, channels)


@functools.lru_cache(_MAX_CACHED_WEIGHTS)
def _make_antialias_taps(
    source_size: int, target_size: int, channels: int
) -> tuple[_Uint32s, _Float32s]:
    """Returns, for each number of a target line, its source numbers and their weights.

    A number is the value of one channel of a pixel. The weights form a triangle that is as wide as
    a target pixel on either side of its center, but at least as wide as a source pixel.

    Args:
        source_size: The number of source pixels along the axis.
        target_size: The number of target pixels.
        channels: The number of channels.

    Returns:
        (indices, weights), both [taps, numbers]. Unused taps have the weight 0.
    """
    unit = np.float32(1)
    inverse = unit / (np.float32(target_size) / np.float32(source_size))
    reach = max(inverse, unit)
    max_taps = min(2 * math.ceil(reach) + 1, source_size)
    centers = (np.arange(target_size, dtype=np.float32) + np.float32(0.5)) * inverse
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
