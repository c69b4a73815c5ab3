"""Images written anew: turned upright, cut or padded to one size, in another format, without metadata (`RewriteRule`);
and the geometry of it for boxes and masks, and `resample`, which the reader and `read` share.

Pixels of images that are written anew are resized bilinearly with antialiasing by Pillow, which no change may touch:
shards have them. Masks are resized to the nearest value as `tf.image.resize` does.
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
DEFAULT_QUALITY = 95  # of JPEG and WebP, as of `tf.io.encode_jpeg`
JPEG_SHRINK_FACTORS = (8, 4, 2)  # by which a JPEG can be decoded smaller
_MIN_OVERSAMPLING = 2  # a JPEG is decoded so many times larger than wanted, so that what is seen is the antialiased resize
# EXIF orientations that flip an axis; orientations above 4 swap the axes as well
_MIRRORED = (2, 3, 7, 8)
_UPSIDE_DOWN = (3, 4, 6, 7)
_MIN_VISIBLE_SHARE = 1e-6  # of a part, that float32 tells from nothing
# Pillow's modes by channels, where a format does not have RGB for them
_PILLOW_MODES = {
    "JPEG": {1: "L", 2: "L"},
    "PNG": {1: "L", 2: "LA", 4: "RGBA"},
    "WebP": {2: "RGBA", 4: "RGBA"},
}
_FORMATS_BY_NAME = {"jpeg": "JPEG", "jpg": "JPEG", "png": "PNG", "webp": "WebP"}
_MASK_MODES = ("1", "L", "P", "I", "LA", "RGB", "RGBA")

ReserveMemory = Callable[
    [int], AbstractContextManager[object]
]  # gives a context in which so many bytes may be used


class Box(NamedTuple):
    """Part of an image, in pixels."""

    top: int
    left: int
    height: int
    width: int


def find_center_box(height: int, width: int, ratio: float) -> Box:
    """Returns the largest part in the middle whose width is `ratio` of its height.

    >>> find_center_box(100, 300, 1.0), find_center_box(100, 30, 0.5)
    (Box(top=0, left=100, height=100, width=100), Box(top=20, left=0, height=60, width=30))
    """
    box_height = min(max(int(width / ratio), 1), height)
    box_width = min(max(int(height * ratio), 1), width)
    return Box((height - box_height) // 2, (width - box_width) // 2, box_height, box_width)


def apply_orientation_to_pixels(pixels: npt.NDArray[Any], orientation: int) -> npt.NDArray[Any]:
    """Returns the pixels turned as EXIF's orientation says."""
    if orientation in _MIRRORED:
        pixels = pixels[:, ::-1]
    if orientation in _UPSIDE_DOWN:
        pixels = pixels[::-1]
    return pixels.swapaxes(0, 1) if orientation > 4 else pixels


def apply_orientation_to_edges(
    edges: npt.NDArray[np.float64], orientations: Int64s
) -> npt.NDArray[np.float64]:
    """Returns [boxes, 4] left, top, right and bottom, as shares of images that `apply_orientation_to_pixels` turns."""
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
    """Returns (from, to, whether something of it is left) of spans along an axis as shares of the part of the image
    that begins at `start` and is so large.
    """
    clipped_low, clipped_high = (np.clip((edge - start) / size, 0, 1) for edge in (low, high))
    return (
        clipped_low,
        clipped_high,
        (clipped_high - clipped_low > _MIN_VISIBLE_SHARE) | (size >= 1),
    )


_Float32s = npt.NDArray[np.float32]
_Uint32s = npt.NDArray[np.uint32]
_MAX_CACHED_WEIGHTS = (
    1024  # pairs of lengths whose weights are kept: photographs have few sizes, random crops many
)


