"""Records of a data set that stand in it more than once, in one split or in several: one pass over all of them, to the
`Violation`s of the rules that look for them. Images that nearly equal each other are found by hashes that are near and
small greys that correlate; crops and mirror images are not found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from recordmill.base.buffers import Bytes, Int64s
from recordmill.base.errors import UsageError
from recordmill.base.option_names import option
from recordmill.base.siphash import U64
from recordmill.base.sizes import format_percent
from recordmill.base.threads import thread_map
from recordmill.checks.repeats import ContentDigests, Repeated, near_pairs
from recordmill.checks.rules import Repeats, Rules
from recordmill.checks.violations import Violation
from recordmill.reader.images.columns import image_features
from recordmill.reader.images.decode import Encoded
from recordmill.reader.options.images import Images
from recordmill.records.example.flat_arrays import Flat, to_flat
from recordmill.records.images import similarity
from recordmill.records.images.header import BadImage
from recordmill.records.tfrecord.frames import HEADER_BYTES
from recordmill.schemas.feature import Schema
from recordmill.schemas.splits import TRAIN_SPLIT
from recordmill.shards.loading.batches import Load, blocks_of, decode_block
from recordmill.shards.pieces import FrameBlock
from recordmill.storage.files import create_file, map_file, write_all
from recordmill.storage.folders import join, make_scratch, remove_tree

if TYPE_CHECKING:
    from recordmill.reader.scanner import Scanner


_GREY_IMAGE = Images(similarity.GREY_SIDE, similarity.GREY_SIDE, orientation=True)
_GREY_BYTES = similarity.GREY_SIDE * similarity.GREY_SIDE
_PAIR_BATCH = 1024  # whose greys are in memory, as float64: 32 MiB with what is made of them

_ImageHashes = tuple[
    Int64s, int, U64, Bytes
]  # records, their split, [n, HASH_WORDS] hashes, [n, _GREY_BYTES] greys


def near_images(
    dataset: Scanner, feature: str, progress: Callable[[int], None] | None = None
) -> Repeated:
    """Finds images that look like another one. All are decoded, once; one that can't be is left out. Memory: 100 bytes
    an image, beside those that are being decoded; 1 KiB of each lies in a file of the temporary folder.
    """
    folder = make_scratch("greys-")
    try:
        path = join(folder, "greys")
        numbers, splits, hashes = (
            [np.empty(0, np.int64)],
            [np.empty(0, np.int64)],
            [np.empty((0, similarity.HASH_WORDS), "u8")],
        )
        with create_file(path) as file:
            for records, split, some, greys in _hash_images(dataset, feature, progress):
                numbers.append(records)
                splits.append(np.full(len(records), split))
                hashes.append(some)
                write_all(file, greys)
        greys = map_file(path).reshape(-1, _GREY_BYTES)
        return _find_similar(
            np.concatenate(numbers), np.concatenate(splits), np.concatenate(hashes), greys
        )
    finally:
        remove_tree(folder, ignore_errors=True)


def _hash_images(
    dataset: Scanner, feature: str, progress: Callable[[int], None] | None
) -> Iterator[_ImageHashes]:
    schema = dataset.full_schema.select([feature])
    ordinals = {split: number for number, split in enumerate(dataset.splits)}

    def hash_load(load: Load) -> tuple[int, list[_ImageHashes]]:
        first, split = dataset._first_record_number(load), ordinals[load.file.split]
        done: list[_ImageHashes] = []
        for block in blocks_of(load):
            column = decode_block(block, schema, load.file.path).column(feature)
            (flat,) = to_flat(column, schema[feature])
            assert flat.value_splits is not None
            rows = np.arange(flat.rows) if flat.valid is None else np.flatnonzero(flat.valid)
            found = [_hash_image(flat.values, flat.value_splits, row) for row in rows.tolist()]
            kept = [at for at, one in enumerate(found) if one is not None]
            known = [one for one in found if one is not None]
            if known:
                hashes, greys = (
                    np.stack([one[0] for one in known]),
                    np.stack([one[1] for one in known]),
                )
                done.append((first + rows[kept], split, hashes, greys))
            first += flat.rows
        return first - dataset._first_record_number(load), done

    for count, found in thread_map(hash_load, dataset.loads(), dataset.threads):
        if progress is not None:
            progress(count)
        yield from found


def _hash_image(data: npt.NDArray[Any], splits: Int64s, row: int) -> tuple[U64, Bytes] | None:
    try:
        grey = similarity.luma(Encoded(data[splits[row] : splits[row + 1]], _GREY_IMAGE).pixels())
    except BadImage:
        return None
    return similarity.difference_hash(grey), similarity.small_grey(grey)


def _find_similar(numbers: Int64s, splits: Int64s, hashes: U64, greys: Bytes) -> Repeated:
    found = Repeated()
    seen: dict[tuple[int, int], npt.NDArray[np.bool_]] = {}

    def add(ones: Int64s, others: Int64s) -> None:
        """Each of `others` that looks like its one of `ones`, counted once."""
        for pair in sorted(set(zip(splits[ones].tolist(), splits[others].tolist(), strict=True))):
            own = (splits[ones] == pair[0]) & (splits[others] == pair[1])
            again, places = np.unique(others[own], return_index=True)
            known = seen.setdefault(pair, np.zeros(len(numbers), np.bool_))
            new = ~known[again]
            known[again] = True
            found.add(*pair, numbers[again[new]], numbers[ones[own][places[new]]])

    for first, second in near_pairs(hashes):
        for begin in range(0, len(first), _PAIR_BATCH):
            one, other = (
                first[begin : begin + _PAIR_BATCH],
                second[begin : begin + _PAIR_BATCH],
            )
            is_alike = (
                similarity.correlations(greys[one], greys[other]) >= similarity.NEAR_CORRELATION
            )
            one, other = one[is_alike], other[is_alike]
            add(one, other)
            differ = splits[one] != splits[other]
            add(other[differ], one[differ])
    return found


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
    """Comparison that the rules ask for, of records or of a feature's values. check: its name in the rules."""

    check: str
    feature: str | None = None

    def limit(self, repeats: Repeats) -> float | None:
        found: float | None = (
            repeats.keys.get(self.feature or "")
            if self.check == _CHECK_KEYS
            else getattr(repeats, self.check)
        )
        return found


