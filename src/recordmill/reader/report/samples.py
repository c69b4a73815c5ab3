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

    def by_class(self, most: int = MAX_THUMBNAILS) -> Iterator[tuple[str, list[Thumbnail]]]:
        """Yields (class, thumbnails) of as many classes as fit, those with notes first; most: of all thumbnails."""
        classes: dict[str, list[Thumbnail]] = {}
        for one in self.images:
            classes.setdefault(one.label, []).append(one)
        of_each = min(max(most // max(len(classes), 1), 1), _MAX_PER_CLASS)
        for label in sorted(classes, key=lambda name: (-len(classes[name]), name))[
            : max(most // of_each, 1)
        ]:
            noted = _with_notes(classes[label])
            yield label, sorted(noted, key=lambda one: (-len(one.notes), one.record))[:of_each]


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
    for some, table in read_sample(view, numbers):
        names = (
            [""] * len(some)
            if len(columns) == 1
            else [_class_label(value, labels) for value in table[label].to_pylist()]
        )
        values = table[feature].to_pylist()
        rows = [row for row in range(len(some)) if values[row] is not None]

        def make(
            row: int,
            some: Int64s = some,
            names: Sequence[str] = names,
            values: Sequence[bytes] = values,
        ) -> Thumbnail | str:
            try:
                return make_thumbnail(values[row], int(some[row]), names[row])
            except BadImage as error:
                return error.message

        for row, made in zip(rows, thread_map(make, rows, dataset.threads), strict=True):
            if isinstance(made, str):
                damaged.append((int(some[row]), made))
            else:
                images.append(made)
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
    wanted = Images(_THUMBNAIL_SIDE, _THUMBNAIL_SIDE, shrink=True, orientation=True)
    whole = Encoded(data, wanted)
    pixels = decode_part(data, wanted)
    image = PIL.Image.fromarray(np.ascontiguousarray(pixels))
    image.thumbnail((_THUMBNAIL_SIDE, _THUMBNAIL_SIDE))
    packed = io.BytesIO()
    image.save(packed, "JPEG", quality=_JPEG_QUALITY)
    brightness = float(np.asarray(similarity.luma(pixels)).mean())
    return Thumbnail(record, label, whole.height, whole.width, brightness, packed.getvalue())


def _with_notes(images: Sequence[Thumbnail]) -> list[Thumbnail]:
    notes: dict[int, list[str]] = {one.record: [] for one in images}
    if len(images) > 1:
        by_size = sorted(images, key=lambda one: (one.height * one.width, one.record))
        if by_size[0].height * by_size[0].width < by_size[-1].height * by_size[-1].width:
            notes[by_size[0].record].append("smallest")
            notes[by_size[-1].record].append("largest")
        by_light = sorted(images, key=lambda one: (one.brightness, one.record))
        notes[by_light[0].record].append("darkest")
        notes[by_light[-1].record].append("brightest")
    return [
        Thumbnail(**{**vars(one), "notes": tuple(notes[one.record])}) if notes[one.record] else one
        for one in images
    ]


SAMPLE_RECORDS = 1000  # records
_MAX_BATCH_RECORDS = 200
_BATCH_BYTES = 8 << 20
_MAX_SAMPLE_BYTES = 64 << 20


def draw_sample_numbers(dataset: Dataset, records: int = SAMPLE_RECORDS) -> Int64s:
    """Numbers of so many records, or of all, ascending."""
    total = len(dataset)
    drawn = np.arange(min(records, total))
    return np.sort(permuted(drawn, total, key_of(dataset.fingerprint, "report")))


def read_sample(
    dataset: Dataset, numbers: Int64s, most_bytes: int = _MAX_SAMPLE_BYTES
) -> Iterator[tuple[Int64s, pa.Table]]:
    """Yields (numbers, their records as they are stored), some at a time, until so many bytes were read."""
    taken = 0
    average = (
        sum(file.file.stat.size_bytes for file in dataset.files)
        // max(sum(dataset.file_records), 1)
        + 1
    )
    at_once = min(max(_BATCH_BYTES // average, 1), _MAX_BATCH_RECORDS)
    for first in range(0, len(numbers), at_once):
        some = numbers[first : first + at_once]
        table = dataset.encoded.take(some)
        yield some, table
        taken += table.nbytes
        if taken > most_bytes:
            return
