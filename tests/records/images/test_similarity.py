"""Copies of an image are similar, and other images are not."""

import numpy as np
import pytest

from recordmill.records.images.similarity import correlate_rows, to_grey


def test_images_of_one_colour_correlate_only_with_the_same_colour() -> None:
    first, second = np.full((1, 9), 7, np.uint8), np.full((1, 9), 8, np.uint8)
    ramp = np.arange(9, dtype=np.uint8)[None]
    assert [
        float(correlate_rows(a, b)[0]) for a, b in ((first, first), (first, second), (first, ramp))
    ] == [
        1,
        0,
        0,
    ]
    assert correlate_rows(ramp, ramp)[0] == pytest.approx(1)
    assert correlate_rows(ramp, ramp[:, ::-1])[0] == pytest.approx(-1)


def test_grey_image_ignores_alpha() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 5, 4)).astype(np.uint8)
    assert np.array_equal(to_grey(pixels), to_grey(pixels[..., :3]))
    assert np.array_equal(to_grey(pixels[..., :1]), pixels[..., 0])
