"""Decoding of encoded images into arrays of pixels.

Colours become gray (1 channel), gray and alpha (2), RGB (3) or RGBA (4). As with
`tf.io.decode_image`, only the upper 8 of 16 bits are kept, only the first frame is decoded, and an
EXIF orientation is not applied.

simplejpeg decodes JPEGs if it is installed: it returns the same pixels as Pillow in two thirds of
the time. Pillow decodes everything else. Both release the interpreter's lock.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from recordmill.base.buffers import allocate
from recordmill.records.images.geometry import apply_orientation_to_pixels, invert_orientation
from recordmill.records.images.header import (
    DECODE_FAILED,
    GRAY,
    RGB,
    BadImage,
    ImageHeader,
)
from recordmill.records.images.pillow import load_image, open_image
from recordmill.records.images.pixels import convert_colours

if TYPE_CHECKING:
    from PIL import Image

Pixels = npt.NDArray[np.uint8]

# Pillow's modes by number of channels.
IMAGE_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
# 67 million pixels, or 200 MB of RGB, which is more than any camera has. A forged header must not
# be able to request more.
MAX_DECODED_PIXELS = 1 << 26
# A JPEG decoder can make an image smaller by these factors.
_JPEG_SHRINK_FACTORS = (8, 4, 2)
# 1 million pixels are taken out of Pillow's memory at once, because Pillow would build two copies
# of all of them.
_BAND_PIXELS = 1 << 20
# Bytes for each pixel while an image is decoded: Pillow's pixels (4), the decoder's own pixels
# (up to 4) or converted colours (4), and the result (4). The decoder of WebP has two canvases and
# returns a copy.
_WORK_BYTES = {"WebP": 20}
_DEFAULT_WORK_BYTES = 12
# Buffer that each thread keeps. 8 MiB hold an RGB image of 2.8 million pixels.
_MAX_THREAD_BUFFER_BYTES = 8 << 20
_thread_local = threading.local()
_NO_BUFFER = np.empty(0, np.uint8)
# The colours that simplejpeg converts like Pillow: (colour of the file, channels).
_JPEG_COLOUR_SPACES = {
    (RGB, 3): "RGB",
    (GRAY, 3): "RGB",
    (GRAY, 1): "GRAY",
    (RGB, 4): "RGBA",
    (GRAY, 4): "RGBA",
}


def find_shrink_factor(
    header: ImageHeader, part: tuple[int, int], target: tuple[int, int], oversampling: int = 1
) -> int:
    """Returns the largest shrink factor for decoding a JPEG.

    The factor of other formats is 1.

    Args:
        header: The header of the image.
        part: (height, width) of the part of the image that is needed.
        target: (height, width) of the part after it is resized.
        oversampling: The shrunk part is at least this many times as large as the target.
    """
    if header.format != "JPEG":
        return 1
    return next(
        (
            factor
            for factor in _JPEG_SHRINK_FACTORS
            if part[0] >= oversampling * factor * target[0]
            and part[1] >= oversampling * factor * target[1]
        ),
        1,
    )


def decode_bytes(header: ImageHeader, shrink: int = 1) -> int:
    """Returns the maximum memory for decoding an image to an array, including the array.

    Args:
        header: The header of the image.
        shrink: A JPEG is decoded smaller by this factor.
    """
    height, width = shrunk_size(header, shrink)
    # A decoder keeps the coefficients of all scans in the full size, until all pixels are there.
    scan_bytes = 2 * header.channels * header.pixels if header.scans > 1 else 0
    return max(
        scan_bytes + 4 * height * width,
        height * width * _WORK_BYTES.get(header.format, _DEFAULT_WORK_BYTES),
    )


def shrunk_size(header: ImageHeader, shrink: int) -> tuple[int, int]:
    """Returns the (height, width) of a JPEG that is decoded smaller.

    >>> shrunk_size(ImageHeader("JPEG", 9, 16, 3, 8, RGB), 8)
    (2, 2)
    """
    return -(-header.height // shrink), -(-header.width // shrink)


def decode_pixels(
    data: Pixels,
    header: ImageHeader,
    channels: int,
    *,
    shrink: int = 1,
    deep: bool = False,
    fast_dct: bool = False,
    reuse_buffer: bool = False,
) -> npt.NDArray[Any]:
    """Decodes an image to [height, width, channels].

    Args:
        data: The bytes of the image, which `check_structure` has accepted.
        header: The header of the image.
        channels: 1 gray, 2 gray and alpha, 3 RGB or 4 RGBA.
        shrink: A JPEG is decoded smaller by this factor, which is 1, 2, 4 or 8. Its sides are
            rounded up. 1 for other formats.
        deep: Whether a gray image of 16 bits becomes uint16. Everything else is uint8.
        fast_dct: Whether a JPEG is decoded with the less accurate arithmetic of
            `tf.io.decode_jpeg`. Only possible if simplejpeg is installed and supports the image.
        reuse_buffer: Whether the result uses a buffer of this thread. It is then valid only until
            the thread decodes its next image.

    Raises:
        BadImage: The image can't be decoded.
    """
    decoded = _decode_with_simplejpeg(
        data,
        header,
        channels=channels,
        shrink=shrink,
        fast_dct=fast_dct,
        reuse_buffer=reuse_buffer,
    )
    if decoded is not None:
        return decoded
    with _report_pillow_errors(), open_image(data.data, header.format) as opened:
        if shrink > 1:
            opened.draft(None, (header.width // shrink, header.height // shrink))
        image, orientation = load_image(opened)
        if deep and header.bits == 16 and image.mode.startswith("I"):
            pixels: npt.NDArray[Any] = (
                np.asarray(image).clip(0, 65_535).astype(np.uint16)[:, :, None]
            )
        else:
            image = convert_colours(image, header.bits, IMAGE_MODES[channels])
            pixels = _to_array(image, channels)
        return apply_orientation_to_pixels(pixels, invert_orientation(orientation))


def decode_values(
    data: Pixels, header: ImageHeader
) -> tuple[npt.NDArray[Any], str, list[int] | None]:
    """Decodes a mask without converting its values: palette indices, gray values or colours.

    Args:
        data: The bytes of the image, which `check_structure` has accepted.
        header: The header of the image.

    Returns:
        (values [height, width] or [height, width, channels], Pillow's mode, palette). The palette
        has 3 numbers for each index, and is None for other modes.

    Raises:
        BadImage: The image can't be decoded.
    """
    with _report_pillow_errors(), open_image(data.data, header.format) as opened:
        image, orientation = load_image(opened)
        values = np.asarray(image)
        palette = image.getpalette() if image.mode == "P" else None
    if image.mode == "L" and header.bits < 8:
        # Pillow scales values of 2 and 4 bits up to 255. This reverses it.
        values = values // (255 // ((1 << header.bits) - 1))
    values = apply_orientation_to_pixels(values, invert_orientation(orientation))
    return values, image.mode.partition(";")[0], palette


def decode_mask(data: Pixels, header: ImageHeader) -> npt.NDArray[np.int32]:
    """Decodes a mask to int32 [height, width, 1].

    The result contains the stored values, which are palette indices or gray values.

    Args:
        data: The bytes of the image, which `check_structure` has accepted.
        header: The header of the image.

    Raises:
        BadImage: The image can't be decoded, or has colours.
    """
    values, mode, _ = decode_values(data, header)
    if mode not in ("1", "L", "P", "I"):
        raise BadImage(DECODE_FAILED, f"pixels of {mode}, and a mask has one number per pixel")
    return values.astype(np.int32)[:, :, None]


def _to_array(image: Image.Image, channels: int) -> Pixels:
    """Returns the pixels of a loaded image as [height, width, channels].

    A large image is copied in bands, which takes less memory.
    """
    rows = max(_BAND_PIXELS // image.width, 1)
    if rows >= image.height:
        return np.asarray(image, np.uint8).reshape(image.height, image.width, channels)
    pixels = np.empty((image.height, image.width, channels), np.uint8)
    for top in range(0, image.height, rows):
        band = image.crop((0, top, image.width, min(top + rows, image.height)))
        pixels[top : top + rows] = np.asarray(band, np.uint8).reshape(-1, image.width, channels)
    return pixels


@contextlib.contextmanager
def _report_pillow_errors() -> Iterator[None]:
    try:
        yield
    except BadImage:
        raise
    except Exception as error:
        # Pillow's plugins raise any error of their parsers.
        raise BadImage(
            DECODE_FAILED, f"Pillow can't decode it: {type(error).__name__}: {error}"[:250]
        ) from error


def _decode_with_simplejpeg(
    data: Pixels,
    header: ImageHeader,
    *,
    channels: int,
    shrink: int,
    fast_dct: bool,
    reuse_buffer: bool,
) -> Pixels | None:
    """Decodes a JPEG with simplejpeg.

    Returns:
        The pixels. None if simplejpeg is not installed, does not support the image, or finds any
        fault in it. Pillow then decodes the image, or reports the fault.
    """
    library = _import_simplejpeg()
    colour_space = _JPEG_COLOUR_SPACES.get((header.colour, channels))
    if (
        library is None
        or colour_space is None
        or header.format != "JPEG"
        or header.tensorflow_issue
    ):
        return None
    height, width = shrunk_size(header, shrink)
    size_limits = {} if shrink == 1 else {"min_height": height, "min_width": width}
    allocate_buffer = _allocate_in_thread_buffer if reuse_buffer else allocate
    try:
        decoded: Pixels = library.decode_jpeg(
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


def _allocate_in_thread_buffer(size: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Returns memory of this thread that is reused for the next image.

    If many threads allocate and free pages all the time, they wait for each other in the operating
    system.
    """
    if size > _MAX_THREAD_BUFFER_BYTES:
        return allocate(size, dtype)
    if len(buffer := getattr(_thread_local, "bytes", _NO_BUFFER)) < size:
        buffer = _thread_local.bytes = np.empty(size, np.uint8)
    return buffer[:size]
