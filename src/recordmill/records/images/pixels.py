"""The pixels of an image that Pillow has loaded: in other colours of 8 bits, and added up.

Sums are of red, green and blue as `decode_images` gives them (a gray image has three equal channels), each 0 to 255.
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
NUM_PIXEL_SUMS = 1 + 2 * len(
    COLOUR_CHANNELS
)  # what is known of an image: its pixels, each channel's sum, and that of its squares
MAX_DECODE_BYTES = (
    48 << 20
)  # 48 MiB: 12 million pixels of a plain image, 4.8 million of a progressive JPEG
_BAND_PIXELS = 1 << 20  # that are converted at once
_PIXEL_VALUES = np.arange(256, dtype=np.int64)
_decode_lock = threading.Lock()  # one at a time takes so much memory

PixelSums = npt.NDArray[
    np.int64
]  # [NUM_PIXEL_SUMS], or [images, NUM_PIXEL_SUMS]; 0 pixels: nothing is known of it


def convert_colours(image: Image.Image, bits: int, mode: str) -> Image.Image:
    """Returns the image in Pillow's mode `L`, `RGB` or `RGBA`. bits: of a channel as stored; of 16 the upper 8 are
    kept. BadImage: its pixels are floating point, or of more than 16 bits.
    """
    from PIL import Image

    if image.mode.startswith("I"):
        if bits > 16:
            raise BadImage(DECODE_FAILED, f"pixels of {bits} bits; only 8 and 16 become uint8")
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode == "F":
        raise BadImage(DECODE_FAILED, "pixels of floating point; only 8 and 16 bits become uint8")
    return image if image.mode == mode else image.convert(mode)


def sum_pixels(image: Image.Image, bits: int) -> PixelSums:
    """Returns [NUM_PIXEL_SUMS] of a loaded image."""
    histograms = sum(_histograms(image, bits), np.zeros((len(COLOUR_CHANNELS), 256), np.int64))
    return np.array(
        [histograms[0].sum(), *(histograms @ _PIXEL_VALUES), *(histograms @ _PIXEL_VALUES**2)],
        np.int64,
    )


def _histograms(image: Image.Image, bits: int) -> Iterator[npt.NDArray[np.int64]]:
    """Yields [3, 256] how many pixels have each value, of parts of the image."""
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
    """Returns [NUM_PIXEL_SUMS] of an encoded image, of several frames the first; all 0 for what is no image, can't be decoded,
    or takes more than MAX_DECODE_BYTES to decode.
    """
    try:
        header = check_structure(data)
        if pillow_decode_bytes(header) > MAX_DECODE_BYTES:
            return np.zeros(NUM_PIXEL_SUMS, np.int64)
        with _decode_lock, open_image(data.data, header.format) as image:
            image.load()
            return sum_pixels(image, header.bits)
    except Exception:  # Pillow's plugins raise what their parsers meet; what is wrong with images is told elsewhere
        return np.zeros(NUM_PIXEL_SUMS, np.int64)
