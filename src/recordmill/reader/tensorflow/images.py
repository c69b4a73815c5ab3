"""An encoded image to a tensor, as a graph of TensorFlow's own operations: the values that `reader.images.rows` gives,
but for the last bits of floating point.

TensorFlow decodes what it decodes to the same pixels as Pillow: JPEG of one or three components (with accurate
arithmetic, which is not its default) and most PNG. What it does not know, or decodes otherwise, is done by
`reader.images.rows` in this process. It takes some damaged PNG that are an error there.
"""

from __future__ import annotations

import functools
import io
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from PIL import Image

from recordmill.base.errors import DataError, UsageError
from recordmill.reader.images.columns import black_image, decode_part
from recordmill.reader.images.decode import SHRINKS
from recordmill.reader.options.images import Floats, Images, RandomCrop
from recordmill.records.images.header import BadImage

_JPEG, _PNG = b"\xff\xd8\xff", b"\x89PNG"
# The heads of the PNGs, which end with bit depth and colour type, as regular expressions, and the components of the
# JPEGs that TensorFlow decodes to so many channels as Pillow does; tried on the files of Pillow's own tests.
_PNG_KINDS = {1: r"\C{25}[\x00\x04]", 3: r"\C{26}", 4: r"\C{24}\x08[\x02\x06]"}
_PNG_HEAD = 26  # bytes
_COMPONENTS = {1: (1,), 3: (1, 3), 4: ()}
_MAY_BE_TURNED = r"\C*(Exif\x00\x00|eXIf)\C*"  # \C is any byte


def image_decoder(wanted: Images) -> Callable[[Any, Any], Any]:
    """A function of (an encoded image, whether it is there or None: it is) to [height, width, channels].

    Raises:
        UsageError: a random crop, which needs the records' numbers.
    """
    if isinstance(wanted.crop, RandomCrop):
        raise UsageError(
            "portable=True knows no record numbers, which decide a random crop: leave portable out, or crop in the "
            "model (keras.layers.RandomCrop)"
        )
    missing = black_image(wanted)

    def decode(data: Any) -> Any:
        return tf.ensure_shape(_resized(_part(data, wanted), wanted), wanted.shape)

    def decode_if_there(data: Any, valid: Any) -> Any:
        return decode(data) if valid is None else tf.cond(valid, lambda: decode(data), lambda: tf.constant(missing))

    return decode_if_there


def _part(data: Any, wanted: Images) -> Any:
    """uint8 [height, width, channels]: as much of an image as is kept.

    A condition takes some tens of microseconds, so JPEGs, which are most, pass a single one.
    """
    channels = wanted.channels

    def others() -> Any:
        return tf.cond(
            _is_native_png(data, wanted),
            lambda: _cut(tf.io.decode_png(data, channels), wanted),
            lambda: tf.numpy_function(lambda encoded: _own_part(encoded, wanted), [data], np.uint8),
        )

    if not _COMPONENTS[channels]:
        return others()
    decode = _shrunk if wanted.shrink else lambda data, wanted: _cut(_jpeg(data, channels), wanted)
    return tf.cond(_is_native_jpeg(data, wanted), lambda: decode(data, wanted), others)


def _starts(data: Any, magic: bytes) -> Any:
    return tf.strings.substr(data, 0, len(magic)) == magic


def _is_native_jpeg(data: Any, wanted: Images) -> Any:
    """Returns whether TensorFlow decodes it to the pixels that are wanted."""
    jpeg = _starts(data, _JPEG)
    components = tf.io.extract_jpeg_shape(tf.where(jpeg, data, _any_jpeg()))[2]
    known = functools.reduce(operator.or_, [components == count for count in _COMPONENTS[wanted.channels]])
    return _as_stored(data, jpeg & known, wanted)


def _is_native_png(data: Any, wanted: Images) -> Any:
    kind = tf.strings.regex_full_match(tf.strings.substr(data, 0, _PNG_HEAD), _PNG_KINDS[wanted.channels])
    return _as_stored(data, _starts(data, _PNG) & kind, wanted)


def _as_stored(data: Any, native: Any, wanted: Images) -> Any:
    """Returns whether it is native, and nothing says that it is to be turned."""
    return native & ~tf.strings.regex_full_match(data, _MAY_BE_TURNED) if wanted.orientation else native


def _resized(image: Any, wanted: Images) -> Any:
    """Resizes an image as `reader.images.resize` does."""
    image.set_shape([None, None, wanted.channels])
    image = tf.image.resize(image, [wanted.height, wanted.width], antialias=wanted.antialias)
    if wanted.numpy_dtype == np.uint8:
        return tf.cast(tf.round(image), tf.uint8)  # what is between pixels is from 0 to 255
    factor, offset = (_one_if_equal(one) for one in wanted.arithmetic())
    scaled = image * factor
    return tf.cast(scaled - offset if np.any(offset) else scaled, wanted.numpy_dtype)


def _one_if_equal(per_channel: Floats) -> Floats:
    """[] where all channels have the same: TensorFlow is several times slower with one for each."""
    return per_channel[0] if (per_channel == per_channel[0]).all() else per_channel


def _jpeg(data: Any, channels: int, ratio: int = 1) -> Any:
    return tf.io.decode_jpeg(data, channels, ratio=ratio, dct_method="INTEGER_ACCURATE")


def _cut(image: Any, wanted: Images) -> Any:
    if wanted.crop is None:
        return image
    shape = tf.shape(image)
    top, left, height, width = _center(shape[0], shape[1], wanted)
    return image[top : top + height, left : left + width]


def _shrunk(data: Any, wanted: Images) -> Any:
    """A JPEG decoded smaller, or its part."""
    shape = tf.io.extract_jpeg_shape(data)
    box = (0, 0, shape[0], shape[1]) if wanted.crop is None else _center(shape[0], shape[1], wanted)
    fits = [(box[2] // by >= wanted.height) & (box[3] // by >= wanted.width) for by in SHRINKS]
    first = tf.argmax(tf.cast([*fits, True], tf.int32), output_type=tf.int32)
    collations = [lambda by=by: _jpeg(data, wanted.channels, by) for by in (*SHRINKS, 1)]
    image, by = tf.switch_case(first, collations), tf.constant([*SHRINKS, 1])[first]
    top, left, height, width = box[0] // by, box[1] // by, -(-box[2] // by), -(-box[3] // by)
    return image[top : top + height, left : left + width]


def _center(height: Any, width: Any, wanted: Images) -> tuple[Any, Any, Any, Any]:
    """Returns (top, left, height, width) of the centred crop, as `reader.images.decode` has it."""
    ratio = wanted.width / wanted.height
    own_height = tf.minimum(tf.maximum(tf.cast(tf.cast(width, tf.float64) / ratio, tf.int32), 1), height)
    own_width = tf.minimum(tf.maximum(tf.cast(tf.cast(height, tf.float64) * ratio, tf.int32), 1), width)
    return (height - own_height) // 2, (width - own_width) // 2, own_height, own_width


def _own_part(encoded: bytes, wanted: Images) -> npt.NDArray[np.uint8]:
    try:
        return decode_part(np.frombuffer(encoded, np.uint8), wanted)
    except BadImage as error:
        raise DataError(error.message) from None


@functools.cache
def _any_jpeg() -> bytes:
    """A whole one, for what looks at JPEGs and is given something else."""
    Image.new("L", (1, 1)).save(data := io.BytesIO(), "JPEG")
    return data.getvalue()
