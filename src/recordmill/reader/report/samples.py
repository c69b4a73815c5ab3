"""Sample records of a data set, and small JPEGs of their images.

The fingerprint of the data set determines the sample, so equal data sets have equal samples.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import PIL.Image
import pyarrow as pa

from recordmill.base.buffers import Int64s
from recordmill.base.threads import thread_map
from recordmill.reader.images.columns import IMAGE_FEATURE, decode_kept_part
from recordmill.reader.images.decode import EncodedImage
from recordmill.reader.images.turned_objects import BOX_EDGES
from recordmill.reader.options.images import Images
from recordmill.reader.sampling.sampler import derive_random_key, permute_indices
from recordmill.records.images import similarity
from recordmill.records.images.geometry import apply_orientation_to_edges
from recordmill.records.images.header import BadImage

if TYPE_CHECKING:
    from recordmill.reader.records import Records


_THUMBNAIL_SIDE = 96  # pixels
MAX_THUMBNAILS = 240  # thumbnails of all features together
_MAX_PER_CLASS = 8  # thumbnails
_JPEG_QUALITY = 70
_MAX_BOXES = 100  # boxes that are drawn on a thumbnail


@dataclass(frozen=True)
class Thumbnail:
    """Small version of an image of the sample.

    Attributes:
        record: Number of the record.
        label: Class of the record. "" if there are no classes.
        height: Height of the original image, in pixels.
        width: Width of the original image, in pixels.
        brightness: Mean grey of the image, from 0 to 255.
        jpeg: The small image.
        boxes: (left, top, right, bottom) of each object, in pixels of the small image.
        notes: Properties in which the image is extreme, such as "largest".
    """

    record: int
    label: str
    height: int
    width: int
    brightness: float
    jpeg: bytes
    boxes: tuple[tuple[float, ...], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """The small image as a `data:` URI."""
        return f"data:image/jpeg;base64,{base64.b64encode(self.jpeg).decode()}"


@dataclass(frozen=True)
class ImageSample:
    """Images of one feature in the sample.

    Attributes:
        feature: Name of the feature.
        images: The images that can be decoded.
        damaged: (record number, reason) of each other image.
    """

    feature: str
    images: tuple[Thumbnail, ...]
    damaged: tuple[tuple[int, str], ...]

    def by_class(self, max_images: int = MAX_THUMBNAILS) -> Iterator[tuple[str, list[Thumbnail]]]:
        """Yields (class, some of its thumbnails), larger classes first.

        Images with notes come first. If there are more classes than `max_images`, the smallest ones
        are left out.

        Args:
            max_images: Maximum number of thumbnails of all classes together.
        """
        classes: dict[str, list[Thumbnail]] = {}
        for image in self.images:
            classes.setdefault(image.label, []).append(image)
        per_class = min(max(max_images // max(len(classes), 1), 1), _MAX_PER_CLASS)
        for label in sorted(classes, key=lambda name: (-len(classes[name]), name))[
            : max(max_images // per_class, 1)
        ]:
            images = _with_notes(classes[label])
            images.sort(key=lambda image: (-len(image.notes), image.record))
            yield label, images[:per_class]


def sample_images(
    dataset: Records, feature: str, labels: Sequence[str] | None, numbers: Int64s
) -> ImageSample:
    """Makes thumbnails of the images of some records.

    Reading stops when the records exceed 64 MiB.

    Args:
        dataset: The data set, with images as stored bytes.
        feature: Name of the feature with the images.
        labels: Names of the classes. If None, the values of the label are used.
        numbers: Numbers of the records.
    """
    label = dataset.schema.label
    columns = [feature] if label is None or label == feature else [feature, label]
    edge_names = find_box_columns(dataset, feature)
    view = dataset.select([*columns, *(name for name in edge_names if name not in columns)])
    images: list[Thumbnail] = []
    damaged: list[tuple[int, str]] = []
    for batch_numbers, table in read_sample(view, numbers):
        names = (
            [""] * len(batch_numbers)
            if len(columns) == 1
            else [_class_label(value, labels) for value in table[label].to_pylist()]
        )
        values = table[feature].to_pylist()
        boxes = read_boxes(table, edge_names)
        rows = [row for row in range(len(batch_numbers)) if values[row] is not None]

        # default arguments bind the values of this iteration
        def make(
            row: int,
            numbers: Int64s = batch_numbers,
            names: Sequence[str] = names,
            values: Sequence[bytes] = values,
            boxes: Sequence[npt.NDArray[np.float64]] = boxes,
        ) -> Thumbnail | str:
            try:
                return make_thumbnail(values[row], int(numbers[row]), names[row], boxes[row])
            except BadImage as error:
                return error.message

        for row, result in zip(rows, thread_map(make, rows, dataset.threads), strict=True):
            if isinstance(result, str):
                damaged.append((int(batch_numbers[row]), result))
            else:
                images.append(result)
    return ImageSample(feature, tuple(images), tuple(damaged))


def _class_label(value: object, labels: Sequence[str] | None) -> str:
    if value is None:
        return "without a class"
    return (
        labels[value]
        if labels is not None and isinstance(value, int) and 0 <= value < len(labels)
        else str(value)
    )


def find_box_columns(dataset: Records, feature: str) -> list[str]:
    """Returns the names of the features with the boxes of an image feature.

    The list is empty if the data set has no boxes for it.
    """
    has_boxes = feature == IMAGE_FEATURE and set(BOX_EDGES) <= set(dataset.schema.names)
    return [*BOX_EDGES] if has_boxes else []


def read_boxes(table: pa.Table, edge_names: Sequence[str]) -> list[npt.NDArray[np.float64]]:
    """Returns the boxes of each record, as fractions of the image size.

    Args:
        table: The records.
        edge_names: Names of the features with the boxes, from `find_box_columns`.

    Returns:
        For each record, [boxes, 4]: left, top, right and bottom.
    """
    edges = [table[name].to_pylist() for name in edge_names]
    return [_read_boxes([edge[row] for edge in edges]) for row in range(table.num_rows)]


def _read_boxes(edges: Sequence[object]) -> npt.NDArray[np.float64]:
    """Returns the boxes of one record, [boxes, 4].

    Boxes without an area inside the image are left out. If the lists of edges have different
    lengths, the record counts as one without boxes.
    """
    nothing = np.empty((0, 4))
    if len(edges) != 4 or not all(isinstance(edge, list) for edge in edges):
        return nothing
    try:
        boxes = np.array(edges, np.float64).reshape(4, -1).T[:_MAX_BOXES]
    except (TypeError, ValueError):  # other values, or lists of different lengths
        return nothing
    boxes = np.clip(boxes[np.isfinite(boxes).all(axis=1)], 0, 1)
    has_area = (boxes[:, 0] < boxes[:, 2]) & (boxes[:, 1] < boxes[:, 3])
    return np.asarray(boxes[has_area])


def make_thumbnail(
    encoded: bytes, record: int = 0, label: str = "", boxes: npt.NDArray[np.float64] | None = None
) -> Thumbnail:
    """Returns the thumbnail of an encoded image.

    Args:
        encoded: The encoded image.
        record: Number of its record.
        label: Class of its record.
        boxes: [n, 4] left, top, right and bottom of objects, as shares of the stored image.

    Raises:
        BadImage: The image can't be decoded.
    """
    data = np.frombuffer(encoded, np.uint8)
    target = Images(_THUMBNAIL_SIDE, _THUMBNAIL_SIDE, shrink=True, orientation=True)
    original = EncodedImage(data, target)
    pixels = decode_kept_part(data, target)
    image = PIL.Image.fromarray(np.ascontiguousarray(pixels))
    image.thumbnail((_THUMBNAIL_SIDE, _THUMBNAIL_SIDE))
    packed = io.BytesIO()
    image.save(packed, "JPEG", quality=_JPEG_QUALITY)
    if boxes is not None and len(boxes):
        boxes = apply_orientation_to_edges(boxes, np.full(len(boxes), original.turn[0]))
        boxes = (boxes * np.tile(image.size, 2)).round(1)
    brightness = float(np.asarray(similarity.to_grey(pixels)).mean())
    return Thumbnail(
        record=record,
        label=label,
        height=original.height,
        width=original.width,
        brightness=brightness,
        jpeg=packed.getvalue(),
        boxes=() if boxes is None else tuple(map(tuple, boxes.tolist())),
    )


def _with_notes(images: Sequence[Thumbnail]) -> list[Thumbnail]:
    notes: dict[int, list[str]] = {image.record: [] for image in images}
    if len(images) > 1:
        by_size = sorted(images, key=lambda image: (image.height * image.width, image.record))
        if by_size[0].height * by_size[0].width < by_size[-1].height * by_size[-1].width:
            notes[by_size[0].record].append("smallest")
            notes[by_size[-1].record].append("largest")
        by_brightness = sorted(images, key=lambda image: (image.brightness, image.record))
        notes[by_brightness[0].record].append("darkest")
        notes[by_brightness[-1].record].append("brightest")
    return [
        Thumbnail(**{**vars(image), "notes": tuple(notes[image.record])})
        if notes[image.record]
        else image
        for image in images
    ]


SAMPLE_RECORDS = 1000
_MAX_BATCH_RECORDS = 200
_BATCH_BYTES = 8 << 20  # 8 MiB of records are read together
_MAX_SAMPLE_BYTES = 64 << 20  # 64 MiB


def draw_sample_numbers(dataset: Records, records: int = SAMPLE_RECORDS) -> Int64s:
    """Returns the numbers of the sample records, ascending.

    Args:
        records: Size of the sample. If there are fewer records, all are returned.
    """
    total = len(dataset)
    ranks = np.arange(min(records, total))
    return np.sort(permute_indices(ranks, total, derive_random_key(dataset.fingerprint, "report")))


def read_sample(
    dataset: Records, numbers: Int64s, max_bytes: int = _MAX_SAMPLE_BYTES
) -> Iterator[tuple[Int64s, pa.Table]]:
    """Reads some records in batches, with images as stored bytes.

    Args:
        numbers: Numbers of the records.
        max_bytes: Reading stops after the batch with which the records exceed this size.

    Yields:
        (record numbers, records) of each batch.
    """
    read_bytes = 0
    average_bytes = (
        sum(file.file.stat.size_bytes for file in dataset.files)
        // max(dataset.open_files.num_records, 1)
        + 1
    )
    batch_records = min(max(_BATCH_BYTES // average_bytes, 1), _MAX_BATCH_RECORDS)
    for first in range(0, len(numbers), batch_records):
        batch_numbers = numbers[first : first + batch_records]
        table = dataset.encoded_view.take(batch_numbers)
        yield batch_numbers, table
        read_bytes += table.nbytes
        if read_bytes > max_bytes:
            return
