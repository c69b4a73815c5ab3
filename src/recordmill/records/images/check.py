"""Checks image files for completeness, and reads their headers.

The content decides the format, never the file name. `check_structure` decodes nothing and is about
as fast as reading memory. `check_decode` decodes every frame with Pillow. Only the formats in
IMAGE_FORMATS are accepted.

A PNG or APNG (W3C PNG, third edition) is read from IHDR to IEND, with the CRC-32 of each chunk. A
JPEG (ITU-T T.81) is read by its segments from SOI to EOI. Nothing is decompressed, and
entropy-coded data is skipped. Data after the end is ignored, such as padding or the further
pictures of an MPO file. So a file that is cut off after the end of its first image counts as
complete.
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
from recordmill.base.messages import Message
from recordmill.base.option_names import option
from recordmill.records.images.header import (
    CMYK,
    CORRUPT,
    CRC_MISMATCH,
    DECODE_FAILED,
    GRAY,
    GRAY_ALPHA,
    MAX_PIXELS,
    OTHER_COLOURS,
    PALETTE,
    RGB,
    RGBA,
    TOO_LARGE,
    TRUNCATED,
    UNKNOWN_IMAGE_FORMAT,
    BadImage,
    ImageHeader,
)
from recordmill.records.images.pillow import open_image, read_header_with_pillow

if TYPE_CHECKING:
    from PIL import Image

# by colour type: the colour, and the number of channels
_PNG_COLOURS = {0: (GRAY, 1), 2: (RGB, 3), 3: (PALETTE, 3), 4: (GRAY_ALPHA, 2), 6: (RGBA, 4)}
# by colour type: the allowed bit depths
_PNG_BIT_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
_CRC_STRUCT = struct.Struct(">I")
_CHUNK_HEAD_STRUCT = struct.Struct(">I4s")
_IHDR_STRUCT = struct.Struct(">IIBBBBB")
_JPEG_FAULTS = {
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
# frame headers that TensorFlow decodes: baseline, extended, progressive, and arithmetic coding of
# the latter two
_TENSORFLOW_JPEG_MARKERS = (0xC0, 0xC1, 0xC2, 0xC9, 0xCA)
_LOSSLESS_JPEG_MARKERS = (0xC3, 0xC7, 0xCB, 0xCF)
# Created only once, because this takes as long as reading a header.
_JPEG_FACTS_DTYPE = np.dtype(native.JpegFacts)
_JPEG_COLOURS = {1: GRAY, 3: RGB, 4: CMYK}
# 500 scans: real files have about ten. Each one takes as long as decoding a JPEG of a single scan.
MAX_JPEG_SCANS = 500
# Pillow reads the headers of the last four.
IMAGE_FORMATS = (
    "JPEG",
    "PNG",
    "GIF",
    "BMP",
    "WebP",
    "TIFF",
)


def read_png_header(data: npt.NDArray[np.uint8]) -> ImageHeader:
    """Reads the header of a PNG file that starts with the signature.

    Raises:
        BadImage: The file ends before IEND (TRUNCATED), the CRC of a chunk is wrong (CRC_MISMATCH),
            or the file breaks a rule of the standard (CORRUPT).
    """
    view = data.data
    size, offset = len(view), len(PNG_SIGNATURE)
    header = None
    has_palette = has_alpha = has_pixels = is_animated = False
    num_frames = 0
    while True:
        if offset + 12 > size:
            raise BadImage(
                TRUNCATED, f"the file ends inside a chunk that begins at byte {offset}, before IEND"
            )
        length, kind = _CHUNK_HEAD_STRUCT.unpack_from(view, offset)
        chunk_end = offset + 12 + length
        if chunk_end > size:
            raise BadImage(
                TRUNCATED,
                f"chunk {_chunk_name(kind)} at byte {offset} needs {length} bytes, {max(size - offset - 12, 0)} are left",
            )
        if (
            zlib.crc32(view[offset + 4 : chunk_end - 4])
            != _CRC_STRUCT.unpack_from(view, chunk_end - 4)[0]
        ):
            raise BadImage(
                CRC_MISMATCH, f"the CRC of chunk {_chunk_name(kind)} at byte {offset} is wrong"
            )
        if header is None:
            header = _read_ihdr(kind, view[offset + 8 : chunk_end - 4])
        elif kind == b"IDAT":
            has_pixels = True
        elif kind == b"PLTE":
            has_palette = True
        elif kind == b"tRNS":
            has_alpha = True
        elif kind == b"acTL":
            is_animated = True
        elif kind == b"fcTL":
            num_frames += 1
        elif kind == b"IEND":
            break
        offset = chunk_end
    return _check_png_chunks(
        header,
        has_palette=has_palette,
        has_pixels=has_pixels,
        has_alpha=has_alpha,
        has_more_frames=is_animated and num_frames > 1,
    )


def _read_ihdr(kind: bytes, body: memoryview) -> ImageHeader:
    if kind != b"IHDR" or len(body) != _IHDR_STRUCT.size:
        raise BadImage(
            CORRUPT,
            f"the first chunk is {_chunk_name(kind)} of {len(body)} bytes instead of IHDR of 13",
        )
    width, height, bits, colour, compression, filtering, interlace = _IHDR_STRUCT.unpack(body)
    if not 0 < width < 1 << 31 or not 0 < height < 1 << 31:
        raise BadImage(CORRUPT, f"size {height} x {width}")
    if bits not in _PNG_BIT_DEPTHS.get(colour, ()) or compression or filtering or interlace > 1:
        raise BadImage(
            CORRUPT,
            f"IHDR says bit depth {bits}, colour type {colour}, compression {compression}, filter "
            f"{filtering}, interlace {interlace}",
        )
    name, channels = _PNG_COLOURS[colour]
    return ImageHeader(
        format="PNG", height=height, width=width, channels=channels, bits=bits, colour=name
    )


def _check_png_chunks(
    header: ImageHeader,
    *,
    has_palette: bool,
    has_pixels: bool,
    has_alpha: bool,
    has_more_frames: bool,
) -> ImageHeader:
    if not has_pixels:
        raise BadImage(CORRUPT, "no IDAT chunk, so no pixels")
    if header.colour == PALETTE and not has_palette:
        raise BadImage(CORRUPT, "palette colours without a PLTE chunk")
    # A tRNS chunk adds alpha to the colours of a palette.
    channels = 4 if has_alpha and header.colour == PALETTE else header.channels
    return header._replace(has_more_frames=has_more_frames, channels=channels)


def _chunk_name(kind: bytes) -> str:
    return ascii(kind)[2:-1]


def read_jpeg_headers(
    data: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64]
) -> list[ImageHeader | BadImage | None]:
    """Reads the headers of JPEG files in one buffer.

    Args:
        data: uint8 [bytes], the files one after the other.
        ends: int64 [files], the end of each file.

    Returns:
        For each file the header, or the error that `read_jpeg_header` would raise. None if the file
        does not begin with FF D8 FF.
    """
    facts = np.empty(len(ends), _JPEG_FACTS_DTYPE)
    native.walk_jpegs(np.ascontiguousarray(data), np.ascontiguousarray(ends, np.int64), facts)
    return [_to_header_or_fault(*values) for values in facts.tolist()]


def read_jpeg_header(data: npt.NDArray[np.uint8]) -> ImageHeader:
    """Reads the header of a JPEG file that starts with FF D8 FF.

    Raises:
        BadImage: The file ends inside a segment or has no EOI (TRUNCATED), or its segments break a
            rule of the standard (CORRUPT).
    """
    (header,) = read_jpeg_headers(data, np.array([len(data)]))
    if isinstance(header, BadImage):
        raise header
    assert header is not None
    return header


def _to_header_or_fault(
    code: int,
    offset: int,
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
        reason, message = _JPEG_FAULTS[native.JpegCode(code)]
        return BadImage(reason, message.format(offset))
    tensorflow_issue = _tensorflow_issue(marker, bits, components)
    colour = _JPEG_COLOURS.get(components, OTHER_COLOURS)
    return ImageHeader(
        format="JPEG",
        height=height,
        width=width,
        channels=components,
        bits=bits,
        colour=colour,
        tensorflow_issue=tensorflow_issue,
        scans=scans,
    )


def _tensorflow_issue(marker: int, bits: int, components: int) -> str:
    if components not in _JPEG_COLOURS:
        return f"{components} components"
    if marker in _LOSSLESS_JPEG_MARKERS:
        return "lossless"
    if marker not in _TENSORFLOW_JPEG_MARKERS:
        return "hierarchical"
    return "" if bits == 8 else f"{bits} bits"


_PARSERS: Mapping[str, Callable[[npt.NDArray[np.uint8]], ImageHeader]] = {
    "JPEG": read_jpeg_header,
    "PNG": read_png_header,
}


def check_structure(data: npt.NDArray[np.uint8], max_pixels: int = MAX_PIXELS) -> ImageHeader:
    """Returns the header of an image, and checks that its file is complete.

    Nothing is decoded, so some faults are not found.

    Args:
        data: uint8 [bytes], the file.
        max_pixels: The limit for height times width.

    Raises:
        BadImage: The format is not one of the six (UNKNOWN_IMAGE_FORMAT), the file is TRUNCATED or
            CORRUPT, a CRC is wrong (CRC_MISMATCH), or the image is TOO_LARGE.
    """
    head = data[:IMAGE_HEAD_BYTES].tobytes()
    name = sniff_image(head)
    if name is None:
        raise _format_error(head)
    return _check_limits(
        _PARSERS[name](data) if name in _PARSERS else read_header_with_pillow(data, name),
        max_pixels,
    )


def check_structures(
    data: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64], max_pixels: int = MAX_PIXELS
) -> list[ImageHeader | BadImage]:
    """Checks images in one buffer as `check_structure` does.

    Args:
        data: uint8 [bytes], the files one after the other.
        ends: int64 [files], the end of each file.
        max_pixels: The limit for height times width.

    Returns:
        For each file the header, or the error that `check_structure` would raise.
    """
    starts = [0, *ends[:-1].tolist()]

    def check_image(
        header: ImageHeader | BadImage | None, start: int, end: int
    ) -> ImageHeader | BadImage:
        if isinstance(header, BadImage):
            return header
        try:
            return (
                check_structure(data[start:end], max_pixels)
                if header is None
                else _check_limits(header, max_pixels)
            )
        except BadImage as error:
            return error

    return [
        check_image(*item)
        for item in zip(read_jpeg_headers(data, ends), starts, ends.tolist(), strict=True)
    ]


def _check_limits(header: ImageHeader, max_pixels: int) -> ImageHeader:
    if header.pixels > max_pixels:
        raise BadImage(
            TOO_LARGE,
            Message(
                "{height} x {width} pixels are more than {max_pixels} ({limit_option})",
                height=header.height,
                width=header.width,
                max_pixels=max_pixels,
                limit_option=option("max_pixels"),
            ),
        )
    if header.scans > MAX_JPEG_SCANS:
        raise BadImage(
            TOO_LARGE,
            f"{header.scans} scans; more than {MAX_JPEG_SCANS} take too long to decode",
        )
    return header


def _format_error(head: bytes) -> BadImage:
    if not head:
        return BadImage(TRUNCATED, "the file is empty")
    format_name = sniff_unsupported_image(head)
    if format_name:
        return BadImage(
            UNKNOWN_IMAGE_FORMAT,
            f"{format_name} is not one of the supported formats: "
            f"{', '.join(IMAGE_FORMATS)}; convert it",
        )
    return BadImage(
        UNKNOWN_IMAGE_FORMAT,
        f"begins with {head[:8].hex(' ')}, which is not one of {', '.join(IMAGE_FORMATS)}",
    )


def pillow_decode_bytes(header: ImageHeader) -> int:
    """Returns the maximum memory that Pillow needs to decode an image.

    Pillow stores a pixel in four bytes. Other frames, all scans of a JPEG, or a TIFF strip of the
    complete image can add to this.
    """
    extra_bytes = {"WebP": 8, "GIF": 8, "TIFF": -(-header.channels * header.bits // 8)}.get(
        header.format, 0
    )
    return header.pixels * (4 + (2 * header.channels if header.scans > 1 else extra_bytes))


def check_decode(
    data: npt.NDArray[np.uint8],
    header: ImageHeader,
    reserve: Callable[[int], AbstractContextManager[object]],
    max_pixels: int = MAX_PIXELS,
    on_first_frame: Callable[[Image.Image], object] | None = None,
) -> None:
    """Decodes every frame of a file.

    The check finds faults that the structure of the file does not show.

    Args:
        data: uint8 [bytes], the file.
        header: The header that `check_structure` returned.
        reserve: Function of a number of bytes. It returns a context in which this much memory may
            be used.
        max_pixels: The limit for height times width of every frame.
        on_first_frame: Called with the first frame. None if no function is needed.

    Raises:
        BadImage: Pillow can't decode a frame (DECODE_FAILED), or another frame is TOO_LARGE.
    """
    try:
        with open_image(data.data, header.format) as image:
            for frame in range(getattr(image, "n_frames", 1)):
                # Seeking in a GIF may convert the previous frame.
                with reserve(pillow_decode_bytes(header)):
                    image.seek(frame)
                # The pages of a TIFF have different sizes.
                if image.width * image.height > header.pixels:
                    header = _check_limits(
                        header._replace(height=image.height, width=image.width), max_pixels
                    )
                with reserve(pillow_decode_bytes(header)):
                    image.load()
                    if on_first_frame is not None and not frame:
                        on_first_frame(image)
    except BadImage:
        raise
    except Exception as error:
        # Pillow's plugins raise any error of their parsers: OSError, SyntaxError, ValueError,
        # struct.error, EOFError and others.
        raise BadImage(
            DECODE_FAILED,
            f"Pillow can't decode it: {type(error).__name__}: {error}"[:250],
        ) from error
