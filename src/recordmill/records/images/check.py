"""The bytes of a file to its `ImageHeader`, after a check that the container is whole: the content decides the format,
never the name.

`check_structure` decodes nothing and runs at the speed of memory; `check_decode` decodes every frame with Pillow, and
no other format than these six.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from recordmill.base.magic import IMAGE_HEAD_BYTES, sniff_foreign, sniff_image
from recordmill.base.option_names import option
from recordmill.records.images.header import DECODE_FAILED, FORMAT, SIZE_FAULT, TRUNCATED, BadImage, ImageHeader
from recordmill.records.images.jpeg import read_jpeg, read_jpegs
from recordmill.records.images.pillow import open_image, read_by_pillow
from recordmill.records.images.png import read_png

if TYPE_CHECKING:
    from PIL import Image

# where Pillow raises: twice the 89,478,485 pixels (a quarter of a GiB at 3 bytes each) above which it warns
MAX_PIXELS = 178_956_970
MAX_SCANS = 500  # of a JPEG: real ones have about ten, and each takes as long as decoding a JPEG of one

_PARSERS: Mapping[str, Callable[[npt.NDArray[np.uint8]], ImageHeader]] = {"JPEG": read_jpeg, "PNG": read_png}
IMAGE_FORMATS = (*_PARSERS, "GIF", "BMP", "WebP", "TIFF")  # of the latter four Pillow reads the header


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
    return _bounded(_PARSERS[name](data) if name in _PARSERS else read_by_pillow(data, name), max_pixels)


def check_each(
    data: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64], max_pixels: int = MAX_PIXELS
) -> list[ImageHeader | BadImage]:
    """Checks images one after the other, as `check_structure` does, with what it would raise as a value.

    Args:
        data: the images' bytes.
        ends: where each image ends.
        max_pixels: as in `check_structure`.
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
    if header.pixels > max_pixels:
        raise BadImage(
            SIZE_FAULT, f"{header.height} x {header.width} pixels are more than {max_pixels} ({option('max_pixels')})"
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
    """Returns the most bytes that decoding an image takes, as Pillow and the decoders hold pixels: four each, and
    those of other frames, of all scans or of a strip that is the whole image.
    """
    beside = {"WebP": 8, "GIF": 8, "TIFF": -(-header.channels * header.bits // 8)}.get(header.format, 0)
    return header.pixels * (4 + (2 * header.channels if header.scans > 1 else beside))


def check_decode(
    data: npt.NDArray[np.uint8],
    header: ImageHeader,
    reserve: Callable[[int], AbstractContextManager[object]],
    max_pixels: int = MAX_PIXELS,
    first: Callable[[Image.Image], object] | None = None,
) -> None:
    """Decodes every frame.

    Args:
        data: The bytes of the file.
        header: What check_structure gave, so the size of the first frame is known to be in bounds.
        reserve: Gives a context in which so many bytes may be used.
        max_pixels: Of a frame.
        first: Gets the first frame.

    Raises:
        BadImage: reason `decode`, with what Pillow says; `size` of another frame; or what `reserve` raises.
    """
    try:
        with open_image(data.data, header.format) as image:
            for frame in range(getattr(image, "n_frames", 1)):
                with reserve(pixel_bytes(header)):  # of a GIF, the frame before may be converted
                    image.seek(frame)
                if image.width * image.height > header.pixels:  # pages of a TIFF have sizes of their own
                    header = _bounded(header._replace(height=image.height, width=image.width), max_pixels)
                with reserve(pixel_bytes(header)):
                    image.load()
                    if first is not None and not frame:
                        first(image)
    except BadImage:
        raise
    except Exception as error:
        # Pillow's plugins raise what their parsers meet: OSError, SyntaxError, ValueError, struct.error, EOFError, ...
        raise BadImage(DECODE_FAILED, f"Pillow can't decode it: {type(error).__name__}: {error}"[:250]) from error
