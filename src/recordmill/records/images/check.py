"""The bytes of a file to its `ImageHeader`, after a check that the container is whole: the content decides the format,
never the name.

`check_structure` decodes nothing and runs at the speed of memory; `check_decode` decodes every frame with Pillow, and
no other format than these six.

PNG and APNG (W3C PNG, third edition) are read from IHDR to IEND with the CRC-32 of each chunk, JPEG (ITU-T T.81) from
SOI to EOI by its segments; nothing is inflated, and entropy-coded data is passed over. What stands after that end (more
pictures of an MPO file, padding) is not looked at, so a cut there is no damage to the image.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from recordmill.base import native
from recordmill.base.magic import (
    IMAGE_HEAD_BYTES,
    PNG_SIGNATURE,
    sniff_image,
    sniff_unsupported_image,
)
from recordmill.base.option_names import option
from recordmill.records.images.header import (
    CMYK,
    CORRUPT,
    CRC,
    DECODE_FAILED,
    FORMAT,
    GRAY,
    GRAY_ALPHA,
    OTHER_FORMAT,
    PALETTE,
    RGB,
    RGBA,
    SIZE_FAULT,
    TRUNCATED,
    BadImage,
    ImageHeader,
)
from recordmill.records.images.pillow import open_image, read_by_pillow

if TYPE_CHECKING:
    from PIL import Image

_PNG_COLOURS = {0: (GRAY, 1), 2: (RGB, 3), 3: (PALETTE, 3), 4: (GRAY_ALPHA, 2), 6: (RGBA, 4)}
_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
_LENGTH = struct.Struct(">I")
_CHUNK = struct.Struct(">I4s")
_IHDR = struct.Struct(">IIBBBBB")
_MESSAGES = {
    native.JpegCode.CUT_OFF: (TRUNCATED, "the segment at byte {} goes beyond the end of the file"),
    native.JpegCode.NO_END: (TRUNCATED, "no end-of-image marker up to the end of the file"),
    native.JpegCode.BAD_LENGTH: (CORRUPT, "a segment's length is below 2 at byte {}"),
    native.JpegCode.REPEATED: (CORRUPT, "a second start of image or frame header at byte {}"),
    native.JpegCode.NO_FRAME: (
        CORRUPT,
        "a scan or the end of the image at byte {} comes before any frame header",
    ),
    native.JpegCode.NO_SCAN: (CORRUPT, "the image ends at byte {} without any scan"),
    native.JpegCode.BAD_FRAME: (
        CORRUPT,
        "the frame header at byte {} has no size, no components or the wrong length",
    ),
}
# frame headers that TensorFlow's decoder takes: baseline, extended, progressive, and the latter two arithmetic
_TAKEN_BY_TENSORFLOW = (0xC0, 0xC1, 0xC2, 0xC9, 0xCA)
_LOSSLESS = (0xC3, 0xC7, 0xCB, 0xCF)
_JPEG_FACTS = np.dtype(native.JpegFacts)  # made once: that takes as long as to walk an image
_JPEG_COLOURS = {1: GRAY, 3: RGB, 4: CMYK}
# where Pillow raises: twice the 89,478,485 pixels (a quarter of a GiB at 3 bytes each) above which it warns
MAX_PIXELS = 178_956_970
MAX_SCANS = (
    500  # of a JPEG: real ones have about ten, and each takes as long as decoding a JPEG of one
)
IMAGE_FORMATS = (
    "JPEG",
    "PNG",
    "GIF",
    "BMP",
    "WebP",
    "TIFF",
)  # of the latter four Pillow reads the header


def read_png(data: npt.NDArray[np.uint8]) -> ImageHeader:
    """Reads the header of a PNG file that starts with the signature. BadImage: `truncated` before the end of IEND,
    `crc` for a chunk that was changed, `corrupt` for what the standard forbids.
    """
    view = data.data
    size, at = len(view), len(PNG_SIGNATURE)
    header, palette, alpha, pixels, animated, frames = None, False, False, False, False, 0
    while True:
        if at + 12 > size:
            raise BadImage(
                TRUNCATED, f"the file ends inside a chunk that begins at byte {at}, before IEND"
            )
        length, kind = _CHUNK.unpack_from(view, at)
        end = at + 12 + length
        if end > size:
            raise BadImage(
                TRUNCATED,
                f"chunk {_name(kind)} at byte {at} needs {length} bytes, {max(size - at - 12, 0)} are left",
            )
        if zlib.crc32(view[at + 4 : end - 4]) != _LENGTH.unpack_from(view, end - 4)[0]:
            raise BadImage(CRC, f"the CRC of chunk {_name(kind)} at byte {at} is wrong")
        if header is None:
            header = _read_ihdr(kind, view[at + 8 : end - 4])
        elif kind == b"IDAT":
            pixels = True
        elif kind == b"PLTE":
            palette = True
        elif kind == b"tRNS":
            alpha = True
        elif kind == b"acTL":
            animated = True
        elif kind == b"fcTL":
            frames += 1
        elif kind == b"IEND":
            break
        at = end
    return _finish_png(
        header, palette=palette, pixels=pixels, alpha=alpha, several_frames=animated and frames > 1
    )


def _read_ihdr(kind: bytes, body: memoryview) -> ImageHeader:
    if kind != b"IHDR" or len(body) != _IHDR.size:
        raise BadImage(
            CORRUPT, f"the first chunk is {_name(kind)} of {len(body)} bytes instead of IHDR of 13"
        )
    width, height, bits, colour, compression, filtering, interlace = _IHDR.unpack(body)
    if not 0 < width < 1 << 31 or not 0 < height < 1 << 31:
        raise BadImage(CORRUPT, f"size {height} x {width}")
    if bits not in _DEPTHS.get(colour, ()) or compression or filtering or interlace > 1:
        raise BadImage(
            CORRUPT,
            f"IHDR says bit depth {bits}, colour type {colour}, compression {compression}, filter "
            f"{filtering}, interlace {interlace}",
        )
    name, channels = _PNG_COLOURS[colour]
    return ImageHeader("PNG", height, width, channels, bits, name)


def _finish_png(
    header: ImageHeader, *, palette: bool, pixels: bool, alpha: bool, several_frames: bool
) -> ImageHeader:
    if not pixels:
        raise BadImage(CORRUPT, "no IDAT chunk, so no pixels")
    if header.colour == PALETTE and not palette:
        raise BadImage(CORRUPT, "palette colours without a PLTE chunk")
    channels = 4 if alpha and header.colour == PALETTE else header.channels
    return header._replace(several_frames=several_frames, channels=channels)


def _name(kind: bytes) -> str:
    return ascii(kind)[2:-1]


def read_jpegs(
    data: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64]
) -> list[ImageHeader | BadImage | None]:
    """Returns `read_jpeg` of each of the images that stand one after the other and end there, with what it would
    raise as a value; None for what does not begin with FF D8 FF.
    """
    facts = np.empty(len(ends), _JPEG_FACTS)
    native.walk_jpegs(np.ascontiguousarray(data), np.ascontiguousarray(ends, np.int64), facts)
    return [_jpeg_outcome(*values) for values in facts.tolist()]


def read_jpeg(data: npt.NDArray[np.uint8]) -> ImageHeader:
    """Reads the header of a JPEG file whose first bytes are FF D8 FF. BadImage: `truncated` without an EOI or inside a
    segment, `corrupt` where the segments contradict the standard.
    """
    (header,) = read_jpegs(data, np.array([len(data)]))
    if isinstance(header, BadImage):
        raise header
    assert header is not None
    return header


def _jpeg_outcome(
    code: int,
    place: int,
    height: int,
    width: int,
    components: int,
    bits: int,
    marker: int,
    scans: int,
) -> ImageHeader | BadImage | None:
    if code == native.JpegCode.NOT_A_JPEG:
        return None
    if code != native.JpegCode.GOOD:
        reason, message = _MESSAGES[native.JpegCode(code)]
        return BadImage(reason, message.format(place))
    beyond = _beyond_tensorflow(marker, bits, components)
    colour = _JPEG_COLOURS.get(components, OTHER_FORMAT)
    return ImageHeader(
        "JPEG", height, width, components, bits, colour, beyond_tensorflow=beyond, scans=scans
    )


def _beyond_tensorflow(marker: int, bits: int, components: int) -> str:
    if components not in _JPEG_COLOURS:
        return f"{components} components"
    if marker in _LOSSLESS:
        return "lossless"
    if marker not in _TAKEN_BY_TENSORFLOW:
        return "hierarchical"
    return "" if bits == 8 else f"{bits} bits"


_PARSERS: Mapping[str, Callable[[npt.NDArray[np.uint8]], ImageHeader]] = {
    "JPEG": read_jpeg,
    "PNG": read_png,
}


def check_structure(data: npt.NDArray[np.uint8], max_pixels: int = MAX_PIXELS) -> ImageHeader:
    """Reads the header of the image in data, whose container is complete as far as that shows without decoding.
    BadImage: `format` for what is none of the six, `truncated`, `corrupt`, `crc`, or `size` above max_pixels.
    """
    head = data[:IMAGE_HEAD_BYTES].tobytes()
    name = sniff_image(head)
    if name is None:
        raise _no_format(head)
    return _bounded(
        _PARSERS[name](data) if name in _PARSERS else read_by_pillow(data, name), max_pixels
    )


def check_each(
    data: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64], max_pixels: int = MAX_PIXELS
) -> list[ImageHeader | BadImage]:
    """Checks images that stand one after the other and end there, as `check_structure` does, with what it would raise
    as a value.
    """
    starts = [0, *ends[:-1].tolist()]

    def checked(
        header: ImageHeader | BadImage | None, start: int, end: int
    ) -> ImageHeader | BadImage:
        if isinstance(header, BadImage):
            return header
        try:
            return (
                check_structure(data[start:end], max_pixels)
                if header is None
                else _bounded(header, max_pixels)
            )
        except BadImage as error:
            return error

    return [
        checked(*one) for one in zip(read_jpegs(data, ends), starts, ends.tolist(), strict=True)
    ]


def _bounded(header: ImageHeader, max_pixels: int) -> ImageHeader:
    if header.pixels > max_pixels:
        raise BadImage(
            SIZE_FAULT,
            f"{header.height} x {header.width} pixels are more than {max_pixels} ({option('max_pixels')})",
        )
    if header.scans > MAX_SCANS:
        raise BadImage(
            SIZE_FAULT,
            f"{header.scans} scans, of which more than {MAX_SCANS} take for ever to decode",
        )
    return header


def _no_format(head: bytes) -> BadImage:
    if not head:
        return BadImage(TRUNCATED, "the file is empty")
    known = sniff_unsupported_image(head)
    if known:
        return BadImage(
            FORMAT,
            f"{known} is not among the formats that are taken: {', '.join(IMAGE_FORMATS)}; convert it",
        )
    return BadImage(
        FORMAT, f"begins with {head[:8].hex(' ')}, which is none of {', '.join(IMAGE_FORMATS)}"
    )


def pixel_bytes(header: ImageHeader) -> int:
    """Returns the most bytes that decoding an image takes, as Pillow and the decoders hold pixels: four each, and
    those of other frames, of all scans or of a strip that is the whole image.
    """
    beside = {"WebP": 8, "GIF": 8, "TIFF": -(-header.channels * header.bits // 8)}.get(
        header.format, 0
    )
    return header.pixels * (4 + (2 * header.channels if header.scans > 1 else beside))


def check_decode(
    data: npt.NDArray[np.uint8],
    header: ImageHeader,
    reserve: Callable[[int], AbstractContextManager[object]],
    max_pixels: int = MAX_PIXELS,
    first: Callable[[Image.Image], object] | None = None,
) -> None:
    """Decodes every frame of a file, of which `check_structure` gave the header, in contexts of `reserve` in which so
    many bytes may be used; `first` gets the first frame. BadImage: `decode`, with what Pillow says, or `size` of
    another frame.
    """
    try:
        with open_image(data.data, header.format) as image:
            for frame in range(getattr(image, "n_frames", 1)):
                with reserve(pixel_bytes(header)):  # of a GIF, the frame before may be converted
                    image.seek(frame)
                if (
                    image.width * image.height > header.pixels
                ):  # pages of a TIFF have sizes of their own
                    header = _bounded(
                        header._replace(height=image.height, width=image.width), max_pixels
                    )
                with reserve(pixel_bytes(header)):
                    image.load()
                    if first is not None and not frame:
                        first(image)
    except BadImage:
        raise
    except Exception as error:
        # Pillow's plugins raise what their parsers meet: OSError, SyntaxError, ValueError, struct.error, EOFError, ...
        raise BadImage(
            DECODE_FAILED, f"Pillow can't decode it: {type(error).__name__}: {error}"[:250]
        ) from error
