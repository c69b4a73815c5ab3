"""Rewriting and resizing of images.

A `RewriteRule` turns images upright, crops, pads or resizes them to one size, and writes them in
another format, without metadata. This module also contains the geometry for their boxes and masks,
and `resample`, the resizing of images that are decoded for a reader.

Rewritten images are resized by Pillow, bilinearly with antialiasing. Their pixels must be the same
in every release, because shards contain them. Masks are resized to the nearest value, as
`tf.image.resize` does.
"""

from __future__ import annotations

import functools
import io
import math
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from recordmill.base import native
from recordmill.base.buffers import Int64s, allocate
from recordmill.base.errors import UsageError
from recordmill.base.option_names import option
from recordmill.base.sizes import parse_image_size
from recordmill.records.images.check import MAX_PIXELS, pillow_decode_bytes
from recordmill.records.images.header import CMYK, DECODE_FAILED, BadImage, ImageHeader
from recordmill.records.images.pillow import (
    apply_orientation,
    load_as_stored,
    open_image,
    read_orientation,
)
from recordmill.records.images.pixels import convert_colours

if TYPE_CHECKING:
    from PIL import Image

STRETCH_MODE, CROP_MODE, PAD_MODE = RESIZE_MODES = ("stretch", "crop", "pad")
# The quality of JPEG and WebP, as in `tf.io.encode_jpeg`.
DEFAULT_QUALITY = 95
# A JPEG decoder can make an image smaller by these factors.
JPEG_SHRINK_FACTORS = (8, 4, 2)
# A JPEG is decoded at least this many times larger than the result, so that the antialiased resize
# decides how it looks.
_MIN_OVERSAMPLING = 2
# EXIF orientations. Orientations above 4 also swap the axes.
_MIRRORED = (2, 3, 7, 8)
_UPSIDE_DOWN = (3, 4, 6, 7)
# A clipped interval must be at least this share of the image part, which float32 distinguishes
# from 0.
_MIN_VISIBLE_SHARE = 1e-6
# Pillow's modes by number of channels. All others are written as RGB.
_PILLOW_MODES = {
    "JPEG": {1: "L", 2: "L"},
    "PNG": {1: "L", 2: "LA", 4: "RGBA"},
    "WebP": {2: "RGBA", 4: "RGBA"},
}
_FORMATS_BY_NAME = {"jpeg": "JPEG", "jpg": "JPEG", "png": "PNG", "webp": "WebP"}
_MASK_MODES = ("1", "L", "P", "I", "LA", "RGB", "RGBA")

# Function of a number of bytes. It returns a context in which this much memory may be used.
ReserveMemory = Callable[[int], AbstractContextManager[object]]


class Box(NamedTuple):
    """A rectangular part of an image, in pixels."""

    top: int
    left: int
    height: int
    width: int


