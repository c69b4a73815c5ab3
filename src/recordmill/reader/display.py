"""Readable text and HTML for data sets, records and values.

The representation of a data set reads no records. Values are shown on one line: long text is cut,
encoded images appear as format and size, and arrays as dtype, shape and first values.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from recordmill.base import html
from recordmill.records.columns.numpy_arrays import is_bytes, to_numpy
from recordmill.records.images.pillow import stored_size
from recordmill.schemas.arrow import format_float, format_time
from recordmill.schemas.feature import Feature, Schema
from recordmill.shards.catalog import Catalog

_UNKNOWN_SCHEMA = "its schema is inferred when it is needed"
_MAX_CHARACTERS = 60  # length of a shown text; longer text is cut
_MAX_SHOWN_BYTES = 16  # number of shown bytes of a value that is neither an image nor text
_MAX_ITEMS = 6  # number of shown items of an array
# first bytes of the formats that `_describe_image` opens
_IMAGE_MAGICS = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"BM", b"RIFF", b"II*\x00", b"MM\x00*")


def display_text(headline: str, schema: Schema | None) -> str:
    """Returns the `repr` of a data set.

    Args:
        headline: The first line, from `make_headline`.
        schema: The features that are read. None if they are not known yet.
    """
    if schema is None:
        return f"<{headline}; {_UNKNOWN_SCHEMA}>"
    return (
        "\n".join(
            [
                f"<{headline}",
                *(f"  {name}: {description}" for name, description in format_features(schema)),
            ]
        )
        + ">"
    )


def display_html(headline: str, schema: Schema | None) -> str:
    """Returns the HTML that notebooks show for a data set.

    Args:
        headline: The first line, from `make_headline`.
        schema: The features that are read. None if they are not known yet.
    """
    if schema is None:
        return html.section(headline, lines=[_UNKNOWN_SCHEMA])
    return html.section(headline, html.table(["feature", "holds"], format_features(schema)))


def make_headline(
    catalog: Catalog, records: int | None, subset: int | None, conditions: Sequence[str]
) -> str:
    """Returns the first line of the representation of a data set.

    Args:
        catalog: The files.
        records: Number of records in the files. If None, the size in bytes is shown instead.
        subset: Number of records that satisfy the conditions. None if it is not known yet.
        conditions: The conditions as text. Empty if no records are left out.
    """
    name = catalog.manifest.name if catalog.manifest else _count_files(len(catalog.files))
    records_text = (
        f"{records:,} records" if records is not None else f"{catalog.size_bytes:,} bytes"
    )
    if conditions:
        records_text = f"{'' if subset is None else f'{subset:,} '}of {records_text} those where {' and '.join(conditions)}"
    return f"Dataset {name}: {records_text}, {', '.join(catalog.splits) or 'no split'}"


def format_features(schema: Schema) -> list[tuple[str, str]]:
    """Returns the name and the description of each feature."""
    label = schema.label
    return [
        (
            f.name,
            f"{f.describe()}{'' if f.required else ' or missing'}{' (label)' if f.name == label else ''}",
        )
        for f in schema
    ]


def _count_files(count: int) -> str:
    return f"{count} file{'s' if count != 1 else ''}"


def iter_record_lines(table: pa.Table, schema: Schema, first: int = 0) -> Iterator[str]:
    """Yields the lines that show some records.

    Args:
        table: The records.
        schema: Their features.
        first: Number of the first record.
    """
    width = max((len(name) for name in schema.names), default=0)
    for row in range(table.num_rows):
        yield f"record {first + row}"
        for feature in schema:
            # the slice of a chunked column may have empty chunks
            value = next(
                chunk for chunk in table.column(feature.name).slice(row, 1).chunks if len(chunk)
            )
            yield f"  {feature.name:<{width}}  {show_value(value, feature)}"


def show_value(column: pa.Array, feature: Feature) -> str:
    """Returns the text of the only value of a column with one row."""
    value = column[0]
    if not value.is_valid:
        return "missing"
    if feature.timestamp:
        values = column
        while pa.types.is_nested(values.type):
            values = values.flatten()
        text = _show_list([format_time(item) for item in values.slice(0, _MAX_ITEMS)], len(values))
        return text if feature.shape else format_time(values[0])
    if not feature.shape:
        item = value.as_py()
        if feature.classes is not None and 0 <= item < len(feature.classes):
            return f"{item} ({show_text(feature.classes[item])})"
        return show_item(item, feature.dtype)
    if feature.ragged_rank > 1 or is_bytes(feature):
        return _show_nested(value, feature.dtype)
    array = np.asarray(to_numpy(column, feature)[0])
    text = _show_list(
        [show_item(item, feature.dtype) for item in array.reshape(-1)[:_MAX_ITEMS].tolist()],
        array.size,
    )
    return (
        f"{feature.dtype} {list(array.shape)} {text}"
        if feature.inner_shape or array.size > _MAX_ITEMS
        else text
    )


def show_item(item: Any, dtype: str = "float64") -> str:
    """Formats one number, text or binary value.

    Args:
        item: The value.
        dtype: Determines how many digits of a float are shown.

    >>> show_item(0.10000000149011612, "float32")
    '0.1'
    """
    if isinstance(item, str):
        return show_text(item)
    if isinstance(item, bytes):
        return show_bytes(item)
    return format_float(item, dtype) if isinstance(item, float) else str(item)


def show_text(text: str) -> str:
    r"""Returns text in quotes on one line. Long text is cut, and its length is added.

    >>> show_text("a\nb")
    "'a\\nb'"
    """
    return (
        repr(text)
        if len(text) <= _MAX_CHARACTERS
        else f"{text[:_MAX_CHARACTERS]!r}... ({len(text):,} characters)"
    )


def show_bytes(data: bytes) -> str:
    r"""Describes a binary value.

    An encoded image is shown as format and size, short printable ASCII as text, and anything else
    as its first bytes.

    >>> show_bytes(b"abc"), show_bytes(bytes(3))
    ("b'abc'", "b'\\x00\\x00\\x00' (3 bytes)")
    """
    if data.startswith(_IMAGE_MAGICS) and (image := _describe_image(data)) is not None:
        return image
    if len(data) <= _MAX_CHARACTERS and data.isascii() and data.decode("ascii").isprintable():
        return repr(data)
    return f"{data[:_MAX_SHOWN_BYTES]!r}{'...' if len(data) > _MAX_SHOWN_BYTES else ''} ({len(data):,} bytes)"


def _describe_image(data: bytes) -> str | None:
    from PIL import Image

    try:
        with Image.open(
            io.BytesIO(data), formats=("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF")
        ) as image:
            height, width = stored_size(image)
            return f"{image.format} {height} x {width} {image.mode} ({len(data):,} bytes)"
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None


def _show_nested(value: pa.Scalar, dtype: str) -> str:
    if not value.is_valid:
        return "missing"
    if not pa.types.is_nested(value.type):
        return show_item(value.as_py(), dtype)
    items = value.values
    return _show_list(
        [_show_nested(item, dtype) for item in items.slice(0, _MAX_ITEMS)], len(items)
    )


def _show_list(items: list[str], total: int) -> str:
    return f"[{', '.join(items)}{f', ... {total:,} in all' if total > len(items) else ''}]"
