"""Encoded images of a batch to one uint8 array [rows, height, width, channels], without TensorFlow.

Pillow decodes them, and they are resized as `tf.image.resize` does (bilinear, half-pixel centres, by default without
antialiasing), so that a model sees the same pixels whichever face it is fed by. A missing image is black.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from PIL import Image

from recordmill.base.errors import UsageError
from recordmill.base.kernels import kernel
from recordmill.reader.fetching.readable import Fetchable
from recordmill.records.columns.decode_images import Pixels, decode_pixels, looks_like_image
from recordmill.records.columns.parts import take_apart
from recordmill.schemas.feature import Feature

_SNIFFED = 16  # records looked at to tell which features are images


@dataclass(frozen=True)
class ImageSize:
    """What `decode_images`, `channels` and `antialias` say.

    Raises:
        UsageError: a number is none of an image.
    """

    height: int
    width: int
    channels: int
    antialias: bool

    def __post_init__(self) -> None:
        if min(self.height, self.width) < 1:
            raise UsageError(f"decode_images: height and width must be at least 1, not {self.height}, {self.width}")
        if self.channels not in (1, 3, 4):
            raise UsageError(f"channels must be 1, 3 or 4, not {self.channels}")

    @property
    def row_bytes(self) -> int:
        return self.height * self.width * self.channels


def image_features(dataset: Fetchable) -> tuple[str, ...]:
    """The bytes features that are encoded images, by the first records.

    Raises:
        UsageError: there is none.
    """
    candidates = [feature.name for feature in dataset.schema if feature.dtype == "bytes" and not feature.shape]
    head = dataset.head(_SNIFFED)
    names = tuple(
        name
        for name in candidates
        if any(value is not None and looks_like_image(value) for value in head[name].to_pylist())
    )
    if not names and len(head):
        raise UsageError(
            f"decode_images: no feature holds encoded images; the bytes features are {', '.join(candidates) or 'none'}"
        )
    return names


def decoded_rows(column: pa.Array, feature: Feature, size: ImageSize) -> tuple[Pixels, tuple[int, str] | None]:
    """([rows, height, width, channels], (row, why) of the first image that can't be decoded, where the rest stops)."""
    parts = take_apart(column, feature)
    splits = parts.splits[0]
    out = np.zeros((len(column), size.height, size.width, size.channels), np.uint8)
    for row in range(len(column)):
        if parts.valid is not None and not parts.valid[row]:
            continue
        pixels = decode_pixels(parts.values[splits[row] : splits[row + 1]], size.channels)
        if isinstance(pixels, str):
            return out, (row, pixels)
        resized(pixels, size.antialias, out[row])
    return out, None


def resized(pixels: Pixels, antialias: bool, out: Pixels) -> None:
    """Resize uint8 [height, width, channels] into out, which has the height and width wanted."""
    if pixels.shape == out.shape:
        out[:] = pixels
    elif antialias:
        gray = pixels.shape[2] == 1
        image = Image.fromarray(pixels[:, :, 0] if gray else pixels)
        size = (out.shape[1], out.shape[0])
        out[:] = np.asarray(image.resize(size, Image.Resampling.BILINEAR)).reshape(out.shape)
    else:
        rows, columns = (_taps(have, want) for have, want in zip(pixels.shape[:2], out.shape[:2], strict=True))
        _bilinear(np.ascontiguousarray(pixels), *rows, *columns, out)


def _taps(have: int, want: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """(lower, upper, weight of the upper) source index of each pixel wanted, in float32 as TensorFlow reckons."""
    at = (np.arange(want, dtype=np.float32) + np.float32(0.5)) * np.float32(have / want) - np.float32(0.5)
    floor = np.floor(at)
    lower, upper = np.maximum(floor.astype(np.int64), 0), np.minimum(np.ceil(at).astype(np.int64), have - 1)
    return lower, upper, at - floor


@kernel
def _bilinear(
    pixels: Pixels, top: npt.NDArray[np.int64], bottom: npt.NDArray[np.int64], down: npt.NDArray[np.float32],
    left: npt.NDArray[np.int64], right: npt.NDArray[np.int64], along: npt.NDArray[np.float32], out: Pixels
) -> None:  # fmt: skip
    for y in range(out.shape[0]):
        for x in range(out.shape[1]):
            for channel in range(out.shape[2]):
                upper_left = np.float32(pixels[top[y], left[x], channel])
                upper_right = np.float32(pixels[top[y], right[x], channel])
                lower_left = np.float32(pixels[bottom[y], left[x], channel])
                lower_right = np.float32(pixels[bottom[y], right[x], channel])
                above = upper_left + (upper_right - upper_left) * along[x]
                below = lower_left + (lower_right - lower_left) * along[x]
                out[y, x, channel] = np.uint8(np.rint(above + (below - above) * down[y]))
