"""Boxes of objects in images, fitted to each image when it is read.

Records have the names and units of TensorFlow's Object Detection API: edges are shares of the width
and height of the image, from 0 to 1. Annotations may be of the upright image, or of a scaled copy.

Sources: github.com/tensorflow/models, research/object_detection/g3doc/using_your_own_dataset.md.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base.buffers import to_offsets
from recordmill.base.errors import Reject
from recordmill.records.images.geometry import (
    apply_orientation_to_edges,
    clip_span,
    invert_orientation,
)
from recordmill.records.images.header import BadImage, ImageHeader
from recordmill.records.images.pillow import read_orientation
from recordmill.records.images.rewrite import Placement
from recordmill.schemas.feature import Feature
from recordmill.sources.images.annotation_rows import BOX_REASON
from recordmill.sources.images.box_columns import (
    BOX_PIXELS,
    BOX_PLACES,
    EDGE_NAMES,
    KEYPOINT_NAMES,
    OBJECT_PREFIX,
    PLACE_SEPARATOR,
)

_ROUNDING = 1e-6  # error of a share from float32 or from decimals in text
_EXIF_BYTES = 1 << 16  # EXIF data of a JPEG begins in its first 64 KiB
# The image's own feature for each feature name of the Object Detection API.
OBJECT_NAMES = {
    "image/encoded": "image",
    "image/format": "format",
    "image/height": "height",
    "image/width": "width",
    "image/channels": "channels",
    "image/filename": "source",
    "image/source_id": "source",
}


class Frame(NamedTuple):
    """The image that an annotation describes, if it differs from the stored image.

    A tool may have shown the image upright, according to its EXIF data, or in another size.

    Attributes:
        width: In pixels.
        height: In pixels.
        orientation: EXIF orientation that turns the annotated image into the stored one. 1 if
            neither is turned.
        note: How the annotated image differs from the stored one, for messages. "" if it does not
            differ.
    """

    width: float
    height: float
    orientation: int = 1
    note: str = ""


def find_frame(
    width: float, height: float, file: str, header: ImageHeader, data: npt.NDArray[np.uint8]
) -> Frame:
    """Determines which image an annotation describes, from the size that it states.

    Args:
        width: Stated width in pixels, or 0.
        height: Stated height in pixels, or 0.
        file: Name of the annotation file.
        header: Header of the image.
        data: Bytes of the image. EXIF data is only parsed if it can matter.

    Raises:
        BadImage: The stated size has another ratio than the image, so it belongs to another image.
    """
    stored = (float(header.width), float(header.height))
    is_stated = width > 0 and height > 0
    if not is_stated or (width, height) == stored:
        note = ""
        # If the stated size is a square or missing, it does not show whether the annotation is of
        # the stored or of the upright image.
        if (not is_stated or width == height) and _orientation(header, data) > 4:
            note = "images with an EXIF orientation and no other size stated, boxes not turned"
        return Frame(*stored, 1, note)
    if _is_same_ratio(width, height, *stored):
        return Frame(
            width, height, 1, "images of another size than their annotations, boxes scaled"
        )
    if _is_same_ratio(height, width, *stored):
        orientation = _orientation(header, data)
        if orientation > 4:
            note = "images annotated upright, boxes turned to the stored pixels"
            return Frame(width, height, invert_orientation(orientation), note)
    raise BadImage(
        "stated size",
        f"{file} states {width:g} x {height:g} pixels, and the image has {header.width} x {header.height}",
    )


def _orientation(header: ImageHeader, data: npt.NDArray[np.uint8]) -> int:
    if header.format == "JPEG" and b"Exif\0\0" not in data[:_EXIF_BYTES].tobytes():
        return 1
    return read_orientation(data, header.format)


def _is_same_ratio(width: float, height: float, own_width: float, own_height: float) -> bool:
    """Returns whether two sizes have the same ratio, except for rounding to whole pixels."""
    most = max(width, height, own_width, own_height)
    return abs(width * own_height - height * own_width) < most


def fit_boxes(
    columns: Mapping[str, pa.Array],
    headers: Sequence[ImageHeader],
    frames: Sequence[Frame],
    placements: Sequence[Placement],
    names: Sequence[str],
) -> tuple[dict[str, pa.Array], Counter[str], list[Reject]]:
    """Converts boxes, key points and shapes to shares of the stored or rewritten images.

    Boxes are clipped at the border of the image. A box that is completely outside is a reject. A
    box that is completely in the part that a crop removes is left out and counted.

    Args:
        columns: The columns of the images, by name, with BOX_PLACES and BOX_PIXELS.
        headers: The header of each image.
        frames: The image that the annotation of each image describes.
        placements: How each image was turned, cropped and resized when it was rewritten. Empty if
            images are not rewritten.
        names: Names of the image files, for rejects.

    Returns:
        (lists by feature name, number of images or boxes for each message to the user, rejects).
    """
    objects = [name for name in columns if name.startswith(OBJECT_PREFIX)]
    if not objects:
        return {}, Counter(), []
    lists = {name: columns[name] for name in objects if name not in KEYPOINT_NAMES}
    lengths = np.diff(columns[BOX_PLACES].offsets.to_numpy())
    rows = np.repeat(np.arange(len(headers)), lengths)
    edges = np.stack(
        [columns[name].flatten().to_numpy().astype(np.float64) for name in EDGE_NAMES], axis=1
    )
    sizes = np.array([(frame.width, frame.height) for frame in frames], np.float64).reshape(-1, 2)
    in_pixels = columns[BOX_PIXELS].flatten().to_numpy(zero_copy_only=False).astype(np.bool_)
    edges[in_pixels] /= np.tile(sizes, 2)[rows[in_pixels]]
    undo = np.array([frame.orientation for frame in frames], np.int64)
    counts: Counter[str] = Counter(
        frame.note for frame, boxes in zip(frames, lengths, strict=True) if boxes and frame.note
    )
    if (undo > 1).any():
        edges = apply_orientation_to_edges(edges, undo[rows])
    unclipped = edges
    crossing = ((edges < -_ROUNDING) | (edges > 1 + _ROUNDING)).any(1)
    edges = np.clip(edges, 0, 1)
    is_kept = (edges[:, 2] > edges[:, 0]) & (edges[:, 3] > edges[:, 1])
    rejects = _reject_outside(columns[BOX_PLACES], ~is_kept, unclipped, rows, names)
    counts["boxes across the image's border, clipped"] = int((crossing & is_kept).sum())
    flat = {name: column.flatten() for name, column in lists.items()}
    if placements:
        regions = np.array([placement.visible_region for placement in placements])[rows]
        edges = apply_orientation_to_edges(
            edges, np.array([placement.orientation for placement in placements])[rows]
        )
        is_left = np.ones(len(rows), np.bool_)
        for axis in (0, 1):
            if (regions[:, [axis, axis + 2]] != (0, 1)).any():
                spans = clip_span(
                    edges[:, axis], edges[:, axis + 2], regions[:, axis], regions[:, axis + 2]
                )
                edges[:, axis], edges[:, axis + 2], inside = spans
                is_left &= inside
        counts["boxes beyond the part that is kept, left out"] = int((is_kept & ~is_left).sum())
        is_kept &= is_left
    flat |= _transform_shapes(flat, rows, headers, frames, placements, counts)
    offsets = pa.array(to_offsets(np.bincount(rows[is_kept], minlength=len(headers))))
    values = {name: column.filter(pa.array(is_kept)) for name, column in flat.items()}
    values |= {
        name: pa.array(edges[is_kept, index].astype(np.float32))
        for index, name in enumerate(EDGE_NAMES)
    }
    lists_by_name = {
        name: pa.LargeListArray.from_arrays(offsets, column) for name, column in values.items()
    }
    if KEYPOINT_NAMES[0] in columns:
        lists_by_name |= _fit_keypoints(
            columns, rows, is_kept, in_pixels, headers, frames, placements
        )
    lists_by_name = {name: lists_by_name[name] for name in objects}
    return lists_by_name, +counts, rejects


def _reject_outside(
    places: pa.Array,
    is_outside: npt.NDArray[np.bool_],
    edges: npt.NDArray[np.float64],
    rows: npt.NDArray[np.int64],
    names: Sequence[str],
) -> list[Reject]:
    rejects = []
    texts = places.flatten()
    for box in np.flatnonzero(is_outside).tolist():
        source, _, place = texts[box].as_py().partition(PLACE_SEPARATOR)
        shown = ", ".join(f"{edge:.6g}" for edge in edges[box])
        message = f"nothing of the box is inside the image {names[rows[box]][-100:]!a}: its shares are [{shown}]"
        rejects.append(Reject(source, place, BOX_REASON, message))
    return rejects


def _fit_points(
    points: npt.NDArray[np.float64],
    rows: npt.NDArray[np.int64],
    frames: Sequence[Frame],
    placements: Sequence[Placement],
) -> npt.NDArray[np.float64]:
    """Converts points of the annotated images to shares of the written images.

    Nothing is clipped.

    Args:
        points: [points, 2] Shares of the annotated images.
        rows: [points] Index of the image of each point.
        frames: The annotated image of each image.
        placements: How each image was rewritten, or empty. See `fit_boxes`.
    """
    turns = [np.array([frame.orientation for frame in frames], np.int64)]
    turns += (
        [np.array([placement.orientation for placement in placements], np.int64)]
        if placements
        else []
    )
    for orientations in turns:
        points = apply_orientation_to_edges(np.tile(points, 2), orientations[rows])[:, :2]
    if placements:
        regions = np.array([placement.visible_region for placement in placements])[rows]
        points = (points - regions[:, :2]) / regions[:, 2:]
    return points


def _fit_keypoints(
    columns: Mapping[str, pa.Array],
    rows: npt.NDArray[np.int64],
    is_kept: npt.NDArray[np.bool_],
    in_pixels: npt.NDArray[np.bool_],
    headers: Sequence[ImageHeader],
    frames: Sequence[Frame],
    placements: Sequence[Placement],
) -> dict[str, pa.Array]:
    """Returns the key points of kept boxes, in shares of the written images.

    Points with visibility 0 are (0, 0). `fit_boxes` describes the other arguments.

    Args:
        columns: The columns of the images, by name.
        rows: [boxes] Index of the image of each box.
        is_kept: [boxes] Whether the box is kept.
        in_pixels: [boxes] Whether the box is in pixels.
    """
    flat = [columns[name].flatten().to_numpy() for name in KEYPOINT_NAMES]
    per_box = len(flat[0]) // len(rows) if len(rows) else 0
    repeat = np.repeat(np.arange(len(rows)), per_box)
    points = np.stack(flat[:2], axis=1).astype(np.float64)
    visibility = flat[2]
    sizes = np.array([(frame.width, frame.height) for frame in frames], np.float64).reshape(-1, 2)
    scaled = in_pixels[repeat]
    points[scaled] /= sizes[rows[repeat]][scaled]
    moved = _fit_points(points, rows[repeat], frames, placements)
    points = np.where(visibility[:, None] > 0, moved, 0)
    is_point_kept = is_kept[repeat]
    lengths = np.bincount(rows[repeat[is_point_kept]], minlength=len(headers))
    offsets = pa.array(to_offsets(lengths))
    values = (
        _to_float32(points[is_point_kept, 0]),
        _to_float32(points[is_point_kept, 1]),
        visibility[is_point_kept],
    )
    return {
        name: pa.LargeListArray.from_arrays(offsets, pa.array(items))
        for name, items in zip(KEYPOINT_NAMES, values, strict=True)
    }


def _to_float32(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """Casts to float32. Values beyond its range become its largest or smallest value."""
    limit = np.finfo(np.float32).max
    return np.clip(values, -limit, limit).astype(np.float32)


def _transform_shapes(
    flat: Mapping[str, pa.Array],
    rows: npt.NDArray[np.int64],
    headers: Sequence[ImageHeader],
    frames: Sequence[Frame],
    placements: Sequence[Placement],
    counts: Counter[str],
) -> dict[str, pa.Array]:
    """Converts COCO's areas and polygons to pixels of the written images.

    `fit_boxes` describes the other arguments.

    Args:
        flat: Values of all objects, by feature name.
        rows: [objects] Index of the image of each object.
        counts: Receives the number of run-length masks, which can't be converted.

    Returns:
        The converted features by name. Empty if no image needs a conversion.
    """
    stored = [Frame(header.width, header.height) for header in headers]
    is_same = np.array(
        [frame[:3] == own[:3] for frame, own in zip(frames, stored, strict=True)], np.bool_
    )
    if placements:
        is_same &= np.array([placement.is_unchanged for placement in placements])
    if is_same.all():
        return {}
    shapes: dict[str, pa.Array] = {}
    sizes = np.array([(frame.width, frame.height) for frame in frames], np.float64)
    image_sizes = np.array(
        [placement.output_size[::-1] for placement in placements]
        or [(header.width, header.height) for header in headers],
        np.float64,
    )
    regions = np.array(
        [placement.visible_region for placement in placements] or [(0, 0, 1, 1)] * len(headers)
    )
    if (name := f"{OBJECT_PREFIX}area") in flat:
        scale = (image_sizes / (regions[:, 2:] * sizes)).prod(1)
        shapes[name] = pa.array(_to_float32(flat[name].to_numpy() * scale[rows]))
    if (name := f"{OBJECT_PREFIX}segmentation") in flat:
        texts = flat[name].to_pylist()
        for index, (text, row) in enumerate(zip(texts, rows.tolist(), strict=True)):
            if is_same[row]:
                continue
            try:
                polygons = [
                    np.array(polygon, np.float64).reshape(-1, 2) / sizes[row]
                    for polygon in json.loads(text)
                ]
                points = np.concatenate([np.zeros((0, 2)), *polygons])
                points = _fit_points(points, np.full(len(points), row), frames, placements)
                points = (points * image_sizes[row]).round(2)
                ends = np.cumsum([polygon.size // 2 for polygon in polygons])[:-1]
                shape: list[Any] = (
                    [polygon.reshape(-1).tolist() for polygon in np.split(points, ends)]
                    if polygons
                    else []
                )
                texts[index] = json.dumps(shape, separators=(",", ":"))
            except (TypeError, ValueError, OverflowError):
                texts[index] = "[]"
                counts["segmentations that are not polygons and can't be resized, left out"] += 1
        shapes[name] = pa.array(texts, pa.large_string())
    return shapes


def object_features(features: Sequence[Feature], names: Sequence[str]) -> tuple[Feature, ...]:
    """Renames the image's own features as in the Object Detection API.

    Args:
        features: The image's own features.
        names: Names of features that come from annotations. An own feature of this name is left
            out.

    Returns:
        The image, the mask under its own name if the image has one, and the other renamed features.
    """
    dtypes = {feature.name: feature.dtype for feature in features}
    first, *renamed_features = (
        Feature(name, dtypes[own_name], required=True) for name, own_name in OBJECT_NAMES.items()
    )
    mask_features = [feature for feature in features if feature.name not in OBJECT_NAMES.values()]
    return (
        first,
        *mask_features,
        *(feature for feature in renamed_features if feature.name not in names),
    )
