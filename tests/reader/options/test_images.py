"""Image options are checked when they are created, and describe the resulting arrays."""

from typing import Any

import numpy as np
import pytest

from recordmill.base.errors import UsageError
from recordmill.reader.options.images import Images, RandomCrop, parse_image_targets


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"height": 5}, "height and width must be at least 1, not 5, 0"),
        ({"height": -1, "width": 4}, "height and width must be at least 1"),
        ({"channels": 2}, "channels must be 1, 3 or 4, not 2"),
        ({"crop": "left"}, 'crop is "center" or RandomCrop'),
        ({"dtype": "int8"}, 'dtype is "uint8", "float32" or "float16"'),
        ({"dtype": "int32"}, 'dtype="int32" needs mask=True'),
        ({"dct": "slow"}, 'dct is "accurate" or "fast"'),
        ({"dtype": "uint8", "scale": 0.5}, "scale, mean and std make numbers that uint8 can't"),
        ({"mask": True, "antialias": True}, "mask=True keeps values as they are"),
        ({"mask": True, "dtype": "float32"}, "mask=True keeps values as they are"),
        ({"std": [1, 0, 1]}, "std must not be 0"),
        ({"mean": [1, 2]}, "mean is a number or one per channel"),
        ({"scale": [1, 2, 3]}, "scale is a number, not"),
        ({"scale": float("nan")}, "scale is a number, not"),
    ],
)
def test_meaningless_option_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as error:
        Images(**options)
    assert message in str(error.value)


@pytest.mark.parametrize("area", [(0, 1), (0.5, 0.4), (0.5, 1.1)])
def test_random_crop_has_ascending_shares(area: tuple[float, float]) -> None:
    with pytest.raises(UsageError, match="area is two shares in ascending order"):
        RandomCrop(area=area)
    with pytest.raises(UsageError, match="ratio is two numbers above 0 in ascending order"):
        RandomCrop(ratio=(2, 1))


def test_dtype_and_bytes_follow_from_the_options() -> None:
    assert Images(4, 5).numpy_dtype == np.uint8
    assert Images(4, 5, scale=2).numpy_dtype == np.float32
    assert Images(4, 5, scale=2, dtype="float16").row_bytes == 4 * 5 * 3 * 2
    assert Images(4, 5, mask=True).shape == (4, 5, 1)
    assert Images(4, 5, channels_first=True).layout_shape == (3, 4, 5)


def test_channels_are_moved_to_the_first_axis_on_request() -> None:
    pixels = np.arange(2 * 4 * 5 * 3).reshape(2, 4, 5, 3)
    moved = Images(4, 5, channels_first=True).to_layout(pixels)
    assert moved.shape == (2, 3, 4, 5)
    assert moved.flags.c_contiguous
    assert (moved[:, 1] == pixels[..., 1]).all()
    assert Images(4, 5).to_layout(pixels) is pixels


@pytest.mark.parametrize(
    "images",
    [
        Images(4, 5, scale=1 / 255),
        Images(4, 5, mean=[1, 2, 3], std=[4, 5, 6]),
        Images(4, 5, scale=0.5, mean=2, std=4),
    ],
)
def test_factor_and_offset_equal_scaling_then_normalizing(images: Images) -> None:
    factor, offset = images.scale_and_offset()
    assert factor.shape == offset.shape == (3,)
    pixels = np.array([[7, 8, 9]], np.float32)
    scaled = pixels * (1 if images.scale is None else images.scale)
    mean = 0 if images.mean is None else np.array(images.mean)
    std = 1 if images.std is None else np.array(images.std)
    np.testing.assert_allclose(pixels * factor - offset, (scaled - mean) / std, rtol=1e-6)


def test_size_that_is_set_later_is_still_required_of_all_images() -> None:
    images = Images()
    assert images.one_size
    sized = images.with_size(4, 5)
    assert sized.shape == (4, 5, 3)
    assert sized.one_size
    assert not Images(4, 5).one_size


def test_options_with_lists_are_hashable() -> None:
    assert hash(Images(4, 5, mean=[1, 2, 3])) == hash(Images(4, 5, mean=(1.0, 2.0, 3.0)))


@pytest.mark.parametrize("size", [(4, 5), [4, 5]])
def test_size_alone_applies_to_the_named_features(size: Any) -> None:
    assert parse_image_targets({"a": size, "b": Images(6, 7)}) == {
        "a": Images(4, 5),
        "b": Images(6, 7),
    }
