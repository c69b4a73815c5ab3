"""Decoding of image columns to uint8 [height, width, channels].

A feature has one image per record, or a list of images of one size. Images are resized as by
`tf.image.resize(antialias=True)`. Single images of different sizes become lists of rows of pixels.
"""

from __future__ import annotations

import contextlib
import itertools
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
        height: The height of the output in pixels. If None, each image keeps its size.
        width: The width of the output in pixels. If None, each image keeps its size.
        channels: 1 for gray, 3 for RGB or 4 for RGBA.
        resize: Whether images are resized. Otherwise an image of another size is a bad record.
    """

    feature: str
    height: int | None
    width: int | None
    channels: int = 3
    resize: bool = False

    def output_feature(self, feature: Feature) -> Feature:
        if len(feature.shape) > 1 or feature.dtype not in ("bytes", "string"):
            raise UsageError(
                "{decode_images}: it is {feature}; only a single bytes value, or a list of them, "
                "can be images",
                decode_images=option("decode_images", feature.name),
                feature=feature.describe(),
            )
        shape = (*feature.shape, self.height, self.width, self.channels)
        return replace(feature, dtype="uint8", shape=shape, classes=None)

    def convert(
        self, column: pa.Array, feature: Feature
    ) -> tuple[pa.Array, Sequence[tuple[int, str]]]:
        out = self.output_feature(feature)
        rows: list[Sequence[Pixels] | None] = []
        bad_values: list[tuple[int, str]] = []
        for row, images in enumerate(list_row_images(column, feature)):
            pixels: list[Pixels] = []
            try:
                for data in images or ():
                    pixels.append(self._decode(data))
            except BadImage as error:
                is_list = bool(feature.shape)
                bad_values.append(
                    (row, describe_item(len(pixels), error) if is_list else error.message)
                )
            else:
                rows.append(None if images is None else pixels)
        return (_ragged_column if self.height is None else _fixed_size_column)(
            rows, out
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
            (bytes of the pixels of each row, bytes that are needed while its largest image is
            decoded). Both are int64 [rows]. Missing and invalid images count as 0.
        """
        result_bytes, work_bytes = np.zeros((2, len(column)), np.int64)
        for row, header in _iter_headers(column, feature):
            height, width = (
                (header.height, header.width)
                if self.height is None
                else (self.height, self.width or 0)
            )
            result_bytes[row] += height * width * self.channels
            work_bytes[row] = max(work_bytes[row], decode_bytes(header))
        return result_bytes, work_bytes


def looks_like_image(payload: bytes) -> bool:
    """Returns whether bytes begin like an image of one of the supported formats."""
    return sniff_image(payload[:IMAGE_HEAD_BYTES]) is not None


def read_image_sizes(column: pa.Array, feature: Feature) -> set[tuple[int, int]]:
    """Returns the (height, width) of all valid images of a column."""
    return {(header.height, header.width) for _, header in _iter_headers(column, feature)}


def list_row_images(column: pa.Array, feature: Feature) -> list[Sequence[Pixels] | None]:
    """Returns the encoded images of each row of a column, as views.

    Args:
        column: The column, with the Arrow type of the feature.
        feature: A single bytes value per record, or a list of them.

    Returns:
        The images of each row. A row without a value is None.
    """
    arrays = extract_arrays(column, replace(feature, required=True))
    images = [
        arrays.values[begin:end] for begin, end in itertools.pairwise(arrays.splits[-1].tolist())
    ]
    if feature.ragged_rank:
        bounds = arrays.splits[0]
    else:
        bounds = np.arange(len(column) + 1) * feature.inner_size
    return [
        images[begin:end] if is_present else None
        for (begin, end), is_present in zip(
            itertools.pairwise(bounds.tolist()), column.is_valid().to_pylist(), strict=True
        )
    ]


def describe_item(item: int, error: BadImage) -> str:
    """Returns the message for a bad image in a list of images."""
    return f"image {item} of its list: {error.message}"


def _iter_headers(column: pa.Array, feature: Feature) -> Iterator[tuple[int, ImageHeader]]:
    """Yields (row, header) for each valid image of a column."""
    # Invalid images are reported when they are decoded.
    for row, images in enumerate(list_row_images(column, feature)):
        for data in images or ():
            with contextlib.suppress(BadImage):
                yield row, check_structure(data, MAX_DECODED_PIXELS)


def _concatenate_pixels(images: Sequence[Pixels]) -> Pixels:
    if len(images) == 1:
        return images[0].reshape(-1)
    return np.concatenate([np.empty(0, np.uint8), *(image.reshape(-1) for image in images)])


def _fixed_size_column(rows: Sequence[Sequence[Pixels] | None], out: Feature) -> pa.Array:
    flat_pixels = _concatenate_pixels([image for images in rows for image in images or ()])
    return build_column(
        pa.array(flat_pixels),
        counts=np.array([len(images or ()) for images in rows], np.int64),
        present=np.array([images is not None for images in rows], np.bool_),
        out=out,
    )


def _ragged_column(rows: Sequence[Sequence[Pixels] | None], out: Feature) -> pa.Array:
    """Builds the column of single images of different sizes, as lists.

    An image is a list of rows, a row is a list of pixels, and a pixel is a fixed-size list of
    channels.
    """
    present_images = [image for images in rows for image in images or ()]
    flat_pixels = _concatenate_pixels(present_images)
    # A missing image has no rows. Each row of an image has the width of the image.
    heights = np.array([0 if images is None else images[0].shape[0] for images in rows], np.int64)
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
    pixel_rows = pa.Array.from_buffers(
        inner, len(widths), [None, pa.py_buffer(pixel_offsets)], children=[items]
    )
    validity = (
        None
        if len(present_images) == len(rows)
        else pa.array([images is not None for images in rows]).buffers()[1]
    )
    return pa.Array.from_buffers(
        outer, len(rows), [validity, pa.py_buffer(row_offsets)], children=[pixel_rows]
    )
