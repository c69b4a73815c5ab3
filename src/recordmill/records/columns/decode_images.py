"""Decoding of image columns to uint8 [height, width, channels].

Images are resized as by `tf.image.resize(antialias=True)`. Images of different sizes become lists
of rows of pixels.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from recordmill.base.buffers import Int64s, to_offsets
from recordmill.base.errors import UsageError
from recordmill.base.magic import IMAGE_HEAD_BYTES, sniff_image
from recordmill.base.option_names import option
from recordmill.records.columns.convert import build_column
from recordmill.records.columns.numpy_arrays import extract_arrays
from recordmill.records.images.check import check_structure
from recordmill.records.images.decode import MAX_DECODED_PIXELS, Pixels, decode_bytes, decode_pixels
from recordmill.records.images.geometry import Box
from recordmill.records.images.header import BadImage, ImageHeader
from recordmill.records.images.resize import resize
from recordmill.schemas.arrow import arrow_type
from recordmill.schemas.feature import Feature

CHANNELS = (1, 3, 4)  # of decoded images: gray, RGB, RGBA


@dataclass(frozen=True)
class DecodeImages:
    """Conversion of encoded images to pixels, a `ConversionStep`.

    Attributes:
        feature: Name of the feature.
        height: The height of the output in pixels. None keeps the size of each image.
        width: The width of the output in pixels. None keeps the size of each image.
        channels: 1 for gray, 3 for RGB or 4 for RGBA.
        resize: Whether images are resized. Otherwise an image of another size is a bad record.
    """

    feature: str
    height: int | None
    width: int | None
    channels: int = 3
    resize: bool = False

    def output_feature(self, feature: Feature) -> Feature:
        if feature.shape or feature.dtype not in ("bytes", "string"):
            raise UsageError(
                "{decode_images}: it is {feature}; only a single bytes value can be an image",
                decode_images=option("decode_images", feature.name),
                feature=feature.describe(),
            )
        return replace(
            feature, dtype="uint8", shape=(self.height, self.width, self.channels), classes=None
        )

    def convert(
        self, column: pa.Array, feature: Feature
    ) -> tuple[pa.Array, Sequence[tuple[int, str]]]:
        out = self.output_feature(feature)
        images: list[Pixels | None] = []
        bad_values: list[tuple[int, str]] = []
        for row, data in iter_images(column, feature):
            try:
                images.append(None if data is None else self._decode(data))
            except BadImage as error:
                bad_values.append((row, error.message))
        return (_ragged_column if self.height is None else _fixed_size_column)(
            images, out
        ), bad_values

    def _decode(self, data: Pixels) -> Pixels:
        header = check_structure(data, MAX_DECODED_PIXELS)
        size = f"{header.height} x {header.width}"
        if (
            not self.resize
            and self.height is not None
            and (header.height, header.width) != (self.height, self.width)
        ):
            raise BadImage(
                "size", f"an image of {size} pixels where {self.height} x {self.width} is expected"
            )
        pixels = decode_pixels(data, header, self.channels)
        if not self.resize or self.height is None or self.width is None:
            return pixels
        resized = np.empty((self.height, self.width, self.channels), np.uint8)
        resize(pixels, Box(0, 0, *pixels.shape[:2]), resized, antialias=True)
        return resized

    def estimate_bytes(self, column: pa.Array, feature: Feature) -> tuple[Int64s, Int64s]:
        """Returns the memory that decoding each row needs, from the headers alone.

        Returns:
            (bytes of each result, bytes that are needed while the image is decoded). Both are int64
            [rows], and 0 for missing or invalid images.
        """
        result_bytes, work_bytes = np.zeros((2, len(column)), np.int64)
        for row, header in _iter_headers(column, feature):
            height, width = (
                (header.height, header.width)
                if self.height is None
                else (self.height, self.width or 0)
            )
            result_bytes[row] = height * width * self.channels
            work_bytes[row] = decode_bytes(header)
        return result_bytes, work_bytes


def looks_like_image(payload: bytes) -> bool:
    """Returns whether bytes begin like an image of one of the supported formats."""
    return sniff_image(payload[:IMAGE_HEAD_BYTES]) is not None


def read_image_sizes(column: pa.Array, feature: Feature) -> set[tuple[int, int]]:
    """Returns the (height, width) of all valid images of a column."""
    return {(header.height, header.width) for _, header in _iter_headers(column, feature)}


def iter_images(column: pa.Array, feature: Feature) -> Iterator[tuple[int, Pixels | None]]:
    """Yields (row, bytes of the image) for each row of a column.

    The bytes are a view. They are None if the image is missing.
    """
    arrays = extract_arrays(column, replace(feature, required=True))
    splits = arrays.splits[0]
    for row, is_present in enumerate(column.is_valid().to_pylist()):
        yield row, arrays.values[splits[row] : splits[row + 1]] if is_present else None


def _iter_headers(column: pa.Array, feature: Feature) -> Iterator[tuple[int, ImageHeader]]:
    """Yields (row, header) for each valid image of a column."""
    # Invalid images are reported when they are decoded.
    for row, data in iter_images(column, feature):
        if data is not None:
            with contextlib.suppress(BadImage):
                yield row, check_structure(data, MAX_DECODED_PIXELS)


def _concatenate_pixels(images: Sequence[Pixels]) -> Pixels:
    if len(images) == 1:
        return images[0].reshape(-1)
    return np.concatenate([np.empty(0, np.uint8), *(image.reshape(-1) for image in images)])


def _fixed_size_column(images: Sequence[Pixels | None], out: Feature) -> pa.Array:
    present = np.array([image is not None for image in images], np.bool_)
    flat_pixels = pa.array(_concatenate_pixels([image for image in images if image is not None]))
    return build_column(
        flat_pixels, counts=np.zeros(len(images), np.int64), present=present, out=out
    )


def _ragged_column(images: Sequence[Pixels | None], out: Feature) -> pa.Array:
    """Builds the column of images of different sizes, as lists.

    An image is a list of rows, a row is a list of pixels, and a pixel is a fixed-size list of
    channels.
    """
    present_images = [image for image in images if image is not None]
    flat_pixels = _concatenate_pixels(present_images)
    # A missing image has no rows. Each row of an image has the width of the image.
    heights = np.array([0 if image is None else image.shape[0] for image in images], np.int64)
    widths = np.repeat(
        np.array([image.shape[1] for image in present_images], np.int64),
        [image.shape[0] for image in present_images],
    )
    row_offsets, pixel_offsets = (to_offsets(sizes) for sizes in (heights, widths))
    outer = arrow_type(out)
    inner = outer.value_type
    items = pa.Array.from_buffers(
        inner.value_type,
        len(flat_pixels) // out.inner_size,
        [None],
        children=[pa.array(flat_pixels)],
    )
    rows = pa.Array.from_buffers(
        inner, len(widths), [None, pa.py_buffer(pixel_offsets)], children=[items]
    )
    validity = (
        None
        if len(present_images) == len(images)
        else pa.array([image is not None for image in images]).buffers()[1]
    )
    return pa.Array.from_buffers(
        outer, len(images), [validity, pa.py_buffer(row_offsets)], children=[rows]
    )
