"""Columns of encoded images as pixels: of batches by `ImageDecoder`, on threads of its own, so that all cores share the
images of one batch; of tables by `ResizedImages`; and boxes of objects moved with them. TensorFlow is not needed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from recordmill.base.buffers import allocate_reusable
from recordmill.base.errors import UsageError
from recordmill.base.threads import MemoryBudget
from recordmill.reader.images.decode import Encoded, box_of, is_flipped, resize_into
from recordmill.reader.options.images import Images, ImageTarget, RandomCrop
from recordmill.reader.prefetch.prefetcher import StepRows
from recordmill.reader.prefetch.protocols import Fetchable
from recordmill.reader.sampling.sampler import derive_random_key
from recordmill.records.columns.convert import Faults, build_column
from recordmill.records.columns.decode_images import (
    MAX_DECODED_PIXELS,
    Pixels,
    iter_images,
    looks_like_image,
)
from recordmill.records.columns.numpy_arrays import extract_arrays, list_lengths
from recordmill.records.columns.ragged import Array
from recordmill.records.images.check import check_structures
from recordmill.records.images.header import BadImage
from recordmill.records.images.resize import Box, clip_span
from recordmill.schemas.feature import Feature, Schema

IMAGE, _OBJECT = "image/encoded", "image/object/"
Kept = tuple[float, float, float, float, bool]  # a row of `move_boxes`
_EDGES = tuple(f"{_OBJECT}bbox/{edge}" for edge in ("xmin", "xmax", "ymin", "ymax"))
_Undecoded = tuple[int, str, str]  # (row, feature, why)
_SNIFFED = 16  # records looked at to tell which features are images


def images_by_feature(dataset: Fetchable, wanted: ImageTarget | None) -> dict[str, Images]:
    """Returns the images that are wanted by feature; UsageError where there is none. Where no name is given, these are
    the bytes features that are images in the first records.
    """
    if wanted is None:
        return {}
    candidates = [
        feature.name for feature in dataset.schema if feature.dtype == "bytes" and not feature.shape
    ]
    if isinstance(wanted, Mapping):
        for name in wanted:
            if name not in candidates:
                raise UsageError(
                    f"decode_images: {name!r} is no bytes feature that is read; there are {_listed(candidates)}"
                )
        images = dict(wanted)
    else:
        images = dict.fromkeys(image_features(dataset), wanted)
        if not images and len(dataset.head(1)):
            raise UsageError(
                f"decode_images: no feature holds encoded images; the bytes features are {_listed(candidates)}"
            )
    stored = dict(
        zip(
            dataset.schema.names,
            dataset.make_decoding(dataset.schema).stored_schema.names,
            strict=True,
        )
    )
    check_boxes([*stored.values()], {stored[name]: one for name, one in images.items()})
    return {name: one if one.height else _sized(dataset, name, one) for name, one in images.items()}


def _sized(dataset: Fetchable, name: str, wanted: Images) -> Images:
    """Returns what is wanted of images that all have the size of the first one."""
    for value in dataset.head(_SNIFFED)[name].drop_null().to_pylist():
        with contextlib.suppress(BadImage):
            first = Encoded(np.frombuffer(value, np.uint8), wanted)
            return wanted.with_size(first.height, first.width)
    raise UsageError(
        f"decode_images: none of the first records says the size of {name!r}: give (height, width)"
    )


def image_features(dataset: Fetchable) -> list[str]:
    """The bytes features that are encoded images in the first records, of which some are looked at."""
    candidates = [
        feature.name for feature in dataset.schema if feature.dtype == "bytes" and not feature.shape
    ]
    head = dataset.head(_SNIFFED) if candidates else None
    return [
        name
        for name in candidates
        if head is not None
        and any(value is not None and looks_like_image(value) for value in head[name].to_pylist())
    ]


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "none"


_TOGETHER = (
    8  # images that a thread takes at once: few enough that all threads end a batch together
)
_SHARE = 4  # one in so many bytes of memory is for images while they are decoded


class ImageDecoder:
    """Decoder of the images of batches.

    Attributes:
        images: the target of each image feature.
        threads: on how many; 1: on the caller's.
        seed: of random crops.
        memory_bytes: of the whole reader.
        defaults: by feature, the encoded image that stands for a missing one; without, that is black.
    """

    def __init__(
        self,
        images: Mapping[str, Images],
        threads: int,
        seed: int,
        memory_bytes: int,
        defaults: Mapping[str, bytes] | None = None,
    ) -> None:
        self.images, self._seed, self._defaults = images, seed, defaults or {}
        self.row_bytes = sum(
            wanted.row_bytes for wanted in images.values()
        )  # of a row's decoded images
        self.work_bytes = (
            memory_bytes // _SHARE if images else 0
        )  # of memory, for images while they are decoded
        self._budget = MemoryBudget(self.work_bytes, self.work_bytes // (_SHARE * threads))
        self._pool = (
            ThreadPoolExecutor(threads, "recordmill-images") if images and threads > 1 else None
        )

    def close(self) -> None:
        """Ends the threads; nothing may be decoded any more."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def decode(
        self, rows: StepRows, schema: Schema
    ) -> tuple[dict[str, Array], pa.RecordBatch, list[_Undecoded]]:
        """Returns (by feature [rows, *shape], the rows with boxes that fit them, the images that can't be decoded, by
        row).
        """
        pixels: dict[str, Array] = {}
        bad: list[_Undecoded] = []
        waiting: list[Future[list[_Undecoded]]] = []
        key = derive_random_key("crop", self._seed, rows.step_range.epoch)
        moving: _Work | None = None
        for feature, name, column in zip(
            schema, rows.batch.schema.names, rows.batch.columns, strict=True
        ):
            if feature.name not in self.images:
                continue
            work = self._work(feature, column, rows, key)
            if name == IMAGE and (work.wanted.crop or work.wanted.flip):
                moving = work
            pixels[feature.name] = work.out
            for begin in range(0, len(column), _TOGETHER):
                some = range(begin, min(begin + _TOGETHER, len(column)))
                if self._pool is not None:
                    waiting.append(self._pool.submit(work.decode, some))
                else:
                    bad += work.decode(some)
        for done in waiting:
            bad += done.result()
        batch = rows.batch if moving is None else move_boxes(rows.batch, moving.kept)
        return (
            {name: self.images[name].to_layout(array) for name, array in pixels.items()},
            batch,
            sorted(bad),
        )

    def _work(self, feature: Feature, column: pa.Array, rows: StepRows, key: int) -> _Work:
        wanted = self.images[feature.name]
        out = allocate_reusable((len(column), *wanted.shape), wanted.numpy_dtype)
        parts = extract_arrays(column, replace(feature, required=True))
        valid = None if not column.null_count else column.is_valid().to_numpy(zero_copy_only=False)
        default = self._defaults.get(feature.name)
        instead = None if default is None else np.frombuffer(default, np.uint8)
        kept = np.tile(np.array([0, 0, 1, 1, 0], np.float64), (len(column), 1))
        values, splits = parts.values, parts.splits[0]
        return _Work(
            feature.name,
            wanted,
            values,
            splits,
            valid,
            instead,
            rows.numbers,
            key,
            self._budget,
            out,
            kept,
        )


