"""`Images`: what encoded images are to become, and `RandomCrop`, a part of it. Nothing is decoded here.

Pixels are uint8 as stored; then they are, in this order, turned upright, cut (`crop`), resized, where numbers are
wanted `(pixel * scale - mean) / std`, and mirrored (`flip`). All outputs do the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from recordmill.base.errors import MissingExtraError, UsageError

Floats = npt.NDArray[np.float32]
Dtype = Literal["uint8", "int32", "float16", "float32"]
PerChannel = float | Sequence[float]


@dataclass(frozen=True)
class RandomCrop:
    """Random part of each image, another one in each epoch, decided by seed, epoch and the record's number alone.

    Where ten draws give none that fits, it is the largest part in the middle whose ratio lies between the bounds.

    Attributes:
        area: its share of the image's pixels, between two bounds.
        ratio: its width by its height, likewise, drawn by the logarithm.

    Raises:
        UsageError: bounds that are none.
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


@dataclass(frozen=True)
class Images:
    """Target of an encoded image: [height, width, channels].

    Args:
        height: in pixels; resized bilinearly, as `tf.image.resize` and Keras do. Without height and width images have
            the size of the first one, and another size is an error.
        width: likewise.
        channels: 1 gray, 3 RGB, 4 RGBA.
        antialias: resize with it, as `tf.image.resize(antialias=True)` does: better where images become much smaller,
            and slower.
        orientation: turn images upright, as their EXIF data says; without, pixels are as they are stored.
        shrink: decode a JPEG at a half, a quarter or an eighth of its size where that is still as large as wanted:
            large photographs many times faster, and pixels that are averages instead of single ones.
        crop: "center": the largest part in the middle that has the ratio wanted, so that nothing is distorted;
            `RandomCrop(...)`: a random part; None: the whole image.
        flip: mirror every other image left to right, at random as RandomCrop is.
        scale: pixels become `(pixel * scale - mean) / std`.
        mean: a number, or one per channel.
        std: a number, or one per channel.
        channels_first: gives [channels, height, width], as PyTorch takes images.
        dct: of JPEGs, "accurate", or "fast": the pixels of `tf.io.decode_jpeg` without arguments, by simplejpeg; a JPEG
            that it does not take is decoded accurately.
        dtype: "uint8" (rounded), "float32" or "float16"; None: "uint8", or "float32" where pixels are scaled.
        mask: pixels are numbers, as of classes: [height, width, 1] of the values that are stored (palette indices, up
            to 16 bits with dtype="int32"), resized to the nearest one as `tf.image.resize(method="nearest")` does.

    Raises:
        UsageError: a value that is none of an image. MissingExtraError: dct="fast", and simplejpeg is not installed.
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
    one_size: bool = field(default=False, init=False, repr=False)  # refuses images of another size

    def __post_init__(self) -> None:
        if self.mask:
            object.__setattr__(self, "channels", 1)
            lossy = self.antialias or self.shrink or self._is_scaled or self.dct == "fast"
            if lossy or self.dtype not in (None, "uint8", "int32"):
                raise UsageError(
                    'mask=True keeps values as they are: no antialias, shrink, scale or dct, dtype "uint8" or "int32"'
                )
        elif self.dtype == "int32":
            raise UsageError('dtype="int32" is of mask=True')
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
                "scale, mean and std make numbers that uint8 can't hold: leave dtype out, or say float32"
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
        if isinstance(value, Sequence):  # a list would make it unhashable
            object.__setattr__(self, name, tuple(float(number) for number in value))

    @property
    def _is_scaled(self) -> bool:
        return not (self.scale is None and self.mean is None and self.std is None)

    def with_size(self, height: int, width: int) -> Images:
        """Returns the same of images that all have this size."""
        images = replace(self, height=height, width=width)
        object.__setattr__(images, "one_size", True)
        return images

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        return np.dtype(self.dtype or ("float32" if self._is_scaled else "uint8"))

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.height, self.width, self.channels

    @property
    def layout_shape(self) -> tuple[int, int, int]:
        """Returns the shape that it is given in."""
        return (self.channels, self.height, self.width) if self.channels_first else self.shape

    def to_layout(self, pixels: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Returns images [..., height, width, channels] in that shape."""
        return np.ascontiguousarray(np.moveaxis(pixels, -1, -3)) if self.channels_first else pixels

    @property
    def row_bytes(self) -> int:
        return self.height * self.width * self.channels * self.numpy_dtype.itemsize

    def scale_and_offset(self) -> tuple[Floats, Floats]:
        """Returns ([channels] factor, [channels] offset): a pixel becomes `pixel * factor - offset`, in float32."""
        std = np.broadcast_to(
            np.asarray(1.0 if self.std is None else self.std, np.float64), self.channels
        )
        mean = np.broadcast_to(
            np.asarray(0.0 if self.mean is None else self.mean, np.float64), self.channels
        )
        scale = 1.0 if self.scale is None else self.scale
        return (scale / std).astype(np.float32), (mean / std).astype(np.float32)


ImageTarget = Images | Mapping[str, Images]  # of all features that hold images, or of these
ImageSize = tuple[int, int] | Literal[True] | Images
ImageSpec = ImageSize | Mapping[str, ImageSize]  # what users say


def parse_image_targets(
    spec: ImageSpec | None, channels: int = 3, antialias: bool = False
) -> ImageTarget | None:
    """Returns the targets of a `decode_images=`; `channels` and `antialias` are of a size.

    Raises:
        UsageError: a value that is none of an image.
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