def check_image_rules(dataset: Scanner, rules: Rules) -> None:
    """Raises UsageError if a rule is for images, and the data set has none."""
    for part in ("leakage", "duplicates"):
        for name in (_CHECK_IMAGES, _CHECK_NEAR_IMAGES):
            if getattr(getattr(rules, part), name) is not None and not image_features(
                dataset.encoded
            ):
                raise UsageError(
                    f"{rules.source}: {part}: {name}: no feature of the data set holds encoded images"
                )


def repeat_violations(
    dataset: Scanner, rules: Rules, memory_bytes: int, progress: Callable[[int], None] | None = None
) -> Iterator[Violation]:
    """Yields the violations of the rules of leakage and duplicates. All records are read once, and once more for images
    that look alike. memory_bytes: what digests may take, beside the records that are being read.
    """
    wanted = _comparisons(dataset, rules)
    if wanted:
        yield from _equality_violations(dataset, wanted, rules, memory_bytes, progress)
    if any(each.near_images is not None for each in _active_rules(dataset, rules)):
        places = _RecordLocator(dataset)
        for name in image_features(dataset.encoded):
            yield from _share_violations(
                _Comparison(_CHECK_NEAR_IMAGES, name),
                near_images(dataset, name, progress),
                rules,
                places,
            )


