"""Moves the boxes of objects, as the Object Detection API names them, with the part of the image that is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from recordmill.base.errors import UsageError
from recordmill.reader.options.images import Images
from recordmill.records.columns.ragged import Array
from recordmill.records.images.resize import clip_span

IMAGE, _OBJECT = "image/encoded", "image/object/"
Kept = tuple[float, float, float, float, bool]  # a row of `move_boxes`
_EDGES = tuple(f"{_OBJECT}bbox/{edge}" for edge in ("xmin", "xmax", "ymin", "ymax"))


def has_boxes(names: Sequence[str]) -> bool:
    """Returns whether features of these names are boxes."""
    return any(name in names for name in _EDGES)


def check_boxes(names: Sequence[str], images: Mapping[str, Images]) -> None:
    """Checks that the boxes among features of these names can be moved with the images that are cropped or flipped.

    Raises:
        UsageError: They can't.
    """
    changed = [name for name, one in images.items() if one.crop or one.flip]
    if not changed or not has_boxes(names):
        return
    if IMAGE not in changed:
        raise UsageError(f"decode_images: boxes are those of {IMAGE!r}, so {changed[0]!r} can't be cropped or flipped")
    if missing := [name for name in _EDGES if name not in names]:
        raise UsageError(f"decode_images: a crop or flip moves all edges of the boxes: read {missing[0]!r}, too")


def move_boxes(batch: pa.RecordBatch, kept: Array) -> pa.RecordBatch:
    """Returns the records with the boxes as shares of the part that is kept, clipped to it. Objects of which nothing is
    left are dropped from all lists of `image/object/`.

    Args:
        batch: Records with `image/object/bbox/*` as lists.
        kept: [records, 5] left, top, width and height of the part as shares of the image; 1 where it is flipped.

    Raises:
        UsageError: A feature of `image/object/` does not have a value for each box.
    """
    columns = list(batch.columns)
    at = {name: place for place, name in enumerate(batch.schema.names) if name.startswith(_OBJECT)}
    if not set(_EDGES) <= set(at):
        return batch
    if single := next((name for name, place in at.items() if not _is_list(columns[place].type)), None):
        raise UsageError(f"decode_images: {single!r} is no list of values a box: leave it out, or the crop and flip")
    lengths = _lengths(columns[at[_EDGES[0]]])
    left, top, width, height, is_flipped = np.repeat(kept, lengths, axis=0).T
    found = [columns[at[name]].flatten().to_numpy(zero_copy_only=False) for name in _EDGES]
    inside = np.ones(len(left), np.bool_)
    for low, high, start, size in ((0, 1, left, width), (2, 3, top, height)):
        found[low], found[high], is_left = clip_span(found[low], found[high], start, size)
        inside &= is_left
    found[0], found[1] = (np.where(is_flipped, 1 - found[1 - edge], found[edge]) for edge in (0, 1))
    moved = dict(zip(_EDGES, found, strict=True))
    ends = np.concatenate([[0], np.cumsum(inside)])[np.concatenate([[0], np.cumsum(lengths)])]
    for name, place in at.items():
        column = columns[place]
        if not np.array_equal(_lengths(column), lengths):
            raise UsageError(f"decode_images: {name!r} has not one value a box: leave it out, or the crop and flip")
        items = column.flatten()
        if name in moved:
            items = pa.array(moved[name], items.type)
        offsets = pa.array(ends, pa.int32() if pa.types.is_list(column.type) else pa.int64())
        mask = column.is_null() if column.null_count else None
        columns[place] = type(column).from_arrays(offsets, items.filter(pa.array(inside)), type=column.type, mask=mask)
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _lengths(column: pa.Array) -> Array:
    """Returns [records] the values of each list, 0 where there is none."""
    return np.asarray(column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False), np.int64)
