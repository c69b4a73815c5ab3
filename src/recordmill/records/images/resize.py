"""Images written anew: turned upright, cut or padded to one size, in another format, without metadata (`PixelRule`);
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
from recordmill.records.images.check import MAX_PIXELS, pixel_bytes
from recordmill.records.images.header import CMYK, DECODE_FAILED, BadImage, ImageHeader
from recordmill.records.images.pillow import load_stored, open_image, orientation_of, turn
from recordmill.records.images.pixels import in_colours

if TYPE_CHECKING:
    from PIL import Image

STRETCH, CROP, PAD = RESIZE_MODES = ("stretch", "crop", "pad")
QUALITY = 95  # of JPEG and WebP, as of `tf.io.encode_jpeg`
SHRINKS = (8, 4, 2)  # by which a JPEG can be decoded smaller
_SPARE = 2  # a JPEG is decoded so many times larger than wanted, so that what is seen is the antialiased resize
_MIRRORED, _UPSIDE_DOWN = (
    (2, 3, 7, 8),
    (3, 4, 6, 7),
)  # orientations of EXIF; those above 4 swap the axes, too
_LEAST = 1e-6  # of a part, that float32 tells from nothing
# Pillow's modes by channels, where a format does not have RGB for them
_MODES = {
    "JPEG": {1: "L", 2: "L"},
    "PNG": {1: "L", 2: "LA", 4: "RGBA"},
    "WebP": {2: "RGBA", 4: "RGBA"},
}
_FORMATS = {"jpeg": "JPEG", "jpg": "JPEG", "png": "PNG", "webp": "WebP"}
_MASK_MODES = ("1", "L", "P", "I", "LA", "RGB", "RGBA")

Reserve = Callable[
    [int], AbstractContextManager[object]
]  # gives a context in which so many bytes may be used


class Box(NamedTuple):
    """Part of an image, in pixels."""

    top: int
    left: int
    height: int
    width: int


def center_box(height: int, width: int, ratio: float) -> Box:
    """Returns the largest part in the middle whose width is `ratio` of its height.

    >>> center_box(100, 300, 1.0), center_box(100, 30, 0.5)
    (Box(top=0, left=100, height=100, width=100), Box(top=20, left=0, height=60, width=30))
    """
    own_height = min(max(int(width / ratio), 1), height)
    own_width = min(max(int(height * ratio), 1), width)
    return Box((height - own_height) // 2, (width - own_width) // 2, own_height, own_width)


def upright(pixels: npt.NDArray[Any], orientation: int) -> npt.NDArray[Any]:
    """Returns the pixels turned as EXIF's orientation says."""
    if orientation in _MIRRORED:
        pixels = pixels[:, ::-1]
    if orientation in _UPSIDE_DOWN:
        pixels = pixels[::-1]
    return pixels.swapaxes(0, 1) if orientation > 4 else pixels


def upright_edges(edges: npt.NDArray[np.float64], orientations: Int64s) -> npt.NDArray[np.float64]:
    """Returns [boxes, 4] left, top, right and bottom, as shares of images that `upright` turns."""
    turned = edges.copy()
    for at, which in ((0, _MIRRORED), (1, _UPSIDE_DOWN)):
        rows = np.isin(orientations, which)
        turned[rows, at], turned[rows, at + 2] = 1 - edges[rows, at + 2], 1 - edges[rows, at]
    swapped = orientations > 4
    turned[swapped] = turned[swapped][:, [1, 0, 3, 2]]
    return turned


def clip_span(low: Any, high: Any, start: Any, size: Any) -> tuple[Any, Any, Any]:
    """Returns (from, to, whether something of it is left) of spans along an axis as shares of the part of the image
    that begins at `start` and is so large.
    """
    one, other = (np.clip((edge - start) / size, 0, 1) for edge in (low, high))
    return one, other, (other - one > _LEAST) | (size >= 1)


_Floats = npt.NDArray[np.float32]
_Places = npt.NDArray[np.uint32]
_REMEMBERED = (
    1024  # pairs of lengths whose weights are kept: photographs have few sizes, random crops many
)


