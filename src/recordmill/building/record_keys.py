"""Key and split of each record.

The key is 64 bits and determines the order of the records:

* By default it is SipHash-2-4 of the record's position in its file. The hash key is BLAKE2b-128 of the seed and the
  file's name. So the order depends only on the seed and the inputs, and not on threads, memory or the folder of the
  inputs.
* With `--key COLUMN` it is the hash of a column. So a record keeps its place when others are inserted.
* Without a shuffle it is the number of the record in the order of the inputs.

Equal keys are ordered by (file, position). A data set of 10^9 records has two equal keys with a probability of 3 %.

The split depends on a second hash with its own seed, so that a new shuffle moves no record to another split.

These functions determine the bytes of every data set. Tests pin their results, so they must never change.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recordmill.base.errors import DataError, UsageError
from recordmill.base.option_names import option
from recordmill.base.siphash import U64, derive_key, derive_keys, hash_bytes, hash_positions
from recordmill.building.stratified_splits import StratifiedSplits
from recordmill.records.tfrecord.frames import HEADER_BYTES, Frames
from recordmill.schemas.splits import SPLIT_WORDS, check_split_name
from recordmill.sources.common.contract import Source
from recordmill.storage.file_table import SPLIT_COLUMN, FileTable, InputFile

DEFAULT_SPLIT = "train"
_KEY_DOMAIN, _KEY_COLUMN_DOMAIN = b"recordmill-order", b"recordmill-okey"
_SPLIT, _SPLIT_COLUMN_DOMAIN = b"recordmill-split", b"recordmill-skey"
_SPLITS_SYNTAX = "NAME=FRACTION, as in train=0.9,validation=0.1"
_NAMES_BY_BOUNDARIES = {
    1: ("train", "test"),
    2: ("train", "validation", "test"),
}  # by the number of boundaries in `split_at`
NO_SPLIT = (1 << 16) - 1  # split of a record if its value determines none
_AT_ONCE = 1 << 12  # files: rows of the file table become Python objects in batches of this size


@dataclass(frozen=True)
class KeyOptions:
    """Options that determine the order and the splits of the records.

    Attributes:
        seed: Seed of the keys.
        split_seed: Seed of the splits.
        shuffle: False keeps the order of the inputs.
        key: Column that determines the key. None derives it from file and position.
        split_by: Column with the groups that stay in one split. None means `key`.
        splits: (name, fraction) of each split, with a sum of 1, or any value for `parse_splits`. If it is empty, the
            folders of the inputs determine the splits. Without such folders, all records are in `train`.
        key_bits: Number of leading bits of the keys in use. Tests lower it to provoke equal keys.
        stratify: Column with the classes. Each class is divided by the fractions. None divides all records together.
        split_column: Column that contains the name of the split.
        split_at: (column, boundaries), or any value for `parse_split_at`. The value of the column determines the split.

    Raises:
        UsageError: The options are invalid, or contradict each other.
    """

    seed: int = 0
    split_seed: int = 0
    shuffle: bool = True
    key: str | None = None
    split_by: str | None = None
    splits: tuple[tuple[str, float], ...] = ()
    key_bits: int = 64
    stratify: str | None = None
    split_column: str | None = None
    split_at: tuple[str, tuple[str, ...]] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "splits", parse_splits(self.splits))
        object.__setattr__(self, "split_at", parse_split_at(self.split_at))
        for name, fraction in self.splits:
            check_split_name(name)
            if not 0 < fraction <= 1:
                raise UsageError(
                    f"split {name}={fraction}: a fraction lies above 0 and at most at 1"
                )
        names = [name for name, _ in self.splits]
        if len(set(names)) < len(names):
            raise UsageError(f"split named twice in {', '.join(names)}")
        if self.splits and abs(sum(fraction for _, fraction in self.splits) - 1) > 1e-9:
            total = sum(fraction for _, fraction in self.splits)
            if total > 1:
                raise UsageError(
                    f"{option('splits')}: the fractions sum to {total:g}, more than all records; 1 is all"
                )
            raise UsageError(
                f"{option('splits')}: the fractions sum to {total:g}, not 1: records would belong to no split; name "
                f"the rest, as in rest={1 - total:g}"
            )
        if self.split_by is not None and not self.splits:
            raise UsageError(
                f"{option('split_by')} needs {option('splits')}: it says which records stay together, not how large "
                "the splits are"
            )
        if self.stratify is not None and not self.splits:
            raise UsageError(
                f"{option('stratify')} needs {option('splits')}: it divides each class by their fractions"
            )
        for name, seed in (("seed", self.seed), ("split_seed", self.split_seed)):
            if not -(2**63) <= seed < 2**63:
                raise UsageError(f"{name}={seed} does not fit 64 bits")

    @property
    def group_column(self) -> str | None:
        """The column with the groups that stay in one split, or None."""
        return self.split_by or self.key

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that determine keys or splits, without duplicates."""
        named = (
            self.key,
            self.split_by,
            self.stratify,
            self.split_column,
            self.split_at and self.split_at[0],
        )
        return tuple(dict.fromkeys(column for column in named if column is not None))


