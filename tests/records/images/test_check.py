"""Headers and completeness of the image formats are checked.

Files written by Pillow pass, and damaged files are refused with a reason.
"""

import struct
import zlib
from contextlib import nullcontext

import numpy as np
import pytest
from kit import image_samples

from recordmill.base.magic import sniff_image, sniff_unsupported_image
from recordmill.records.images.check import (
    IMAGE_FORMATS,
    check_decode,
    check_structure,
    check_structures,
)
from recordmill.records.images.header import BadImage, ImageHeader

SAMPLES = image_samples.samples()
# Only the first frame of these formats is checked, and it is in the first quarter of the file.
QUARTERS = {"tiff-pages": 1, "gif-animated": 1}


def check(data: bytes, **options: int) -> ImageHeader:
    return check_structure(np.frombuffer(data, np.uint8), **options)


def refuse(data: bytes) -> BadImage:
    with pytest.raises(BadImage) as error:
        check(data)
    return error.value


def test_every_image_format_has_samples() -> None:
    assert {expected[0] for _, expected in SAMPLES.values()} == set(IMAGE_FORMATS)


@pytest.mark.parametrize("name", SAMPLES)
def test_header_of_an_image_is_read(name: str) -> None:
    data, expected = SAMPLES[name]
    header = check(data)
    assert (
        header.format,
        header.channels,
        header.bits,
        header.colour,
        header.has_more_frames,
    ) == expected
    assert (header.width, header.height) == image_samples.SIZE
    # Pillow accepts the image, too.
    check_decode(np.frombuffer(data, np.uint8), header, nullcontext)


@pytest.mark.parametrize("name", SAMPLES)
def test_truncated_image_is_refused(name: str) -> None:
    data, _ = SAMPLES[name]
    for length in range(len(data) * QUARTERS.get(name, 4) // 4):
        error = refuse(data[:length])
        assert error.reason in ("truncated", "format"), (length, error)
        assert error.reason == "truncated" or 0 < length < 16, (length, error)


@pytest.mark.parametrize("name", SAMPLES)
def test_bytes_after_the_end_of_an_image_are_accepted(name: str) -> None:
    data, _ = SAMPLES[name]
    assert check(data + b"\0" * 100)._replace(tensorflow_issue="") == check(data)._replace(
        tensorflow_issue=""
    )


@pytest.mark.parametrize("name", [name for name in SAMPLES if "png" in name])
def test_flipped_bit_of_a_png_is_found(name: str) -> None:
    data, _ = SAMPLES[name]
    for index in range(len(data)):
        for mask in (1, 128):
            damaged_image = bytearray(data)
            damaged_image[index] ^= mask
            assert refuse(bytes(damaged_image)).reason in (
                "format" if index < 8 else "crc",
                "truncated",
                "corrupt",
            )


def test_image_of_more_pixels_than_allowed_is_refused() -> None:
    data, _ = SAMPLES["png"]
    width, height = image_samples.SIZE
    assert check(data, max_pixels=width * height)
    with pytest.raises(BadImage, match="17 x 23 pixels are more than 390") as error:
        check(data, max_pixels=width * height - 1)
    assert error.value.reason == "size"


def test_images_in_one_buffer_are_checked_like_single_images() -> None:
    images = [data for data, _ in SAMPLES.values()]
    parts = [data[:length] for data in images for length in (len(data), len(data) // 2, 3, 1, 0)]
    ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
    results = check_structures(np.frombuffer(b"".join(parts), np.uint8), ends, max_pixels=10**6)
    assert sum(isinstance(result, ImageHeader) for result in results) >= len(images)
    for part, result in zip(parts, results, strict=True):
        if isinstance(result, BadImage):
            assert (result.reason, result.message) == (
                (error := refuse(part)).reason,
                error.message,
            )
        else:
            assert result == check(part)
    assert all(
        isinstance(result, BadImage)
        for result in check_structures(np.frombuffer(images[0], np.uint8), ends[:1], 1)
    )


def test_decompression_bomb_is_refused_by_its_header() -> None:
    """A PNG of a few hundred bytes claims a terapixel.

    Nothing may be allocated for it.
    """

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    header = struct.pack(">IIBBBBB", 1 << 20, 1 << 20, 8, 2, 0, 0, 0)
    bomb = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(bytes(1000)))
        + chunk(b"IEND", b"")
    )
    assert refuse(bomb).reason == "size"


def test_tiff_with_overlapping_values_is_refused_at_once() -> None:
    """Each of 3,000 directory entries has the complete file as its value.

    The values would take 100 MB from a file of 36 kB.
    """
    entries = 3000
    body = [struct.pack("<HHII", 1000 + number, 7, 12 * entries, 0) for number in range(entries)]
    error = refuse(b"II*\0" + struct.pack("<IH", 8, entries) + b"".join(body) + bytes(4))
    assert (error.reason, error.message) == ("corrupt", "parts of the header overlap")


def test_end_of_a_jpeg_thumbnail_is_not_the_end_of_the_image() -> None:
    data, _ = SAMPLES["jpeg-exif"]
    thumbnail_end = data.index(b"\xff\xd9") + 2
    assert thumbnail_end < len(data) // 2
    assert refuse(data[:thumbnail_end]).reason == "truncated"


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (b"\0\0\0\x0cjP  \r\n\x87\n\0\0\0\0", "JPEG 2000"),
        (b"\0\0\0\x20ftypavif\0\0\0\0", "AVIF"),
        (b"P6\n640 480\n255\n..", "PNM"),
        (b"8BPS\0\1" + bytes(10), "PSD"),
        (b"%!PS-Adobe-3.0 E", "EPS"),
    ],
)
def test_unsupported_image_format_is_refused_by_name(head: bytes, name: str) -> None:
    assert sniff_image(head) is None
    assert sniff_unsupported_image(head) == name
    error = refuse(head + bytes(100))
    assert error.reason == "format"
    assert name in error.message


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"BMW builds cars and more",
        b"GIF8",
        b"RIFF\0\0\0\0WAVEfmt ",
        b"<html></html>",
        bytes(64),
    ],
)
def test_bytes_that_are_not_an_image_are_refused(data: bytes) -> None:
    assert refuse(data).reason == ("truncated" if not data else "format")


