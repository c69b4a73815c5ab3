"""Some records of a data set, drawn by its fingerprint: equal data sets give equal samples; and small JPEGs of their
images.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import PIL.Image
import pyarrow as pa

from recordmill.base.buffers import Int64s
from recordmill.base.threads import thread_map
from recordmill.reader.images.columns import decode_part
from recordmill.reader.images.decode import Encoded
from recordmill.reader.options.images import Images
from recordmill.reader.sampling.sampler import key_of, permuted
from recordmill.records.images import similarity
from recordmill.records.images.header import BadImage

if TYPE_CHECKING:
    from recordmill.reader.dataset import Dataset


_THUMBNAIL_SIDE = 96  # pixels
MAX_THUMBNAILS = 240  # of all features together
_MAX_PER_CLASS = 8
_JPEG_QUALITY = 70


@dataclass(frozen=True)
class Thumbnail:
    """Image of the sample: the number of its record, its class or "", the size and the mean grey (0 to 255) of the
    whole image, the image in small, and why it stands out.
    """

    record: int
    label: str
    height: int
    width: int
    brightness: float
    jpeg: bytes
    notes: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """A `data:` URI of it."""
        return f"data:image/jpeg;base64,{base64.b64encode(self.jpeg).decode()}"


@dataclass(frozen=True)
class ImageSample:
    """The images of one feature in a sample; (record, why) of those that can't be decoded."""

    feature: str
    images: tuple[Thumbnail, ...]
    damaged: tuple[tuple[int, str], ...]

    def by_class(self, max_images: int = MAX_THUMBNAILS) -> Iterator[tuple[str, list[Thumbnail]]]:
        """Yields (class, thumbnails) of as many classes as fit, those with notes first; most: of all thumbnails."""
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
    dataset: Dataset, feature: str, labels: Sequence[str] | None, numbers: Int64s
) -> ImageSample:
    """Returns the images of these records, or of the first of them where they take very many bytes. labels: the names
    of the classes; None: the label, if there is one, is its own name.
    """
    label = dataset.schema.label
    columns = [feature] if label in (None, feature) else [feature, label]
    view = dataset.select(columns)
    images: list[Thumbnail] = []
    damaged: list[tuple[int, str]] = []
    for batch_numbers, table in read_sample(view, numbers):
        names = (
            [""] * len(batch_numbers)
            if len(columns) == 1
            else [_class_label(value, labels) for value in table[label].to_pylist()]
        )
        values = table[feature].to_pylist()
        rows = [row for row in range(len(batch_numbers)) if values[row] is not None]

        def make(
            row: int,
            numbers: Int64s = batch_numbers,
            names: Sequence[str] = names,
            values: Sequence[bytes] = values,
        ) -> Thumbnail | str:
            try:
                return make_thumbnail(values[row], int(numbers[row]), names[row])
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


def make_thumbnail(encoded: bytes, record: int = 0, label: str = "") -> Thumbnail:
    """Makes the thumbnail of an encoded image; BadImage where it can't be decoded."""
    data = np.frombuffer(encoded, np.uint8)
    target = Images(_THUMBNAIL_SIDE, _THUMBNAIL_SIDE, shrink=True, orientation=True)
    original = Encoded(data, target)
    pixels = decode_part(data, target)
    image = PIL.Image.fromarray(np.ascontiguousarray(pixels))
    image.thumbnail((_THUMBNAIL_SIDE, _THUMBNAIL_SIDE))
    packed = io.BytesIO()
    image.save(packed, "JPEG", quality=_JPEG_QUALITY)
    brightness = float(np.asarray(similarity.luma(pixels)).mean())
    return Thumbnail(record, label, original.height, original.width, brightness, packed.getvalue())


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


SAMPLE_RECORDS = 1000  # records
_MAX_BATCH_RECORDS = 200
_BATCH_BYTES = 8 << 20
_MAX_SAMPLE_BYTES = 64 << 20


def draw_sample_numbers(dataset: Dataset, records: int = SAMPLE_RECORDS) -> Int64s:
    """Numbers of so many records, or of all, ascending."""
    total = len(dataset)
    ranks = np.arange(min(records, total))
    return np.sort(permuted(ranks, total, key_of(dataset.fingerprint, "report")))


def read_sample(
    dataset: Dataset, numbers: Int64s, max_bytes: int = _MAX_SAMPLE_BYTES
) -> Iterator[tuple[Int64s, pa.Table]]:
    """Yields (numbers, their records as they are stored), some at a time, until so many bytes were read."""
    read_bytes = 0
    average_bytes = (
        sum(file.file.stat.size_bytes for file in dataset.files)
        // max(sum(dataset.file_records), 1)
        + 1
    )
    batch_records = min(max(_BATCH_BYTES // average_bytes, 1), _MAX_BATCH_RECORDS)
    for first in range(0, len(numbers), batch_records):
        batch_numbers = numbers[first : first + batch_records]
        table = dataset.encoded.take(batch_numbers)
        yield batch_numbers, table
        read_bytes += table.nbytes
        if read_bytes > max_bytes:
            return