def parse_splits(value: Any) -> tuple[tuple[str, float], ...]:
    """Returns (name, fraction) of each split.

    >>> parse_splits("train=0.9, validation=0.1")
    (('train', 0.9), ('validation', 0.1))

    Args:
        value: Text as above, a mapping, or an iterable of pairs. None means no splits.

    Raises:
        UsageError: The value has another form.
    """
    items = (
        value.split(",")
        if isinstance(value, str)
        else value.items()
        if isinstance(value, Mapping)
        else value
    )
    if not isinstance(items, Iterable | None):
        raise UsageError(f"{option('splits', value)}: {_SPLITS_SYNTAX}")
    return tuple(_split_of(item, value) for item in items or ())


def _split_of(item: Any, value: Any) -> tuple[str, float]:
    parts = [part.strip() for part in item.partition("=")[::2]] if isinstance(item, str) else item
    try:
        name, fraction = parts
        pair = name, float(fraction)
    except (TypeError, ValueError):
        pair = None, 0.0
    if not isinstance(pair[0], str) or not pair[0]:
        shown = repr(item.strip() if isinstance(item, str) else item)
        raise UsageError(f"{option('splits', value)}: {shown:.99} is not {_SPLITS_SYNTAX}")
    return pair


def parse_split_at(value: Any) -> tuple[str, tuple[str, ...]] | None:
    """Returns (column, boundaries) of `split_at`.

    >>> parse_split_at("date=2024-06-01, 2024-09-01"), parse_split_at({"year": 2020})
    (('date', ('2024-06-01', '2024-09-01')), ('year', ('2020',)))

    Args:
        value: Text or a mapping as above, or a pair. None returns None.

    Raises:
        UsageError: The value has another form.
    """
    if value is None:
        return None
    items = (
        [value.partition("=")[::2]]
        if isinstance(value, str)
        else [value]
        if isinstance(value, tuple)
        else ()
    )
    items = list(value.items()) if isinstance(value, Mapping) else items
    column, given = items[0] if len(items) == 1 else ("", "")
    values = (
        given.split(",")
        if isinstance(given, str)
        else given
        if isinstance(given, tuple | list)
        else (given,)
    )
    edges = tuple(str(one).strip() for one in values)
    if not column or len(edges) not in _NAMES_BY_BOUNDARIES or not all(edges):
        raise UsageError(
            f"{option('split_at', value)}: COLUMN=VALUE or COLUMN=VALUE,VALUE, as in date=2024-06-01"
        )
    return column.strip(), edges


def convert_split_boundaries(options: KeyOptions, kind: pa.DataType) -> pa.Array:
    """Returns the boundaries of `split_at` as values of the column's type.

    A timestamp without a zone is UTC if the column has a zone.

    Raises:
        UsageError: A value does not convert to the type, is null or NaN, or does not ascend.
    """
    assert options.split_at is not None
    column, texts = options.split_at
    try:
        edges = pa.array(texts)
        if pa.types.is_timestamp(kind) and not any(
            re.search(r"Z$|[+-]\d\d:?\d\d$", text[10:]) for text in texts
        ):
            edges = edges.cast(
                pa.timestamp(kind.unit)
            )  # without a zone; the next cast takes it as UTC
        edges = edges.cast(kind)
        is_ascending = pc.all(pc.less(edges[:-1], edges[1:])).as_py() is not False
    except pa.ArrowException:
        raise UsageError(
            f"{option('split_at', column)}: {', '.join(texts)} can't be compared with {kind}"
        ) from None
    if pc.any(pc.is_null(edges, nan_is_null=True)).as_py():
        raise UsageError(
            f"{option('split_at', column)}: nothing lies below or above {', '.join(texts)}"
        )
    if not is_ascending:
        raise UsageError(
            f"{option('split_at', column)}: {', '.join(texts)}: the second value must lie above the first"
        )
    return edges


