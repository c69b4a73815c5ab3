"""The bytes of a file to its `ImageHeader`, after a check that the container is whole:
the content decides the format, never the name.

`check_structure` decodes nothing and runs at the speed of memory; `check_decode` decodes every frame with Pillow, and
no other format than these six.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from recordmill.base.magic import IMAGE_HEAD_BYTES, sniff_foreign, sniff_image
from recordmill.base.option_names import option
from recordmill.records.images.bmp import read_bmp
from recordmill.records.images.gif import read_gif
from recordmill.records.images.header import DECODE_FAILED, FORMAT, SIZE_FAULT, TRUNCATED, BadImage, ImageHeader
from recordmill.records.images.jpeg import read_jpeg, read_jpegs
from recordmill.records.images.png import read_png
from recordmill.records.images.tiff import read_tiff
from recordmill.records.images.webp import read_webp

if TYPE_CHECKING:
    from PIL import Image

# where Pillow raises: twice the 89,478,485 pixels (a quarter of a GiB at 3 bytes each) above which it warns
MAX_PIXELS = 178_956_970
MAX_SCANS = 500  # of a JPEG: real ones have about ten, and each takes as long as decoding a JPEG of one

_PARSERS: Mapping[str, Callable[[npt.NDArray[np.uint8]], ImageHeader]] = {
    "JPEG": read_jpeg,
    "PNG": read_png,
    "GIF": read_gif,
    "BMP": read_bmp,
    "WebP": read_webp,
    "TIFF": read_tiff,
}
IMAGE_FORMATS = tuple(_PARSERS)


def check_structure(data: npt.NDArray[np.uint8], max_pixels: int = MAX_PIXELS) -> ImageHeader:
    """The header of the image in data, whose container is complete as far as that shows without decoding.

    Raises:
        BadImage: reason `format` for what is none of the six, `truncated`, `corrupt`, `crc`, or `size` above
            max_pixels.
    """
    head = data[:IMAGE_HEAD_BYTES].tobytes()
    name = sniff_image(head)
    if name is None:
        raise _no_format(head)
    return _bounded(_PARSERS[name](data), max_pixels)


def check_each(
    data: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64], max_pixels: int = MAX_PIXELS
) -> list[ImageHeader | BadImage]:
    """`check_structure` of each of the images that stand one behind the other and end there, with what it would raise
    as a value. JPEGs take one call together.
    """
    starts = [0, *ends[:-1].tolist()]

    def checked(header: ImageHeader | BadImage | None, start: int, end: int) -> ImageHeader | BadImage:
        if isinstance(header, BadImage):
            return header
        try:
            return check_structure(data[start:end], max_pixels) if header is None else _bounded(header, max_pixels)
        except BadImage as error:
            return error

    return [checked(*one) for one in zip(read_jpegs(data, ends), starts, ends.tolist(), strict=True)]


def _bounded(header: ImageHeader, max_pixels: int) -> ImageHeader:
    if header.height * header.width > max_pixels:
        raise BadImage(
            SIZE_FAULT, f"{header.height} x {header.width} pixels are more than {max_pixels} ({option('max_pixels')})"
        )
    if header.pixels > max_pixels:
        raise BadImage(
            SIZE_FAULT, f"a frame of {header.pixels} pixels, more than {max_pixels} ({option('max_pixels')})"
        )
    if header.scans > MAX_SCANS:
        raise BadImage(SIZE_FAULT, f"{header.scans} scans, of which more than {MAX_SCANS} take for ever to decode")
    return header


def _no_format(head: bytes) -> BadImage:
    if not head:
        return BadImage(TRUNCATED, "the file is empty")
    known = sniff_foreign(head)
    if known:
        return BadImage(
            FORMAT, f"{known} is not among the formats that are taken: {', '.join(IMAGE_FORMATS)}; convert it"
        )
    return BadImage(FORMAT, f"begins with {head[:8].hex(' ')}, which is none of {', '.join(IMAGE_FORMATS)}")


def pixel_bytes(header: ImageHeader) -> int:
    """The bytes that decoding the largest frame takes at most, as Pillow and the decoders hold pixels: four each, and
    those of other frames, of all scans or of a strip that is the whole image.
    """
    beside = {"WebP": 8, "GIF": 8, "TIFF": -(-header.channels * header.bits // 8)}.get(header.format, 0)
    return header.pixels * (4 + (2 * header.channels if header.scans > 1 else beside))


def check_decode(
    data: npt.NDArray[np.uint8], header: ImageHeader, first: Callable[[Image.Image], object] | None = None
) -> None:
    """Decodes every frame; header is what check_structure gave, so the size is known to be in bounds. first: gets the
    first frame.

    Raises:
        BadImage: reason `decode`, with what Pillow says.
    """
    try:
        with open_image(data.data, header.format) as image:
            for frame in range(getattr(image, "n_frames", 1)):
                image.seek(frame)
                image.load()
                if first is not None and not frame:
                    first(image)
    except Exception as error:
        # Pillow's plugins raise what their parsers meet: OSError, SyntaxError, ValueError, struct.error, EOFError, ...
        raise BadImage(DECODE_FAILED, f"Pillow can't decode it: {type(error).__name__}: {error}"[:250]) from error


def open_image(view: memoryview, name: str) -> Image.Image:
    """The plugin's own image object: `Image.open` would try other formats,
    and apply a limit of its own that is global to the process.
    """
    # Imported here, since only this check needs Pillow. Its registered function for JPEGs is not asked: it would also
    # decode the images that follow the first one (MPO), whose sizes nothing has checked.
    from PIL.BmpImagePlugin import BmpImageFile
    from PIL.GifImagePlugin import GifImageFile
    from PIL.JpegImagePlugin import JpegImageFile
    from PIL.PngImagePlugin import PngImageFile
    from PIL.TiffImagePlugin import TiffImageFile
    from PIL.WebPImagePlugin import WebPImageFile

    plugins = {
        "JPEG": JpegImageFile, "PNG": PngImageFile, "GIF": GifImageFile,
        "BMP": BmpImageFile, "WebP": WebPImageFile, "TIFF": TiffImageFile,
    }  # fmt: skip
    return plugins[name](io.BytesIO(view), "")
