"""One encoded image to uint8 pixels: the part of it that is kept (`Box`), decoded as stored or turned upright. JPEGs by
simplejpeg where it is installed (the same pixels a third faster), everything else by Pillow; both let other threads
run. A random part is decided by a key and the record's number, so that neither the order nor threads matter.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from recordmill.base.buffers import allocate
from recordmill.reader.options.images import Floats, Images, RandomCrop
from recordmill.records.columns.decode_images import (
    MAX_DECODED_PIXELS,
    Pixels,
    array_decode_bytes,
    decode_mask,
    decode_stored_pixels,
)
from recordmill.records.images.check import check_structure
from recordmill.records.images.header import DECODE_FAILED, GRAY, RGB, BadImage, ImageHeader
from recordmill.records.images.pillow import read_orientation
from recordmill.records.images.resize import (
    JPEG_SHRINK_FACTORS,
    Box,
    apply_orientation_to_pixels,
    find_center_box,
    nearest_indices,
    resample,
)

_MAX_CROP_ATTEMPTS = 10
_MAX_THREAD_BUFFER_BYTES = 8 << 20  # 8 MiB that a thread keeps: an image of 2.8 million pixels
_thread_local, _NO_BUFFER = threading.local(), np.empty(0, np.uint8)
_STATE_INCREMENT, _FIRST_MULTIPLIER, _SECOND_MULTIPLIER, _WORD_MASK = (
    0x9E3779B97F4A7C15,
    0xBF58476D1CE4E5B9,
    0x94D049BB133111EB,
    (1 << 64) - 1,
)


def choose_box(height: int, width: int, target: Images, key: int, number: int) -> Box:
    """Returns the part of an image [height, width] that is kept; key: of the seed and the epoch, number: of the record
    among all.
    """
    if target.crop is None:
        return Box(0, 0, height, width)
    if target.crop == "center":
        return find_center_box(height, width, target.width / target.height)
    return _choose_random_box(height, width, target.crop, _random_numbers(key, number))


def _choose_random_box(
    height: int, width: int, crop: RandomCrop, random_numbers: Iterator[float]
) -> Box:
    min_log_ratio, max_log_ratio = math.log(crop.ratio[0]), math.log(crop.ratio[1])
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
    return find_center_box(height, width, min(max(width / height, crop.ratio[0]), crop.ratio[1]))


def is_flipped(key: int, number: int) -> bool:
    """Returns whether the image of a record is flipped; key and number as of `box_of`, whose draws are others."""
    return next(_random_numbers(~key & _WORD_MASK, number)) < 0.5


def _random_numbers(key: int, number: int) -> Iterator[float]:
    """Numbers in [0, 1): SplitMix64 from a state that key and number decide."""
    state = (key + number * _STATE_INCREMENT) & _WORD_MASK
    state = _mix_word(state)
    while True:
        state = (state + _STATE_INCREMENT) & _WORD_MASK
        yield (_mix_word(state) >> 11) / (1 << 53)


def _mix_word(word: int) -> int:
    word = ((word ^ (word >> 30)) * _FIRST_MULTIPLIER) & _WORD_MASK
    word = ((word ^ (word >> 27)) * _SECOND_MULTIPLIER) & _WORD_MASK
    return word ^ (word >> 31)


_COLOUR_SPACES = {
    (RGB, 3): "RGB",
    (GRAY, 3): "RGB",
    (GRAY, 1): "GRAY",
    (RGB, 4): "RGBA",
    (GRAY, 4): "RGBA",
}


class EncodedImage:
    """An encoded image [bytes] whose container is whole, or BadImage. height, width: once it is decoded, in full size.
    checked: what `check_structures` said of it.
    """

    def __init__(
        self, data: Pixels, target: Images, header: ImageHeader | BadImage | None = None
    ) -> None:
        if isinstance(header, BadImage):
            raise header
        self._data, self._channels, self._mask = data, target.channels, target.mask
        self._fast_dct = target.dct == "fast"
        self._header = check_structure(data, MAX_DECODED_PIXELS) if header is None else header
        self._orientation = read_orientation(data, self._header.format) if target.orientation else 1
        height, width = self._header.height, self._header.width
        self.height, self.width = (width, height) if self._orientation > 4 else (height, width)
        if (
            target.one_size
            and target.height
            and (self.height, self.width) != (target.height, target.width)
        ):
            sizes_text = f"{self.height} x {self.width} pixels where the first image has {target.height} x {target.width}"
            raise BadImage(DECODE_FAILED, f"{sizes_text}: give decode_images=(height, width)")

    @property
    def work_bytes(self) -> int:
        """Returns how much memory decoding takes at most."""
        return array_decode_bytes(self._header)

    def find_shrink_factor(self, height: int, width: int, target: Images) -> int:
        """The largest divisor by which a part [height, width] can be decoded smaller and is as large as wanted."""
        if not target.shrink or self._header.format != "JPEG":
            return 1
        factors = (
            factor
            for factor in JPEG_SHRINK_FACTORS
            if height // factor >= target.height and width // factor >= target.width
        )
        return next(factors, 1)

    def decode(self, shrink_factor: int = 1, *, reuse_buffer: bool = False) -> npt.NDArray[Any]:
        """Returns uint8, of a mask int32 [height, width, channels], or the shrink-th part of that (rounded up), or
        raises BadImage. once: the array holds until this thread decodes the next image.
        """
        if self._mask:
            return apply_orientation_to_pixels(
                decode_mask(self._data, self._header), self._orientation
            )
        allocate_buffer = _allocate_in_thread_buffer if reuse_buffer else allocate
        decoded = _decode_with_simplejpeg(
            self._data, self._header, self._channels, shrink_factor, self._fast_dct, allocate_buffer
        )
        if decoded is None:
            decoded = decode_stored_pixels(self._data, self._header, self._channels, shrink_factor)
        return apply_orientation_to_pixels(decoded, self._orientation)


def _allocate_in_thread_buffer(size: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Returns an array as `allocate` does, but in memory of this thread's own, which is used again: where many threads ask
    for new pages and give them back, the system lets them wait for each other.
    """
    if size > _MAX_THREAD_BUFFER_BYTES:
        return allocate(size, dtype)
    if len(buffer := getattr(_thread_local, "bytes", _NO_BUFFER)) < size:
        buffer = _thread_local.bytes = np.empty(size, np.uint8)
    return buffer[:size]


