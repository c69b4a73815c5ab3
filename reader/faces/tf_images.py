"""Encoded images of a batch to one uint8 tensor, in the graph:
decoded, resized (bilinear, as tf.image.resize does by default), of the channels asked for.

JPEG, PNG and GIF (its first frame) are decoded by TensorFlow; what it does not know (WebP, TIFF, BMP with a palette,
channels that its decoder lacks) goes through Pillow. EXIF orientation is not applied, as in tf.io. A missing image is
black.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np

from recordmill.images.stored import load_stored

# what tf.io decodes to so many channels
_NATIVE = {1: (b"\xff\xd8", b"\x89PNG"), 3: (b"\xff\xd8", b"\x89PNG", b"GIF8"), 4: (b"\x89PNG",)}
_PARALLEL = 16  # images of a batch that may be decoded at once; batches run in parallel too
_PILLOW_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def batch_decoder(size: tuple[int, int], channels: int, antialias: bool) -> Callable[[Any, Any], Any]:
    """A function of ([batch] encoded images, [batch] bool or None: which are there)
    to uint8 [batch, height, width, channels].
    """
    import tensorflow as tf

    height, width = size
    shape = tf.TensorSpec([height, width, channels], tf.uint8)

    def decode(data: Any) -> Any:
        head = tf.strings.substr(data, 0, 4)
        native = tf.reduce_any([tf.strings.substr(head, 0, len(magic)) == magic for magic in _NATIVE[channels]])
        image = tf.cond(
            native,
            lambda: tf.io.decode_image(data, channels, expand_animations=False),
            lambda: tf.numpy_function(lambda encoded: _pillow(encoded, channels), [data], tf.uint8),
        )
        image.set_shape([None, None, channels])
        resized = tf.image.resize(image, [height, width], antialias=antialias)
        return tf.cast(tf.clip_by_value(tf.round(resized), 0, 255), tf.uint8)

    def one(pair: tuple[Any, Any]) -> Any:
        data, valid = pair
        return tf.cond(valid, lambda: decode(data), lambda: tf.zeros([height, width, channels], tf.uint8))

    def batch(data: Any, valid: Any) -> Any:
        if valid is None:
            return tf.map_fn(decode, data, fn_output_signature=shape, parallel_iterations=_PARALLEL)
        return tf.map_fn(one, (data, valid), fn_output_signature=shape, parallel_iterations=_PARALLEL)

    return batch


def _pillow(encoded: bytes, channels: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    from PIL import Image

    with Image.open(io.BytesIO(encoded)) as image:
        pixels = np.asarray(load_stored(image).convert(_PILLOW_MODES[channels]), np.uint8)
    return pixels.reshape(*pixels.shape[:2], channels)