def find_split_names(options: KeyOptions, files: FileTable) -> tuple[str, ...]:
    """Returns the names of the splits. The index of a name is the ordinal of the split.

    Raises:
        UsageError: Both the inputs and an option determine splits. Mixing them would leak test records into training.
    """
    used = (
        files.dictionary_values(SPLIT_COLUMN).to_pylist()
        if SPLIT_COLUMN in files.extra_columns
        else [None]
    )
    said = [split for split in used if split is not None]
    ways = {
        "splits": options.splits,
        "split_column": options.split_column,
        "split_at": options.split_at,
    }
    if len(said) > 1 and (used_ways := [name for name, way in ways.items() if way]):
        asked = option(used_ways[0])
        raise UsageError(
            f"the inputs' folders or names already say splits ({', '.join(said)}), and {asked} would mix "
            f"them: drop {asked}, or give the folder of one split as INPUT"
        )
    if options.splits:
        return tuple(name for name, _ in options.splits)
    if options.split_column is not None:
        return tuple(dict.fromkeys(SPLIT_WORDS.values()))
    if options.split_at is not None:
        return _NAMES_BY_BOUNDARIES[len(options.split_at[1])]
    rest = (DEFAULT_SPLIT,) if None in used or not said else ()
    order = {"train": 0, "validation": 1, "test": 2}
    return tuple(sorted({*said, *rest}, key=lambda name: (order.get(name, 3), name)))


