"""Decoding of columns of encoded images.

`ImageDecoder` decodes batches on threads of its own, so that all cores share the images of one
batch. `ImageConversion` decodes columns of tables. Boxes of objects move with a crop or flip of
their image. TensorFlow is not needed.
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
from recordmill.base.threads import MemoryBudget
from recordmill.reader.images.decode import EncodedImage, choose_box, is_flipped, resize_into
from recordmill.reader.images.turned_objects import NOT_TURNED, turn_objects
from recordmill.reader.options.images import Images, ImageTarget, RandomCrop
from recordmill.reader.prefetch.prefetcher import StepRows
from recordmill.reader.prefetch.protocols import Sampled
from recordmill.reader.sampling.sampler import derive_random_key
from recordmill.records.columns.convert import BadValues, build_column
from recordmill.records.columns.decode_images import iter_images, looks_like_image
from recordmill.records.columns.numpy_arrays import extract_arrays, list_lengths
from recordmill.records.columns.ragged import Array
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
    candidates = [
        feature.name for feature in dataset.schema if feature.dtype == "bytes" and not feature.shape
    ]
    if isinstance(target, Mapping):
        for name in target:
            if name not in candidates:
                raise UsageError(
                    f"decode_images: {name!r} is not a selected bytes feature; there "
                    f"are {_join_names(candidates)}"
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
    photos = records[photo_name or name].to_pylist()
    for value, photo in zip(records[name].to_pylist(), photos, strict=True):
        if value is None:
            continue
        # a damaged image has no known size, so the next one is tried
        with contextlib.suppress(BadImage):
            first = EncodedImage(
                np.frombuffer(value, np.uint8),
                target,
                photo=None if photo is None else np.frombuffer(photo, np.uint8),
            )
            return target.with_size(first.height, first.width)
    raise UsageError(
        f"decode_images: the size of {name!r} is unknown, because none of the first "
        "records has such an image: give (height, width)"
    )


def detect_image_features(dataset: Sampled) -> list[str]:
    """Returns the bytes features that contain encoded images in the first records."""
    candidates = [
        feature.name for feature in dataset.schema if feature.dtype == "bytes" and not feature.shape
    ]
    head = dataset.head(_SAMPLE_RECORDS) if candidates else None
    return [
        name
        for name in candidates
        if head is not None
        and any(value is not None and looks_like_image(value) for value in head[name].to_pylist())
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
        # Size of the decoded images of a row.
        self.row_bytes = sum(target.row_bytes for target in images.values())
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
    ) -> tuple[dict[str, Array], pa.RecordBatch, list[BadRecord]]:
        """Decodes the image features of some rows.

        Args:
            rows: The rows. Random crops depend on their record numbers and epoch.
            schema: Features of the rows.

        Returns:
            Three values: the pixels [rows, *shape] by feature, the columns of the rows with their
            boxes moved, and the images that can't be decoded, in the order of the rows.
        """
        pixels: dict[str, Array] = {}
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
            if name == IMAGE_FEATURE and _moves_objects(task.target):
                box_task = task
            pixels[feature.name] = task.out
            for begin in range(0, len(column), _IMAGES_PER_TASK):
                task_rows = range(begin, min(begin + _IMAGES_PER_TASK, len(column)))
                if self._pool is not None:
                    futures.append(self._pool.submit(task.decode, task_rows))
                else:
                    undecoded += task.decode(task_rows)
        for result in futures:
            undecoded += result.result()
        batch = rows.batch
        if box_task is not None:
            batch = turn_objects(batch, box_task.turns)
            if box_task.target.crop or box_task.target.flip:
                batch = move_boxes(batch, box_task.kept_parts)
        return (
            {name: self.images[name].to_layout(array) for name, array in pixels.items()},
            batch,
            # collected feature by feature, returned by row
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
                return [data for _, data in iter_images(column, feature)]
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
        out = allocate_reusable((len(column), *target.shape), target.numpy_dtype)
        # `valid` marks the missing images, so they can be empty values here
        parts = extract_arrays(column, replace(feature, required=True))
        valid = None if not column.null_count else column.is_valid().to_numpy(zero_copy_only=False)
        default = self._defaults.get(feature.name)
        default_data = None if default is None else np.frombuffer(default, np.uint8)
        # missing and damaged images keep this value: the complete image, not flipped
        kept_parts = np.tile(np.array([0, 0, 1, 1, 0], np.float64), (len(column), 1))
        values, splits = parts.values, parts.splits[0]
        return _DecodeTask(
            name=feature.name,
            target=target,
            values=values,
            splits=splits,
            valid=valid,
            photos=photos if target.mask else (),
            default=default_data,
            numbers=rows.numbers,
            key=key,
            budget=self._budget,
            out=out,
            kept_parts=kept_parts,
            turns=np.tile(np.array(NOT_TURNED), (len(column), 1)),
        )


@dataclass(frozen=True)
class _DecodeTask:
    """Decoding of one image column.

    Attributes:
        photos: The photo of each mask, which may be missing. Empty for other images.
        default: Encoded image for rows without an image. None makes them black.
        numbers: [rows]. Record numbers, which determine random crops.
        out: [rows, *shape]. Receives the pixels.
        kept_parts: [rows, 5]. Receives the part of each image that is kept, as `move_boxes` takes
            it.
        turns: [rows, 3]. Receives how each image was turned, as `turn_objects` takes it.
    """

    name: str
    target: Images
    values: Pixels
    splits: Array
    valid: Array | None
    photos: Sequence[Pixels | None]
    default: Pixels | None
    numbers: Array
    key: int
    budget: MemoryBudget
    out: Array
    kept_parts: Array
    turns: Array

    def decode(self, rows: range) -> list[BadRecord]:
        """Decodes the images of these rows into `out`.

        Returns:
            The images that can't be decoded.
        """
        return list(self._decode_rows(rows))

    def _decode_rows(self, rows: range) -> Iterator[BadRecord]:
        first, stop = self.splits[rows.start], self.splits[rows.stop]
        ends = self.splits[rows.start + 1 : rows.stop + 1] - first
        # One call checks all images, because each call waits for the interpreter's lock.
        headers = check_structures(self.values[first:stop], ends, MAX_DECODED_PIXELS)
        for row, checked in zip(rows, headers, strict=True):
            data = self._encoded_image(row)
            if data is None:
                self.out[row] = make_black_image(self.target)
                continue
            try:
                # the header of a default image has not been checked above
                is_own = self.valid is None or self.valid[row]
                photo = self.photos[row] if self.photos and is_own else None
                image = EncodedImage(data, self.target, checked if is_own else None, photo)
                number = int(self.numbers[row])
                if is_own:
                    self.turns[row] = image.turn
                self.kept_parts[row] = _decode_into(
                    image, self.target, self.key, number, self.budget, self.out[row]
                )
            except BadImage as error:
                yield BadRecord(row, self.name, error.message)

    def _encoded_image(self, row: int) -> Pixels | None:
        if self.valid is None or self.valid[row]:
            return self.values[self.splits[row] : self.splits[row + 1]]
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
    """Returns the part to keep, and the shrink factor for decoding it."""
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
        has_boxes: The records have boxes, which a crop would have to move.
        has_photo: The feature is a mask that may have to be turned with the photo of its record.
    """

    feature: str
    target: Images
    has_boxes: bool = False
    has_photo: bool = False

    def output_feature(self, feature: Feature) -> Feature:
        """Returns the feature of the pixels.

        Raises:
            UsageError: The feature is not a single bytes value.
        """
        if feature.shape or feature.dtype != "bytes":
            raise UsageError(
                f"decode_images: {feature.name!r} is {feature.describe()}; only a single bytes value is an image"
            )
        return replace(feature, dtype=self.target.numpy_dtype.name, shape=self.target.layout_shape)

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
        # one array for all present images, because a column holds their values one after another
        pixels = np.empty(
            (len(column) - column.null_count, *self.target.shape), self.target.numpy_dtype
        )
        present, bad_values, num_decoded = [], [], 0
        for row, data in iter_images(column, feature):
            try:
                if data is not None:
                    pixels[num_decoded] = decode_image(data, self.target)
                    num_decoded += 1
                present.append(data is not None)
            except BadImage as error:
                bad_values.append((row, error.message))
        flat, counts = (
            pa.array(self.target.to_layout(pixels[:num_decoded]).reshape(-1)),
            np.zeros(len(present), np.int64),
        )
        return build_column(
            flat, counts, np.array(present, np.bool_), self.output_feature(feature)
        ), bad_values


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

    Boxes are lists in `image/object/bbox/`. They become fractions of the kept part, clipped to it.
    Objects entirely outside are dropped from all lists of `image/object/`. Records without all four
    edges are returned unchanged.

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
