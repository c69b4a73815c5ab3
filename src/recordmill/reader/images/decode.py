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

_ATTEMPTS = 10
_OWN_BYTES = 8 << 20  # 8 MiB that a thread keeps: an image of 2.8 million pixels
_own, _NONE = threading.local(), np.empty(0, np.uint8)
_STEP, _FIRST, _SECOND, _WORD = (
    0x9E3779B97F4A7C15,
    0xBF58476D1CE4E5B9,
    0x94D049BB133111EB,
    (1 << 64) - 1,
)


def box_of(height: int, width: int, wanted: Images, key: int, number: int) -> Box:
    """Returns the part of an image [height, width] that is kept; key: of the seed and the epoch, number: of the record
    among all.
    """
    if wanted.crop is None:
        return Box(0, 0, height, width)
    if wanted.crop == "center":
        return find_center_box(height, width, wanted.width / wanted.height)
    return _random(height, width, wanted.crop, _draws(key, number))


def _random(height: int, width: int, crop: RandomCrop, draws: Iterator[float]) -> Box:
    low, high = math.log(crop.ratio[0]), math.log(crop.ratio[1])
    for _ in range(_ATTEMPTS):
        area = height * width * (crop.area[0] + (crop.area[1] - crop.area[0]) * next(draws))
        ratio = math.exp(low + (high - low) * next(draws))
        own_width, own_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < own_width <= width and 0 < own_height <= height:
            top = int(next(draws) * (height - own_height + 1))
            return Box(top, int(next(draws) * (width - own_width + 1)), own_height, own_width)
    return find_center_box(height, width, min(max(width / height, crop.ratio[0]), crop.ratio[1]))


def is_flipped(key: int, number: int) -> bool:
    """Returns whether the image of a record is flipped; key and number as of `box_of`, whose draws are others."""
    return next(_draws(~key & _WORD, number)) < 0.5


def _draws(key: int, number: int) -> Iterator[float]:
    """Numbers in [0, 1): SplitMix64 from a state that key and number decide."""
    state = (key + number * _STEP) & _WORD
    state = _mixed(state)
    while True:
        state = (state + _STEP) & _WORD
        yield (_mixed(state) >> 11) / (1 << 53)


def _mixed(word: int) -> int:
    word = ((word ^ (word >> 30)) * _FIRST) & _WORD
    word = ((word ^ (word >> 27)) * _SECOND) & _WORD
    return word ^ (word >> 31)


_COLOURSPACES = {
    (RGB, 3): "RGB",
    (GRAY, 3): "RGB",
    (GRAY, 1): "GRAY",
    (RGB, 4): "RGBA",
    (GRAY, 4): "RGBA",
}


class Encoded:
    """An encoded image [bytes] whose container is whole, or BadImage. height, width: once it is decoded, in full size.
    checked: what `check_structures` said of it.
    """

    def __init__(
        self, data: Pixels, wanted: Images, checked: ImageHeader | BadImage | None = None
    ) -> None:
        if isinstance(checked, BadImage):
            raise checked
        self._data, self._channels, self._mask = data, wanted.channels, wanted.mask
        self._fast = wanted.dct == "fast"
        self._header = check_structure(data, MAX_DECODED_PIXELS) if checked is None else checked
        self._turned = read_orientation(data, self._header.format) if wanted.orientation else 1
        height, width = self._header.height, self._header.width
        self.height, self.width = (width, height) if self._turned > 4 else (height, width)
        if (
            wanted.one_size
            and wanted.height
            and (self.height, self.width) != (wanted.height, wanted.width)
        ):
            said = f"{self.height} x {self.width} pixels where the first image has {wanted.height} x {wanted.width}"
            raise BadImage(DECODE_FAILED, f"{said}: give decode_images=(height, width)")

    @property
    def work_bytes(self) -> int:
        """Returns how much memory decoding takes at most."""
        return array_decode_bytes(self._header)

    def shrink(self, height: int, width: int, wanted: Images) -> int:
        """The largest divisor by which a part [height, width] can be decoded smaller and is as large as wanted."""
        if not wanted.shrink or self._header.format != "JPEG":
            return 1
        fits = (
            by
            for by in JPEG_SHRINK_FACTORS
            if height // by >= wanted.height and width // by >= wanted.width
        )
        return next(fits, 1)

    def pixels(self, shrink: int = 1, *, once: bool = False) -> npt.NDArray[Any]:
        """Returns uint8, of a mask int32 [height, width, channels], or the shrink-th part of that (rounded up), or
        raises BadImage. once: the array holds until this thread decodes the next image.
        """
        if self._mask:
            return apply_orientation_to_pixels(decode_mask(self._data, self._header), self._turned)
        make = _own_room if once else allocate
        decoded = _by_simplejpeg(self._data, self._header, self._channels, shrink, self._fast, make)
        if decoded is None:
            decoded = decode_stored_pixels(self._data, self._header, self._channels, shrink)
        return apply_orientation_to_pixels(decoded, self._turned)


def _own_room(size: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Returns an array as `allocate` does, but in memory of this thread's own, which is used again: where many threads ask
    for new pages and give them back, the system lets them wait for each other.
    """
    if size > _OWN_BYTES:
        return allocate(size, dtype)
    if len(held := getattr(_own, "bytes", _NONE)) < size:
        held = _own.bytes = np.empty(size, np.uint8)
    return held[:size]


def _by_simplejpeg(
    data: Pixels,
    header: ImageHeader,
    channels: int,
    shrink: int,
    fast: bool,
    make: Callable[..., npt.NDArray[Any]],
) -> Pixels | None:
    """Decodes by simplejpeg; None where it is not installed, does not take the image, or finds anything wrong: Pillow
    has the last word.
    """
    library, colours = _simplejpeg(), _COLOURSPACES.get((header.colour, channels))
    if library is None or colours is None or header.format != "JPEG" or header.tensorflow_issue:
        return None
    height, width = -(-header.height // shrink), -(-header.width // shrink)
    least = {} if shrink == 1 else {"min_height": height, "min_width": width}
    try:
        decoded = library.decode_jpeg(
            data,
            colours,
            fast,
            buffer=make(height * width * channels, np.uint8),
            strict=True,
            **least,
        )
    except ValueError:
        return None
    return decoded if decoded.shape == (height, width, channels) else None


@functools.cache
def _simplejpeg() -> Any:
    try:
        import simplejpeg
    except ImportError:
        return None
    return simplejpeg


def resize_into(pixels: npt.NDArray[Any], box: Box, wanted: Images, out: npt.NDArray[Any]) -> None:
    """Resizes a part of [height, width, channels] into out [wanted.height, wanted.width, channels] of the dtype wanted;
    BadImage where a value of a mask is beyond uint8.
    """
    if wanted.mask:
        kept = pixels[box.top : box.top + box.height, box.left : box.left + box.width]
        values = kept[
            np.ix_(
                nearest_indices(box.height, wanted.height), nearest_indices(box.width, wanted.width)
            )
        ]
        if out.dtype == np.uint8 and values.max() > 255:
            raise BadImage(
                DECODE_FAILED,
                f"a value of {values.max()} is beyond uint8: Images(dtype='int32') takes it",
            )
        out[:] = values
    else:
        resample(pixels, box, out, *_arithmetic(wanted), antialias=wanted.antialias)


@functools.lru_cache(64)
def _arithmetic(wanted: Images) -> tuple[Floats, Floats]:
    """Returns ([width * channels] factor, [width * channels] offset)."""
    factor, offset = (np.tile(one, wanted.width) for one in wanted.scale_and_offset())
    return factor, offset