class KeyAssigner:
    """Assigns keys and splits to the records of one source.

    Hash keys of files are derived when they are needed: a worker that reads one of a million files derives one.

    Attributes:
        options: The options.
        stratified_splits: The class boundaries for `stratify`, or None.
        split_names: The names of the splits.
        key_limit: Keys are in [0, key_limit).
    """

    def __init__(
        self, options: KeyOptions, source: Source, strata: StratifiedSplits | None = None
    ) -> None:
        self.options, self.stratified_splits = options, strata
        self.split_names = find_split_names(options, source.files)
        self._files = source.files
        self._first_row = None if options.shuffle else _row_offsets(source)
        self.key_limit = (
            2**64 if self._first_row is None else max(int(self._first_row[-1]), 1)
        )  # keys lie in [0, key_limit)
        self._thresholds = compute_split_thresholds(options)
        self._split_places = (
            {} if options.splits else {name: at for at, name in enumerate(self.split_names)}
        )

    def assign(
        self,
        batch: pa.RecordBatch | None,
        file: npt.NDArray[np.uint32],
        position: npt.NDArray[np.int64],
    ) -> tuple[U64, npt.NDArray[np.uint16]]:
        """Returns the key and the split of each record.

        Args:
            batch: [rows] with at least `options.columns`. None if no column is needed.
            file: [rows] uint32, indices into the source's files.
            position: [rows] int64, row numbers in the files.

        Returns:
            ([rows] uint64, [rows] uint16). The split is NO_SPLIT if the record's value determines none.

        Raises:
            DataError: A file has more records than planned, and `shuffle` is off.
        """
        if self._first_row is not None:
            keys = (self._first_row[file] + position).astype(np.uint64)
            self._check_key_ranges(file, position)
        else:
            keys = self._hash(
                batch,
                self.options.key,
                file,
                position,
                self.options.seed,
                _KEY_DOMAIN,
                _KEY_COLUMN_DOMAIN,
            )
        if self.options.key_bits < 64:  # clears the lower bits
            keys = keys & np.uint64(2**64 - 2 ** (64 - self.options.key_bits))
        return keys, self._splits(batch, file, position)

    def split_hashes(
        self,
        batch: pa.RecordBatch | None,
        file: npt.NDArray[np.uint32],
        position: npt.NDArray[np.int64],
    ) -> U64:
        """Returns the hash of each record, [rows] uint64, that determines a random split."""
        return self._hash(
            batch,
            self.options.group_column,
            file,
            position,
            self.options.split_seed,
            _SPLIT,
            _SPLIT_COLUMN_DOMAIN,
        )

    def _check_key_ranges(
        self, file: npt.NDArray[np.uint32], position: npt.NDArray[np.int64]
    ) -> None:
        """Raises DataError if a file has more records than keys are reserved for it."""
        assert self._first_row is not None
        beyond = position >= self._first_row[file.astype(np.int64) + 1] - self._first_row[file]
        if beyond.any():
            at = int(file[int(np.argmax(beyond))])
            raise DataError(
                f"gives more records than the {int(self._first_row[at + 1] - self._first_row[at]):,} that "
                f"{option('shuffle', False)} has places for in it, among {len(self._files):,} files",
                source=self._files[at].name,
            )

    def _splits(
        self,
        batch: pa.RecordBatch | None,
        file: npt.NDArray[np.uint32],
        position: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.uint16]:
        if self.options.split_column is not None:
            assert batch is not None
            return self._splits_from_column(batch.column(self.options.split_column))
        if self.options.split_at is not None:
            assert batch is not None
            return self._splits_from_boundaries(batch.column(self.options.split_at[0]))
        if not self.options.splits:
            return self._splits_from_files(file)
        hashes = self.split_hashes(batch, file, position)
        if self.options.stratify is not None:
            assert self.stratified_splits is not None, "the classes were not counted"
            return self.stratified_splits.assign(batch, hashes, file, position)
        return np.searchsorted(self._thresholds, hashes, side="right").astype(np.uint16)

    def _splits_from_column(self, column: pa.Array) -> npt.NDArray[np.uint16]:
        """Returns the split that each value of `split_column` names, in any case."""
        words = pc.utf8_lower(pc.utf8_trim_whitespace(column))
        at = pc.fill_null(pc.index_in(words, pa.array(SPLIT_WORDS, words.type)), -1).to_numpy()
        # an unknown or missing word has the index -1, and so the last place
        places = [*(self._split_places[split] for split in SPLIT_WORDS.values()), NO_SPLIT]
        found: npt.NDArray[np.uint16] = np.array(places, np.uint16)[at]
        return found

    def _splits_from_boundaries(self, column: pa.Array) -> npt.NDArray[np.uint16]:
        """Returns the split of each value: the number of boundaries that it reaches."""
        lost = pc.is_null(column, nan_is_null=True).to_numpy(zero_copy_only=False)
        reached = (
            pc.fill_null(pc.greater_equal(column, edge), False)
            for edge in convert_split_boundaries(self.options, column.type)
        )
        return np.where(
            lost, NO_SPLIT, sum(np.asarray(one).astype(np.uint16) for one in reached)
        ).astype(np.uint16)

    def explain_no_split(self, batch: pa.RecordBatch, row: int) -> str:
        """Returns an error message for a row that `assign` left without a split."""
        if self.options.split_at is not None:
            return f"{option('split_at', self.options.split_at[0])}: has no value"
        name = self.options.split_column
        value = batch.column(name)[row].as_py()
        shown = "nothing" if value is None else repr(value)
        return f"{option('split_column', name)}: is {shown:.99}, no word for a split: {', '.join(SPLIT_WORDS)}"

    def _splits_from_files(self, file: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint16]:
        """Returns the split that each record's file or folder is named after."""
        if SPLIT_COLUMN not in self._files.extra_columns:
            return np.full(len(file), self._split_places[DEFAULT_SPLIT], np.uint16)
        words = self._files.dictionary_values(SPLIT_COLUMN).to_pylist()
        places = np.array([self._split_places[word or DEFAULT_SPLIT] for word in words], np.uint16)
        # a chunk of a single file needs a single lookup
        if len(file) and (file == file[0]).all():
            return np.full(
                len(file), places[self._files.dictionary_indices(SPLIT_COLUMN, file[:1])[0]]
            )
        found: npt.NDArray[np.uint16] = places[self._files.dictionary_indices(SPLIT_COLUMN, file)]
        return found

    def _hash(
        self,
        batch: pa.RecordBatch | None,
        column: str | None,
        file: npt.NDArray[np.uint32],
        position: npt.NDArray[np.int64],
        seed: int,
        purpose: bytes,
        column_purpose: bytes,
    ) -> U64:
        if column is not None:
            if batch is None:
                raise UsageError(f"column {column!r} can't be hashed: these records are not parsed")
            data, offsets = encode_key_values(batch.column(column))
            return hash_bytes(
                derive_key(seed, column_purpose), data, offsets[:-1], np.diff(offsets)
            )
        out = np.empty(len(position), np.uint64)
        if len(position):
            first, last = int(file.min()), int(file.max())
            low, high = self._derived(seed, purpose, first, last + 1)
            hash_positions(low, high, file, first, position, out)
        return out

    def _derived(self, seed: int, purpose: bytes, first: int, last: int) -> tuple[U64, U64]:
        """Returns the hash keys of files [first, last), as low and high words."""
        words = np.empty((2, last - first), np.uint64)
        for at in range(first, last, _AT_ONCE):
            some = self._files[at : min(at + _AT_ONCE, last)]
            words[:, at - first : at - first + len(some)] = derive_keys(
                seed, purpose, map(identify_file, some)
            ).T
        return words[0], words[1]


