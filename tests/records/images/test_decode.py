"""Images of every format decode to the pixels of Pillow, also at reduced size."""

import io

import numpy as np
import pytest
from kit.image_samples import encode_image, noise_image, picture, samples
from PIL import Image

from recordmill.records.images.check import check_structure
from recordmill.records.images.decode import (
    decode_bytes,
    decode_pixels,
    find_shrink_factor,
    shrunk_size,
)
from recordmill.records.images.header import RGB, ImageHeader


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("name", ["PNG", "GIF", "BMP", "WebP", "TIFF"])
def test_decoded_pixels_are_those_of_pillow(name: str, channels: int) -> None:
    data = np.frombuffer(encode_image(name), np.uint8)
    pixels = decode_pixels(data, check_structure(data), channels)
    mode = {1: "L", 3: "RGB", 4: "RGBA"}[channels]
    expected = np.asarray(Image.open(io.BytesIO(data.tobytes())).convert("RGB").convert(mode))
    assert (pixels == expected.reshape(pixels.shape)).all()
    assert pixels.shape == (17, 23, channels)


def test_every_sample_decodes_to_the_size_of_its_header() -> None:
    for name, (data, _) in samples().items():
        array = np.frombuffer(data, np.uint8)
        header = check_structure(array)
        pixels = decode_pixels(array, header, 3)
        assert pixels.shape == (header.height, header.width, 3), name


def test_deep_image_keeps_its_16_bits_on_request() -> None:
    data = np.frombuffer(encode_image("PNG", picture("I;16")), np.uint8)
    header = check_structure(data)
    deep = decode_pixels(data, header, 1, deep=True)
    assert deep.dtype == np.uint16
    assert (deep[:, :, 0] == np.asarray(picture("I;16"))).all()
    assert (decode_pixels(data, header, 1) == deep >> 8).all()


def make_jpeg_header(height: int, width: int, scans: int = 1) -> ImageHeader:
    return ImageHeader("JPEG", height, width, 3, 8, RGB, scans=scans)


@pytest.mark.parametrize(
    ("part", "target", "oversampling", "factor"),
    [
        ((800, 800), (100, 100), 1, 8),
        ((799, 800), (100, 100), 1, 4),
        ((800, 800), (100, 100), 2, 4),
        ((150, 800), (100, 100), 1, 1),
        ((200, 200), (100, 100), 1, 2),
    ],
)
def test_shrink_factor_leaves_at_least_the_target(
    part: tuple[int, int], target: tuple[int, int], oversampling: int, factor: int
) -> None:
    assert find_shrink_factor(make_jpeg_header(800, 800), part, target, oversampling) == factor
    png = make_jpeg_header(800, 800)._replace(format="PNG")
    assert find_shrink_factor(png, part, target, oversampling) == 1


@pytest.mark.parametrize("shrink", [2, 4, 8])
def test_jpeg_is_decoded_at_the_shrunk_size(shrink: int) -> None:
    data = np.frombuffer(noise_image((101, 67), 0, "JPEG"), np.uint8)
    header = check_structure(data)
    pixels = decode_pixels(data, header, 3, shrink=shrink)
    assert pixels.shape[:2] == shrunk_size(header, shrink) == (-(-67 // shrink), -(-101 // shrink))


def test_memory_of_a_progressive_jpeg_includes_all_coefficients() -> None:
    assert decode_bytes(make_jpeg_header(100, 100)) == 12 * 100 * 100
    assert decode_bytes(make_jpeg_header(100, 100), shrink=2) == 12 * 50 * 50
    assert decode_bytes(make_jpeg_header(100, 100, scans=3), shrink=8) >= 6 * 100 * 100
