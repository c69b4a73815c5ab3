"""Images of a data set that look alike, though their bytes differ: hashes that are near name the pairs, the correlation
of small greys decides. Crops and mirror images are not found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from recordmill.base.arrays import Bytes, Int64s
from recordmill.base.siphash import U64
from recordmill.base.threads import thread_map
from recordmill.checks.hamming import near_pairs
from recordmill.checks.repeats import Repeated
from recordmill.reader.images.decode import Encoded
from recordmill.reader.options.images import Images
from recordmill.records.example.flat_arrays import to_flat
from recordmill.records.images.header import BadImage
from recordmill.records.images.similarity import (
    GREY_SIDE,
    HASH_WORDS,
    NEAR_CORRELATION,
    correlations,
    difference_hash,
    luma,
    small_grey,
)
from recordmill.shards.loading.batches import Load, blocks_of, decode_block
from recordmill.storage.files import create_file, map_file, write_all
from recordmill.storage.folders import join, make_scratch, remove_tree

if TYPE_CHECKING:
    from recordmill.reader.scanner import Scanner

_WHOLE = Images(GREY_SIDE, GREY_SIDE, orientation=True)
_GREY_BYTES = GREY_SIDE * GREY_SIDE
_PAIRS_AT_ONCE = 1024  # whose greys are in memory, as float64: 32 MiB with what is made of them

_Looks = tuple[Int64s, int, U64, Bytes]  # records, their split, [n, HASH_WORDS] hashes, [n, _GREY_BYTES] greys


def near_images(dataset: Scanner, feature: str, progress: Callable[[int], None] | None = None) -> Repeated:
    """Finds images that look like another one. All are decoded, once; one that can't be is left out.

    Memory: 100 bytes an image, beside those that are being decoded; 1 KiB of each lies in a file of the temporary
    folder.

    Raises:
        DataError: a record is damaged.
    """
    folder = make_scratch("greys-")
    try:
        path = join(folder, "greys")
        numbers, splits, hashes = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty((0, HASH_WORDS), "u8")]
        with create_file(path) as file:
            for records, split, some, greys in _looks(dataset, feature, progress):
                numbers.append(records)
                splits.append(np.full(len(records), split))
                hashes.append(some)
                write_all(file, greys)
        greys = map_file(path).reshape(-1, _GREY_BYTES)
        return _alike(np.concatenate(numbers), np.concatenate(splits), np.concatenate(hashes), greys)
    finally:
        remove_tree(folder, ignore_errors=True)


def _looks(dataset: Scanner, feature: str, progress: Callable[[int], None] | None) -> Iterator[_Looks]:
    schema = dataset.full_schema.select([feature])
    ordinals = {split: number for number, split in enumerate(dataset.splits)}

    def look(load: Load) -> tuple[int, list[_Looks]]:
        first, split = dataset._number_of(load), ordinals[load.file.split]
        done: list[_Looks] = []
        for block in blocks_of(load):
            column = decode_block(block, schema, load.file.path).column(feature)
            (flat,) = to_flat(column, schema[feature])
            assert flat.value_splits is not None
            rows = np.arange(flat.rows) if flat.valid is None else np.flatnonzero(flat.valid)
            found = [_look_of(flat.values, flat.value_splits, row) for row in rows.tolist()]
            kept = [at for at, one in enumerate(found) if one is not None]
            known = [one for one in found if one is not None]
            if known:
                hashes, greys = np.stack([one[0] for one in known]), np.stack([one[1] for one in known])
                done.append((first + rows[kept], split, hashes, greys))
            first += flat.rows
        return first - dataset._number_of(load), done

    for count, found in thread_map(look, dataset.loads(), dataset.threads):
        if progress is not None:
            progress(count)
        yield from found


def _look_of(data: npt.NDArray[Any], splits: Int64s, row: int) -> tuple[U64, Bytes] | None:
    try:
        grey = luma(Encoded(data[splits[row] : splits[row + 1]], _WHOLE).pixels())
    except BadImage:
        return None
    return difference_hash(grey), small_grey(grey)


def _alike(numbers: Int64s, splits: Int64s, hashes: U64, greys: Bytes) -> Repeated:
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
        for begin in range(0, len(first), _PAIRS_AT_ONCE):
            one, other = first[begin : begin + _PAIRS_AT_ONCE], second[begin : begin + _PAIRS_AT_ONCE]
            is_alike = correlations(greys[one], greys[other]) >= NEAR_CORRELATION
            one, other = one[is_alike], other[is_alike]
            add(one, other)
            differ = splits[one] != splits[other]
            add(other[differ], one[differ])
    return found
