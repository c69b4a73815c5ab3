"""Pixels as a file stores them: Pillow's TIFF plugin turns them by the file's orientation when it loads them, unlike
its other plugins and unlike tf.io, so that is undone here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image

_ORIENTATION = 0x0112  # the tag, in TIFF as in EXIF


def load_stored(image: Image.Image) -> Image.Image:
    """The opened image, loaded, with [height, width] as stored whatever its orientation says.

    Raises:
        what Pillow's plugins raise for data that they can't decode.
    """
    from PIL.Image import Transpose

    undo = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_90,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_270,
    }
    if image.format != "TIFF":
        image.load()
        return image
    before = image.getexif().get(_ORIENTATION, 1)
    image.load()
    if before not in undo or _ORIENTATION in image.getexif():  # Pillow drops the tag when it has obeyed it
        return image
    return image.transpose(undo[before])


def stored_size(image: Image.Image) -> tuple[int, int]:
    """(height, width) as stored, of an image that is opened and not loaded."""
    sideways = image.format == "TIFF" and image.getexif().get(_ORIENTATION) in (5, 6, 7, 8)
    return (image.width, image.height) if sideways else (image.height, image.width)