def find_center_box(height: int, width: int, ratio: float) -> Box:
    """Returns the largest central part with the given ratio of width to height.

    >>> find_center_box(100, 300, 1.0), find_center_box(100, 30, 0.5)
    (Box(top=0, left=100, height=100, width=100), Box(top=20, left=0, height=60, width=30))
    """
    box_height = min(max(int(width / ratio), 1), height)
    box_width = min(max(int(height * ratio), 1), width)
    return Box((height - box_height) // 2, (width - box_width) // 2, box_height, box_width)


def apply_orientation_to_pixels(pixels: npt.NDArray[Any], orientation: int) -> npt.NDArray[Any]:
    """Returns pixels, turned and mirrored as an EXIF orientation demands.

    >>> apply_orientation_to_pixels(np.array([[1, 2, 3]]), 6).tolist()
    [[1], [2], [3]]

    Args:
        pixels: [height, width, ...].
        orientation: The EXIF orientation, from 1 to 8.
    """
    if orientation in _MIRRORED:
        pixels = pixels[:, ::-1]
    if orientation in _UPSIDE_DOWN:
        pixels = pixels[::-1]
    return pixels.swapaxes(0, 1) if orientation > 4 else pixels


def apply_orientation_to_edges(
    edges: npt.NDArray[np.float64], orientations: Int64s
) -> npt.NDArray[np.float64]:
    """Returns the edges of boxes in images that are turned by their EXIF orientation.

    Args:
        edges: float64 [boxes, 4], left, top, right and bottom, as shares of the stored image.
        orientations: int64 [boxes], the EXIF orientation of the image of each box.
    """
    turned = edges.copy()
    for axis, orientations_to_mirror in ((0, _MIRRORED), (1, _UPSIDE_DOWN)):
        rows = np.isin(orientations, orientations_to_mirror)
        turned[rows, axis], turned[rows, axis + 2] = (
            1 - edges[rows, axis + 2],
            1 - edges[rows, axis],
        )
    swapped = orientations > 4
    turned[swapped] = turned[swapped][:, [1, 0, 3, 2]]
    return turned


def clip_span(low: Any, high: Any, start: Any, size: Any) -> tuple[Any, Any, Any]:
    """Clips intervals along one axis of images to a part of each image.

    Args:
        low: The lower ends of the intervals.
        high: The upper ends.
        start: The start of the part.
        size: The size of the part.

    Returns:
        (lower ends, upper ends, whether anything of the interval is left). The ends are shares of
        the part.
    """
    clipped_low, clipped_high = (np.clip((edge - start) / size, 0, 1) for edge in (low, high))
    return (
        clipped_low,
        clipped_high,
        (clipped_high - clipped_low > _MIN_VISIBLE_SHARE) | (size >= 1),
    )


_Float32s = npt.NDArray[np.float32]
_Uint32s = npt.NDArray[np.uint32]
# The weights for 1,024 pairs of source and target lengths are cached. Photographs have few sizes,
# but random crops have many.
_MAX_CACHED_WEIGHTS = 1024


def resample(
    pixels: npt.NDArray[Any],
    box: Box,
    out: npt.NDArray[Any],
    factor: _Float32s,
    offset: _Float32s,
    *,
    antialias: bool,
) -> None:
    """Resizes a part of an image bilinearly, as `tf.image.resize` does.

    If `out` is a float array, each value becomes `value * factor - offset`. If it is uint8, values
    are rounded, and `factor` and `offset` are not applied.

    Args:
        pixels: uint8 [height, width, channels].
        box: The part of `pixels`.
        out: [height, width, channels] of uint8, float16 or float32. Receives the result.
        factor: float32 [width * channels] of `out`.
        offset: float32 [width * channels] of `out`.
        antialias: Whether an image that becomes smaller is smoothed, so that every source pixel
            counts.
    """
    channels = out.shape[2]
    # The kernel writes no float16, so float32 is converted at the end.
    result: npt.NDArray[Any] = out if out.dtype != np.float16 else allocate(out.shape, np.float32)
    stride, columns = pixels.shape[1] * channels, box.width * channels
    begin = box.top * stride + box.left * channels
    # The box is not copied. The kernel reads it with the stride of a complete line.
    part = np.ascontiguousarray(pixels).reshape(-1)[
        begin : begin + (box.height - 1) * stride + columns
    ]
    scratch = np.empty(3 * len(factor) + columns, np.float32)
    is_rounded = result.dtype == np.uint8
    # Without a change of size, values are only copied or scaled.
    if box[2:] == out.shape[:2]:
        unscaled = pixels[box.top : box.top + box.height, box.left : box.left + box.width].reshape(
            len(out), -1
        )
        numbers = result.reshape(unscaled.shape)
        if is_rounded:
            numbers[:] = unscaled
        else:
            np.multiply(unscaled, factor, out=numbers, dtype=np.float32)
            numbers -= offset
    else:
        make_taps = _make_antialias_taps if antialias else _make_bilinear_taps
        row_taps = make_taps(box.height, out.shape[0], 1)
        column_taps = make_taps(box.width, out.shape[1], channels)
        native.resize(
            native.PixelLines(pixels=part, stride=stride, width=columns),
            antialias,
            native.ResizeTaps(sources=row_taps[0], weights=row_taps[1]),
            native.ResizeTaps(sources=column_taps[0], weights=column_taps[1]),
            native.ResizeOutput(
                factor=factor,
                offset=offset,
                bytes=result if is_rounded else None,
                floats=None if is_rounded else result,
            ),
            scratch,
        )
    if out.dtype == np.float16:
        out[:] = result.reshape(out.shape)


@functools.lru_cache(_MAX_CACHED_WEIGHTS)
def _make_bilinear_taps(
    source_size: int, target_size: int, channels: int
) -> tuple[_Uint32s, _Float32s]:
    """Returns the two source numbers of each target number, and their weights.

    A number is the value of one channel of a pixel. The weights are computed in float32, as
    TensorFlow does.

    Args:
        source_size: The number of source pixels along the axis.
        target_size: The number of target pixels.
        channels: The number of channels.

    Returns:
        (indices [2, numbers], weight of the upper one [numbers]).
    """
    positions = (np.arange(target_size, dtype=np.float32) + np.float32(0.5)) * (
        np.float32(source_size) / np.float32(target_size)
    ) - np.float32(0.5)
    floor = np.floor(positions)
    pairs = np.clip(
        [floor.astype(np.int64), np.ceil(positions).astype(np.int64)], 0, source_size - 1
    )
    return _expand_channels(pairs, channels), np.repeat(positions - floor, channels)


@functools.lru_cache(_MAX_CACHED_WEIGHTS)
def _make_antialias_taps(
    source_size: int, target_size: int, channels: int
) -> tuple[_Uint32s, _Float32s]:
    """Returns, for each number of a target line, its source numbers and their weights.

    A number is the value of one channel of a pixel. The weights form a triangle that is as wide as
    a target pixel on either side of its center, but at least as wide as a source pixel.

    Args:
        source_size: The number of source pixels along the axis.
        target_size: The number of target pixels.
        channels: The number of channels.

    Returns:
        (indices, weights), both [taps, numbers]. Unused taps have the weight 0.
    """
    unit = np.float32(1)
    inverse = unit / (np.float32(target_size) / np.float32(source_size))
    reach = max(inverse, unit)
    max_taps = min(2 * math.ceil(reach) + 1, source_size)
    centers = (np.arange(target_size, dtype=np.float32) + np.float32(0.5)) * inverse
    first = np.clip(np.ceil(centers - reach - np.float32(0.5)).astype(np.int64), 0, source_size - 1)
    ends = (
        np.clip(np.floor(centers + reach - np.float32(0.5)).astype(np.int64), 0, source_size - 1)
        + 1
    )
    # All target numbers have the same number of taps. The surplus ones get the weight 0 below.
    indices = first + np.arange(max_taps)[:, None]
    source = indices.astype(np.float32) + np.float32(0.5)
    weights = np.maximum(unit - np.abs((source - centers) * (unit / reach)), np.float32(0)) * (
        indices < ends
    )
    weights *= unit / np.cumsum(weights, axis=0, dtype=np.float32)[-1]
    return _expand_channels(np.minimum(indices, source_size - 1), channels), np.repeat(
        weights, channels, axis=1
    )


def _expand_channels(indices: Int64s, channels: int) -> _Uint32s:
    """Converts indices of pixels [..., pixels] to indices of numbers [..., pixels * channels]."""
    numbers = indices[..., None] * channels + np.arange(channels)
    return numbers.reshape(*indices.shape[:-1], -1).astype(np.uint32)


def nearest_indices(source_size: int, target_size: int) -> Int64s:
    """Returns the nearest source index for each target index, [target_size].

    The computation is in float32, so that the result is the same as in TensorFlow.
    """
    positions = (np.arange(target_size, dtype=np.float32) + np.float32(0.5)) * (
        np.float32(source_size) / np.float32(target_size)
    )
    return np.minimum(positions.astype(np.int64), source_size - 1)


class Placement(NamedTuple):
    """How one image is turned, cropped, resized and padded when it is rewritten.

    Attributes:
        orientation: The EXIF orientation of the stored image. The rewritten image is upright.
        stored_size: (height, width) of the stored image.
        box: The part of the upright image that is kept.
        target_box: The part of the result that `box` is resized to. The rest of the result is
            padding.
        output_size: (height, width) of the result.
    """

    orientation: int
    stored_size: tuple[int, int]
    box: Box
    target_box: Box
    output_size: tuple[int, int]

    @property
    def visible_region(self) -> tuple[float, float, float, float]:
        """Left, top, width and height of the area that the result shows.

        They are shares of the upright image. With padding, the area is larger than the image, so
        left and top may be below 0, and width and height above 1.
        """
        height, width = self.upright_size
        scaled_height, scaled_width = self.target_box.height * height, self.target_box.width * width
        left = (
            self.box.left * self.target_box.width - self.target_box.left * self.box.width
        ) / scaled_width
        top = (
            self.box.top * self.target_box.height - self.target_box.top * self.box.height
        ) / scaled_height
        return (
            left,
            top,
            self.output_size[1] * self.box.width / scaled_width,
            self.output_size[0] * self.box.height / scaled_height,
        )

    @property
    def is_unchanged(self) -> bool:
        return (
            self.orientation == 1
            and self.box == self.target_box == (0, 0, *self.stored_size)
            and self.output_size == self.stored_size
        )

    @property
    def upright_size(self) -> tuple[int, int]:
        return self.stored_size[::-1] if self.orientation > 4 else self.stored_size


@dataclass(frozen=True)
class RewriteRule:
    """Rule for rewriting the bytes of images.

    Attributes:
        size: (height, width) of the result. None keeps the size of each image.
        mode: How images are adapted to the size. `stretch` changes their ratio, `crop` keeps the
            center, and `pad` adds black, or 0 in masks.
        format: `JPEG`, `PNG` or `WebP`. "" keeps the format of each image, and writes all other
            formats as PNG.
        quality: The quality of JPEG and WebP, from 1 to 100.
    """

    size: tuple[int, int] | None = None
    mode: str = STRETCH_MODE
    format: str = ""
    quality: int = DEFAULT_QUALITY

    @classmethod
    def from_options(
        cls, resize: str | tuple[int, int] | None, mode: str, reencode: str | None
    ) -> RewriteRule | None:
        """Creates the rule from the user's options of the same names.

        Args:
            resize: `HxW`, (height, width), or None.
            mode: One of RESIZE_MODES.
            reencode: A format, perhaps with a quality such as `jpeg:90`, or None.

        Returns:
            The rule. None if images are not rewritten.

        Raises:
            UsageError: A value is invalid.
        """
        size = None
        if isinstance(resize, (tuple, list)) and len(resize) == 2:
            size = resize[0], resize[1]
        elif resize is not None:
            size = parse_image_size(str(resize))
        if size is not None and not (min(size) > 0 and size[0] * size[1] <= MAX_PIXELS):
            raise UsageError(
                "{resize}: 1 to {max_pixels} pixels",
                resize=option("resize", resize),
                max_pixels=MAX_PIXELS,
            )
        match = re.fullmatch(r"(jpe?g|png|webp)(?::(\d+))?", reencode or "", re.IGNORECASE)
        quality = int(match[2]) if match and match[2] else DEFAULT_QUALITY
        is_png = match is not None and match[1].lower() == "png"
        if reencode is not None and (
            match is None or not 1 <= quality <= 100 or (is_png and match[2])
        ):
            raise UsageError(
                "{reencode}: png, or jpeg or webp, with a quality of 1 to 100 as in jpeg:90",
                reencode=option("reencode", reencode),
            )
        if size is None and match is None:
            return None
        return cls(
            size=size,
            mode=mode,
            format=_FORMATS_BY_NAME[match[1].lower()] if match else "",
            quality=quality,
        )

    def __str__(self) -> str:
        size = (
            ""
            if self.size is None
            else f"resized to {self.size[0]} x {self.size[1]} ({self.mode}), "
        )
        kind = self.format or "in their own format, GIF, BMP and TIFF as PNG"
        quality = "" if self.format == "PNG" else f", JPEG and WebP of quality {self.quality}"
        if self.format:
            kind, quality = (
                f"as {kind}",
                "" if self.format == "PNG" else f" of quality {self.quality}",
            )
        return f"{size}turned upright and written anew {kind}{quality}, without metadata"

    def place_image(self, data: npt.NDArray[np.uint8], header: ImageHeader) -> Placement:
        """Determines how the rule turns, crops and resizes an image.

        Args:
            data: The bytes of the image, for its orientation.
            header: The header of the image.
        """
        orientation = read_orientation(data, header.format)
        stored_size = header.height, header.width
        height, width = stored_size[::-1] if orientation > 4 else stored_size
        box, (target_height, target_width) = Box(0, 0, height, width), self.size or (height, width)
        target_box = Box(0, 0, target_height, target_width)
        if self.mode == CROP_MODE:
            box = find_center_box(height, width, target_width / target_height)
        elif self.mode == PAD_MODE:
            scale = min(target_height / height, target_width / width)
            inner_height, inner_width = (
                max(1, round(length * scale)) for length in (height, width)
            )
            target_box = Box(
                (target_height - inner_height) // 2,
                (target_width - inner_width) // 2,
                inner_height,
                inner_width,
            )
        return Placement(
            orientation=orientation,
            stored_size=stored_size,
            box=box,
            target_box=target_box,
            output_size=(target_height, target_width),
        )

    def rewrite_image(
        self,
        data: npt.NDArray[np.uint8],
        header: ImageHeader,
        placement: Placement,
        reserve: ReserveMemory,
    ) -> bytes:
        """Returns the rewritten image. Only its first frame is kept.

        Args:
            data: The bytes of the image, which `check_structure` has accepted.
            header: The header of the image.
            placement: The result of `place_image`.
            reserve: Function of a number of bytes. It returns a context in which this much memory
                may be used.

        Raises:
            BadImage: The image can't be decoded, or written in this format.
        """
        format_name = self.format or (header.format if header.format in _PILLOW_MODES else "PNG")
        mode = _PILLOW_MODES[format_name].get(
            3 if header.colour == CMYK else header.channels, "RGB"
        )
        shrink = self._shrink_factor(header, placement)
        with reserve(self._work_bytes(header, placement, shrink)):
            return _report_pillow_errors(
                lambda: self._rewrite(data, header, placement, format_name, mode, shrink)
            )

    def rewrite_mask(
        self,
        data: npt.NDArray[np.uint8],
        header: ImageHeader,
        placement: Placement,
        reserve: ReserveMemory,
    ) -> bytes:
        """Returns the mask of an image as PNG.

        It is turned, cropped and resized like the image. Values are never mixed. A mask that needs
        no change is returned as it is.

        Args:
            data: The bytes of the mask.
            header: The header of the mask.
            placement: The result of `place_image` for the image.
            reserve: Function of a number of bytes. It returns a context in which this much memory
                may be used.

        Raises:
            BadImage: The mask can't be decoded, or written as PNG.
        """
        # A mask with another size than the stored image is already upright.
        if (header.height, header.width) != placement.stored_size:
            placement = placement._replace(orientation=1, stored_size=(header.height, header.width))
        if placement.is_unchanged:
            return data.tobytes()
        with reserve(self._work_bytes(header, placement, 1)):
            return _report_pillow_errors(lambda: _rewrite_mask(data, header, placement))

    def _shrink_factor(self, header: ImageHeader, placement: Placement) -> int:
        if self.size is None or header.format != "JPEG":
            return 1
        (_, _, height, width), (_, _, target_height, target_width) = (
            placement.box,
            placement.target_box,
        )
        return next(
            (
                factor
                for factor in JPEG_SHRINK_FACTORS
                if height >= _MIN_OVERSAMPLING * factor * target_height
                and width >= _MIN_OVERSAMPLING * factor * target_width
            ),
            1,
        )

    def _work_bytes(self, header: ImageHeader, placement: Placement, shrink: int) -> int:
        """Returns the memory that rewriting an image needs, in bytes.

        This is for the decoded pixels, a converted or turned copy, and the result.
        """
        shrunk_header = header._replace(
            height=-(-header.height // shrink), width=-(-header.width // shrink), scans=1
        )
        # The scans of a JPEG are kept in full size even if it is decoded smaller.
        scan_bytes = pillow_decode_bytes(header) - pillow_decode_bytes(header._replace(scans=1))
        result_bytes = (
            placement.output_size[0] * placement.output_size[1] * (4 if self.size is None else 12)
        )
        return (
            pillow_decode_bytes(shrunk_header)
            + 4 * shrunk_header.pixels
            + scan_bytes
            + result_bytes
        )

    def _rewrite(
        self,
        data: npt.NDArray[np.uint8],
        header: ImageHeader,
        placement: Placement,
        format_name: str,
        mode: str,
        shrink: int,
    ) -> bytes:
        from PIL import Image

        with open_image(data.data, header.format) as stored_image:
            if shrink > 1:
                stored_image.draft(None, (header.width // shrink, header.height // shrink))
            image = load_as_stored(stored_image)
            is_deep = format_name == "PNG" and header.bits == 16 and image.mode.startswith("I")
            # Pillow can't resize integers of 16 bits.
            if is_deep:
                image = Image.fromarray(np.asarray(image).astype(np.float32))
            else:
                image = convert_colours(image, header.bits, mode)
            image = apply_orientation(image, placement.orientation)
            if self.size is not None:
                image = _crop_and_resize(image, placement)
            if is_deep:
                image = Image.fromarray(
                    np.rint(np.asarray(image)).clip(0, 65_535).astype(np.uint16)
                )
            return _encode_image(
                image, format_name, **({} if format_name == "PNG" else {"quality": self.quality})
            )


def _crop_and_resize(image: Image.Image, placement: Placement) -> Image.Image:
    """Crops, resizes and pads an upright image.

    A JPEG may have been decoded in a smaller size than it is stored.
    """
    from PIL import Image

    height, width = placement.upright_size
    height_scale, width_scale = image.height / height, image.width / width
    top, left, box_height, box_width = placement.box
    source_box = (
        left * width_scale,
        top * height_scale,
        (left + box_width) * width_scale,
        (top + box_height) * height_scale,
    )
    target_box = placement.target_box
    image = image.resize(
        (target_box.width, target_box.height), Image.Resampling.BILINEAR, source_box
    )
    if (target_box.height, target_box.width) == placement.output_size:
        return image
    padded = Image.new(image.mode, placement.output_size[::-1])
    padded.paste(image, (target_box.left, target_box.top))
    return padded


def _rewrite_mask(data: npt.NDArray[np.uint8], header: ImageHeader, placement: Placement) -> bytes:
    from PIL import Image

    with open_image(data.data, header.format) as stored_image:
        image = load_as_stored(stored_image)
        mode, values = image.mode, np.asarray(image)
        palette = image.getpalette() if mode == "P" else None
    if mode.partition(";")[0] not in _MASK_MODES:
        raise BadImage(DECODE_FAILED, f"pixels of {mode}, which a mask written as PNG can't have")
    if mode == "L":
        values = restore_gray_values(values, header.bits)
    elif mode.startswith("I"):
        if values.min() < 0 or values.max() > 65_535:
            raise BadImage(
                DECODE_FAILED, "a value beyond 16 bits, which a mask written as PNG can't have"
            )
        values = values.astype(np.uint16)
    box, target_box = placement.box, placement.target_box
    values = apply_orientation_to_pixels(values, placement.orientation)
    values = values[box.top : box.top + box.height, box.left : box.left + box.width]
    result = np.zeros((*placement.output_size, *values.shape[2:]), values.dtype)
    result[
        target_box.top : target_box.top + target_box.height,
        target_box.left : target_box.left + target_box.width,
    ] = values[
        np.ix_(
            nearest_indices(box.height, target_box.height),
            nearest_indices(box.width, target_box.width),
        )
    ]
    image = Image.fromarray(result)
    if palette is not None:
        # The palette needs an entry for every value, or Pillow drops it.
        image.putpalette(palette + [0] * (3 * (int(result.max()) + 1) - len(palette)))
    return _encode_image(image, "PNG")


def restore_gray_values(values: npt.NDArray[Any], bits: int) -> npt.NDArray[Any]:
    """Returns the gray values that are stored in an image.

    Pillow scales values of 2 and 4 bits up to 255. This reverses it.
    """
    return values if bits >= 8 else values // (255 // ((1 << bits) - 1))


def _encode_image(image: Image.Image, format_name: str, **options: int) -> bytes:
    # Otherwise Pillow writes EXIF data, profiles and comments.
    image.info = {}
    buffer = io.BytesIO()
    image.save(buffer, format_name, **options)
    return buffer.getvalue()


def _report_pillow_errors(write: Callable[[], bytes]) -> bytes:
    try:
        return write()
    except BadImage:
        raise
    except Exception as error:
        # Pillow's plugins raise any error of their parsers.
        message = f"Pillow can't decode it, or write it anew: {type(error).__name__}: {error}"
        raise BadImage(DECODE_FAILED, message[:250]) from error