def assign_by_payload(
    options: KeyOptions, batch: pa.RecordBatch, frames: Frames
) -> tuple[U64, npt.NDArray[np.uint16]]:
    """Returns the key and the split of each record of a pipeline.

    Such records have no file or position, so both are hashes of the payload or of columns. Records with equal payloads
    have equal keys, but their order makes no difference.

    Args:
        batch: The columns of the records.
        frames: The encoded records.

    Returns:
        ([rows] uint64, [rows] uint16).
    """

    def hashes(column: str | None, seed: int, purpose: bytes, column_purpose: bytes) -> U64:
        if column is None:
            return hash_bytes(
                derive_key(seed, purpose, b"payload"),
                frames.data,
                frames.starts + HEADER_BYTES,
                frames.lengths,
            )
        data, offsets = encode_key_values(batch.column(column))
        return hash_bytes(derive_key(seed, column_purpose), data, offsets[:-1], np.diff(offsets))

    keys = hashes(options.key, options.seed, _KEY_DOMAIN, _KEY_COLUMN_DOMAIN)
    if not options.splits:
        return keys, np.zeros(len(keys), np.uint16)
    split_hashes = hashes(options.group_column, options.split_seed, _SPLIT, _SPLIT_COLUMN_DOMAIN)
    return keys, np.searchsorted(
        compute_split_thresholds(options), split_hashes, side="right"
    ).astype(np.uint16)


def compute_split_thresholds(options: KeyOptions) -> U64:
    """Returns the lowest hash of each split but the first, [splits - 1] uint64."""
    fractions = np.cumsum([fraction for _, fraction in options.splits])
    return np.array(
        [min(int(fraction * 2.0**64), 2**64 - 1) for fraction in fractions[:-1]], np.uint64
    )


def identify_file(file: InputFile) -> tuple[bytes, bytes]:
    """Returns the parts of a file's identity for hashes: its root and its name."""
    return file.root.to_bytes(4, "little"), file.name.encode("utf-8", "surrogateescape")


def encode_key_values(column: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Returns the bytes to hash for each value of a column.

    Args:
        column: Strings, bytes or numbers.

    Returns:
        (data, offsets): The bytes of row i are data[offsets[i]:offsets[i + 1]]. They are empty for null, b"v" and the
        value for strings, and 8 little-endian bytes for numbers. So all nulls are one group.

    Raises:
        UsageError: The column is nested.
    """
    kind = column.type
    valid = np.asarray(pc.is_valid(column))
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        column = column.cast(pa.large_binary())
        # the prefix b"v" distinguishes an empty string from null
        marked = pc.binary_join_element_wise(
            pa.scalar(b"v", pa.large_binary()), column, pa.scalar(b"", pa.large_binary())
        )
        marked = pc.fill_null(marked, b"")
        _, offsets, data = marked.buffers()
        begin = np.frombuffer(offsets, np.int64)[marked.offset : marked.offset + len(marked) + 1]
        return np.frombuffer(data, np.uint8) if data is not None and data.size else np.empty(
            0, np.uint8
        ), begin
    if pa.types.is_nested(kind):
        raise UsageError(
            f"a column of type {kind} can't decide order or split: name one of scalars"
        )
    if pa.types.is_floating(kind):
        # -0.0 and 0.0 are one group
        values = (
            np.nan_to_num(
                np.asarray(pc.fill_null(column.cast(pa.float64()), 0.0)), nan=np.nan, copy=True
            )
            + 0.0
        )
        numbers = values.view(np.uint8)
    else:
        target = pa.uint64() if pa.types.is_unsigned_integer(kind) else pa.int64()
        numbers = np.asarray(pc.fill_null(column.cast(target), 0)).view(np.uint8)
    offsets = np.concatenate([[0], np.cumsum(np.where(valid, 8, 0))]).astype(np.int64)
    return np.ascontiguousarray(numbers.reshape(-1, 8)[valid]).reshape(-1), offsets


def _row_offsets(source: Source) -> npt.NDArray[np.int64]:
    """Returns the number of records before each file, [files + 1].

    If the plan has not counted the records, each file gets 2^40 places, or fewer if there are too many files.
    """
    counts = np.zeros(len(source.files), np.int64)
    for unit in source.units:
        files = unit.end_file - unit.begin_file
        if unit.rows is None or (files > 1 and unit.rows != files):
            return np.arange(len(counts) + 1, dtype=np.int64) << min(
                40, 63 - len(counts).bit_length()
            )
        counts[unit.begin_file : unit.end_file] += unit.rows // files
    return np.concatenate([[0], np.cumsum(counts)])
