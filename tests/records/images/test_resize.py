"""Parts of images are resized to the pixels of `tf.image.resize`.

Alpha is the weight of the colours.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recordmill.records.images.resize import nearest_indices, resize, resize_with_alpha


def noise(height: int, width: int, channels: int, dtype: Any = np.uint8) -> np.ndarray[Any, Any]:
    values = np.random.default_rng(height * width).integers(0, 256, (height, width, channels))
    return values.astype(dtype)


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("size", [(5, 7), (40, 9), (1, 1), (23, 31)])
def test_resized_pixels_equal_those_of_tensorflow(antialias: bool, size: tuple[int, int]) -> None:
    tf = pytest.importorskip("tensorflow")
    pixels = noise(20, 30, 3)
    out = np.empty((*size, 3), np.float32)
    resize(pixels, (0, 0, 20, 30), out, antialias=antialias)
    expected = tf.image.resize(pixels, size, antialias=antialias).numpy()
    np.testing.assert_allclose(out, expected, atol=2e-4)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 5), st.integers(0, 5), st.booleans())
def test_part_is_resized_like_a_separate_image(
    height: int, width: int, top: int, left: int, antialias: bool
) -> None:
    pixels = noise(14, 14, 2)
    crop = np.ascontiguousarray(pixels[top : top + height, left : left + width])
    part_result, crop_result = np.empty((4, 5, 2), np.uint8), np.empty((4, 5, 2), np.uint8)
    resize(pixels, (top, left, height, width), part_result, antialias=antialias)
    resize(crop, (0, 0, height, width), crop_result, antialias=antialias)
    assert (part_result == crop_result).all()


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, np.float16])
def test_part_of_the_requested_size_is_copied(dtype: Any) -> None:
    pixels = noise(9, 8, 3, np.uint16 if dtype == np.uint16 else np.uint8)
    out = np.empty((5, 4, 3), dtype)
    resize(pixels, (2, 3, 5, 4), out, antialias=True)
    assert (out == pixels[2:7, 3:7]).all()


def test_factor_and_offset_normalize_each_channel() -> None:
    pixels = noise(6, 6, 3)
    plain, normalized = np.empty((4, 5, 3), np.float32), np.empty((4, 5, 3), np.float32)
    factor, offset = np.array([0.5, 1, 2], np.float32), np.array([1, 0, -3], np.float32)
    resize(pixels, (0, 0, 6, 6), plain, antialias=False)
    resize(
        pixels,
        (0, 0, 6, 6),
        normalized,
        antialias=False,
        factor=np.tile(factor, 5),
        offset=np.tile(offset, 5),
    )
    np.testing.assert_allclose(normalized, plain * factor - offset, rtol=1e-5)


def test_constant_image_stays_constant_at_any_size() -> None:
    pixels = np.full((7, 11, 4), 200, np.uint8)
    for size in ((1, 1), (3, 20), (50, 2)):
        out = np.empty((*size, 4), np.uint8)
        resize(pixels, (0, 0, 7, 11), out, antialias=True)
        assert (out == 200).all()


def test_colours_of_transparent_pixels_have_no_weight() -> None:
    # The left half is opaque red, and the right half is transparent green.
    pixels = np.zeros((4, 4, 4), np.uint8)
    pixels[:, :2] = [255, 0, 0, 255]
    pixels[:, 2:] = [0, 255, 0, 0]
    out = np.empty((1, 1, 4), np.uint8)
    resize_with_alpha(pixels, (0, 0, 4, 4), out)
    assert out[0, 0, :3].tolist() == [255, 0, 0]
    assert 126 <= out[0, 0, 3] <= 129
    opaque_pixels = pixels[:, :2].copy()
    opaque_result = np.empty((2, 2, 4), np.uint8)
    resize_with_alpha(opaque_pixels, (0, 0, 4, 2), opaque_result)
    assert (opaque_result == [255, 0, 0, 255]).all()


@given(st.integers(1, 60), st.integers(1, 60))
def test_nearest_indices_are_those_of_the_pixel_centers(source: int, target: int) -> None:
    indices = nearest_indices(source, target)
    expected = [(2 * index + 1) * source // (2 * target) for index in range(target)]
    # float32 may round a center on an edge to either side.
    assert np.abs(indices - expected).max() <= 1
    assert (np.diff(indices) >= 0).all()
    assert 0 <= indices[0] <= indices[-1] < source
    if source == target:
        assert indices.tolist() == expected