def _decode_with_simplejpeg(
    data: Pixels,
    header: ImageHeader,
    channels: int,
    shrink_factor: int,
    fast_dct: bool,
    allocate_buffer: Callable[..., npt.NDArray[Any]],
) -> Pixels | None:
    """Decodes by simplejpeg; None where it is not installed, does not take the image, or finds anything wrong: Pillow
    has the last word.
    """
    library, colour_space = _import_simplejpeg(), _COLOUR_SPACES.get((header.colour, channels))
    if (
        library is None
        or colour_space is None
        or header.format != "JPEG"
        or header.tensorflow_issue
    ):
        return None
    height, width = -(-header.height // shrink_factor), -(-header.width // shrink_factor)
    size_limits = {} if shrink_factor == 1 else {"min_height": height, "min_width": width}
    try:
        decoded = library.decode_jpeg(
            data,
            colour_space,
            fast_dct,
            buffer=allocate_buffer(height * width * channels, np.uint8),
            strict=True,
            **size_limits,
        )
    except ValueError:
        return None
    return decoded if decoded.shape == (height, width, channels) else None


@functools.cache
def _import_simplejpeg() -> Any:
    try:
        import simplejpeg
    except ImportError:
        return None
    return simplejpeg


def resize_into(pixels: npt.NDArray[Any], box: Box, target: Images, out: npt.NDArray[Any]) -> None:
    """Resizes a part of [height, width, channels] into out [wanted.height, wanted.width, channels] of the dtype wanted;
    BadImage where a value of a mask is beyond uint8.
    """
    if target.mask:
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
        resample(pixels, box, out, *_factor_and_offset(target), antialias=target.antialias)


@functools.lru_cache(64)
def _factor_and_offset(target: Images) -> tuple[Floats, Floats]:
    """Returns ([width * channels] factor, [width * channels] offset)."""
    factor, offset = (np.tile(values, target.width) for values in target.scale_and_offset())
    return factor, offset
