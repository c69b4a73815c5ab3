"""Values as people read them: text cut to a line, encoded images as format and size, arrays as dtype,
shape and their first numbers.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa

from recordmill.images.stored import stored_size
from recordmill.records.columns.parts import is_bytes, to_numpy
from recordmill.schemas.feature import Feature

_TEXT = 60  # characters
_BYTES = 16
_ITEMS = 6  # numbers of an array
_IMAGES = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"BM", b"RIFF", b"II*\x00", b"MM\x00*")


def show_value(column: pa.Array, feature: Feature) -> str:
    """The one value of a column of one row."""
    value = column[0]
    if not value.is_valid:
        return "missing"
    if feature.timestamp:
        values = column
        while pa.types.is_nested(values.type):
            values = values.flatten()
        shown = _listed([str(item) for item in values.slice(0, _ITEMS)], len(values))
        return shown if feature.shape else str(values[0])
    if not feature.shape:
        item = value.as_py()
        if feature.classes is not None and 0 <= item < len(feature.classes):
            return f"{item} ({show_text(feature.classes[item])})"
        return show_item(item, feature.dtype)
    if feature.ragged_rank > 1 or is_bytes(feature):
        return _nested(value.as_py(), feature.dtype)
    array = np.asarray(to_numpy(column, feature)[0])
    shown = _listed([show_item(item, feature.dtype) for item in array.reshape(-1)[:_ITEMS].tolist()], array.size)
    return f"{feature.dtype} {list(array.shape)} {shown}" if feature.inner_shape or array.size > _ITEMS else shown


def show_item(item: Any, dtype: str = "float64") -> str:
    """One number, text or binary value; a float with as many digits as its dtype holds.

    >>> show_item(0.10000000149011612, "float32")
    '0.1'
    """
    if isinstance(item, str):
        return show_text(item)
    if isinstance(item, bytes):
        return show_bytes(item)
    if isinstance(item, float) and dtype in ("float16", "float32"):
        return str(np.dtype(dtype).type(item))
    return str(item)


def show_text(text: str) -> str:
    """Text on one line, in quotes, cut with its length said.

    >>> show_text("a\\nb")
    "'a\\\\nb'"
    """
    return repr(text) if len(text) <= _TEXT else f"{text[:_TEXT]!r}... ({len(text):,} characters)"


def show_bytes(data: bytes) -> str:
    """Format and size of an encoded image; else text if it is short and readable; else the first bytes."""
    if data.startswith(_IMAGES) and (image := _image(data)) is not None:
        return image
    if len(data) <= _TEXT and data.isascii() and data.decode("ascii").isprintable():
        return repr(data)
    return f"{data[:_BYTES]!r}{'...' if len(data) > _BYTES else ''} ({len(data):,} bytes)"


def _image(data: bytes) -> str | None:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF")) as image:
            height, width = stored_size(image)
            return f"{image.format} {height} x {width} {image.mode} ({len(data):,} bytes)"
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None


def _nested(value: Any, dtype: str) -> str:
    if isinstance(value, list):
        return _listed([_nested(item, dtype) for item in value[:_ITEMS]], len(value))
    return "missing" if value is None else show_item(value, dtype)


def _listed(items: list[str], count: int) -> str:
    return f"[{', '.join(items)}{f', ... {count:,} in all' if count > len(items) else ''}]"
