"""Decoding of one encoded image into the pixels of a target.

The image is decoded as it is stored, or rotated according to its EXIF orientation. A key and the
number of the record determine a random crop, so that neither order nor threads matter.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from recordmill.base.siphash import random_shares
from recordmill.reader.options.images import Floats, Images, RandomCrop
from recordmill.records.images.check import check_structure
from recordmill.records.images.decode import (
    MAX_DECODED_PIXELS,
    Pixels,
    decode_bytes,
    decode_mask,
    decode_pixels,
    find_shrink_factor,
)
from recordmill.records.images.geometry import (
    Box,
    Part,
    apply_orientation_to_pixels,
    cover_part,
    find_center_box,
    shrink_box,
)
from recordmill.records.images.header import DECODE_FAILED, BadImage, ImageHeader
from recordmill.records.images.pillow import read_orientation
from recordmill.records.images.resize import nearest_indices, resize

_MAX_CROP_ATTEMPTS = 10
_NUMBERS_PER_ATTEMPT = 4  # area, ratio, row and column of a random crop


def choose_box(height: int, width: int, target: Images, key: int, number: int) -> Box:
    """Returns the part of an image [height, width] to keep.

    Args:
        key: A hash of the seed and the epoch.
        number: The number of the record among all records.
    """
    if target.crop is None:
        return Box(0, 0, height, width)
    if target.crop == "center":
        return find_center_box(height, width, target.width / target.height)
    shares = random_shares(key, number, _MAX_CROP_ATTEMPTS * _NUMBERS_PER_ATTEMPT)
    return _choose_random_box(height, width, target.crop, iter(shares.tolist()))


def _choose_random_box(
    height: int, width: int, crop: RandomCrop, random_numbers: Iterator[float]
) -> Box:
    # the logarithm makes a ratio and its inverse equally likely
    min_log_ratio, max_log_ratio = math.log(crop.ratio[0]), math.log(crop.ratio[1])
    # A random area and ratio may not fit into the image. After some attempts the largest central
    # part with an allowed ratio is used.
    for _ in range(_MAX_CROP_ATTEMPTS):
        area = (
            height * width * (crop.area[0] + (crop.area[1] - crop.area[0]) * next(random_numbers))
        )
        ratio = math.exp(min_log_ratio + (max_log_ratio - min_log_ratio) * next(random_numbers))
        crop_width, crop_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < crop_width <= width and 0 < crop_height <= height:
            top = int(next(random_numbers) * (height - crop_height + 1))
            return Box(
                top, int(next(random_numbers) * (width - crop_width + 1)), crop_height, crop_width
            )
    # no attempt fitted: the largest central part with an allowed ratio
    return find_center_box(height, width, min(max(width / height, crop.ratio[0]), crop.ratio[1]))


def is_flipped(key: int, number: int) -> bool:
    """Returns whether the image of a record is flipped.

    `choose_box` has the same arguments. The random numbers are independent of the crop's.
    """
    # the inverted key makes the flip independent of the crop
    return bool(random_shares(~key, number, 1)[0] < 0.5)


class EncodedImage:
    """Encoded image with an intact container.

    Attributes:
        height: The full height after decoding.
        width: The full width after decoding.

    Args:
        data: The encoded bytes.
        header: Result of `check_structures` for the image. If None, the image is checked here.
        photo: The bytes of the photo of a mask. A mask without an EXIF orientation is turned like
            its photo if both are stored in the same size. A mask of another size is already
            upright, as in a build.

    Raises:
        BadImage: The container is damaged, or all images must have one size and this one differs.
    """

    def __init__(
        self,
        data: Pixels,
        target: Images,
        header: ImageHeader | BadImage | None = None,
        photo: Pixels | None = None,
    ) -> None:
        if isinstance(header, BadImage):
            raise header
        self._data, self._channels, self._mask = data, target.channels, target.mask
        self._fast_dct = target.dct == "fast"
        self._header = check_structure(data, MAX_DECODED_PIXELS) if header is None else header
        self._orientation = read_orientation(data, self._header.format) if target.orientation else 1
        height, width = self._header.height, self._header.width
        if photo is not None and target.mask and target.orientation and self._orientation == 1:
            self._orientation = _find_photo_orientation(photo, height, width)
        # orientations 5 to 8 exchange height and width
        self.height, self.width = (width, height) if self._orientation > 4 else (height, width)
        if (
            target.one_size
            and target.height
            and (self.height, self.width) != (target.height, target.width)
        ):
            sizes_text = f"{self.height} x {self.width} pixels where the first image has {target.height} x {target.width}"
            raise BadImage(DECODE_FAILED, f"{sizes_text}: give decode_images=(height, width)")

    @property
    def turn(self) -> tuple[int, int, int]:
        """(EXIF orientation to apply, height and width before the image is turned)."""
        return self._orientation, self._header.height, self._header.width

    @property
    def work_bytes(self) -> int:
        """Upper limit of the memory that decoding takes."""
        return decode_bytes(self._header)

    def find_shrink_factor(self, height: int, width: int, target: Images) -> int:
        """Returns the largest shrink factor for decoding a part.

        The decoded part is still at least as large as the target. Only JPEGs can be shrunk, so the
        factor of other formats is 1.

        Args:
            height: Height of the part.
            width: Width of the part.
        """
        if not target.shrink:
            return 1
        return find_shrink_factor(self._header, (height, width), (target.height, target.width))

    def shrink_box(self, box: Box, shrink_factor: int) -> Part:
        """Converts a part of the image to a part of the shrunk image.

        The shrunk image is the result of `decode`.
        """
        return shrink_box(box, (self.height, self.width), self._orientation, shrink_factor)

    def decode(self, shrink_factor: int = 1, *, reuse_buffer: bool = False) -> npt.NDArray[Any]:
        """Returns the pixels [height, width, channels]: uint8, or int32 for a mask.

        Args:
            shrink_factor: Divides height and width, rounded up.
            reuse_buffer: If True, the array is valid only until this thread decodes its next image.

        Raises:
            BadImage: The image cannot be decoded.
        """
        pixels = (
            decode_mask(self._data, self._header)
            if self._mask
            else decode_pixels(
                self._data,
                self._header,
                self._channels,
                shrink=shrink_factor,
                fast_dct=self._fast_dct,
                reuse_buffer=reuse_buffer,
            )
        )
        return apply_orientation_to_pixels(pixels, self._orientation)


def _find_photo_orientation(photo: Pixels, height: int, width: int) -> int:
    """Returns the EXIF orientation of the photo of a mask.

    The result is 1 if the photo and the mask are not stored in the same size, or if the photo is
    damaged. The damage is reported when the photo itself is decoded.

    Args:
        photo: The encoded photo.
        height: Height of the stored mask.
        width: Width of the stored mask.
    """
    try:
        header = check_structure(photo, MAX_DECODED_PIXELS)
    except BadImage:
        return 1
    is_same_size = (header.height, header.width) == (height, width)
    return read_orientation(photo, header.format) if is_same_size else 1


def resize_into(
    pixels: npt.NDArray[Any], part: Part, target: Images, out: npt.NDArray[Any]
) -> None:
    """Resizes a part of the pixels [height, width, channels] into `out`.

    Args:
        out: Array [target.height, target.width, channels] of the target's dtype.

    Raises:
        BadImage: A value of a mask does not fit into uint8.
    """
    if target.mask:
        # The decoder never shrinks a mask, so the part covers complete pixels.
        box = cover_part(part)
        pixels_in_box = pixels[box.top : box.top + box.height, box.left : box.left + box.width]
        values = pixels_in_box[
            np.ix_(
                nearest_indices(box.height, target.height), nearest_indices(box.width, target.width)
            )
        ]
        if out.dtype == np.uint8 and values.max() > 255:
            raise BadImage(
                DECODE_FAILED,
                f"a value of {values.max()} is beyond uint8: Images(dtype='int32') takes it",
            )
        out[:] = values
    else:
        factor, offset = _factor_and_offset(target)
        resize(pixels, part, out, factor=factor, offset=offset, antialias=target.antialias)


@functools.lru_cache(64)
def _factor_and_offset(target: Images) -> tuple[Floats, Floats]:
    """Returns the factors and offsets of the pixel values of a row, each [width * channels]."""
    factor, offset = (np.tile(values, target.width) for values in target.scale_and_offset())
    return factor, offset
