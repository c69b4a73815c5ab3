"""Rewritten images have the requested size and format, and are upright."""

import contextlib
import io
from collections.abc import Iterator

import numpy as np
import pytest
from kit.image_samples import encode_image, noise_image, picture
from PIL import Image

from recordmill.base.errors import UsageError
from recordmill.records.images.check import check_structure
from recordmill.records.images.header import BadImage
from recordmill.records.images.rewrite import CROP_MODE, PAD_MODE, STRETCH_MODE, RewriteRule

reserved: list[int] = []


@contextlib.contextmanager
def reserve(size: int) -> Iterator[None]:
    reserved.append(size)
    yield


def rewrite(rule: RewriteRule, data: bytes) -> Image.Image:
    array = np.frombuffer(data, np.uint8)
    header = check_structure(array)
    result = rule.rewrite_image(array, header, rule.place_image(array, header), reserve)
    return Image.open(io.BytesIO(result))


def test_rule_is_parsed_from_the_options() -> None:
    assert RewriteRule.from_options(None, STRETCH_MODE, None) is None
    assert RewriteRule.from_options("20x30", CROP_MODE, "JPG:80") == RewriteRule(
        (20, 30), CROP_MODE, "JPEG", 80
    )
    assert RewriteRule.from_options((5, 6), PAD_MODE, None) == RewriteRule((5, 6), PAD_MODE)
    assert RewriteRule.from_options(None, STRETCH_MODE, "png") == RewriteRule(format="PNG")


@pytest.mark.parametrize("reencode", ["gif", "jpeg:0", "jpeg:101", "png:90", "webp:", "jpeg 90"])
def test_unknown_encoding_is_refused(reencode: str) -> None:
    with pytest.raises(UsageError, match="write png, or jpeg or webp with a quality of 1 to 100"):
        RewriteRule.from_options(None, STRETCH_MODE, reencode)


@pytest.mark.parametrize("size", [(0, 5), (1 << 20, 1 << 20)])
def test_impossible_size_is_refused(size: tuple[int, int]) -> None:
    with pytest.raises(UsageError, match="the size must be 1 to"):
        RewriteRule.from_options(size, STRETCH_MODE, None)


@pytest.mark.parametrize("name", ["JPEG", "PNG", "WebP", "GIF", "BMP", "TIFF"])
def test_image_keeps_its_format_if_readers_can_decode_it(name: str) -> None:
    image = rewrite(RewriteRule((10, 12)), encode_image(name))
    assert image.size == (12, 10)
    assert image.format == {"JPEG": "JPEG", "WebP": "WEBP"}.get(name, "PNG")


def test_image_is_turned_upright_and_loses_its_metadata() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees
    image = rewrite(RewriteRule(format="PNG"), encode_image("PNG", exif=exif))
    stored = np.asarray(picture())
    assert not image.getexif()
    assert (np.asarray(image) == np.rot90(stored, -1)).all()


@pytest.mark.parametrize(
    ("mode", "region"),
    [
        (STRETCH_MODE, (0, 0, 1, 1)),
        (CROP_MODE, (0.25, 0, 0.5, 1)),
        (PAD_MODE, (0, -0.5, 1, 2)),
    ],
)
def test_mode_determines_the_part_that_the_result_shows(
    mode: str, region: tuple[float, ...]
) -> None:
    data = np.frombuffer(noise_image((40, 20), 0), np.uint8)
    rule = RewriteRule((8, 8), mode)
    placement = rule.place_image(data, check_structure(data))
    assert placement.visible_region == pytest.approx(region)
    assert not placement.is_unchanged
    assert placement.output_size == (8, 8)


def test_padding_is_black() -> None:
    white = encode_image("PNG", Image.new("RGB", (40, 20), "white"))
    pixels = np.asarray(rewrite(RewriteRule((8, 8), PAD_MODE), white))
    assert (pixels[:2] == 0).all()
    assert (pixels[2:6] == 255).all()
    assert (pixels[6:] == 0).all()


def test_mask_keeps_its_values_and_an_unchanged_one_its_bytes() -> None:
    values = np.repeat(np.arange(0, 40, 10, np.uint8), 4).reshape(4, 4)
    data = np.frombuffer(encode_image("PNG", Image.fromarray(values)), np.uint8)
    header = check_structure(data)
    unchanged_rule = RewriteRule((4, 4))
    assert (
        unchanged_rule.rewrite_mask(data, header, unchanged_rule.place_image(data, header), reserve)
        == data.tobytes()
    )
    larger_rule = RewriteRule((8, 6))
    result = larger_rule.rewrite_mask(data, header, larger_rule.place_image(data, header), reserve)
    mask = np.asarray(Image.open(io.BytesIO(result)))
    assert mask.shape == (8, 6)
    assert (mask == np.repeat(np.arange(0, 40, 10), 2)[:, None]).all()


def test_mask_that_png_cannot_hold_is_a_bad_image() -> None:
    data = np.frombuffer(encode_image("TIFF", Image.new("F", (4, 4))), np.uint8)
    header = check_structure(data)
    rule = RewriteRule((8, 8))
    with pytest.raises(BadImage, match="pixels of F, which a mask written as PNG can't have"):
        rule.rewrite_mask(data, header, rule.place_image(data, header), reserve)


def test_memory_is_reserved_for_the_decoded_image() -> None:
    reserved.clear()
    rewrite(RewriteRule((8, 8)), noise_image((200, 100), 0))
    (size,) = reserved
    assert size >= 200 * 100 * 3


def test_rule_describes_itself_in_notes() -> None:
    assert str(RewriteRule((8, 9), CROP_MODE, "JPEG", 90)) == (
        "resized to 8 x 9 (crop), turned upright and encoded again as JPEG of quality 90, "
        "without metadata"
    )
    assert "as PNG, without" in str(RewriteRule(format="PNG"))
    assert "in their own format" in str(RewriteRule((8, 9)))
