"""Key and split of each record.

The key is 64 bits and determines the order of the records:

* By default it is SipHash-2-4 of the record's position in its file. The hash key is BLAKE2b-128 of
  the seed and the file's name. So the order depends only on the seed and the inputs. Threads,
  memory and the folder of the inputs don't change it.
* With `--key COLUMN` it is the hash of a column. So a record keeps its place when others are
  inserted.
* Without a shuffle it is the number of the record in the order of the inputs.

Equal keys are ordered by (file, position). A data set of 10^9 records has two equal keys with a
probability of 3 %.

The split depends on a second hash with its own seed, so that a new shuffle moves no record to
another split.

These functions determine the bytes of every data set. Tests pin their results, so they must never
change.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recordmill.base.buffers import to_offsets
from recordmill.base.errors import DataError, UsageError
from recordmill.base.messages import Message
from recordmill.base.option_names import option
from recordmill.base.siphash import U64, derive_key, derive_keys, hash_bytes, hash_positions
from recordmill.building.stratified_splits import StratifiedSplits
from recordmill.options.order import SPLITS_BY_BOUNDARIES, BuildOrder
from recordmill.records.tfrecord.frames import HEADER_BYTES, Frames
from recordmill.schemas.splits import SPLIT_WORDS
from recordmill.sources.common.contract import Source
from recordmill.storage.file_table import SPLIT_COLUMN, FileTable, InputFile

DEFAULT_SPLIT = "train"
_KEY_DOMAIN, _KEY_COLUMN_DOMAIN = b"recordmill-order", b"recordmill-okey"
_SPLIT_DOMAIN, _SPLIT_COLUMN_DOMAIN = b"recordmill-split", b"recordmill-skey"
# The split id of a record whose value determines no split.
NO_SPLIT = (1 << 16) - 1
# Number of files for which rows of the file table become Python objects at a time.
_FILE_BATCH = 1 << 12


def convert_split_boundaries(options: BuildOrder, value_type: pa.DataType) -> pa.Array:
    """Returns the boundaries of `split_at` as values of the column's type.

    A timestamp without a zone is UTC if the column has a zone.

    Args:
        options: The options. Their `split_at` is not None.
        value_type: The type of the column.

    Raises:
        UsageError: A boundary does not convert to the type, or is null or NaN. Or the boundaries do
            not ascend.
    """
    assert options.split_at is not None
    column, texts = options.split_at
    try:
        boundaries = pa.array(texts)
        if pa.types.is_timestamp(value_type) and not any(
            re.search(r"Z$|[+-]\d\d:?\d\d$", text[10:]) for text in texts
        ):
            # Without a zone. The next cast takes it as UTC.
            boundaries = boundaries.cast(pa.timestamp(value_type.unit))
        boundaries = boundaries.cast(value_type)
        is_ascending = pc.all(pc.less(boundaries[:-1], boundaries[1:])).as_py() is not False
    except pa.ArrowException:
        raise UsageError(
            "{split_at}: {texts} can't be compared with {value_type}",
            split_at=option("split_at", column),
            texts=", ".join(texts),
            value_type=value_type,
        ) from None
    if pc.any(pc.is_null(boundaries, nan_is_null=True)).as_py():
        raise UsageError(
            "{split_at}: no value can be below or above {texts}",
            split_at=option("split_at", column),
            texts=", ".join(texts),
        )
    if not is_ascending:
        raise UsageError(
            "{split_at}: {texts}: the second value must be above the first",
            split_at=option("split_at", column),
            texts=", ".join(texts),
        )
    return boundaries


def find_split_names(options: BuildOrder, files: FileTable) -> tuple[str, ...]:
    """Returns the names of the splits. The index of a name is the split id.

    Args:
        options: The options for keys and splits.
        files: The input files. Their folders may name splits.

    Raises:
        UsageError: The folders of the inputs determine splits, and so does an option. Mixing both
            would leak test records into training.
    """
    words = (
        files.dictionary_values(SPLIT_COLUMN).to_pylist()
        if SPLIT_COLUMN in files.extra_columns
        else [None]
    )
    folder_splits = [split for split in words if split is not None]
    split_options = {
        "splits": options.fractions,
        "split_column": options.split_column,
        "split_at": options.split_at,
    }
    if len(folder_splits) > 1 and (
        used_options := [name for name, value in split_options.items() if value]
    ):
        option_name = option(used_options[0])
        raise UsageError(
            "the folders or file names of the inputs already name splits "
            "({folder_splits}), and {option_name} would mix them: drop "
            "{option_name}, or pass the folder of one split as INPUT",
            folder_splits=", ".join(folder_splits),
            option_name=option_name,
        )
    if options.fractions:
        return tuple(name for name, _ in options.fractions)
    if options.split_column is not None:
        return tuple(dict.fromkeys(SPLIT_WORDS.values()))
    if options.split_at is not None:
        return SPLITS_BY_BOUNDARIES[len(options.split_at[1])]
    rest = (DEFAULT_SPLIT,) if None in words or not folder_splits else ()
    order = {"train": 0, "validation": 1, "test": 2}
    return tuple(sorted({*folder_splits, *rest}, key=lambda name: (order.get(name, 3), name)))


class KeyAssigner:
    """Assigns a key and a split to each record of one source.

    The hash key of a file is derived when one of its records is assigned. So a worker that reads
    one of a million files derives one hash key.

    Attributes:
        options: The options.
        stratified_splits: The boundaries of the splits in each class, for `stratify`, or None.
        split_names: The names of the splits.
        key_limit: Keys are in [0, key_limit).
    """

    def __init__(
        self, options: BuildOrder, source: Source, stratified_splits: StratifiedSplits | None = None
    ) -> None:
        self.options, self.stratified_splits = options, stratified_splits
        self.split_names = find_split_names(options, source.files)
        self._files = source.files
        self._row_offsets = None if options.shuffle else _row_offsets(source)
        # Keys are in [0, key_limit).
        self.key_limit = 2**64 if self._row_offsets is None else max(int(self._row_offsets[-1]), 1)
        self._thresholds = compute_split_thresholds(options)
        self._split_ids = (
            {}
            if options.fractions
            else {name: split_id for split_id, name in enumerate(self.split_names)}
        )

    def assign(
        self,
        batch: pa.RecordBatch | None,
        file_ids: npt.NDArray[np.uint32],
        positions: npt.NDArray[np.int64],
    ) -> tuple[U64, npt.NDArray[np.uint16]]:
        """Returns the key and the split of each record.

        Args:
            batch: [rows] with at least `options.columns`. None if no column is needed.
            file_ids: [rows] uint32, indices into the source's files.
            positions: [rows] int64, row numbers in the files.

        Returns:
            (keys, split_ids): [rows] uint64 and [rows] uint16. The split id is NO_SPLIT if the
            value in `split_column` or `split_at` determines no split.

        Raises:
            DataError: A file has more records than planned, and `shuffle` is off.
        """
        if self._row_offsets is not None:
            # Without a shuffle, the key is the number of the record.
            keys = (self._row_offsets[file_ids] + positions).astype(np.uint64)
            self._check_key_ranges(file_ids, positions)
        else:
            keys = self._hash(
                batch=batch,
                column=self.options.key,
                file_ids=file_ids,
                positions=positions,
                seed=self.options.seed,
                domain=_KEY_DOMAIN,
                column_domain=_KEY_COLUMN_DOMAIN,
            )
        # Clears the bits that are not used.
        if self.options.key_bits < 64:
            keys = keys & np.uint64(2**64 - 2 ** (64 - self.options.key_bits))
        return keys, self._assign_splits(batch, file_ids, positions)

    def split_hashes(
        self,
        batch: pa.RecordBatch | None,
        file_ids: npt.NDArray[np.uint32],
        positions: npt.NDArray[np.int64],
    ) -> U64:
        """Returns a hash of each record, [rows] uint64, for random splits.

        The fractions of `splits` divide the range of the hashes. Records with equal values in
        `group_column` have equal hashes. `assign` describes the arguments.
        """
        return self._hash(
            batch=batch,
            column=self.options.group_column,
            file_ids=file_ids,
            positions=positions,
            seed=self.options.split_seed,
            domain=_SPLIT_DOMAIN,
            column_domain=_SPLIT_COLUMN_DOMAIN,
        )

    def _check_key_ranges(
        self, file_ids: npt.NDArray[np.uint32], positions: npt.NDArray[np.int64]
    ) -> None:
        """Raises DataError if a file has more records than keys are reserved for it."""
        assert self._row_offsets is not None
        is_beyond = (
            positions
            >= self._row_offsets[file_ids.astype(np.int64) + 1] - self._row_offsets[file_ids]
        )
        if is_beyond.any():
            file_id = int(file_ids[int(np.argmax(is_beyond))])
            raise DataError(
                "has more records than the {row_offsets} that {shuffle} allows for "
                "each of {files_count} files",
                row_offsets=f"{int(self._row_offsets[file_id + 1] - self._row_offsets[file_id]):,}",
                shuffle=option("shuffle", False),
                files_count=f"{len(self._files):,}",
                source=self._files[file_id].name,
            )

    def _assign_splits(
        self,
        batch: pa.RecordBatch | None,
        file_ids: npt.NDArray[np.uint32],
        positions: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.uint16]:
        if self.options.split_column is not None:
            assert batch is not None
            return self._splits_from_column(batch.column(self.options.split_column))
        if self.options.split_at is not None:
            assert batch is not None
            return self._splits_from_boundaries(batch.column(self.options.split_at[0]))
        if not self.options.fractions:
            return self._splits_from_files(file_ids)
        hashes = self.split_hashes(batch, file_ids, positions)
        if self.options.stratify is not None:
            assert self.stratified_splits is not None, "the classes were not counted"
            return self.stratified_splits.assign(batch, hashes, file_ids, positions)
        return np.searchsorted(self._thresholds, hashes, side="right").astype(np.uint16)

    def _splits_from_column(self, column: pa.Array) -> npt.NDArray[np.uint16]:
        """Returns the split that each value of `split_column` names, in upper or lower case."""
        words = pc.utf8_lower(pc.utf8_trim_whitespace(column))
        word_ids = pc.fill_null(
            pc.index_in(words, pa.array(SPLIT_WORDS, words.type)), -1
        ).to_numpy()
        # An unknown or missing word has the index -1, and so the last element.
        split_ids_of_words = [*(self._split_ids[split] for split in SPLIT_WORDS.values()), NO_SPLIT]
        return np.array(split_ids_of_words, np.uint16)[word_ids]

    def _splits_from_boundaries(self, column: pa.Array) -> npt.NDArray[np.uint16]:
        """Returns the split id of each value: the number of boundaries up to it.

        For example, 5 and 7 reach the boundary 5 and belong to split 1, and 4 belongs to split 0.
        Null and NaN get NO_SPLIT.
        """
        is_missing = pc.is_null(column, nan_is_null=True).to_numpy(zero_copy_only=False)
        reached = (
            pc.fill_null(pc.greater_equal(column, boundary), False)
            for boundary in convert_split_boundaries(self.options, column.type)
        )
        return np.where(
            is_missing,
            NO_SPLIT,
            sum(np.asarray(is_reached).astype(np.uint16) for is_reached in reached),
        ).astype(np.uint16)

    def explain_no_split(self, batch: pa.RecordBatch, row: int) -> str:
        """Returns an error message for a row that `assign` left without a split."""
        if self.options.split_at is not None:
            return Message(
                "{split_at}: has no value", split_at=option("split_at", self.options.split_at[0])
            )
        name = self.options.split_column
        value = batch.column(name)[row].as_py()
        text = "nothing" if value is None else repr(value)
        return Message(
            "{split_column}: {text} does not name a split; the names are {split_words}",
            split_column=option("split_column", name),
            text=f"{text:.99}",
            split_words=", ".join(SPLIT_WORDS),
        )

    def _splits_from_files(self, file_ids: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint16]:
        """Returns the split id of each record from the path of its file.

        The plan has found the splits that folders and names contain. Other files belong to
        DEFAULT_SPLIT.
        """
        if SPLIT_COLUMN not in self._files.extra_columns:
            return np.full(len(file_ids), self._split_ids[DEFAULT_SPLIT], np.uint16)
        words = self._files.dictionary_values(SPLIT_COLUMN).to_pylist()
        split_ids = np.array([self._split_ids[word or DEFAULT_SPLIT] for word in words], np.uint16)
        # A chunk of a single file needs a single lookup.
        if len(file_ids) and (file_ids == file_ids[0]).all():
            return np.full(
                len(file_ids),
                split_ids[self._files.dictionary_indices(SPLIT_COLUMN, file_ids[:1])[0]],
            )
        return split_ids[self._files.dictionary_indices(SPLIT_COLUMN, file_ids)]

    def _hash(
        self,
        batch: pa.RecordBatch | None,
        column: str | None,
        file_ids: npt.NDArray[np.uint32],
        positions: npt.NDArray[np.int64],
        seed: int,
        domain: bytes,
        column_domain: bytes,
    ) -> U64:
        if column is not None:
            if batch is None:
                raise UsageError(f"column {column!r} can't be hashed: these records are not parsed")
            data, offsets = encode_key_values(batch.column(column))
            return hash_bytes(derive_key(seed, column_domain), data, offsets[:-1], np.diff(offsets))
        hashes = np.empty(len(positions), np.uint64)
        if len(positions):
            begin, max_file = int(file_ids.min()), int(file_ids.max())
            low_words, high_words = self._derive_file_keys(
                seed=seed, domain=domain, begin=begin, end=max_file + 1
            )
            hash_positions(low_words, high_words, file_ids, begin, positions, hashes)
        return hashes

    def _derive_file_keys(self, seed: int, domain: bytes, begin: int, end: int) -> tuple[U64, U64]:
        """Returns the 128-bit hash keys of files [begin, end), as low and high words.

        Args:
            seed: The seed of the hash.
            domain: The purpose of the hash. Other purposes get other hash keys from the same seed.
            begin: Number of the first file.
            end: Number after the last file.
        """
        words = np.empty((2, end - begin), np.uint64)
        for begin_batch in range(begin, end, _FILE_BATCH):
            files = self._files[begin_batch : min(begin_batch + _FILE_BATCH, end)]
            words[:, begin_batch - begin : begin_batch - begin + len(files)] = derive_keys(
                seed, domain, map(identify_file, files)
            ).T
        return words[0], words[1]


def assign_by_payload(
    options: BuildOrder, batch: pa.RecordBatch, frames: Frames
) -> tuple[U64, npt.NDArray[np.uint16]]:
    """Returns the key and the split of each record of a user's pipeline.

    Such records have no file or position, so both are hashes of the payload or of columns. Records
    with equal payloads have equal keys. Their order makes no difference.

    Args:
        options: The options for keys and splits.
        batch: The columns of the records.
        frames: The encoded records.

    Returns:
        (keys, split_ids): [rows] uint64 and [rows] uint16.
    """

    def hashes(column: str | None, seed: int, domain: bytes, column_domain: bytes) -> U64:
        if column is None:
            return hash_bytes(
                derive_key(seed, domain, b"payload"),
                frames.data,
                frames.starts + HEADER_BYTES,
                frames.lengths,
            )
        data, offsets = encode_key_values(batch.column(column))
        return hash_bytes(derive_key(seed, column_domain), data, offsets[:-1], np.diff(offsets))

    keys = hashes(options.key, options.seed, _KEY_DOMAIN, _KEY_COLUMN_DOMAIN)
    if not options.fractions:
        return keys, np.zeros(len(keys), np.uint16)
    split_hashes = hashes(
        options.group_column, options.split_seed, _SPLIT_DOMAIN, _SPLIT_COLUMN_DOMAIN
    )
    return keys, np.searchsorted(
        compute_split_thresholds(options), split_hashes, side="right"
    ).astype(np.uint16)


def compute_split_thresholds(options: BuildOrder) -> U64:
    """Returns the lowest hash of each split but the first, [splits - 1] uint64.

    >>> thresholds = compute_split_thresholds(BuildOrder(splits=(("train", 0.75), ("test", 0.25))))
    >>> [hex(threshold) for threshold in thresholds.tolist()]
    ['0xc000000000000000']
    """
    fractions = np.cumsum([fraction for _, fraction in options.fractions])
    return np.array(
        [min(int(fraction * 2.0**64), 2**64 - 1) for fraction in fractions[:-1]], np.uint64
    )


def identify_file(file: InputFile) -> tuple[bytes, bytes]:
    """Returns (number of the root as 4 bytes, name), which identify a file in hashes."""
    return file.root.to_bytes(4, "little"), file.name.encode("utf-8", "surrogateescape")


def encode_key_values(column: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Returns the bytes to hash for each value of a column.

    The bytes are b"v" and the value for strings, 8 little-endian bytes for numbers, and none for
    null. So all nulls are one split group.

    >>> data, offsets = encode_key_values(pa.array(["ab", None, ""], pa.large_string()))
    >>> bytes(data), offsets.tolist()
    (b'vabv', [0, 3, 3, 4])

    Args:
        column: Strings, bytes or numbers.

    Returns:
        (data, offsets). The bytes of row i are data[offsets[i]:offsets[i + 1]].

    Raises:
        UsageError: The column is nested.
    """
    value_type = column.type
    valid = np.asarray(pc.is_valid(column))
    if pa.types.is_large_string(value_type) or pa.types.is_large_binary(value_type):
        column = column.cast(pa.large_binary())
        # The prefix b"v" distinguishes an empty string from null.
        prefixed = pc.binary_join_element_wise(
            pa.scalar(b"v", pa.large_binary()), column, pa.scalar(b"", pa.large_binary())
        )
        prefixed = pc.fill_null(prefixed, b"")
        _, offsets, data = prefixed.buffers()
        prefixed_offsets = np.frombuffer(offsets, np.int64)[
            prefixed.offset : prefixed.offset + len(prefixed) + 1
        ]
        return np.frombuffer(data, np.uint8) if data is not None and data.size else np.empty(
            0, np.uint8
        ), prefixed_offsets
    if pa.types.is_nested(value_type):
        raise UsageError(
            f"a column of type {value_type} can't decide order or split: name a "
            "column of single values"
        )
    if pa.types.is_floating(value_type):
        # -0.0 and 0.0 are one split group, and all NaN are one.
        values = (
            np.nan_to_num(
                np.asarray(pc.fill_null(column.cast(pa.float64()), 0.0)), nan=np.nan, copy=True
            )
            + 0.0
        )
        numbers = values.view(np.uint8)
    else:
        target = pa.uint64() if pa.types.is_unsigned_integer(value_type) else pa.int64()
        numbers = np.asarray(pc.fill_null(column.cast(target), 0)).view(np.uint8)
    offsets = to_offsets(8 * valid)
    return np.ascontiguousarray(numbers.reshape(-1, 8)[valid]).reshape(-1), offsets


def _row_offsets(source: Source) -> npt.NDArray[np.int64]:
    """Returns the number of positions before each file, [files + 1], for keys without a shuffle.

    If the plan has not counted the positions of each file, every file gets a range of 2^40 keys. If
    there are too many files for this, the ranges are smaller.
    """
    counts = np.zeros(len(source.files), np.int64)
    for unit in source.units:
        if (num_positions := unit.num_positions) is None:
            return np.arange(len(counts) + 1, dtype=np.int64) << min(
                40, 63 - len(counts).bit_length()
            )
        counts[unit.begin_file : unit.end_file] += num_positions
    return to_offsets(counts)