def resample(
    pixels: npt.NDArray[Any],
    box: Box,
    out: npt.NDArray[Any],
    factor: _Floats,
    offset: _Floats,
    *,
    antialias: bool,
) -> None:
    """Resizes a part of uint8 [height, width, channels] into out, uint8 (rounded), float16 or float32, bilinearly, as
    `tf.image.resize` does. factor, offset: [width * channels], of out; a value becomes `value * factor - offset`.
    """
    channels = out.shape[2]
    whole: npt.NDArray[Any] = out if out.dtype != np.float16 else allocate(out.shape, np.float32)
    stride, columns = pixels.shape[1] * channels, box.width * channels
    first = box.top * stride + box.left * channels
    part = np.ascontiguousarray(pixels).reshape(-1)[
        first : first + (box.height - 1) * stride + columns
    ]
    scratch = np.empty(3 * len(factor) + columns, np.float32)
    is_rounded = whole.dtype == np.uint8
    if box[2:] == out.shape[:2]:
        same = pixels[box.top : box.top + box.height, box.left : box.left + box.width].reshape(
            len(out), -1
        )
        numbers = whole.reshape(same.shape)
        if is_rounded:
            numbers[:] = same
        else:
            np.multiply(same, factor, out=numbers, dtype=np.float32)
            numbers -= offset
    else:
        taps = _spans if antialias else _pairs
        rows, along = taps(box.height, out.shape[0], 1), taps(box.width, out.shape[1], channels)
        native.resize(
            native.PixelLines(pixels=part, stride=stride, width=columns),
            antialias,
            native.ResizeTaps(sources=rows[0], weights=rows[1]),
            native.ResizeTaps(sources=along[0], weights=along[1]),
            native.ResizeOutput(
                factor=factor,
                offset=offset,
                bytes=whole if is_rounded else None,
                floats=None if is_rounded else whole,
            ),
            scratch,
        )
    if out.dtype == np.float16:
        out[:] = whole.reshape(out.shape)


@functools.lru_cache(_REMEMBERED)
def _pairs(have: int, want: int, channels: int) -> tuple[_Places, _Floats]:
    """Returns ([2, numbers] source indices, weights of the upper) of each number wanted, in float32 as TensorFlow."""
    at = (np.arange(want, dtype=np.float32) + np.float32(0.5)) * (
        np.float32(have) / np.float32(want)
    ) - np.float32(0.5)
    floor = np.floor(at)
    pairs = np.clip([floor.astype(np.int64), np.ceil(at).astype(np.int64)], 0, have - 1)
    return _each_channel(pairs, channels), np.repeat(at - floor, channels)


@functools.lru_cache(_REMEMBERED)
def _spans(have: int, want: int, channels: int) -> tuple[_Places, _Floats]:
    """Returns ([most, numbers] source indices, [most, numbers] weights, 0 after the last) of each number wanted: a
    triangle as wide as a pixel wanted is, but no narrower than a source pixel.
    """
    one = np.float32(1)
    inverse = one / (np.float32(want) / np.float32(have))
    reach = max(inverse, one)
    most = min(2 * math.ceil(reach) + 1, have)
    at = (np.arange(want, dtype=np.float32) + np.float32(0.5)) * inverse
    first = np.clip(np.ceil(at - reach - np.float32(0.5)).astype(np.int64), 0, have - 1)
    ends = np.clip(np.floor(at + reach - np.float32(0.5)).astype(np.int64), 0, have - 1) + 1
    places = first + np.arange(most)[:, None]
    source = places.astype(np.float32) + np.float32(0.5)
    weights = np.maximum(one - np.abs((source - at) * (one / reach)), np.float32(0)) * (
        places < ends
    )
    weights *= one / np.cumsum(weights, axis=0, dtype=np.float32)[-1]
    return _each_channel(np.minimum(places, have - 1), channels), np.repeat(
        weights, channels, axis=1
    )


def _each_channel(places: Int64s, channels: int) -> _Places:
    """Returns [..., pixels] indices of pixels to [..., pixels * channels] of numbers."""
    numbers = places[..., None] * channels + np.arange(channels)
    return numbers.reshape(*places.shape[:-1], -1).astype(np.uint32)


def nearest_sources(have: int, want: int) -> Int64s:
    """Returns [want] source indices, reckoned in float32 as TensorFlow does."""
    at = (np.arange(want, dtype=np.float32) + np.float32(0.5)) * (
        np.float32(have) / np.float32(want)
    )
    return np.minimum(at.astype(np.int64), have - 1)


