"""Rewriting of images.

A `RewriteRule` turns images upright, crops, pads or resizes them to one size, and writes them in
another format, without metadata.

Images are resized as by `tf.image.resize(antialias=True)`, and masks to the nearest value. Their
pixels must be the same in every release, because shards contain them.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from recordmill.base.errors import UsageError
from recordmill.base.option_names import option
from recordmill.base.sizes import parse_image_size
from recordmill.records.images.decode import (
    decode_bytes,
    decode_pixels,
    decode_values,
    find_shrink_factor,
    shrunk_size,
)
from recordmill.records.images.geometry import (
    Box,
    apply_orientation_to_pixels,
    find_center_box,
    shrink_box,
)
from recordmill.records.images.header import (
    CMYK,
    DECODE_FAILED,
    MAX_PIXELS,
    BadImage,
    ImageHeader,
)
from recordmill.records.images.pillow import read_orientation
from recordmill.records.images.resize import nearest_indices, resize, resize_with_alpha

if TYPE_CHECKING:
    from PIL import Image

STRETCH_MODE, CROP_MODE, PAD_MODE = RESIZE_MODES = ("stretch", "crop", "pad")
# The quality of JPEG and WebP, as in `tf.io.encode_jpeg`.
DEFAULT_QUALITY = 95
# A JPEG is decoded at least this many times larger than the result, so that the antialiased resize
# decides how it looks.
_MIN_OVERSAMPLING = 2
# The channels that a format stores, by the channels of the image. All others are written as RGB.
_STORED_CHANNELS = {
    "JPEG": {1: 1, 2: 1},
    "PNG": {1: 1, 2: 2, 4: 4},
    "WebP": {2: 4, 4: 4},
}
_FORMATS_BY_NAME = {"jpeg": "JPEG", "jpg": "JPEG", "png": "PNG", "webp": "WebP"}
_MASK_MODES = ("1", "L", "P", "I", "LA", "RGB", "RGBA")

# Function of a number of bytes. It returns a context in which this much memory may be used.
ReserveMemory = Callable[[int], AbstractContextManager[object]]


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

        These four numbers are shares of the upright image. With padding, the area is larger than
        the image, so left and top may be below 0, and width and height above 1.
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
        size: (height, width) of the result. If None, each image keeps its size.
        mode: How images are adapted to the size. `stretch` changes their ratio, `crop` keeps the
            center, and `pad` adds black, or 0 in masks.
        format: `JPEG`, `PNG` or `WebP`. If "", each image keeps its format, and images in all other
            formats become PNG.
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
        size = None if resize is None else parse_image_size(resize)
        if size is not None and not (min(size) > 0 and size[0] * size[1] <= MAX_PIXELS):
            raise UsageError(
                "{resize}: the size must be 1 to {max_pixels} pixels",
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
                "{reencode}: write png, or jpeg or webp with a quality of 1 to 100 as in jpeg:90",
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
        return f"{size}turned upright and encoded again {kind}{quality}, without metadata"

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
        format_name = self.format or (header.format if header.format in _STORED_CHANNELS else "PNG")
        channels = _STORED_CHANNELS[format_name].get(
            3 if header.colour == CMYK else header.channels, 3
        )
        shrink = self._find_shrink_factor(header, placement)
        with reserve(self._work_bytes(header, placement, shrink)):
            pixels = decode_pixels(data, header, channels, shrink=shrink, deep=format_name == "PNG")
            pixels = apply_orientation_to_pixels(pixels, placement.orientation)
            if self.size is not None:
                pixels = _crop_and_resize(pixels, placement, shrink)
            options = {} if format_name == "PNG" else {"quality": self.quality}
            return _encode_image(_to_pillow(pixels), format_name, **options)

    def rewrite_mask(
        self,
        data: npt.NDArray[np.uint8],
        header: ImageHeader,
        placement: Placement,
        reserve: ReserveMemory,
    ) -> bytes:
        """Returns the mask of an image as PNG.

        The mask is turned, cropped and resized like the image. Values are never mixed. A mask that
        needs no change is returned as it is.

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
            return _rewrite_mask(data, header, placement)

    def _find_shrink_factor(self, header: ImageHeader, placement: Placement) -> int:
        if self.size is None:
            return 1
        box, target_box = placement.box, placement.target_box
        return find_shrink_factor(
            header,
            (box.height, box.width),
            (target_box.height, target_box.width),
            _MIN_OVERSAMPLING,
        )

    def _work_bytes(self, header: ImageHeader, placement: Placement, shrink: int) -> int:
        """Returns the memory that rewriting an image needs, in bytes.

        The memory is for the decoded pixels, a turned copy or colours that are multiplied by alpha,
        and the result.
        """
        height, width = shrunk_size(header, shrink)
        output_pixels = placement.output_size[0] * placement.output_size[1]
        has_alpha = header.channels in (2, 4)
        copies_bytes = (16 if has_alpha else 12) * height * width
        result_bytes = 4 if self.size is None else 32 if has_alpha else 12
        return max(decode_bytes(header, shrink), copies_bytes) + result_bytes * output_pixels