@dataclass(frozen=True)
class _Work:
    """One image column. default: of rows that are not valid; kept: [rows, 5] the part of each image that is kept, as
    `move_boxes` takes it.
    """

    name: str
    wanted: Images
    values: Pixels
    splits: Array
    valid: Array | None
    default: Pixels | None
    numbers: Array
    key: int
    budget: MemoryBudget
    out: Array
    kept: Array

    def decode(self, rows: range) -> list[_Undecoded]:
        """Fills `out` at these rows, but for those that it returns."""
        return list(self._decode(rows))

    def _decode(self, rows: range) -> Iterator[_Undecoded]:
        first, stop = self.splits[rows.start], self.splits[rows.stop]
        ends = self.splits[rows.start + 1 : rows.stop + 1] - first
        # one call for all of them: each call is a wait for the interpreter's lock
        headers = check_structures(self.values[first:stop], ends, MAX_DECODED_PIXELS)
        for row, checked in zip(rows, headers, strict=True):
            data = self._encoded(row)
            if data is None:
                self.out[row] = black_image(self.wanted)
                continue
            try:
                is_own = self.valid is None or self.valid[row]
                image = Encoded(data, self.wanted, checked if is_own else None)
                number = int(self.numbers[row])
                self.kept[row] = _decode_into(
                    image, self.wanted, self.key, number, self.budget, self.out[row]
                )
            except BadImage as error:
                yield row, self.name, f"feature {self.name!r}: {error.message}"

    def _encoded(self, row: int) -> Pixels | None:
        if self.valid is None or self.valid[row]:
            return self.values[self.splits[row] : self.splits[row + 1]]
        return self.default


def _decode_into(
    image: Encoded, wanted: Images, key: int, number: int, budget: MemoryBudget, out: Array
) -> Kept:
    box, by = _box_and_shrink(image, wanted, key, number)
    with budget.reserve(image.work_bytes):
        resize_into(image.pixels(by, once=True), _divided(box, by), wanted, out)
    flipped = wanted.flip and is_flipped(key, number)
    if flipped:
        out[:] = out[:, ::-1].copy()
    height, width = image.height, image.width
    return box.left / width, box.top / height, box.width / width, box.height / height, flipped


def _box_and_shrink(image: Encoded, wanted: Images, key: int, number: int) -> tuple[Box, int]:
    """Returns (the part that is kept, a divisor by which the image can be decoded smaller)."""
    box = box_of(image.height, image.width, wanted, key, number)
    return box, image.shrink(box.height, box.width, wanted)


def decode_part(data: Pixels, wanted: Images) -> Pixels:
    """Decodes one encoded image [bytes] as uint8 [height, width, channels], as much of it as is kept, which is no
    random part.
    """
    image = Encoded(data, wanted)
    box, by = _box_and_shrink(image, wanted, 0, 0)
    part = _divided(box, by)
    return image.pixels(by)[part.top : part.top + part.height, part.left : part.left + part.width]


