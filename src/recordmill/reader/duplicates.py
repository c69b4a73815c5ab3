"""Search for records that occur more than once, in one split or in several.

One pass over the records compares digests of complete records, of keys and of encoded images. A
second pass finds images that look alike: their hashes are close, and their small grey versions
correlate. Crops and mirror images are not found. The results are checked against the rules and
become `Violation` objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from recordmill.base.buffers import Bytes, Int64s
from recordmill.base.errors import UsageError
from recordmill.base.messages import Message
from recordmill.base.option_names import option
from recordmill.base.siphash import U64
from recordmill.base.sizes import format_percent
from recordmill.base.threads import thread_map
from recordmill.checks.repeats import ContentDigests, RepeatCounts, find_near_pairs
from recordmill.checks.rules import RepeatLimits, Rules
from recordmill.checks.violations import Violation
from recordmill.reader.images.columns import detect_image_features
from recordmill.reader.images.decode import EncodedImage
from recordmill.reader.options.images import Images
from recordmill.records.example.flat_arrays import FlatEntry, flatten_column
from recordmill.records.images import similarity
from recordmill.records.images.header import BadImage
from recordmill.records.tfrecord.frames import HEADER_BYTES, FileFrames
from recordmill.schemas.feature import Schema
from recordmill.schemas.splits import TRAIN_SPLIT
from recordmill.shards.loading.decode import decode_frames
from recordmill.shards.pieces import FrameRead
from recordmill.storage.files import create_unnamed_file, map_open_file, write_all

if TYPE_CHECKING:
    from recordmill.reader.records import Records


_GREY_IMAGE = Images(similarity.GREY_SIDE, similarity.GREY_SIDE, orientation=True)
_GREY_BYTES = similarity.GREY_SIDE * similarity.GREY_SIDE
# Number of image pairs that are compared at a time. Their small grey versions are float64 then, and
# take 32 MiB with intermediate results.
_PAIR_BATCH = 1024

# (record numbers [n], index of their split, hashes [n, HASH_WORDS], grey versions [n, _GREY_BYTES])
_ImageHashes = tuple[Int64s, int, U64, Bytes]


def find_near_images(
    dataset: Records, feature: str, progress: Callable[[int], None] | None = None
) -> RepeatCounts:
    """Finds images that look like another image of the data set.

    Every image is decoded once. Images that can't be decoded are left out. The memory holds 100
    bytes per image, and the images that are being decoded. A temporary file holds 1 KiB per image.

    Args:
        feature: Stored name of the feature with encoded images.
        progress: Called with the number of records of each part that was read.
    """
    numbers, splits, hashes = (
        [np.empty(0, np.int64)],
        [np.empty(0, np.int64)],
        [np.empty((0, similarity.HASH_WORDS), "u8")],
    )
    # the grey versions of all images are too large for the memory
    with create_unnamed_file() as file:
        for records, split, batch_hashes, greys in _hash_images(dataset, feature, progress):
            numbers.append(records)
            splits.append(np.full(len(records), split))
            hashes.append(batch_hashes)
            write_all(file, greys)
        greys = map_open_file(file).reshape(-1, _GREY_BYTES)
    return _find_similar(
        np.concatenate(numbers), np.concatenate(splits), np.concatenate(hashes), greys
    )


def _hash_images(
    dataset: Records, feature: str, progress: Callable[[int], None] | None
) -> Iterator[_ImageHashes]:
    schema = dataset.open_files.schema.select([feature])
    split_ids = {split: number for number, split in enumerate(dataset.catalog.splits)}

    def hash_frames(read: FrameRead) -> tuple[int, _ImageHashes | None]:
        frames = read()
        split_id = split_ids[dataset.catalog.files[frames.file].split]
        (flat,) = flatten_column(decode_frames(frames, schema).column(feature), schema[feature])
        assert flat.value_splits is not None  # encoded images are bytes
        rows = np.arange(flat.rows) if flat.valid is None else np.flatnonzero(flat.valid)
        images = [_hash_image(flat.values, flat.value_splits, row) for row in rows.tolist()]
        indices = [i for i, image in enumerate(images) if image is not None]
        hashed = [image for image in images if image is not None]
        if not hashed:
            return len(frames), None
        hashes = np.stack([image_hash for image_hash, _ in hashed])
        greys = np.stack([grey for _, grey in hashed])
        numbers = dataset.open_files.number_records(frames)[rows[indices]]
        return len(frames), (numbers, split_id, hashes, greys)

    for count, image_hashes in thread_map(hash_frames, dataset.iter_reads(), dataset.threads):
        if progress is not None:
            progress(count)
        if image_hashes is not None:
            yield image_hashes


def _hash_image(data: npt.NDArray[Any], splits: Int64s, row: int) -> tuple[U64, Bytes] | None:
    """Returns (hash, small grey version) of an image. None if it can't be decoded.

    Args:
        data: uint8 [bytes]. The encoded images of all rows.
        splits: int64 [rows + 1]. First byte of each image, and the number of bytes.
        row: The row of the image.
    """
    try:
        grey = similarity.to_grey(
            EncodedImage(data[splits[row] : splits[row + 1]], _GREY_IMAGE).decode()
        )
    except BadImage:
        return None
    return similarity.difference_hash(grey), similarity.shrink_grey(grey)


def _find_similar(numbers: Int64s, splits: Int64s, hashes: U64, greys: Bytes) -> RepeatCounts:
    repeated = RepeatCounts()
    counted: dict[tuple[int, int], npt.NDArray[np.bool_]] = {}

    def add(originals: Int64s, copies: Int64s) -> None:
        """Counts copies of images. A copy counts once for each pair of splits.

        Args:
            originals: int64 [pairs]. Row of the image that is copied.
            copies: int64 [pairs]. Row of the image that looks like it.
        """
        for pair in sorted(
            set(zip(splits[originals].tolist(), splits[copies].tolist(), strict=True))
        ):
            in_pair = (splits[originals] == pair[0]) & (splits[copies] == pair[1])
            distinct, positions = np.unique(copies[in_pair], return_index=True)
            # an image may look like several others, in this call or in an earlier one
            is_counted = counted.setdefault(pair, np.zeros(len(numbers), np.bool_))
            is_new = ~is_counted[distinct]
            is_counted[distinct] = True
            earlier = originals[in_pair][positions[is_new]]
            repeated.add(*pair, numbers[distinct[is_new]], numbers[earlier])

    for first, second in find_near_pairs(hashes):
        for begin in range(0, len(first), _PAIR_BATCH):
            lefts = first[begin : begin + _PAIR_BATCH]
            rights = second[begin : begin + _PAIR_BATCH]
            correlations = similarity.correlate_rows(greys[lefts], greys[rights])
            is_similar = correlations >= similarity.MIN_CORRELATION
            lefts, rights = lefts[is_similar], rights[is_similar]
            add(lefts, rights)
            # A pair in two splits counts in both directions, because each split has its own share.
            is_leak = splits[lefts] != splits[rights]
            add(rights[is_leak], lefts[is_leak])
    return repeated


_CHECK_RECORDS, _CHECK_IMAGES, _CHECK_KEYS, _CHECK_NEAR_IMAGES = (
    "records",
    "images",
    "keys",
    "near_images",
)
_CHECK_TEXTS = {
    _CHECK_RECORDS: "are equal to one",
    _CHECK_IMAGES: "have an image of the same bytes as one",
    _CHECK_KEYS: "have the same value as one",
    _CHECK_NEAR_IMAGES: "have an image that looks like one",
}


class _Comparison(NamedTuple):
    """A search for equal records, or for equal values of a feature.

    Attributes:
        check: Name of its limit in the rules, one of the _CHECK constants.
        feature: The feature. None means that complete records are compared.
    """

    check: str
    feature: str | None = None

    def limit(self, repeats: RepeatLimits) -> float | None:
        return (
            repeats.keys.get(self.feature or "")
            if self.check == _CHECK_KEYS
            else getattr(repeats, self.check)
        )


def check_image_rules(dataset: Records, rules: Rules) -> None:
    """Raises UsageError if a rule compares images and the data set has none."""
    for part in ("leakage", "duplicates"):
        for name in (_CHECK_IMAGES, _CHECK_NEAR_IMAGES):
            if getattr(getattr(rules, part), name) is not None and not detect_image_features(
                dataset.encoded_view
            ):
                raise UsageError(
                    f"{rules.source}: {part}: {name}: no feature of the data set holds encoded images"
                )


def find_repeat_violations(
    dataset: Records, rules: Rules, memory_bytes: int, progress: Callable[[int], None] | None = None
) -> Iterator[Violation]:
    """Yields the violations of the rules about leakage and duplicates.

    All records are read once. If a rule looks for similar images, the records are read again for
    each image feature.

    Args:
        memory_bytes: Memory for digests, in addition to the records that are being read.
        progress: Called with the number of records of each part that was read.

    Raises:
        DataError: A record is damaged.
    """
    comparisons = _comparisons(dataset, rules)
    if comparisons:
        yield from _equality_violations(dataset, comparisons, rules, memory_bytes, progress)
    if any(repeats.near_images is not None for repeats in _active_rules(dataset, rules)):
        locator = _RecordLocator(dataset)
        for name in detect_image_features(dataset.encoded_view):
            yield from _share_violations(
                _Comparison(_CHECK_NEAR_IMAGES, name),
                find_near_images(dataset, name, progress),
                rules,
                locator,
            )


def _equality_violations(
    dataset: Records,
    comparisons: list[_Comparison],
    rules: Rules,
    memory_bytes: int,
    progress: Callable[[int], None] | None,
) -> Iterator[Violation]:
    tables = [
        ContentDigests(len(dataset.catalog.splits), len(dataset), memory_bytes // len(comparisons))
        for _ in comparisons
    ]
    try:
        _fill_digests(dataset, dict(zip(comparisons, tables, strict=True)), progress)
        locator = _RecordLocator(dataset)
        for comparison, table in zip(comparisons, tables, strict=True):
            yield from _share_violations(comparison, table.find_repeats(), rules, locator)
    finally:
        for table in tables:
            table.close()


def _active_rules(dataset: Records, rules: Rules) -> list[RepeatLimits]:
    """Returns the rules for duplicates and, if there are several splits, for leakage."""
    return [rules.duplicates, *([rules.leakage] if len(dataset.catalog.splits) > 1 else [])]


def _comparisons(dataset: Records, rules: Rules) -> list[_Comparison]:
    repeats = _active_rules(dataset, rules)
    comparisons = (
        [_Comparison(_CHECK_RECORDS)] if any(rule.records is not None for rule in repeats) else []
    )
    if any(rule.images is not None for rule in repeats):
        comparisons += [
            _Comparison(_CHECK_IMAGES, name) for name in detect_image_features(dataset.encoded_view)
        ]
    return comparisons + [
        _Comparison(_CHECK_KEYS, name)
        for name in dict.fromkeys(name for rule in repeats for name in rule.keys)
    ]


def _fill_digests(
    dataset: Records,
    tables: Mapping[_Comparison, ContentDigests],
    progress: Callable[[int], None] | None = None,
) -> None:
    """Reads all records and adds the digests of each comparison to its table."""
    names = [comparison.feature for comparison in tables if comparison.feature is not None]
    schema = dataset.open_files.schema.select(dict.fromkeys(names))
    split_ids = {split: number for number, split in enumerate(dataset.catalog.splits)}

    def digests(
        read: FrameRead,
    ) -> tuple[int, int, list[tuple[_Comparison, npt.NDArray[np.void], Int64s]]]:
        frames = read()
        frames.raise_damage()
        split_id = split_ids[dataset.catalog.files[frames.file].split]
        numbers, columns = dataset.open_files.number_records(frames), _column_spans(frames, schema)
        results = []
        for comparison, table in tables.items():
            rows, data, starts, ends = (
                _payload_spans(frames)
                if comparison.feature is None
                else columns[comparison.feature]
            )
            results.append((comparison, table.digests(data, starts, ends), numbers[rows]))
        return len(frames), split_id, results

    for count, split_id, results in thread_map(digests, dataset.iter_reads(), dataset.threads):
        for comparison, table_digests, numbers in results:
            tables[comparison].add(table_digests, numbers, split_id)
        if progress is not None:
            progress(count)


# (rows that have a value, bytes of all values, begin and end of each value in these bytes)
_ByteSpans = tuple[Int64s, npt.NDArray[np.uint8], Int64s, Int64s]


def _payload_spans(frames: FileFrames) -> _ByteSpans:
    starts = frames.starts + HEADER_BYTES
    return np.arange(len(frames)), frames.data, starts, starts + frames.lengths


def _column_spans(frames: FileFrames, schema: Schema) -> dict[str, _ByteSpans]:
    if not len(schema):
        return {}
    batch = decode_frames(frames, schema)
    return {
        feature.name: _value_spans(flatten_column(batch.column(feature.name), feature)[0])
        for feature in schema
    }


def _value_spans(flat: FlatEntry) -> _ByteSpans:
    """Returns the bytes of the values in a column of single values.

    Missing values are left out.
    """
    rows = np.arange(flat.rows) if flat.valid is None else np.flatnonzero(flat.valid)
    values: npt.NDArray[Any] = np.ascontiguousarray(flat.values)
    if flat.value_splits is not None:
        return rows, values, flat.value_splits[:-1][rows], flat.value_splits[1:][rows]
    width = flat.width or values.dtype.itemsize
    return rows, values.view(np.uint8), rows * width, (rows + 1) * width


class _RecordLocator:
    """Finds the file of a record, and counts the records of each split."""

    def __init__(self, dataset: Records) -> None:
        self.dataset, self.splits = dataset, dataset.catalog.splits
        self.records = dict.fromkeys(dataset.catalog.splits, 0)
        for file in dataset.files:
            self.records[file.file.split] += file.records

    def locate(self, record: int) -> tuple[str, int]:
        """Returns (file, number of the record in the file)."""
        file, number = self.dataset.files.find(record)
        return file.file.path, number


def _share_violations(
    comparison: _Comparison, repeated: RepeatCounts, rules: Rules, locator: _RecordLocator
) -> Iterator[Violation]:
    limits = comparison.limit(rules.duplicates), comparison.limit(rules.leakage)
    base = locator.splits.index(TRAIN_SPLIT) if TRAIN_SPLIT in locator.splits else 0
    for (first, second), pairs in sorted(repeated.example_pairs.items()):
        is_leak = first != second
        limit = limits[is_leak]
        # Each pair of splits is reported once, as a share of its second split. The training split
        # is always the first one.
        if limit is None or (is_leak and (second == base or (first != base and first > second))):
            continue
        count = repeated.between_splits[first, second] if is_leak else repeated.within_splits[first]
        original_split, split = locator.splits[first], locator.splits[second]
        share = count / locator.records[split]
        if share > limit:
            yield _violation(
                comparison, (original_split, split), count, share, limit, locator, pairs
            )


def _violation(
    comparison: _Comparison,
    splits: tuple[str, str],
    count: int,
    share: float,
    limit: float,
    locator: _RecordLocator,
    pairs: list[tuple[int, int]],
) -> Violation:
    original_split, split = splits
    (file, record), (original_file, original_record) = (
        locator.locate(pairs[0][1]),
        locator.locate(pairs[0][0]),
    )
    check, place = (
        ("leakage", f"of split {original_split!r}")
        if original_split != split
        else ("duplicates", "before them")
    )
    rule = (
        f"{comparison.check}: {{{comparison.feature}: SHARE}}"
        if comparison.check == _CHECK_KEYS
        else f"{comparison.check}: SHARE"
    )
    problem = (
        f"{count:,} of {locator.records[split]:,} records ({format_percent(share)}) {_CHECK_TEXTS[comparison.check]} {place}, above "
        f"{format_percent(limit)}; this one as record {original_record} of {original_file}"
    )
    if original_split == split:
        remedy = f"remove them from the input, or allow a share of them ({check}: {{{rule}}})"
    else:
        remedy = Message(
            "remove them from the input; or build with {split_by} and a feature that "
            "they have in common, which keeps them in one split; or allow a share of "
            "them ({check}: {{{rule}}})",
            split_by=option("split_by"),
            check=check,
            rule=rule,
        )
    return Violation(
        check,
        what=problem,
        remedy=remedy,
        feature=comparison.feature,
        split=split,
        figure=share,
        threshold=limit,
        file=file,
        record=record,
    )
