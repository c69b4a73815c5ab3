"""Geometry of images: parts, and turns and mirrors by EXIF orientations.

Each function for pixels has a counterpart for boxes, which are shares of the image.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from recordmill.base.buffers import Int64s

# EXIF orientations. Orientations above 4 also swap the axes.
_MIRRORED = (2, 3, 7, 8)
_UPSIDE_DOWN = (3, 4, 6, 7)
# A clipped interval must be at least this share of the image part, which float32 distinguishes
# from 0.
_MIN_VISIBLE_SHARE = 1e-6


# (top, left, height, width) of a part of an image in pixels, such as a `Box` or fractions of pixels
Part = tuple[float, float, float, float]


class Box(NamedTuple):
    """A rectangular part of an image, in pixels."""

    top: int
    left: int
    height: int
    width: int


def shrink_box(box: Box, size: tuple[int, int], orientation: int, shrink: int) -> Part:
    """Returns the box of a part of an image that was decoded smaller.

    >>> shrink_box(Box(4, 2, 10, 20), (15, 30), orientation=1, shrink=4)
    (1.0, 0.5, 2.5, 5.0)
    >>> shrink_box(Box(4, 2, 10, 20), (15, 30), orientation=3, shrink=4)
    (1.25, 1.0, 2.5, 5.0)

    Args:
        box: The part of the upright image in its full size.
        size: (height, width) of the upright image in its full size.
        orientation: The EXIF orientation. The image was turned upright by it after decoding.
        shrink: The divisor of the sides, which are rounded up.
    """
    surpluses = [-(-length // shrink) - length / shrink for length in size]
    # The last pixel of an axis is only partly of the image. If the axis is mirrored, it is the
    # first one.
    is_mirrored = [orientation in _UPSIDE_DOWN, orientation in _MIRRORED]
    if orientation > 4:
        is_mirrored.reverse()
    return (
        box.top / shrink + is_mirrored[0] * surpluses[0],
        box.left / shrink + is_mirrored[1] * surpluses[1],
        box.height / shrink,
        box.width / shrink,
    )


def cover_part(part: Part) -> Box:
    """Returns the smallest box that covers a part.

    >>> cover_part((1.25, 1.0, 2.5, 5.0))
    Box(top=1, left=1, height=3, width=5)
    """
    top, left = math.floor(part[0]), math.floor(part[1])
    return Box(top, left, math.ceil(part[0] + part[2]) - top, math.ceil(part[1] + part[3]) - left)


def find_center_box(height: int, width: int, ratio: float) -> Box:
    """Returns the largest central part with the given ratio of width to height.

    >>> find_center_box(100, 300, 1.0), find_center_box(100, 30, 0.5)
    (Box(top=0, left=100, height=100, width=100), Box(top=20, left=0, height=60, width=30))
    """
    box_height = min(max(int(width / ratio), 1), height)
    box_width = min(max(int(height * ratio), 1), width)
    return Box((height - box_height) // 2, (width - box_width) // 2, box_height, box_width)


def apply_orientation_to_pixels(pixels: npt.NDArray[Any], orientation: int) -> npt.NDArray[Any]:
    """Returns pixels, turned and mirrored as an EXIF orientation demands.

    >>> apply_orientation_to_pixels(np.array([[1, 2, 3]]), 6).tolist()
    [[1], [2], [3]]

    Args:
        pixels: [height, width, ...].
        orientation: The EXIF orientation, from 1 to 8.
    """
    if orientation in _MIRRORED:
        pixels = pixels[:, ::-1]
    if orientation in _UPSIDE_DOWN:
        pixels = pixels[::-1]
    return pixels.swapaxes(0, 1) if orientation > 4 else pixels


def invert_orientation(orientation: int) -> int:
    """Returns the EXIF orientation that reverses another one.

    >>> [invert_orientation(orientation) for orientation in (1, 2, 6, 8)]
    [1, 2, 8, 6]
    """
    # Only the rotations by 90 degrees have another inverse than themselves.
    return {6: 8, 8: 6}.get(orientation, orientation)


def apply_orientation_to_edges(
    edges: npt.NDArray[np.float64], orientations: Int64s
) -> npt.NDArray[np.float64]:
    """Returns the edges of boxes in images that are turned by their EXIF orientation.

    Args:
        edges: float64 [boxes, 4], left, top, right and bottom, as shares of the stored image.
        orientations: int64 [boxes], the EXIF orientation of the image of each box.
    """
    turned = edges.copy()
    for axis, orientations_to_mirror in ((0, _MIRRORED), (1, _UPSIDE_DOWN)):
        rows = np.isin(orientations, orientations_to_mirror)
        turned[rows, axis], turned[rows, axis + 2] = (
            1 - edges[rows, axis + 2],
            1 - edges[rows, axis],
        )
    swapped = orientations > 4
    turned[swapped] = turned[swapped][:, [1, 0, 3, 2]]
    return turned


def clip_span(low: Any, high: Any, start: Any, size: Any) -> tuple[Any, Any, Any]:
    """Clips intervals along one axis of images to a part of each image.

    Args:
        low: The lower ends of the intervals.
        high: The upper ends.
        start: The start of the part.
        size: The size of the part.

    Returns:
        (lower ends, upper ends, whether anything of the interval is left). The ends are shares of
        the part.
    """
    clipped_low, clipped_high = (np.clip((edge - start) / size, 0, 1) for edge in (low, high))
    return (
        clipped_low,
        clipped_high,
        (clipped_high - clipped_low > _MIN_VISIBLE_SHARE) | (size >= 1),
    )