def _crop_and_resize(
    pixels: npt.NDArray[Any], placement: Placement, shrink: int
) -> npt.NDArray[Any]:
    """Crops, resizes and pads an upright image that was decoded smaller by `shrink`."""
    part = shrink_box(placement.box, placement.upright_size, placement.orientation, shrink)
    target_box, channels = placement.target_box, pixels.shape[2]
    resized = np.empty((target_box.height, target_box.width, channels), pixels.dtype)
    if channels in (2, 4):
        resize_with_alpha(pixels, part, resized)
    else:
        resize(pixels, part, resized, antialias=True)
    return _pad(resized, placement)


def _pad(resized: npt.NDArray[Any], placement: Placement) -> npt.NDArray[Any]:
    target_box = placement.target_box
    if resized.shape[:2] == placement.output_size:
        return resized
    result = np.zeros((*placement.output_size, *resized.shape[2:]), resized.dtype)
    result[
        target_box.top : target_box.top + target_box.height,
        target_box.left : target_box.left + target_box.width,
    ] = resized
    return result


def _rewrite_mask(data: npt.NDArray[np.uint8], header: ImageHeader, placement: Placement) -> bytes:
    values, mode, palette = decode_values(data, header)
    if mode not in _MASK_MODES:
        raise BadImage(DECODE_FAILED, f"pixels of {mode}, which a mask written as PNG can't have")
    if mode == "I":
        if values.min() < 0 or values.max() > 65_535:
            raise BadImage(
                DECODE_FAILED, "a value beyond 16 bits, which a mask written as PNG can't have"
            )
        values = values.astype(np.uint16)
    box, target_box = placement.box, placement.target_box
    values = apply_orientation_to_pixels(values, placement.orientation)
    values = values[box.top : box.top + box.height, box.left : box.left + box.width]
    rows = nearest_indices(box.height, target_box.height)
    columns = nearest_indices(box.width, target_box.width)
    result = _pad(values[np.ix_(rows, columns)], placement)
    image = _to_pillow(result)
    if palette is not None:
        # The palette needs an entry for every value, or Pillow drops it.
        image.putpalette(palette + [0] * (3 * (int(result.max()) + 1) - len(palette)))
    return _encode_image(image, "PNG")


def _to_pillow(pixels: npt.NDArray[Any]) -> Image.Image:
    from PIL import Image

    # An array of one channel has two dimensions for Pillow.
    return Image.fromarray(pixels[:, :, 0] if pixels.shape[2:] == (1,) else pixels)


def _encode_image(image: Image.Image, format_name: str, **options: int) -> bytes:
    buffer = io.BytesIO()
    try:
        image.save(buffer, format_name, **options)
    except Exception as error:
        # Pillow's plugins raise any error.
        message = f"Pillow can't write it as {format_name}: {type(error).__name__}: {error}"
        raise BadImage(DECODE_FAILED, message[:250]) from error
    return buffer.getvalue()
