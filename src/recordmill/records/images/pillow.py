"""Access to image files by Pillow.

This module reads the headers of GIF, BMP, WebP and TIFF files without their pixels, and the EXIF
orientation of any format. It also loads pixels, and reports if Pillow turned them: it turns the
pixels of a TIFF upright, but tf.io does not.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from recordmill.base.buffers import Int64s
from recordmill.records.images.header import (
    CMYK,
    CORRUPT,
    DECODE_FAILED,
    GRAY,
    GRAY_ALPHA,
    OTHER_COLOURS,
    PALETTE,
    RGB,
    RGBA,
    TOO_LARGE,
    TRUNCATED,
    BadImage,
    ImageHeader,
)

if TYPE_CHECKING:
    from PIL import Image

# Numbers of the tags of TIFF. EXIF data has the same format and tags.
_WIDTH_TAG, _HEIGHT_TAG, _BITS_TAG = 256, 257, 258
_COMPRESSION_TAG, _PHOTOMETRIC_TAG = 259, 262
_STRIPS_TAG, _STRIP_BYTES_TAG = 273, 279
_ORIENTATION_TAG = 274
_SAMPLES_TAG = 277
_TILES_TAG, _TILE_BYTES_TAG = 324, 325
_OLD_JPEG_TAG = 513
# by photometric interpretation and number of samples
_TIFF_COLOURS = {
    (0, 1): GRAY,
    (0, 2): GRAY_ALPHA,
    (1, 1): GRAY,
    (1, 2): GRAY_ALPHA,
    (2, 3): RGB,
    (2, 4): RGBA,
    (5, 4): CMYK,
    (6, 3): RGB,
    (6, 4): RGBA,
}
# The numbers of BigTIFF could be larger.
_MAX_SIDE_PIXELS = (1 << 31) - 1
_MAX_SAMPLES = 65_535
_MAX_BITS = 64


def open_image(view: memoryview, format_name: str) -> Image.Image:
    """Opens an image with Pillow's plugin for its format.

    `Image.open` is not used. It would try other formats, and apply a limit that is global to the
    process. It would also open the further pictures of an MPO file, which have not been checked.

    Args:
        view: The bytes of the file.
        format_name: One of IMAGE_FORMATS.
    """
    return _plugin(format_name)(io.BytesIO(view), "")


def _plugin(format_name: str) -> Callable[..., Image.Image]:
    from PIL.BmpImagePlugin import BmpImageFile
    from PIL.GifImagePlugin import GifImageFile
    from PIL.JpegImagePlugin import JpegImageFile
    from PIL.PngImagePlugin import PngImageFile
    from PIL.TiffImagePlugin import TiffImageFile
    from PIL.WebPImagePlugin import WebPImageFile

    plugins: Mapping[str, Callable[..., Image.Image]] = {
        "JPEG": JpegImageFile,
        "PNG": PngImageFile,
        "GIF": GifImageFile,
        "BMP": BmpImageFile,
        "WebP": WebPImageFile,
        "TIFF": TiffImageFile,
    }
    return plugins[format_name]


class _BoundedFile:
    """A file in memory for Pillow's parsers, which limits how much they read.

    Reading after the end of the file is an error. In total the parsers may read four times the size
    of the file. Without this, tags with overlapping values could take unlimited time and memory.
    """

    def __init__(self, view: memoryview) -> None:
        self._view, self._position, self._read_budget = view, 0, 4 * len(view) + 4096

    def read(self, size: int = -1) -> bytes:
        start, end = self._position, len(self._view) if size < 0 else self._position + size
        if end > len(self._view):
            raise BadImage(
                TRUNCATED,
                f"the file ends before byte {end}, inside the part that begins at byte {start}",
            )
        self._position, self._read_budget = end, self._read_budget - (end - start)
        if self._read_budget < 0:
            raise BadImage(CORRUPT, "parts of the header overlap")
        return bytes(self._view[start:end])

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + (0, self._position, len(self._view))[whence]
        return self._position

    def tell(self) -> int:
        return self._position


def read_header_with_pillow(data: npt.NDArray[np.uint8], format_name: str) -> ImageHeader:
    """Reads the header of a GIF, BMP, WebP or TIFF file.

    A GIF must be complete up to the end of its first frame. A BMP or TIFF must contain all its
    pixels. A WebP must have the size that its container specifies.

    Args:
        data: uint8 [bytes], the file.
        format_name: The format, which the caller has detected from the first bytes.

    Raises:
        BadImage: The file can't be used. Its reason is TRUNCATED if the file ends too early, and
            CORRUPT if it contradicts its format. It is TOO_LARGE if Pillow refuses the size, and
            DECODE_FAILED if Pillow can't read it.
    """
    view = data.data
    if format_name == "WebP" and (end := 8 + struct.unpack_from("<I", view, 4)[0]) > len(view):
        raise BadImage(TRUNCATED, f"RIFF announces {end} bytes, the file has {len(view)}")
    try:
        header = _read_tiff(view) if format_name == "TIFF" else _read_with_plugin(view, format_name)
    except BadImage:
        raise
    except Exception as error:
        # Pillow's plugins raise any error of their parsers.
        reason = TOO_LARGE if type(error).__name__ == "DecompressionBombError" else DECODE_FAILED
        raise BadImage(
            reason,
            f"Pillow can't read it: {type(error).__name__}: {error}"[:250],
        ) from error
    if not (0 < header.width <= _MAX_SIDE_PIXELS and 0 < header.height <= _MAX_SIDE_PIXELS):
        raise BadImage(CORRUPT, f"an image of {header.height} x {header.width}")
    return header


def _read_with_plugin(view: memoryview, format_name: str) -> ImageHeader:
    with _plugin(format_name)(_BoundedFile(view), "") as image:
        has_more_frames, tensorflow_issue = getattr(image, "is_animated", False), ""
        if format_name == "BMP":
            tensorflow_issue = _bmp_tensorflow_issue(view)
            _check_bmp(image, len(view))
        # Decoders return three channels for every GIF. A BMP has a palette even if its colours are
        # gray.
        colour, channels = {"RGB": (RGB, 3), "RGBA": (RGBA, 4)}.get(image.mode, (PALETTE, 3))
        return ImageHeader(
            format=format_name,
            height=image.height,
            width=image.width,
            channels=channels,
            bits=8,
            colour=colour,
            has_more_frames=has_more_frames,
            tensorflow_issue=tensorflow_issue,
        )


def _check_bmp(image: Image.Image, file_bytes: int) -> None:
    for codec, (_, _, _, rows), offset, args in image.tile:  # type: ignore[attr-defined]
        needed_bytes = offset + (args[1] * rows if codec == "raw" else 1)
        if needed_bytes > file_bytes:
            raise BadImage(
                TRUNCATED, f"the pixels need {needed_bytes} bytes, the file has {file_bytes}"
            )


def _bmp_tensorflow_issue(view: memoryview) -> str:
    """Returns why TensorFlow can't decode a BMP, or "" if it can.

    TensorFlow reads every BMP by the layout of Windows 3: uncompressed pixels of 1, 3 or 4 complete
    bytes, with less than four bytes after them.
    """
    offset, _, width, height, _, bits = struct.unpack_from(
        "<iiiiHH", view.tobytes()[:32].ljust(32, b"\0"), 10
    )
    if view[14] == 12 or len(view) < 32:
        return "a header of OS/2"
    if bits // 8 not in (1, 3, 4):
        return f"{bits} bits per pixel"
    trailing_bytes = len(view) - offset - (bits // 8 * width + 3) // 4 * 4 * abs(height)
    return "" if 0 <= trailing_bytes <= 3 else "compressed, or data behind the pixels"


def _read_tiff(view: memoryview) -> ImageHeader:
    """Reads the directory of the first image of a TIFF.

    Images with more samples per pixel than Pillow decodes are accepted, such as satellite images.
    """
    from PIL.TiffImagePlugin import ImageFileDirectory_v2

    file = _BoundedFile(view)
    head = file.read(16 if view[2] == 43 else 8)
    tags = ImageFileDirectory_v2(head)
    first = tags.next
    if not first:
        raise BadImage(CORRUPT, "no directory, so no image")
    file.seek(first)
    tags.load(file)  # type: ignore[arg-type]

    def numbers(tag: int, default: int | None = None) -> Int64s:
        value = tags.get(tag, () if default is None else default)
        return np.array(value if isinstance(value, tuple) else (value,), np.int64)

    width, height = int(numbers(_WIDTH_TAG, 0)[0]), int(numbers(_HEIGHT_TAG, 0)[0])
    bits, compression, photometric, samples = (
        int(numbers(tag, 1)[0])
        for tag in (_BITS_TAG, _COMPRESSION_TAG, _PHOTOMETRIC_TAG, _SAMPLES_TAG)
    )
    if not (0 < samples <= _MAX_SAMPLES and 0 < bits <= _MAX_BITS):
        raise BadImage(CORRUPT, f"pixels of {samples} samples with {bits} bits")
    offsets, counts = numbers(_TILES_TAG), numbers(_TILE_BYTES_TAG)
    if not len(offsets):
        offsets, counts = numbers(_STRIPS_TAG), numbers(_STRIP_BYTES_TAG)
    if not len(offsets) and _OLD_JPEG_TAG not in tags:
        raise BadImage(CORRUPT, "no strips and no tiles, so no pixels")
    # The byte counts may be missing, or fewer than the strips.
    counts = np.resize(counts, len(offsets)) if len(counts) else np.ones(len(offsets), np.int64)
    # Uncompressed: bytes of a strip beyond the size of the image are never read.
    if compression == 1:
        counts = np.minimum(counts, min(height * -(-width * bits * samples // 8), _MAX_SIDE_PIXELS))
    if (offsets < 0).any() or (counts < 0).any() or (counts > len(view) - offsets).any():
        raise BadImage(
            TRUNCATED, f"a strip or tile of pixels is beyond the {len(view)} bytes of the file"
        )
    colour = (
        PALETTE if photometric == 3 else _TIFF_COLOURS.get((photometric, samples), OTHER_COLOURS)
    )
    channels = 3 if colour == PALETTE else samples
    return ImageHeader(
        format="TIFF",
        height=height,
        width=width,
        channels=channels,
        bits=bits,
        colour=colour,
        has_more_frames=tags.next not in (0, first),
        tensorflow_issue="the format",
    )


def read_orientation(data: npt.NDArray[np.uint8], format_name: str) -> int:
    """Returns the EXIF orientation of an image, from 1 to 8.

    The orientation comes from the EXIF data, or from the directory of a TIFF. The result is 1 if
    there is none.
    """
    # Most JPEGs have no orientation. A search finds this ten times faster than opening the file.
    if format_name in ("GIF", "BMP") or (
        format_name == "JPEG" and b"Exif\0\0" not in data.tobytes()
    ):
        return 1
    try:
        with open_image(data.data, format_name) as image:
            # For a PNG without EXIF data in front, Pillow would decode all pixels to look for EXIF
            # data after them.
            exif: Mapping[int, object] = (
                image.getexif() if format_name != "PNG" or "exif" in image.info else {}
            )
            value = exif.get(_ORIENTATION_TAG, 1)
    except Exception:
        # Pillow's plugins raise any error of their parsers. Decoding the image reports it later.
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def load_image(image: Image.Image) -> tuple[Image.Image, int]:
    """Loads the pixels of an opened image.

    Errors of Pillow's plugins are not converted.

    Returns:
        (the loaded image, the orientation that Pillow has applied). The orientation is 1 except for
        a TIFF.
    """
    if image.format != "TIFF":
        image.load()
        return image, 1
    orientation: int = image.getexif().get(_ORIENTATION_TAG, 1)
    image.load()
    # Pillow removes the tag when it has applied it.
    return image, 1 if _ORIENTATION_TAG in image.getexif() else orientation


def stored_size(image: Image.Image) -> tuple[int, int]:
    """Returns (height, width) of the stored pixels of an opened image.

    The image must not be loaded, because Pillow turns a TIFF upright then.
    """
    sideways = image.format == "TIFF" and image.getexif().get(_ORIENTATION_TAG) in (5, 6, 7, 8)
    return (image.width, image.height) if sideways else (image.height, image.width)
