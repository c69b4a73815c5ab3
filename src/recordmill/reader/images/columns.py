"""Decoding of columns of encoded images.

`ImageDecoder` decodes batches on threads of its own, so that all cores share the images of one
batch. `ImageConversion` decodes columns of tables. Boxes of objects move with a crop or flip of
their image. TensorFlow is not needed.

A feature has one image per record, or a list of images of one size. A record without images has an
empty list. All images of a list are cropped and flipped alike, as the frames of a video must be.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from recordmill.base.buffers import allocate_reusable, to_offsets
from recordmill.base.errors import UsageError
from recordmill.base.magic import IMAGE_HEAD_BYTES
from recordmill.base.threads import MemoryBudget
from recordmill.reader.images.decode import EncodedImage, choose_box, is_flipped, resize_into
from recordmill.reader.images.turned_objects import NOT_TURNED, turn_objects
from recordmill.reader.options.images import (
    Images,
    ImageTarget,
    RandomCrop,
    make_pixel_schema,
)
from recordmill.reader.prefetch.prefetcher import StepRows
from recordmill.reader.prefetch.protocols import Sampled
from recordmill.reader.sampling.sampler import derive_random_key
from recordmill.records.columns.convert import BadValues, build_column
from recordmill.records.columns.decode_images import (
    describe_item,
    list_row_images,
    looks_like_image,
)
from recordmill.records.columns.numpy_arrays import extract_arrays, list_lengths
from recordmill.records.columns.ragged import Array, Ragged
from recordmill.records.example.locate import BadRecord
from recordmill.records.images.check import check_structures
from recordmill.records.images.decode import MAX_DECODED_PIXELS, Pixels
from recordmill.records.images.geometry import Box, clip_span, cover_part
from recordmill.records.images.header import BadImage
from recordmill.schemas.feature import Feature, Schema

IMAGE_FEATURE = "image/encoded"
_OBJECT_PREFIX = "image/object/"
KeptPart = tuple[float, float, float, float, bool]  # a row of the argument of `move_boxes`
_BOX_EDGES = tuple(f"{_OBJECT_PREFIX}bbox/{edge}" for edge in ("xmin", "xmax", "ymin", "ymax"))
# Number of records that are inspected to detect image features.
_SAMPLE_RECORDS = 16


def resolve_image_targets(dataset: Sampled, target: ImageTarget | None) -> dict[str, Images]:
    """Returns the target of each image feature to decode.

    If `target` does not name features, it applies to the bytes features that contain images in the
    first records.

    Raises:
        UsageError: There is no such feature, or a crop or flip cannot move its boxes.
    """
    if target is None:
        return {}
    candidates = _list_candidates(dataset.schema)
    if isinstance(target, Mapping):
        for name in target:
            if name not in candidates:
                raise UsageError(
                    f"decode_images: {name!r} is {_describe_other(name, dataset.schema)}; there are "
                    f"{_join_names(candidates)}"
                )
        images = dict(target)
    else:
        images = dict.fromkeys(detect_image_features(dataset), target)
        if not images and len(dataset.head(1)):
            raise UsageError(
                f"decode_images: no feature holds encoded images; the bytes features are {_join_names(candidates)}"
            )
    # boxes have fixed stored names, but a view may have renamed features
    stored_names = dict(
        zip(
            dataset.schema.names,
            dataset.make_decoding(dataset.schema).stored_schema.names,
            strict=True,
        )
    )
    _check_lists(images, dataset.schema, stored_names)
    check_boxes(
        [*stored_names.values()],
        {stored_names[name]: target_images for name, target_images in images.items()},
    )
    return {
        name: target_images
        if target_images.height
        else _with_first_size(dataset, name, target_images, find_photo(images))
        for name, target_images in images.items()
    }


def _list_candidates(schema: Schema) -> list[str]:
    """Returns the features that are bytes or lists of bytes."""
    return [
        feature.name
        for feature in schema
        if feature.dtype == "bytes" and feature.shape in ((), (None,))
    ]


def _describe_other(name: str, schema: Schema) -> str:
    if name not in schema or schema[name].dtype != "bytes":
        return "not a selected bytes feature"
    return f"{schema[name].describe()}, neither a single bytes value nor a list of them"


def _check_lists(
    images: Mapping[str, Images], schema: Schema, stored_names: Mapping[str, str]
) -> None:
    """Raises UsageError if boxes or masks would move with a list of images."""
    photo_name = find_photo(images)
    for name, target in images.items():
        is_list = bool(schema[name].shape)
        may_have_boxes = is_list and stored_names[name] == IMAGE_FEATURE
        if may_have_boxes and _moves_objects(target) and has_boxes([*stored_names.values()]):
            raise UsageError(
                f"decode_images: {name!r} is a list of images, and boxes do not move with one of them: leave out the "
                "boxes, or the crop, flip and orientation"
            )
        has_photo = photo_name is not None and target.mask and target.orientation
        if has_photo and photo_name is not None and (is_list or schema[photo_name].shape):
            raise UsageError(
                f"decode_images: {name!r} can't be turned with {photo_name!r}, because a list of images has no masks: "
                "leave out orientation"
            )


def estimate_row_bytes(dataset: Sampled, images: Mapping[str, Images]) -> int:
    """Returns the size of the decoded images of a record, in bytes.

    Lists of images are assumed to be as long as the longest list of the first records.
    """
    lists = [name for name in images if dataset.schema[name].shape]
    # without lists, the files need not be read
    head = dataset.head(_SAMPLE_RECORDS) if lists else None
    total = 0
    for name, target in images.items():
        length = 1
        if head is not None and name in lists:
            chunks = (list_lengths(chunk).max(initial=0) for chunk in head[name].chunks)
            length = max(map(int, chunks), default=0)
        total += length * target.row_bytes
    return total


def find_photo(images: Mapping[str, Images]) -> str | None:
    """Returns the feature with the photos of the masks, or None.

    A mask is turned like its photo. The photos are the only feature with `orientation=True` that
    is not a mask. If several features qualify, the result is None.
    """
    names = [name for name, target in images.items() if target.orientation and not target.mask]
    return names[0] if len(names) == 1 else None


def _with_first_size(dataset: Sampled, name: str, target: Images, photo_name: str | None) -> Images:
    """Returns the target with the size of the first image."""
    records = dataset.head(_SAMPLE_RECORDS)
    feature, photo_name = dataset.schema[name], photo_name or name
    photos = dict(_sample_images(records, dataset.schema[photo_name]))
    for row, data in _sample_images(records, feature):
        # a damaged image has no known size, so the next one is tried
        with contextlib.suppress(BadImage):
            first = EncodedImage(data, target, photo=photos.get(row))
            return target.with_size(first.height, first.width)
    raise UsageError(
        f"decode_images: the size of {name!r} is unknown, because none of the first "
        "records has such an image: give (height, width)"
    )


def _sample_images(records: pa.Table, feature: Feature) -> Iterator[tuple[int, Pixels]]:
    """Yields (number of the record, encoded image) for all images of some records."""
    arrays = extract_arrays(records[feature.name], replace(feature, required=True))
    offsets = arrays.splits[-1]
    if feature.shape:
        rows = np.repeat(np.arange(len(records)), np.diff(arrays.splits[0]))
        items = np.arange(len(rows))
    else:
        rows = items = np.flatnonzero(records[feature.name].is_valid().to_numpy())
    for row, item in zip(rows.tolist(), items.tolist(), strict=True):
        yield row, arrays.values[offsets[item] : offsets[item + 1]]


def detect_image_features(dataset: Sampled) -> list[str]:
    """Returns the bytes features that contain encoded images in the first records."""
    candidates = _list_candidates(dataset.schema)
    head = dataset.head(_SAMPLE_RECORDS) if candidates else None
    return [
        name
        for name in candidates
        if head is not None
        and any(
            looks_like_image(data[:IMAGE_HEAD_BYTES].tobytes())
            for _, data in _sample_images(head, dataset.schema[name])
        )
    ]


def _join_names(names: list[str]) -> str:
    return ", ".join(names) or "none"


# Images that a thread decodes at once. The tasks are small, so that all threads finish a batch at
# about the same time.
_IMAGES_PER_TASK = 8
# A quarter of the reader's memory is for images in decoding.
_MEMORY_DIVISOR = 4


class ImageDecoder:
    """Decoder of the images of batches.

    Args:
        images: The target of each image feature.
        threads: Number of threads. 1 decodes in the caller's thread.
        seed: Seed of random crops.
        memory_bytes: Memory limit of the reader. Decoding uses a quarter of it.
        defaults: Encoded images that replace missing ones, by feature. Without a default, a missing
            image is black.
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
        # Memory for images in decoding.
        self.work_bytes = memory_bytes // _MEMORY_DIVISOR if images else 0
        self._budget = MemoryBudget(self.work_bytes, self.work_bytes // (_MEMORY_DIVISOR * threads))
        self._pool = (
            ThreadPoolExecutor(threads, "recordmill-images") if images and threads > 1 else None
        )

    def close(self) -> None:
        """Ends the threads. Nothing can be decoded afterwards."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def decode(
        self, rows: StepRows, schema: Schema
    ) -> tuple[dict[str, Array | Ragged], pa.RecordBatch, list[BadRecord]]:
        """Decodes the image features of some rows.

        Args:
            rows: The rows. Random crops depend on their record numbers and epoch.
            schema: Features of the rows.

        Returns:
            Three values: the pixels [rows, *shape] by feature, with lists of images as `Ragged`;
            the columns of the rows with their boxes moved; and the images that can't be decoded,
            in the order of the rows.
        """
        pixels: dict[str, Array | Ragged] = {}
        tasks: list[_DecodeTask] = []
        undecoded: list[BadRecord] = []
        futures: list[Future[list[BadRecord]]] = []
        # crops are different in each epoch
        key = derive_random_key("crop", self._seed, rows.step_range.epoch)
        box_task: _DecodeTask | None = None
        photos = self._list_photos(rows, schema)
        for feature, name, column in zip(
            schema, rows.batch.schema.names, rows.batch.columns, strict=True
        ):
            if feature.name not in self.images:
                continue
            task = self._make_task(feature, column, rows, key, photos)
            # only this feature has boxes
            if name == IMAGE_FEATURE and not feature.shape and _moves_objects(task.target):
                box_task = task
            tasks.append(task)
            for begin in range(0, len(task.out), _IMAGES_PER_TASK):
                task_images = range(begin, min(begin + _IMAGES_PER_TASK, len(task.out)))
                if self._pool is not None:
                    futures.append(self._pool.submit(task.decode, task_images))
                else:
                    undecoded += task.decode(task_images)
        for result in futures:
            undecoded += result.result()
        for task in tasks:
            array = task.target.to_layout(task.out)
            pixels[task.name] = array if task.lists is None else Ragged(array, task.lists)
        batch = rows.batch
        if box_task is not None:
            batch = turn_objects(batch, box_task.turns)
            if box_task.target.crop or box_task.target.flip:
                batch = move_boxes(batch, box_task.kept_parts)
        return (
            pixels,
            batch,
            # the images were collected feature by feature, and are returned by row
            sorted(undecoded, key=lambda bad: (bad.row, bad.feature)),
        )

    def _list_photos(self, rows: StepRows, schema: Schema) -> Sequence[Pixels | None]:
        """Returns the photo of each row, which may be missing.

        Empty if no mask can be turned, or if the photos are not among the features.
        """
        photo_name = find_photo(self.images)
        if not any(target.mask and target.orientation for target in self.images.values()):
            return ()
        for feature, column in zip(schema, rows.batch.columns, strict=True):
            if feature.name == photo_name:
                return [
                    images[0] if images else None for images in list_row_images(column, feature)
                ]
        return ()

    def _make_task(
        self,
        feature: Feature,
        column: pa.Array,
        rows: StepRows,
        key: int,
        photos: Sequence[Pixels | None],
    ) -> _DecodeTask:
        target = self.images[feature.name]
        # `valid` marks the missing images, so they can be empty values here
        parts = extract_arrays(column, replace(feature, required=True))
        valid, lists, numbers = None, None, rows.numbers
        if feature.shape:
            lists = parts.splits[0]  # a missing list is an empty one
            numbers = np.repeat(numbers, np.diff(lists))
        elif column.null_count:
            valid = column.is_valid().to_numpy(zero_copy_only=False)
        count = len(numbers)
        out = allocate_reusable((count, *target.shape), target.numpy_dtype)
        default = self._defaults.get(feature.name)
        default_data = None if default is None else np.frombuffer(default, np.uint8)
        # missing and damaged images keep this value: the complete image, not flipped
        kept_parts = np.tile(np.array([0, 0, 1, 1, 0], np.float64), (count, 1))
        return _DecodeTask(
            name=feature.name,
            target=target,
            values=parts.values,
            splits=parts.splits[-1],
            lists=lists,
            valid=valid,
            photos=photos if target.mask else (),
            default=default_data,
            numbers=numbers,
            key=key,
            budget=self._budget,
            out=out,
            kept_parts=kept_parts,
            turns=np.tile(np.array(NOT_TURNED), (count, 1)),
        )


@dataclass(frozen=True)
class _DecodeTask:
    """Decoding of one image column.

    Attributes:
        name: Name of the feature, for messages.
        target: The target of the images.
        values: uint8 [bytes]. The encoded images, one after another.
        splits: [images + 1] the first byte of each image in `values`, and the end of the last one.
        lists: [rows + 1] the first image of each row, and the number of images. None if each row
            has one image.
        valid: [images] False for missing images. None if there are none.
        photos: The photo of each mask, which may be missing. Empty for other images.
        default: Encoded image for rows without an image. If None, these rows are black.
        numbers: [images]. Record numbers, which determine random crops.
        key: A hash of the seed and the epoch, which determines random crops, too.
        budget: The memory for images in decoding. All threads share it.
        out: [images, *shape]. Receives the pixels.
        kept_parts: [images, 5]. Receives the part of each image that is kept, as `move_boxes`
            takes it.
        turns: [images, 3]. Receives how each image was turned, as `turn_objects` takes it.
    """

    name: str
    target: Images
    values: Pixels
    splits: Array
    lists: Array | None
    valid: Array | None
    photos: Sequence[Pixels | None]
    default: Pixels | None
    numbers: Array
    key: int
    budget: MemoryBudget
    out: Array
    kept_parts: Array
    turns: Array

    def decode(self, images: range) -> list[BadRecord]:
        """Decodes these images into `out`.

        Returns:
            The images that can't be decoded.
        """
        return list(self._decode_images(images))

    def _decode_images(self, images: range) -> Iterator[BadRecord]:
        first, stop = self.splits[images.start], self.splits[images.stop]
        ends = self.splits[images.start + 1 : images.stop + 1] - first
        # One call checks all images, because each call waits for the interpreter's lock.
        headers = check_structures(self.values[first:stop], ends, MAX_DECODED_PIXELS)
        for index, checked in zip(images, headers, strict=True):
            data = self._encoded_image(index)
            if data is None:
                self.out[index] = make_black_image(self.target)
                continue
            try:
                # the header of a default image has not been checked above
                is_own = self.valid is None or self.valid[index]
                photo = self.photos[index] if self.photos and is_own else None
                image = EncodedImage(data, self.target, checked if is_own else None, photo)
                number = int(self.numbers[index])
                if is_own:
                    self.turns[index] = image.turn
                self.kept_parts[index] = _decode_into(
                    image, self.target, self.key, number, self.budget, self.out[index]
                )
            except BadImage as error:
                yield self._bad_record(index, error)

    def _bad_record(self, index: int, error: BadImage) -> BadRecord:
        if self.lists is None:
            return BadRecord(index, self.name, error.message)
        row = int(np.searchsorted(self.lists, index, "right")) - 1
        return BadRecord(row, self.name, describe_item(index - int(self.lists[row]), error))

    def _encoded_image(self, index: int) -> Pixels | None:
        if self.valid is None or self.valid[index]:
            return self.values[self.splits[index] : self.splits[index + 1]]
        return self.default


def _decode_into(
    image: EncodedImage, target: Images, key: int, number: int, budget: MemoryBudget, out: Array
) -> KeptPart:
    box, shrink_factor = _box_and_shrink(image, target, key, number)
    # waits until the other threads leave enough memory for this image
    with budget.reserve(image.work_bytes):
        resize_into(
            image.decode(shrink_factor, reuse_buffer=True),
            image.shrink_box(box, shrink_factor),
            target,
            out,
        )
    flipped = target.flip and is_flipped(key, number)
    if flipped:
        out[:] = out[:, ::-1].copy()
    height, width = image.height, image.width
    return box.left / width, box.top / height, box.width / width, box.height / height, flipped


def _box_and_shrink(image: EncodedImage, target: Images, key: int, number: int) -> tuple[Box, int]:
    """Returns (part to keep, shrink factor for decoding it)."""
    box = choose_box(image.height, image.width, target, key, number)
    return box, image.find_shrink_factor(box.height, box.width, target)


def decode_kept_part(data: Pixels, target: Images) -> Pixels:
    """Decodes the part of an image that a crop keeps, without resizing it.

    Args:
        data: The encoded image.
        target: A target without a random crop.

    Returns:
        uint8 [height, width, channels].
    """
    image = EncodedImage(data, target)
    box, shrink_factor = _box_and_shrink(image, target, 0, 0)
    part = cover_part(image.shrink_box(box, shrink_factor))
    return image.decode(shrink_factor)[
        part.top : part.top + part.height, part.left : part.left + part.width
    ]


def decode_image(data: Pixels, target: Images) -> Array:
    """Decodes an encoded image into an array [*target.shape].

    Args:
        data: The encoded image.
        target: A target without a random crop.
    """
    out: Array = np.empty(target.shape, target.numpy_dtype)
    _decode_into(EncodedImage(data, target), target, 0, 0, MemoryBudget(1), out)
    return out


def make_black_image(target: Images) -> Array:
    """Returns a black image in the format of the target, for a missing image."""
    out: Array = np.empty(target.shape, target.numpy_dtype)
    resize_into(np.zeros(target.shape, np.uint8), Box(0, 0, *target.shape[:2]), target, out)
    return out


@dataclass(frozen=True)
class ImageConversion:
    """Conversion of an image feature into pixels.

    Attributes:
        feature: Stored name of the feature.
        target: The target of its images.
        has_boxes: True if the records have boxes, which a crop would have to move.
        has_photo: True if the feature is a mask that may have to be turned with the photo of its
            record.
    """

    feature: str
    target: Images
    has_boxes: bool = False
    has_photo: bool = False

    def output_feature(self, feature: Feature) -> Feature:
        """Returns the feature of the pixels.

        Raises:
            UsageError: The feature is neither a bytes value nor a list of them.
        """
        if feature.shape not in ((), (None,)) or feature.dtype != "bytes":
            raise UsageError(
                f"decode_images: {feature.name!r} is {feature.describe()}; only a single bytes value or a list of them "
                "has images"
            )
        return make_pixel_schema(Schema((feature,)), {feature.name: self.target})[feature.name]

    def convert(self, column: pa.Array, feature: Feature) -> tuple[pa.Array, BadValues]:
        """Decodes a column of images.

        Returns:
            The column of pixels, and (row, reason) of each image that can't be decoded. The column
            has no rows for these images.

        Raises:
            UsageError: The target has a random part, a crop that would move boxes, or masks that
                turn with a photo.
        """
        is_random = isinstance(self.target.crop, RandomCrop) or self.target.flip
        if is_random or self.has_photo or (self.has_boxes and _moves_objects(self.target)):
            if is_random:
                reason = "cropped or flipped at random,"
            elif self.has_photo:
                reason = "turned with its photo,"
            else:
                reason = "cropped or turned together with its boxes,"
            raise UsageError(
                f"decode_images: {feature.name!r} is {reason} which only batches, to_tf and to_torch can do: open it with "
                f"{'a central crop' if is_random and not self.has_boxes else 'no crop and orientation'}, or without this feature"
            )
        rows = list_row_images(column, feature)
        # one array for all present images, because a column holds their values one after another
        num_images = sum(len(images or ()) for images in rows)
        pixels = np.empty((num_images, *self.target.shape), self.target.numpy_dtype)
        present, counts, bad_values, num_decoded = [], [], [], 0
        for row, images in enumerate(rows):
            count = len(images or ())
            out = pixels[num_decoded : num_decoded + count]
            if (error := self._decode_row(images or (), out, is_list=bool(feature.shape))) is None:
                present.append(images is not None)
                counts.append(count)
                num_decoded += count
            else:
                bad_values.append((row, error))
        return build_column(
            pa.array(self.target.to_layout(pixels[:num_decoded]).reshape(-1)),
            np.array(counts, np.int64),
            np.array(present, np.bool_),
            self.output_feature(feature),
        ), bad_values

    def _decode_row(self, images: Sequence[Pixels], out: Array, *, is_list: bool) -> str | None:
        """Decodes the images of a record, or returns an error."""
        for item, data in enumerate(images):
            try:
                out[item] = decode_image(data, self.target)
            except BadImage as error:
                return describe_item(item, error) if is_list else error.message
        return None


# Boxes of objects, under the names of the Object Detection API, move with the kept part of the
# image.


def has_boxes(names: Sequence[str]) -> bool:
    """Returns whether features with these names include edges of boxes."""
    return any(name in names for name in _BOX_EDGES)


def _moves_objects(target: Images) -> bool:
    return bool(target.crop or target.flip or target.orientation)


def check_boxes(names: Sequence[str], images: Mapping[str, Images]) -> None:
    """Raises UsageError if a crop, flip or orientation cannot move the boxes.

    Args:
        names: The names of all features.
        images: The target of each image feature.
    """
    is_turned = IMAGE_FEATURE in images and images[IMAGE_FEATURE].orientation
    missing = [name for name in _BOX_EDGES if name not in names]
    if is_turned and missing and has_boxes(names):
        raise UsageError(
            "decode_images: orientation=True needs all edges of the boxes: also "
            f"select {missing[0]!r}"
        )
    changed_features = [name for name, target in images.items() if target.crop or target.flip]
    if not changed_features or not has_boxes(names):
        return
    if IMAGE_FEATURE not in changed_features:
        raise UsageError(
            f"decode_images: boxes are those of {IMAGE_FEATURE!r}, so {changed_features[0]!r} can't be cropped or flipped"
        )
    if missing:
        raise UsageError(
            "decode_images: a crop or flip needs all edges of the boxes: also select "
            f"{missing[0]!r}"
        )
    if keypoints := [name for name in names if name.startswith(f"{_OBJECT_PREFIX}keypoint/")]:
        raise UsageError(
            f"decode_images: a crop or flip does not move key points: leave out {keypoints[0]!r}, or the crop and flip"
        )


def move_boxes(batch: pa.RecordBatch, kept_parts: Array) -> pa.RecordBatch:
    """Returns the records with their boxes moved to the kept part of each image.

    Boxes are lists in `image/object/bbox/`. The new edges are fractions of the kept part, clipped
    to it. Objects entirely outside are dropped from all lists of `image/object/`. Records without
    all four edges are returned unchanged.

    Args:
        kept_parts: [records, 5] left, top, width and height of the kept part as fractions of the
            image, and 1 if it is flipped.

    Raises:
        UsageError: A feature of `image/object/` does not have one value per box.
    """
    columns = list(batch.columns)
    column_indices = {
        name: index
        for index, name in enumerate(batch.schema.names)
        if name.startswith(_OBJECT_PREFIX)
    }
    if not set(_BOX_EDGES) <= set(column_indices):
        return batch
    if non_list := next(
        (name for name, index in column_indices.items() if not _is_list(columns[index].type)), None
    ):
        raise UsageError(
            f"decode_images: {non_list!r} is not a list with one value per box: leave "
            "it out, or the crop and flip"
        )
    lengths = list_lengths(columns[column_indices[_BOX_EDGES[0]]])
    # the part of the image, repeated for each of its objects
    lefts, tops, widths, heights, flip_flags = np.repeat(kept_parts, lengths, axis=0).T
    edges = [
        columns[column_indices[name]].flatten().to_numpy(zero_copy_only=False)
        for name in _BOX_EDGES
    ]
    is_kept = np.ones(len(lefts), np.bool_)
    for low, high, starts, sizes in ((0, 1, lefts, widths), (2, 3, tops, heights)):
        edges[low], edges[high], is_inside = clip_span(edges[low], edges[high], starts, sizes)
        is_kept &= is_inside
    # A horizontal flip mirrors the left and right edges and exchanges them.
    edges[0], edges[1] = (np.where(flip_flags, 1 - edges[1 - edge], edges[edge]) for edge in (0, 1))
    edges_by_name = dict(zip(_BOX_EDGES, edges, strict=True))
    # The offsets of the lists after the dropped objects are removed.
    item_ends = to_offsets(is_kept)[to_offsets(lengths)]
    for name, index in column_indices.items():
        column = columns[index]
        if not np.array_equal(list_lengths(column), lengths):
            raise UsageError(
                f"decode_images: {name!r} does not have one value per box: leave it "
                "out, or the crop and flip"
            )
        items = column.flatten()
        if name in edges_by_name:
            items = pa.array(edges_by_name[name], items.type)
        offsets = pa.array(item_ends, pa.int32() if pa.types.is_list(column.type) else pa.int64())
        mask = column.is_null() if column.null_count else None
        columns[index] = type(column).from_arrays(
            offsets, items.filter(pa.array(is_kept)), type=column.type, mask=mask
        )
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))