def _equality_violations(
    dataset: Scanner,
    wanted: list[_Comparison],
    rules: Rules,
    memory_bytes: int,
    progress: Callable[[int], None] | None,
) -> Iterator[Violation]:
    tables = [
        ContentDigests(len(dataset.splits), len(dataset), memory_bytes // len(wanted))
        for _ in wanted
    ]
    try:
        _fill_digests(dataset, dict(zip(wanted, tables, strict=True)), progress)
        places = _RecordLocator(dataset)
        for each, table in zip(wanted, tables, strict=True):
            yield from _share_violations(each, table.repeated(), rules, places)
    finally:
        for table in tables:
            table.close()


def _active_rules(dataset: Scanner, rules: Rules) -> list[Repeats]:
    """Returns the comparisons of duplicates and, where there are several splits, of leakage."""
    return [rules.duplicates, *([rules.leakage] if len(dataset.splits) > 1 else [])]


def _comparisons(dataset: Scanner, rules: Rules) -> list[_Comparison]:
    both = _active_rules(dataset, rules)
    found = [_Comparison(_CHECK_RECORDS)] if any(each.records is not None for each in both) else []
    if any(each.images is not None for each in both):
        found += [_Comparison(_CHECK_IMAGES, name) for name in image_features(dataset.encoded)]
    return found + [
        _Comparison(_CHECK_KEYS, name)
        for name in dict.fromkeys(name for each in both for name in each.keys)
    ]


def _fill_digests(
    dataset: Scanner,
    tables: Mapping[_Comparison, ContentDigests],
    progress: Callable[[int], None] | None = None,
) -> None:
    """Reads all records, and puts the digests of what is compared into the tables."""
    names = [each.feature for each in tables if each.feature is not None]
    schema = dataset.full_schema.select(dict.fromkeys(names))
    numbers = {split: number for number, split in enumerate(dataset.splits)}

    def digests(load: Load) -> list[tuple[_Comparison, npt.NDArray[np.void], Int64s, int]]:
        first, split = dataset._first_record_number(load), numbers[load.file.split]
        found = []
        for block in blocks_of(load):
            count = len(block.frames)
            columns = _column_spans(block, schema, load.file.path)
            for each, table in tables.items():
                rows, data, starts, ends = (
                    _payload_spans(block) if each.feature is None else columns[each.feature]
                )
                found.append((each, table.digests(data, starts, ends), first + rows, split))
            first += count
        return found

    for found in thread_map(digests, dataset.loads(), dataset.threads):
        for each, rows, places, split in found:
            tables[each].add(rows, places, split)
        if progress is not None:
            progress(len(found[0][2]) if found else 0)


_ByteSpans = tuple[
    Int64s, npt.NDArray[np.uint8], Int64s, Int64s
]  # rows that have a value; bytes, where each begins and ends


def _payload_spans(block: FrameBlock) -> _ByteSpans:
    frames = block.frames
    starts = frames.starts + HEADER_BYTES
    return np.arange(len(frames)), frames.data, starts, starts + frames.lengths


def _column_spans(block: FrameBlock, schema: Schema, source: str) -> dict[str, _ByteSpans]:
    if not len(schema):
        return {}
    batch = decode_block(block, schema, source)
    return {
        feature.name: _value_spans(to_flat(batch.column(feature.name), feature)[0])
        for feature in schema
    }


def _value_spans(flat: Flat) -> _ByteSpans:
    """The bytes of a column of single values, where it has one."""
    rows = np.arange(flat.rows) if flat.valid is None else np.flatnonzero(flat.valid)
    values: npt.NDArray[Any] = np.ascontiguousarray(flat.values)
    if flat.value_splits is not None:
        return rows, values, flat.value_splits[:-1][rows], flat.value_splits[1:][rows]
    width = flat.width or values.dtype.itemsize
    return rows, values.view(np.uint8), rows * width, (rows + 1) * width


class _RecordLocator:
    """Places of records, and the number of records of each split."""

    def __init__(self, dataset: Scanner) -> None:
        self.dataset, self.splits = dataset, dataset.splits
        self.records = dict.fromkeys(dataset.splits, 0)
        for file, count in zip(dataset.files, dataset.file_records, strict=True):
            self.records[file.file.split] += count

    def of(self, number: int) -> tuple[str, int]:
        """Returns (file, number in it) of a record."""
        at = int(np.searchsorted(self.dataset.ends, number, "right"))
        return self.dataset.files[at].file.path, number - (
            int(self.dataset.ends[at - 1]) if at else 0
        )


def _share_violations(
    wanted: _Comparison, found: Repeated, rules: Rules, places: _RecordLocator
) -> Iterator[Violation]:
    limits = wanted.limit(rules.duplicates), wanted.limit(rules.leakage)
    base = places.splits.index(TRAIN_SPLIT) if TRAIN_SPLIT in places.splits else 0
    for (first, second), pairs in sorted(found.pairs.items()):
        is_leak = first != second
        limit = limits[is_leak]
        if limit is None or (is_leak and (second == base or (first != base and first > second))):
            continue
        count = found.between[first, second] if is_leak else found.within[first]
        one, other = places.splits[first], places.splits[second]
        share = count / places.records[other]
        if share > limit:
            yield _violation(wanted, (one, other), count, share, limit, places, pairs)


def _violation(
    wanted: _Comparison,
    splits: tuple[str, str],
    count: int,
    share: float,
    limit: float,
    places: _RecordLocator,
    pairs: list[tuple[int, int]],
) -> Violation:
    one, other = splits
    (file, record), (before, number) = places.of(pairs[0][1]), places.of(pairs[0][0])
    check, where = (
        ("leakage", f"of split {one!r}") if one != other else ("duplicates", "before them")
    )
    rule = (
        f"{wanted.check}: {{{wanted.feature}: SHARE}}"
        if wanted.check == _CHECK_KEYS
        else f"{wanted.check}: SHARE"
    )
    what = (
        f"{count:,} of {places.records[other]:,} records ({format_percent(share)}) {_CHECK_TEXTS[wanted.check]} {where}, above "
        f"{format_percent(limit)}; this one as record {number} of {before}"
    )
    if one == other:
        remedy = f"take them out of the input, or allow a share of them ({check}: {{{rule}}})"
    else:
        remedy = (
            f"take them out of the input, or build with {option('split_by')} a feature that they have in common, which "
            f"keeps them in one split; or allow a share of them ({check}: {{{rule}}})"
        )
    return Violation(check, what, remedy, wanted.feature, other, share, limit, file, record)