def decode_image(data: Pixels, wanted: Images) -> Array:
    """Decodes one encoded image [bytes] as what is wanted of it, which is no random crop."""
    out: Array = np.empty(wanted.shape, wanted.numpy_dtype)
    _decode_into(Encoded(data, wanted), wanted, 0, 0, MemoryBudget(1), out)
    return out


def black_image(wanted: Images) -> Array:
    """A black image as what is wanted, which stands for a missing one."""
    out: Array = np.empty(wanted.shape, wanted.numpy_dtype)
    resize_into(np.zeros(wanted.shape, np.uint8), Box(0, 0, *wanted.shape[:2]), wanted, out)
    return out


def _divided(box: Box, by: int) -> Box:
    """
    >>> _divided(Box(3, 0, 5, 9), 2)
    Box(top=1, left=0, height=3, width=5)
    """
    return Box(box.top // by, box.left // by, -(-box.height // by), -(-box.width // by))


@dataclass(frozen=True)
class ResizedImages:
    """One image feature, and what is wanted of it. has_boxes: there are boxes, which a part of the image would move."""

    feature: str
    wanted: Images
    has_boxes: bool = False

    def output_feature(self, feature: Feature) -> Feature:
        if feature.shape or feature.dtype != "bytes":
            raise UsageError(
                f"decode_images: {feature.name!r} is {feature.describe()}; only a single bytes value is an image"
            )
        return replace(feature, dtype=self.wanted.numpy_dtype.name, shape=self.wanted.layout_shape)

    def convert(self, column: pa.Array, feature: Feature) -> tuple[pa.Array, Faults]:
        is_random = isinstance(self.wanted.crop, RandomCrop) or self.wanted.flip
        if is_random or (self.has_boxes and self.wanted.crop):
            why = (
                "cut or flipped at random, otherwise in each epoch,"
                if is_random
                else "cut, and boxes with it,"
            )
            raise UsageError(
                f"decode_images: {feature.name!r} is {why} which only batches, to_tf and to_torch do: open it with "
                f"{'a central crop' if is_random and not self.has_boxes else 'no crop'}, or without this feature"
            )
        pixels = np.empty(
            (len(column) - column.null_count, *self.wanted.shape), self.wanted.numpy_dtype
        )
        present, faults, done = [], [], 0
        for row, data in iter_images(column, feature):
            try:
                if data is not None:
                    pixels[done] = decode_image(data, self.wanted)
                    done += 1
                present.append(data is not None)
            except BadImage as error:
                faults.append((row, error.message))
        flat, counts = (
            pa.array(self.wanted.to_layout(pixels[:done]).reshape(-1)),
            np.zeros(len(present), np.int64),
        )
        return build_column(
            flat, counts, np.array(present, np.bool_), self.output_feature(feature)
        ), faults


# Boxes of objects, as the Object Detection API names them, move with the part of the image that is kept.


def has_boxes(names: Sequence[str]) -> bool:
    """Returns whether features of these names are boxes."""
    return any(name in names for name in _EDGES)


def check_boxes(names: Sequence[str], images: Mapping[str, Images]) -> None:
    """Raises UsageError where the boxes among features of these names can't be moved with the images that are cropped
    or flipped.
    """
    changed = [name for name, one in images.items() if one.crop or one.flip]
    if not changed or not has_boxes(names):
        return
    if IMAGE not in changed:
        raise UsageError(
            f"decode_images: boxes are those of {IMAGE!r}, so {changed[0]!r} can't be cropped or flipped"
        )
    if missing := [name for name in _EDGES if name not in names]:
        raise UsageError(
            f"decode_images: a crop or flip moves all edges of the boxes: read {missing[0]!r}, too"
        )


def move_boxes(batch: pa.RecordBatch, kept: Array) -> pa.RecordBatch:
    """Returns the records with the boxes, lists in `image/object/bbox/`, as shares of the part that is kept, clipped to
    it. Objects of which nothing is left are dropped from all lists of `image/object/`, which must have a value for each
    box. kept: [records, 5] left, top, width and height of the part as shares of the image; 1 where it is flipped.
    """
    columns = list(batch.columns)
    at = {name: place for place, name in enumerate(batch.schema.names) if name.startswith(_OBJECT)}
    if not set(_EDGES) <= set(at):
        return batch
    if single := next(
        (name for name, place in at.items() if not _is_list(columns[place].type)), None
    ):
        raise UsageError(
            f"decode_images: {single!r} is no list of values a box: leave it out, or the crop and flip"
        )
    lengths = list_lengths(columns[at[_EDGES[0]]])
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
        if not np.array_equal(list_lengths(column), lengths):
            raise UsageError(
                f"decode_images: {name!r} has not one value a box: leave it out, or the crop and flip"
            )
        items = column.flatten()
        if name in moved:
            items = pa.array(moved[name], items.type)
        offsets = pa.array(ends, pa.int32() if pa.types.is_list(column.type) else pa.int64())
        mask = column.is_null() if column.null_count else None
        columns[place] = type(column).from_arrays(
            offsets, items.filter(pa.array(inside)), type=column.type, mask=mask
        )
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))