def test_decode_check_finds_damage_that_the_structure_hides() -> None:
    """The pixels inflate to too few bytes, but every check of the container passes."""
    data, _ = SAMPLES["png"]
    begin = data.index(b"IDAT")
    length = struct.unpack(">I", data[begin - 4 : begin])[0]
    body = b"IDAT" + zlib.compress(zlib.decompress(data[begin + 4 : begin + 4 + length])[:50])
    damaged_image = (
        data[: begin - 4]
        + struct.pack(">I", len(body) - 4)
        + body
        + struct.pack(">I", zlib.crc32(body))
        + data[begin + 8 + length :]
    )
    header = check(damaged_image)
    with pytest.raises(BadImage, match="Pillow can't decode it") as error:
        check_decode(np.frombuffer(damaged_image, np.uint8), header, nullcontext)
    assert error.value.reason == "decode"


def test_decode_check_opens_no_other_format() -> None:
    """The header determines the plugin of Pillow, so no other parser reads the bytes."""
    data, _ = SAMPLES["gif"]
    with pytest.raises(BadImage):
        check_decode(np.frombuffer(data, np.uint8), check(SAMPLES["png"][0]), nullcontext)


def test_any_number_in_a_tiff_header_is_read_or_refused() -> None:
    numbers = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**62, 2**63, 2**64 - 1)
    for is_big in (False, True):
        image = image_samples.encode_image("TIFF", big_tiff=is_big)
        for position in range(4, len(image) - 8, 2):
            for number in numbers:
                data = bytearray(image)
                data[position : position + 8] = number.to_bytes(8, "little")
                try:
                    header = check(bytes(data), max_pixels=1 << 62)
                except BadImage:
                    continue
                assert 0 < header.height * header.width < 1 << 62
                assert 0 < header.channels * header.bits < 1 << 31
