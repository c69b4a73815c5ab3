"""Hashes and correlations of images: copies are near, others are not."""

import io
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from recordmill.records.images.similarity import (
    NEAR_BITS,
    NEAR_CORRELATION,
    correlations,
    difference_hash,
    luma,
    small_grey,
)


def test_images_of_one_colour_are_alike_if_the_colour_is() -> None:
    one, other = np.full((1, 9), 7, np.uint8), np.full((1, 9), 8, np.uint8)
    ramp = np.arange(9, dtype=np.uint8)[None]
    assert [float(correlations(a, b)[0]) for a, b in ((one, one), (one, other), (one, ramp))] == [1, 0, 0]
    assert correlations(ramp, ramp)[0] == pytest.approx(1)
    assert correlations(ramp, ramp[:, ::-1])[0] == pytest.approx(-1)


def test_alpha_is_no_colour() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 5, 4)).astype(np.uint8)
    assert np.array_equal(luma(pixels), luma(pixels[..., :3]))
    assert np.array_equal(luma(pixels[..., :1]), pixels[..., 0])


def test_copies_of_photos_are_found_and_no_others(shared_data: Path) -> None:
    hashes, greys = [], []

    def add(image: PIL.Image.Image) -> None:
        grey = luma(np.asarray(image.convert("RGB")))
        hashes.append(difference_hash(grey))
        greys.append(small_grey(grey))

    photos = [PIL.Image.open(path) for path in sorted((shared_data / "images" / "clothing-small").rglob("*.jpg"))[::12]]
    for photo in photos:
        add(photo)
    for photo in photos:
        packed = io.BytesIO()
        photo.resize((photo.width // 2, photo.height // 2)).convert("RGB").save(packed, "JPEG", quality=60)
        add(PIL.Image.open(packed))
    some, hashed = np.stack(greys), np.stack(hashes)
    first, second = np.triu_indices(len(some), 1)
    differing = np.unpackbits((hashed[first] ^ hashed[second]).view(np.uint8), -1).sum(-1, dtype=np.int64)
    near = differing <= NEAR_BITS
    first, second = first[near], second[near]
    alike = correlations(some[first], some[second]) >= NEAR_CORRELATION
    assert [*zip(first[alike].tolist(), second[alike].tolist(), strict=True)] == [
        (number, number + len(photos)) for number in range(len(photos))
    ]
