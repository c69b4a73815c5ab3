"""Options for encoded images: `Images` and `RandomCrop`.

This module decodes nothing. All outputs process pixels in the same order: they are turned upright,
cropped, resized, scaled to `(pixel * scale - mean) / std` if numbers are requested, and mirrored.
Without scaling, they are uint8.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from recordmill.base.arguments import suggest_fields
from recordmill.base.errors import MissingExtraError, UsageError
from recordmill.schemas.feature import Schema

Floats = npt.NDArray[np.float32]
Dtype = Literal["uint8", "int32", "float16", "float32"]
PerChannel = float | Sequence[float]


@suggest_fields
@dataclass(frozen=True)
class RandomCrop:
    """Random part of each image, for training.

    The part is different in each epoch. It depends only on the seed, the epoch and the number of
    the record. If ten draws do not fit into the image, the crop is the largest central part with an
    allowed ratio.

    Args:
        area: Bounds of the area, as a share of the pixels of the image.
        ratio: Bounds of width / height. The logarithm of the ratio is uniformly distributed.

    Raises:
        UsageError: The bounds are not in ascending order, or out of range.

    >>> RandomCrop(area=(0.5, 1.0))
    RandomCrop(area=(0.5, 1.0), ratio=(0.75, 1.3333333333333333))
    """

    area: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        if not 0 < self.area[0] <= self.area[1] <= 1:
            raise UsageError(
                f"RandomCrop: area is two shares in ascending order, above 0 and up to 1, not {self.area}"
            )
        if not 0 < self.ratio[0] <= self.ratio[1] < float("inf"):
            raise UsageError(
                f"RandomCrop: ratio is two numbers above 0 in ascending order, not {self.ratio}"
            )


@suggest_fields
@dataclass(frozen=True)
class Images:
    """Description of the arrays into which encoded images are decoded: [height, width, channels].

    Args:
        height: Height in pixels. Images are resized bilinearly, as `tf.image.resize` and Keras do.
            If height and width are 0, images keep their size, and all must have the size of the
            first one.
        width: Width in pixels.
        channels: 1 for grey, 3 for RGB, 4 for RGBA.
        antialias: True resizes with antialiasing, as `tf.image.resize(antialias=True)` does. This
            is slower, and better for images that become much smaller.
        orientation: If True, images are turned upright according to their EXIF data. Otherwise
            pixels are as stored. A mask without EXIF data turns with the photo of its record. This
            requires that the photo is turned, too, and stored in the same size.
        shrink: If True, a JPEG is decoded at 1/2, 1/4 or 1/8 of its size if that is still large
            enough. Large photographs are decoded many times faster. Pixels are averages instead of
            single pixels.
        crop: "center" is the largest central part with the requested ratio, so that nothing is
            distorted. `RandomCrop(...)` is a random part. None is the complete image.
        flip: If True, half of the images are mirrored left to right. They are chosen at random in
            the same way as by `RandomCrop`.
        scale: Pixels become `(pixel * scale - mean) / std`.
        mean: A number, or one per channel.
        std: A number, or one per channel.
        dtype: "uint8" (rounded), "float32" or "float16", and "int32" for masks. None is "uint8", or
            "float32" for scaled pixels.
        mask: True if pixels are numbers, for example of classes. The result is [height, width, 1]
            with the stored values: palette indices, or up to 16 bits with dtype="int32". Masks are
            resized to the nearest pixel, as `tf.image.resize(method="nearest")` does.
        channels_first: If True, arrays are [channels, height, width], as PyTorch expects images.
        dct: Decoder of JPEGs. "fast" returns the pixels of `tf.io.decode_jpeg` without arguments
            and needs simplejpeg. A JPEG that simplejpeg does not support is decoded with
            "accurate".

    Raises:
        UsageError: A value is out of range, or does not fit the others.
        MissingExtraError: `dct` is "fast", and simplejpeg is not installed.

    >>> Images(224, 224, scale=1 / 255).numpy_dtype
    dtype('float32')
    """

    height: int = 0
    width: int = 0
    channels: int = 3
    antialias: bool = False
    orientation: bool = False
    shrink: bool = False
    crop: Literal["center"] | RandomCrop | None = None
    flip: bool = False
    scale: float | None = None
    mean: PerChannel | None = None
    std: PerChannel | None = None
    dtype: Dtype | None = None
    mask: bool = False
    channels_first: bool = False
    dct: Literal["accurate", "fast"] = "accurate"
    one_size: bool = field(
        default=False, init=False, repr=False
    )  # images of another size are an error

    def __post_init__(self) -> None:
        if self.mask:
            # a mask is [height, width, 1], regardless of the default of `channels`
            object.__setattr__(self, "channels", 1)
            lossy = self.antialias or self.shrink or self._is_scaled or self.dct == "fast"
            if lossy or self.dtype not in (None, "uint8", "int32"):
                raise UsageError(
                    "mask=True keeps values as they are, so use no antialias, "
                    'shrink, scale or dct, dtype "uint8" or "int32"'
                )
        elif self.dtype == "int32":
            raise UsageError('dtype="int32" needs mask=True')
        object.__setattr__(self, "one_size", self.height == self.width == 0)
        if not self.one_size and min(self.height, self.width) < 1:
            raise UsageError(
                f"decode_images: height and width must be at least 1, not {self.height}, {self.width}"
            )
        if self.channels not in (1, 3, 4):
            raise UsageError(f"channels must be 1, 3 or 4, not {self.channels}")
        if self.dct not in ("accurate", "fast"):
            raise UsageError(f'dct is "accurate" or "fast", not {self.dct!r}')
        if self.dct == "fast" and find_spec("simplejpeg") is None:
            raise MissingExtraError('dct="fast"', "images", "simplejpeg")
        if self.crop not in (None, "center") and not isinstance(self.crop, RandomCrop):
            raise UsageError(f'crop is "center" or RandomCrop(...), not {self.crop!r}')
        if self.dtype not in (None, "uint8", "int32", "float16", "float32"):
            raise UsageError(f'dtype is "uint8", "float32" or "float16", not {self.dtype!r}')
        if self.dtype == "uint8" and self._is_scaled:
            raise UsageError(
                "scale, mean and std make numbers that uint8 can't hold: leave dtype "
                "out, or use float32"
            )
        for name, value in (("scale", self.scale), ("mean", self.mean), ("std", self.std)):
            self._check_numbers(name, value)

    def _check_numbers(self, name: str, value: PerChannel | None) -> None:
        values = np.asarray(0 if value is None else value, np.float64)
        if (
            values.ndim > (name != "scale")
            or values.size not in (1, self.channels)
            or not np.isfinite(values).all()
        ):
            raise UsageError(
                f"{name} is a number{'' if name == 'scale' else ' or one per channel'}, not {value!r}"
            )
        if name == "std" and value is not None and not values.all():
            raise UsageError(f"std must not be 0: {value!r}")
        if isinstance(value, Sequence):  # a frozen dataclass with a list is not hashable
            object.__setattr__(self, name, tuple(float(number) for number in value))

    @property
    def _is_scaled(self) -> bool:
        return not (self.scale is None and self.mean is None and self.std is None)

    def with_size(self, height: int, width: int) -> Images:
        """Returns the same target for images that all have this size."""
        images = replace(self, height=height, width=width)
        # `replace` has reset `one_size`, but images of another size must remain an error
        object.__setattr__(images, "one_size", True)
        return images

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype of the arrays."""
        return np.dtype(self.dtype or ("float32" if self._is_scaled else "uint8"))

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of a decoded image before the channels are moved: (height, width, channels)."""
        return self.height, self.width, self.channels

    @property
    def layout_shape(self) -> tuple[int, int, int]:
        """Shape of the returned array of an image, with the channels first if requested."""
        return (self.channels, self.height, self.width) if self.channels_first else self.shape

    def to_layout(self, pixels: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Returns images [..., height, width, channels] with the channels first if requested."""
        return np.ascontiguousarray(np.moveaxis(pixels, -1, -3)) if self.channels_first else pixels

    @property
    def row_bytes(self) -> int:
        """Size of a decoded image, in bytes."""
        return self.height * self.width * self.channels * self.numpy_dtype.itemsize

    def scale_and_offset(self) -> tuple[Floats, Floats]:
        """Returns the float32 arrays factor and offset, each [channels].

        A pixel becomes `pixel * factor - offset`.

        >>> Images(scale=2.0, mean=1.0, channels=1).scale_and_offset()
        (array([2.], dtype=float32), array([1.], dtype=float32))
        """
        # computed in float64, and rounded to float32 only once
        std = np.broadcast_to(
            np.asarray(1.0 if self.std is None else self.std, np.float64), self.channels
        )
        mean = np.broadcast_to(
            np.asarray(0.0 if self.mean is None else self.mean, np.float64), self.channels
        )
        scale = 1.0 if self.scale is None else self.scale
        return (scale / std).astype(np.float32), (mean / std).astype(np.float32)


