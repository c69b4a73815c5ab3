"""Columns of encoded images become arrays of pixels.

A bad image is a bad row.
"""

import numpy as np
import pyarrow as pa
import pytest
from kit import image_samples
from kit.image_samples import noise_image, pixels_of
from PIL import Image

from recordmill.base.errors import UsageError
from recordmill.records.columns import decode_images
from recordmill.records.columns.decode_images import (
    DecodeImages,
    looks_like_image,
    read_image_sizes,
)
from recordmill.records.images import decode
from recordmill.schemas.feature import Feature


def test_16_bit_images_keep_their_upper_byte() -> None:
    values = np.arange(0, 60_000, 1000, np.uint16).reshape(6, 10)
    png = image_samples.encode_image("PNG", Image.fromarray(values))
    column, faults = DecodeImages("x", 6, 10, 1).convert(
        pa.array([png], pa.large_binary()), Feature("x", "bytes")
    )
    assert not faults
    assert np.array_equal(column[0].as_py(), (values >> 8).ravel())


def test_floating_point_image_and_wrong_size_are_faults() -> None:
    tiff = image_samples.encode_image("TIFF", Image.fromarray(np.zeros((6, 10), np.float32)))
    column, faults = DecodeImages("x", 6, 10, 1).convert(
        pa.array([tiff, noise_image((3, 4), 1)], pa.large_binary()), Feature("x", "bytes")
    )
    assert [row for row, _ in faults] == [0, 1]
    assert faults[1][1] == "an image of 4 x 3 pixels where 6 x 10 is expected"
    assert len(column) == 0


def test_pixels_beyond_the_limit_are_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    column = pa.array([noise_image((30, 30), seed) for seed in range(4)], pa.large_binary())
    monkeypatch.setattr(decode_images, "MAX_DECODED_PIXELS", 800)
    _, faults = DecodeImages("x", None, None).convert(column, Feature("x", "bytes"))
    assert len(faults) == 4


def test_large_images_are_copied_in_bands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "_BAND_PIXELS", 50)
    for channels, mode in ((1, "L"), (3, "RGB"), (4, "RGBA")):
        for size in ((7, 23), (60, 3), (1, 50)):
            image = noise_image(size, 3)
            column, faults = DecodeImages("x", None, None, channels).convert(
                pa.array([image], pa.large_binary()), Feature("x", "bytes")
            )
            assert not faults
            assert column.to_pylist()[0] == pixels_of(image, mode).tolist()


def test_list_with_a_bad_image_is_one_bad_row_that_names_the_image() -> None:
    images = [[noise_image((4, 3), 0), noise_image((4, 3), 1)], None, [], [b"no image"]]
    images.append([noise_image((4, 3), 2), b"\x89PNG"])
    feature = Feature("x", "bytes", (None,))
    column, faults = DecodeImages("x", 3, 4).convert(
        pa.array(images, pa.large_list(pa.large_binary())), feature
    )
    assert [row for row, _ in faults] == [3, 4]
    assert faults[1][1].startswith("image 1 of its list: ")
    expected = [pixels_of(image).ravel().tolist() for image in images[0] or ()]
    assert column.to_pylist() == [expected, None, []]


def test_resized_images_have_one_size_and_others_keep_their_own() -> None:
    column = pa.array([noise_image((8, 6), 0), None, noise_image((4, 3), 1)], pa.large_binary())
    feature = Feature("x", "bytes")
    resized, faults = DecodeImages("x", 3, 4, resize=True).convert(column, feature)
    assert not faults
    assert [row if row is None else len(row) for row in resized.to_pylist()] == [36, None, 36]
    decoded, _ = DecodeImages("x", None, None).convert(column, feature)
    sizes = [row if row is None else (len(row), len(row[0])) for row in decoded.to_pylist()]
    assert sizes == [(6, 8), None, (3, 4)]
    assert read_image_sizes(column, feature) == {(6, 8), (3, 4)}


@pytest.mark.parametrize("feature", [Feature("x", "int64"), Feature("x", "bytes", (2, 3))])
def test_feature_that_cannot_be_images_is_refused(feature: Feature) -> None:
    with pytest.raises(UsageError, match="only a single bytes value, or a list of them"):
        DecodeImages("x", 3, 4).output_feature(feature)


def test_estimate_counts_the_result_of_every_image_and_the_work_of_the_largest() -> None:
    images = [[noise_image((40, 30), 0), noise_image((4, 3), 1)], [], None]
    column = pa.array(images, pa.large_list(pa.large_binary()))
    result, work = DecodeImages("x", 5, 6).estimate_bytes(column, Feature("x", "bytes", (None,)))
    assert result.tolist() == [2 * 5 * 6 * 3, 0, 0]
    assert work[0] >= 40 * 30 * 4
    assert work[1:].tolist() == [0, 0]


def test_only_bytes_that_begin_like_an_image_look_like_one() -> None:
    assert looks_like_image(noise_image((4, 3), 0, "JPEG"))
    assert not looks_like_image(b"text")
    assert not looks_like_image(b"")