class Placement(NamedTuple):
    """How an image is written: turned as `orientation` says, of which `box` is resized to height x width and stands at
    (top, left) of an image of size [height, width].
    """

    orientation: int
    stored: tuple[int, int]
    box: Box
    inner: Box
    size: tuple[int, int]

    @property
    def kept(self) -> tuple[float, float, float, float]:
        """Left, top, width and height of what is written, as shares of the upright image; of padding beyond 0 and 1."""
        height, width = self.upright_size
        down, along = self.inner.height * height, self.inner.width * width
        left = (self.box.left * self.inner.width - self.inner.left * self.box.width) / along
        top = (self.box.top * self.inner.height - self.inner.top * self.box.height) / down
        return (
            left,
            top,
            self.size[1] * self.box.width / along,
            self.size[0] * self.box.height / down,
        )

    @property
    def is_as_stored(self) -> bool:
        return (
            self.orientation == 1
            and self.box == self.inner == (0, 0, *self.stored)
            and self.size == self.stored
        )

    @property
    def upright_size(self) -> tuple[int, int]:
        return self.stored[::-1] if self.orientation > 4 else self.stored


@dataclass(frozen=True)
class PixelRule:
    """A rule that says what is written in place of the bytes of images.

    Attributes:
        size: [height, width]; None: each image's own.
        mode: `stretch` to it, `crop` what of the middle has its ratio, or `pad` with black, of masks with 0.
        format: `JPEG`, `PNG`, `WebP`; "": the image's own, PNG for one of the others.
        quality: Of JPEG and WebP.
    """

    size: tuple[int, int] | None = None
    mode: str = STRETCH
    format: str = ""
    quality: int = QUALITY

    @classmethod
    def of(
        cls, resize: str | tuple[int, int] | None, mode: str, reencode: str | None
    ) -> PixelRule | None:
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
        quality = int(match[2]) if match and match[2] else QUALITY
        is_png = match is not None and match[1].lower() == "png"
        if reencode is not None and (
            match is None or not 1 <= quality <= 100 or (is_png and match[2])
        ):
            raise UsageError(
                f"{option('reencode', reencode)}: png, or jpeg or webp, with a quality of 1 to 100 as in jpeg:90"
            )
        if size is None and match is None:
            return None
        return cls(size, mode, _FORMATS[match[1].lower()] if match else "", quality)

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

    def place(self, data: npt.NDArray[np.uint8], header: ImageHeader) -> Placement:
        """Returns how an image of that header is written."""
        orientation, stored = orientation_of(data, header.format), (header.height, header.width)
        height, width = stored[::-1] if orientation > 4 else stored
        box, (high, wide) = Box(0, 0, height, width), self.size or (height, width)
        inner = Box(0, 0, high, wide)
        if self.mode == CROP:
            box = center_box(height, width, wide / high)
        elif self.mode == PAD:
            scale = min(high / height, wide / width)
            own_high, own_wide = (max(1, round(side * scale)) for side in (height, width))
            inner = Box((high - own_high) // 2, (wide - own_wide) // 2, own_high, own_wide)
        return Placement(orientation, stored, box, inner, (high, wide))

    def write(
        self,
        data: npt.NDArray[np.uint8],
        header: ImageHeader,
        placement: Placement,
        reserve: Reserve,
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
        kind = self.format or (header.format if header.format in _MODES else "PNG")
        mode = _MODES[kind].get(3 if header.colour == CMYK else header.channels, "RGB")
        by = self._shrink(header, placement)
        with reserve(self._work_bytes(header, placement, by)):
            return _guarded(lambda: self._written(data, header, placement, kind, mode, by))

    def write_mask(
        self,
        data: npt.NDArray[np.uint8],
        header: ImageHeader,
        placement: Placement,
        reserve: Reserve,
    ) -> bytes:
        """Returns the mask of an image as PNG, with exact values; arguments and errors as of `write`."""
        if (header.height, header.width) != placement.stored:  # it is upright already
            placement = placement._replace(orientation=1, stored=(header.height, header.width))
        if placement.is_as_stored:
            return data.tobytes()
        with reserve(self._work_bytes(header, placement, 1)):
            return _guarded(lambda: _written_mask(data, header, placement))

    def _shrink(self, header: ImageHeader, placement: Placement) -> int:
        if self.size is None or header.format != "JPEG":
            return 1
        (_, _, height, width), (_, _, high, wide) = placement.box, placement.inner
        return next(
            (by for by in SHRINKS if height >= _SPARE * by * high and width >= _SPARE * by * wide),
            1,
        )

    def _work_bytes(self, header: ImageHeader, placement: Placement, by: int) -> int:
        """Returns how much memory is taken: by the pixels, converted or turned, the result, and what it is made of."""
        small = header._replace(
            height=-(-header.height // by), width=-(-header.width // by), scans=1
        )
        waiting = pixel_bytes(header) - pixel_bytes(
            header._replace(scans=1)
        )  # of several scans, in full size
        result = placement.size[0] * placement.size[1] * (4 if self.size is None else 12)
        return pixel_bytes(small) + 4 * small.pixels + waiting + result

    def _written(
        self,
        data: npt.NDArray[np.uint8],
        header: ImageHeader,
        placement: Placement,
        kind: str,
        mode: str,
        by: int,
    ) -> bytes:
        from PIL import Image

        with open_image(data.data, header.format) as opened:
            if by > 1:
                opened.draft(None, (header.width // by, header.height // by))
            image = load_stored(opened)
            is_deep = kind == "PNG" and header.bits == 16 and image.mode.startswith("I")
            if is_deep:  # Pillow resizes no integers of 16 bits
                image = Image.fromarray(np.asarray(image).astype(np.float32))
            else:
                image = in_colours(image, header.bits, mode)
            image = turn(image, placement.orientation)
            if self.size is not None:
                image = _fitted(image, placement)
            if is_deep:
                image = Image.fromarray(
                    np.rint(np.asarray(image)).clip(0, 65_535).astype(np.uint16)
                )
            return _encoded(image, kind, **({} if kind == "PNG" else {"quality": self.quality}))


def _fitted(image: Image.Image, placement: Placement) -> Image.Image:
    """Returns the part that is kept in the size wanted, of an image that may be decoded smaller than it is."""
    from PIL import Image

    height, width = placement.upright_size
    down, along = image.height / height, image.width / width
    top, left, high, wide = placement.box
    part = left * along, top * down, (left + wide) * along, (top + high) * down
    inner = placement.inner
    image = image.resize((inner.width, inner.height), Image.Resampling.BILINEAR, part)
    if (inner.height, inner.width) == placement.size:
        return image
    padded = Image.new(image.mode, placement.size[::-1])
    padded.paste(image, (inner.left, inner.top))
    return padded


def _written_mask(data: npt.NDArray[np.uint8], header: ImageHeader, placement: Placement) -> bytes:
    from PIL import Image

    with open_image(data.data, header.format) as opened:
        image = load_stored(opened)
        mode, values = image.mode, np.asarray(image)
        palette = image.getpalette() if mode == "P" else None
    if mode.partition(";")[0] not in _MASK_MODES:
        raise BadImage(DECODE_FAILED, f"pixels of {mode}, which a mask written as PNG can't have")
    if mode == "L":
        values = unspread(values, header.bits)
    elif mode.startswith("I"):
        if values.min() < 0 or values.max() > 65_535:
            raise BadImage(
                DECODE_FAILED, "a value beyond 16 bits, which a mask written as PNG can't have"
            )
        values = values.astype(np.uint16)
    box, inner = placement.box, placement.inner
    values = upright(values, placement.orientation)
    values = values[box.top : box.top + box.height, box.left : box.left + box.width]
    out = np.zeros((*placement.size, *values.shape[2:]), values.dtype)
    out[inner.top : inner.top + inner.height, inner.left : inner.left + inner.width] = values[
        np.ix_(nearest_sources(box.height, inner.height), nearest_sources(box.width, inner.width))
    ]
    image = Image.fromarray(out)
    if palette is not None:
        image.putpalette(
            palette + [0] * (3 * (int(out.max()) + 1) - len(palette))
        )  # of every value, or it is lost
    return _encoded(image, "PNG")


def unspread(values: npt.NDArray[Any], bits: int) -> npt.NDArray[Any]:
    """Returns gray values of so many bits as they are stored; Pillow spreads 2 and 4 bits over 255."""
    return values if bits >= 8 else values // (255 // ((1 << bits) - 1))


def _encoded(image: Image.Image, kind: str, **options: int) -> bytes:
    image.info = {}  # of which EXIF data, profiles and comments would be written
    into = io.BytesIO()
    image.save(into, kind, **options)
    return into.getvalue()


def _guarded(write: Callable[[], bytes]) -> bytes:
    try:
        return write()
    except BadImage:
        raise
    except Exception as error:  # Pillow's plugins raise what their parsers meet
        message = f"Pillow can't decode it, or write it anew: {type(error).__name__}: {error}"
        raise BadImage(DECODE_FAILED, message[:250]) from error