def make_pixel_schema(
    schema: Schema, images: Mapping[str, Images], *, lists_only: bool = False
) -> Schema:
    """Returns the schema after the images are decoded.

    Args:
        lists_only: True if only lists of images are changed.
    """
    features = tuple(
        replace(
            feature,
            dtype=images[feature.name].numpy_dtype.name,
            shape=(*feature.shape, *images[feature.name].layout_shape),
        )
        if feature.name in images and (feature.shape or not lists_only)
        else feature
        for feature in schema
    )
    return replace(schema, features=features)


ImageTarget = Images | Mapping[str, Images]  # one for all features with images, or by feature name
ImageSize = tuple[int, int] | Literal[True] | Images
ImageSpec = ImageSize | Mapping[str, ImageSize]  # the option `decode_images`


def parse_image_targets(
    spec: ImageSpec | None, channels: int = 3, antialias: bool = False
) -> ImageTarget | None:
    """Returns the targets that the option `decode_images` specifies.

    Args:
        spec: (height, width), True, `Images`, or a dict of these by feature name. None means that
            no images are decoded.
        channels: Number of channels, if `spec` is a size.
        antialias: If `spec` is a size, True resizes with antialiasing.

    Raises:
        UsageError: The value has another form.

    >>> parse_image_targets((32, 32)).shape
    (32, 32, 3)
    """
    if spec is None or isinstance(spec, Images):
        return spec
    if isinstance(spec, Mapping):
        return {
            name: target if isinstance(target, Images) else _images_of_size(target, 3, False)
            for name, target in spec.items()
        }
    return _images_of_size(spec, channels, antialias)


def _images_of_size(size: Any, channels: int, antialias: bool) -> Images:
    if size is True:
        return Images(channels=channels, antialias=antialias)
    if not (
        isinstance(size, Sequence)
        and len(size) == 2
        and all(isinstance(length, int | np.integer) for length in size)
    ):
        raise UsageError(
            f"decode_images is (height, width), True, Images(...), or one of them by feature name, not {size!r:.99}"
        )
    return Images(int(size[0]), int(size[1]), channels, antialias)