def resample(
    pixels: npt.NDArray[Any],
    box: Box,
    out: npt.NDArray[Any],
    factor: _Float32s,
    offset: _Float32s,
    *,
    antialias: bool,
) -> None:
    """Resizes a part of uint8 [height, width, channels] into out, uint8 (rounded), float16 or float32, bilinearly, as
    `tf.image.resize` does. factor, offset: [width * channels], of out; a value becomes `value * factor - offset`.
    """
    channels = out.shape[2]
    result: npt.NDArray[Any] = out if out.dtype != np.float16 else allocate(out.shape, np.float32)
    stride, columns = pixels.shape[1] * channels, box.width * channels
    begin = box.top * stride + box.left * channels
    part = np.ascontiguousarray(pixels).reshape(-1)[
        begin : begin + (box.height - 1) * stride + columns
    ]
    scratch = np.empty(3 * len(factor) + columns, np.float32)
    is_rounded = result.dtype == np.uint8
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
    """Returns ([2, numbers] source indices, weights of the upper) of each number wanted, in float32 as TensorFlow."""
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
    """Returns ([most, numbers] source indices, [most, numbers] weights, 0 after the last) of each number wanted: a
    triangle as wide as a pixel wanted is, but no narrower than a source pixel.
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
    """Returns [..., pixels] indices of pixels to [..., pixels * channels] of numbers."""
    numbers = indices[..., None] * channels + np.arange(channels)
    return numbers.reshape(*indices.shape[:-1], -1).astype(np.uint32)


def nearest_indices(source_size: int, target_size: int) -> Int64s:
    """Returns [want] source indices, reckoned in float32 as TensorFlow does."""
    positions = (np.arange(target_size, dtype=np.float32) + np.float32(0.5)) * (
        np.float32(source_size) / np.float32(target_size)
    )
    return np.minimum(positions.astype(np.int64), source_size - 1)


class Placement(NamedTuple):
    """How an image is written: turned as `orientation` says, of which `box` is resized to height x width and stands at
    (top, left) of an image of size [height, width].
    """

    orientation: int
    stored_size: tuple[int, int]
    box: Box
    target_box: Box
    output_size: tuple[int, int]

    @property
    def visible_region(self) -> tuple[float, float, float, float]:
        """Left, top, width and height of what is written, as shares of the upright image; of padding beyond 0 and 1."""
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
    """A rule that says what is written in place of the bytes of images.

    Attributes:
        size: [height, width]; None: each image's own.
        mode: `stretch` to it, `crop` what of the middle has its ratio, or `pad` with black, of masks with 0.
        format: `JPEG`, `PNG`, `WebP`; "": the image's own, PNG for one of the others.
        quality: Of JPEG and WebP.
    """

    size: tuple[int, int] | None = None
    mode: str = STRETCH_MODE
    format: str = ""
    quality: int = DEFAULT_QUALITY

    @classmethod
    def from_options(
        cls, resize: str | tuple[int, int] | None, mode: str, reencode: str | None
    ) -> RewriteRule | None:
        """Returns what the options say; None: bytes stay as they are.

        Raises:
            UsageError: A value can't be.
        """
        size = None
        if isinstance(resize, (tuple, list)) and len(resize) == 2:
            size = resize[0], resize[1]
        elif resize is not None:
            size = parse_image_size(str(resize))
        if size is not None and not (min(size) > 0 and size[0] * size[1] <= MAX_PIXELS):
            raise UsageError(f"{option('resize', resize)}: 1 to {MAX_PIXELS} pixels")
        match = re.fullmatch(r"(jpe?g|png|webp)(?::(\d+))?", reencode or "", re.IGNORECASE)
        quality = int(match[2]) if match and match[2] else DEFAULT_QUALITY
        is_png = match is not None and match[1].lower() == "png"
        if reencode is not None and (
            match is None or not 1 <= quality <= 100 or (is_png and match[2])
        ):
            raise UsageError(
                f"{option('reencode', reencode)}: png, or jpeg or webp, with a quality of 1 to 100 as in jpeg:90"
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
        """Returns how an image of that header is written."""
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
        """Returns the image, of several frames the first.

        Args:
            data: The bytes of a file whose container is whole.
            header: What it says.
            placement: What `place` gave for it.
            reserve: Gives the memory.

        Raises:
            BadImage: It can't be decoded, or written in this format.
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
        """Returns the mask of an image as PNG, with exact values; arguments and errors as of `write`."""
        if (header.height, header.width) != placement.stored_size:  # it is upright already
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
        """Returns how much memory is taken: by the pixels, converted or turned, the result, and what it is made of."""
        shrunk_header = header._replace(
            height=-(-header.height // shrink), width=-(-header.width // shrink), scans=1
        )
        scan_bytes = pillow_decode_bytes(header) - pillow_decode_bytes(
            header._replace(scans=1)
        )  # of several scans, in full size
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
            if is_deep:  # Pillow resizes no integers of 16 bits
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
    """Returns the part that is kept in the size wanted, of an image that may be decoded smaller than it is."""
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
        image.putpalette(
            palette + [0] * (3 * (int(result.max()) + 1) - len(palette))
        )  # of every value, or it is lost
    return _encode_image(image, "PNG")


def restore_gray_values(values: npt.NDArray[Any], bits: int) -> npt.NDArray[Any]:
    """Returns gray values of so many bits as they are stored; Pillow spreads 2 and 4 bits over 255."""
    return values if bits >= 8 else values // (255 // ((1 << bits) - 1))


def _encode_image(image: Image.Image, format_name: str, **options: int) -> bytes:
    image.info = {}  # of which EXIF data, profiles and comments would be written
    buffer = io.BytesIO()
    image.save(buffer, format_name, **options)
    return buffer.getvalue()


def _report_pillow_errors(write: Callable[[], bytes]) -> bytes:
    try:
        return write()
    except BadImage:
        raise
    except Exception as error:  # Pillow's plugins raise what their parsers meet
        message = f"Pillow can't decode it, or write it anew: {type(error).__name__}: {error}"
        raise BadImage(DECODE_FAILED, message[:250]) from error
