"""Conversion of colours, and sums of pixels.

The images must have been loaded by Pillow. The sums are of the red, green and blue values from 0 to
255 that `decode_images` returns. A gray image has three equal channels.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from recordmill.records.images.check import check_structure, pillow_decode_bytes
from recordmill.records.images.header import DECODE_FAILED, BadImage
from recordmill.records.images.pillow import open_image

if TYPE_CHECKING:
    from PIL import Image

COLOUR_CHANNELS = ("red", "green", "blue")
# the number of pixels, and for each channel the sum of its values and of their squares
NUM_PIXEL_SUMS = 1 + 2 * len(COLOUR_CHANNELS)
# 48 MiB: 12 million pixels of a plain image, or 4.8 million of a progressive JPEG.
MAX_DECODE_BYTES = 48 << 20
# 1,048,576 pixels are converted at once, which bounds the memory for the converted copy.
_BAND_PIXELS = 1 << 20
_PIXEL_VALUES = np.arange(256, dtype=np.int64)
# Only one image at a time uses this memory.
_decode_lock = threading.Lock()

# [NUM_PIXEL_SUMS] or [images, NUM_PIXEL_SUMS]. If the number of pixels is 0, the sums are unknown.
PixelSums = npt.NDArray[np.int64]


def convert_colours(image: Image.Image, bits: int, mode: str) -> Image.Image:
    """Returns the image in Pillow's mode `L`, `RGB` or `RGBA`.

    Args:
        image: The loaded image.
        bits: The number of bits per channel, as stored. Only the upper 8 of 16 bits are kept.
        mode: The mode of the result.

    Raises:
        BadImage: The pixels are floating point, or have more than 16 bits.
    """
    from PIL import Image

    # Pillow's modes for integers of more than 8 bits begin with I.
    if image.mode.startswith("I"):
        if bits > 16:
            raise BadImage(DECODE_FAILED, f"pixels of {bits} bits; only 8 and 16 become uint8")
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode == "F":
        raise BadImage(DECODE_FAILED, "pixels of floating point; only 8 and 16 bits become uint8")
    return image if image.mode == mode else image.convert(mode)


def sum_pixels(image: Image.Image, bits: int) -> PixelSums:
    """Sums up the pixels of a loaded image.

    Returns:
        int64 [NUM_PIXEL_SUMS]: the number of pixels, the sum of the values of each channel, and the
        sum of their squares.
    """
    histograms = sum(_histograms(image, bits), np.zeros((len(COLOUR_CHANNELS), 256), np.int64))
    return np.array(
        [histograms[0].sum(), *(histograms @ _PIXEL_VALUES), *(histograms @ _PIXEL_VALUES**2)],
        np.int64,
    )


def _histograms(image: Image.Image, bits: int) -> Iterator[npt.NDArray[np.int64]]:
    """Yields histograms of the values of each channel, [3, 256], for parts of the image."""
    # Pillow counts these modes without a copy of the pixels. Others are converted in bands.
    if image.mode in ("RGB", "L"):
        yield np.broadcast_to(
            np.array(image.histogram(), np.int64).reshape(-1, 256), (len(COLOUR_CHANNELS), 256)
        )
        return
    rows = max(_BAND_PIXELS // image.width, 1)
    for top in range(0, image.height, rows):
        band = image.crop((0, top, image.width, min(top + rows, image.height)))
        yield np.array(convert_colours(band, bits, "RGB").histogram(), np.int64).reshape(-1, 256)


def sum_encoded_pixels(data: npt.NDArray[np.uint8]) -> PixelSums:
    """Sums up the pixels of the first frame of an encoded image.

    Returns:
        The sums as in `sum_pixels`. All are 0 if the data is not an image, can't be decoded, or
        needs more than MAX_DECODE_BYTES.
    """
    try:
        header = check_structure(data)
        if pillow_decode_bytes(header) > MAX_DECODE_BYTES:
            return np.zeros(NUM_PIXEL_SUMS, np.int64)
        with _decode_lock, open_image(data.data, header.format) as image:
            image.load()
            return sum_pixels(image, header.bits)
    except Exception:
        # Pillow's plugins raise any error of their parsers. Other checks report faults of images.
        return np.zeros(NUM_PIXEL_SUMS, np.int64)
