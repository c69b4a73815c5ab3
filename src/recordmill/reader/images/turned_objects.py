"""Objects of images that are turned upright when they are decoded.

Boxes, key points and polygons of records refer to the stored pixels. So they turn with the pixels
of an image that has an EXIF orientation.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base.buffers import to_offsets
from recordmill.base.errors import DataError
from recordmill.records.columns.numpy_arrays import list_lengths
from recordmill.records.columns.ragged import Array
from recordmill.records.images.geometry import apply_orientation_to_edges

_OBJECT_PREFIX = "image/object/"
# Left, top, right and bottom, as `apply_orientation_to_edges` takes them.
BOX_EDGES = tuple(f"{_OBJECT_PREFIX}bbox/{edge}" for edge in ("xmin", "ymin", "xmax", "ymax"))
_POINTS = tuple(f"{_OBJECT_PREFIX}keypoint/{axis}" for axis in ("x", "y"))
_VISIBILITY = f"{_OBJECT_PREFIX}keypoint/visibility"
_SEGMENTATION = f"{_OBJECT_PREFIX}segmentation"
# A row of `turns` for an image that is not turned: (EXIF orientation, height, width).
NOT_TURNED = (1, 1, 1)


def turn_objects(batch: pa.RecordBatch, turns: Array) -> pa.RecordBatch:
    """Turns boxes, key points and polygons like the pixels of their images.

    Boxes and key points are fractions of the image size. Polygons are JSON texts in pixels. Key
    points with visibility 0 remain (0, 0).

    Args:
        batch: The records, under their stored names.
        turns: int64 [records, 3]. For each image its EXIF orientation, and its height and width
            before it is turned.

    Returns:
        The records with the same columns.

    Raises:
        DataError: A segmentation is not a list of polygons.
    """
    if (turns[:, 0] == 1).all():
        return batch
    names, columns = batch.schema.names, dict(zip(batch.schema.names, batch.columns, strict=True))
    if set(BOX_EDGES) <= set(names):
        rows, edges = _read_items(columns, BOX_EDGES)
        turned = apply_orientation_to_edges(edges, turns[rows, 0])
        columns |= _write_items(columns, BOX_EDGES, turned)
    if set(_POINTS) <= set(names):
        rows, points = _read_items(columns, _POINTS)
        turned = apply_orientation_to_edges(np.tile(points, 2), turns[rows, 0])[:, :2]
        is_seen = (
            columns[_VISIBILITY].flatten().to_numpy(zero_copy_only=False) > 0
            if _VISIBILITY in columns
            else (points != 0).any(1)
        )
        columns |= _write_items(columns, _POINTS, np.where(is_seen[:, None], turned, points))
    if _SEGMENTATION in columns:
        columns[_SEGMENTATION] = _turn_polygons(columns[_SEGMENTATION], turns)
    return pa.RecordBatch.from_arrays([columns[name] for name in names], schema=batch.schema)


def _read_items(
    columns: dict[str, pa.Array], names: tuple[str, ...]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Returns the items of several list columns of equal lengths.

    Returns:
        The record of each item, and the items as float64 [items, columns].
    """
    lengths = list_lengths(columns[names[0]])
    items = [columns[name].flatten().to_numpy(zero_copy_only=False) for name in names]
    return np.repeat(np.arange(len(lengths)), lengths), np.stack(items, axis=1).astype(np.float64)


def _write_items(
    columns: dict[str, pa.Array], names: tuple[str, ...], items: Array
) -> dict[str, pa.Array]:
    return {
        name: _with_items(columns[name], pa.array(items[:, number], columns[name].type.value_type))
        for number, name in enumerate(names)
    }


def _with_items(column: pa.Array, items: pa.Array) -> pa.Array:
    """Returns a list column with the same lengths and nulls, but other items."""
    ends = to_offsets(list_lengths(column))
    offsets = pa.array(ends, pa.int32() if pa.types.is_list(column.type) else pa.int64())
    mask = column.is_null() if column.null_count else None
    return type(column).from_arrays(offsets, items, type=column.type, mask=mask)


def _turn_polygons(column: pa.Array, turns: Array) -> pa.Array:
    texts = column.flatten().to_pylist()
    rows = np.repeat(np.arange(len(column)), list_lengths(column)).tolist()
    for index, row in enumerate(rows):
        if turns[row, 0] != 1:
            texts[index] = _turn_text(texts[index], *turns[row].tolist())
    return _with_items(column, pa.array(texts, column.type.value_type))


def _turn_text(text: Any, orientation: int, height: int, width: int) -> str:
    sizes = np.array([width, height], np.float64)
    turned_sizes = sizes[::-1] if orientation > 4 else sizes
    polygons = []
    try:
        for polygon in json.loads(text):
            points = np.array(polygon, np.float64).reshape(-1, 2) / sizes
            orientations = np.full(len(points), orientation)
            points = apply_orientation_to_edges(np.tile(points, 2), orientations)[:, :2]
            polygons.append((points * turned_sizes).round(2).reshape(-1).tolist())
    except (TypeError, ValueError, OverflowError, RecursionError):
        raise DataError(
            f"{_SEGMENTATION!r} is not a list of polygons, which alone turn with their image: leave the feature or the "
            "orientation out"
        ) from None
    return json.dumps(polygons, separators=(",", ":"))
