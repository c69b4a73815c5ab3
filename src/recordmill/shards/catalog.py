"""`Catalog`: a list of the TFRecord files to read.

The manifest of a data set lists its files. All other inputs are searched for TFRecord files: files,
folders, globs and `@list.txt`.

In folders and globs, two kinds of files are left out, and the user gets a note. The first kind are
files that are not TFRecords, such as licences and manifests. The second kind are shards that no
longer belong to their data set.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from recordmill.base.errors import DataError, UsageError
from recordmill.base.magic import FORMAT_HEAD_BYTES, sniff_file_format
from recordmill.base.option_names import did_you_mean, option
from recordmill.records.tfrecord.frames import HEADER_BYTES, try_scan_frames
from recordmill.records.tfrecord.stream import detect_tfrecord_compression
from recordmill.schemas import tfmd
from recordmill.schemas.feature import Schema
from recordmill.schemas.splits import is_split_name
from recordmill.shards.file_names import (
    ShardName,
    describe_missing_shards,
    find_missing_shards,
    is_data_folder,
)
from recordmill.shards.lengths import LengthProblem, compare_length, read_lengths
from recordmill.shards.manifest import (
    INDEX_FOLDER,
    Manifest,
    ShardInfo,
    explain_missing,
    list_generations,
    load_generation,
    load_newest_manifest,
    manifest_path,
    parse_shard_name,
)
from recordmill.storage.codecs import SHARD_SUFFIXES, UNCOMPRESSED, Codec, find_codec
from recordmill.storage.compression import COMPRESSED_HEAD_BYTES, open_blocks
from recordmill.storage.file_table import InputFile
from recordmill.storage.files import (
    Stat,
    StoreSettings,
    apply_store_settings,
    check_unchanged,
    last_known_stat,
    make_store_settings,
    parse_input_paths,
    read_range,
    refresh_listing,
)
from recordmill.storage.folders import absolute_path, exists, join
from recordmill.storage.listing import Listing, list_inputs

# Split of a file if its name does not indicate one.
UNKNOWN_SPLIT = "data"
_COMPRESSED_SUFFIX = r"(?:\.gz|\.zst)?"
_TFDS_NAME = re.compile(
    r"(?:.+-)?(?P<split>[A-Za-z0-9_]+)\.(?:tfrecords?|array_record)-\d{5,}-of-\d{5,}"
    + _COMPRESSED_SUFFIX
)
# Folders in which TensorFlow Extended stores splits.
_TFX_FOLDER = re.compile(r"Split-(?P<split>[A-Za-z0-9_]+)")
_SPLIT_WORD_NAME = re.compile(
    r"(?P<split>train|validation|valid|val|dev|test|eval)(?:[-_.]\d[-_.\dof]*)?(?:\.(?:tfrecords?|tfr|records?))"
    + _COMPRESSED_SUFFIX
)
_EXTENSIONS = (
    *SHARD_SUFFIXES.values(),
    ".tfrecord.zst",
    ".tfrecords",
    ".tfr",
    ".tfrecords.gz",
    ".tfrecords.zst",
)
# Empty files with these extensions are reported in the notes instead of being left out.
_DATA_EXTENSIONS = ("tfrecord", "tfrecords", "tfr", "gz", "zst")


@dataclass(frozen=True)
class ShardFile:
    """One TFRecord file.

    Attributes:
        path: Path or URL of the file.
        name: Name of the file in messages and results.
        split: Split from the manifest, or from the name of the file.
        compression: none, gzip, zlib or zstd.
        stat: Size and times of the file when it was listed.
        info: Entry of the shard in the manifest. None if the file is not part of a data set.
        index_path: Path of the index of a shard. None if the file is not part of a data set.
        members_path: Path of the member table of a compressed shard. Otherwise None.
        stated_records: Number of records according to a `dataset_info.json` next to the file. None
            if there is none, or the file has an entry in a manifest.
    """

    path: str
    name: str
    split: str
    compression: str
    stat: Stat
    info: ShardInfo | None = None
    index_path: str | None = None
    members_path: str | None = None
    stated_records: int | None = field(default=None, compare=False, repr=False)

    @property
    def codec(self) -> Codec:
        """Codec of the compression."""
        return find_codec(self.compression)

    @property
    def identity(self) -> bytes:
        """Bytes that identify the file in a fingerprint.

        The bytes do not change if the files are moved or the data set is built again.
        """
        return (self.name if self.info is None else self.info.name).encode(
            "utf-8", "surrogateescape"
        )

    def check_unchanged(self) -> None:
        """Raises DataError if the file was replaced after it was listed.

        Callers use it after each read of the file. For shards of a data set, nothing is checked: no
        process writes to them, and their CRCs and keys reveal other contents.
        """
        if self.info is None:
            check_unchanged(self.path, self.stat, self.path)

    def compare_length(self, records: int) -> LengthProblem | None:
        """Returns a problem if the file does not have the stated number of records."""
        return compare_length(self.path, records, self.stated_records)

    def for_other_hosts(self) -> ShardFile:
        """Returns the file without its ctime.

        A copy of the file on another host has another ctime.
        """
        return replace(self, stat=replace(self.stat, ctime_ns=0))


@dataclass(frozen=True)
class Catalog:
    """TFRecord files in reading order.

    Attributes:
        files: The files.
        schema: Schema of the data set. None without a data set.
        manifest: Manifest of the data set, or None.
        root: Folder or store URL of the data set, or None.
        generation: Number of the generation of the data set, or None.
        notes: Messages for the user about files that were left out or are empty.
        store_settings: Settings for reading the files from a store. None means the settings of the
            process.
        missing_shards: Paths of shards that do not exist, although the names of other shards count
            them.
        length_problems: Problems with the number of shards in a `dataset_info.json`. `notes`
            contains them, too.
    """

    files: tuple[ShardFile, ...]
    schema: Schema | None = None
    manifest: Manifest | None = None
    root: str | None = None
    generation: int | None = None
    notes: tuple[str, ...] = field(default=())
    missing_shards: tuple[str, ...] = ()
    length_problems: tuple[LengthProblem, ...] = ()
    store_settings: StoreSettings | None = field(default=None, compare=False, repr=False)

    def apply_store_settings(self) -> None:
        """Applies the settings to this process, unless it has applied them already.

        Call this before you read the files, because the catalog may come from another process.
        """
        if self.store_settings is not None:
            apply_store_settings(self.store_settings)

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits, in order of first appearance.

        If a data set has no shards at all, its manifest still names its splits.
        """
        return tuple(
            dict.fromkeys(
                [
                    *(self.manifest.splits if self.manifest and not self.files else ()),
                    *(file.split for file in self.files),
                ]
            )
        )

    @property
    def size_bytes(self) -> int:
        return sum(file.stat.size_bytes for file in self.files)


Inputs = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def catalog_inputs(
    inputs: Inputs,
    split: str | None = None,
    *,
    generation: int | None = None,
    lenient: bool = False,
    skips_headerless: bool = False,
) -> Catalog:
    """Lists the files of the inputs, or only the files of one split.

    Args:
        inputs: Folder of a data set, or files, folders, globs and `@list.txt` of TFRecord files.
        split: Name of the only split to list. If None, all splits are listed.
        generation: Generation of the data set. None means the newest.
        lenient: See `catalog_data_set` and `catalog_files`.
        skips_headerless: See `catalog_files`.

    Raises:
        UsageError: Nothing was found, the split or the generation does not exist, or a data set is
            combined with other inputs.
        DataError: The size of a shard differs from the manifest, or no file is a TFRecord file.
    """
    paths = parse_input_paths(inputs)
    data_sets = {name: numbers for name in paths if (numbers := list_generations(name))}
    if data_sets and len(paths) > 1:
        raise UsageError(
            f"{next(iter(data_sets))} is itself a data set; read it alone, or name "
            "its .tfrecord files"
        )
    if generation is not None and not data_sets:
        raise UsageError(
            "{generation}: {path} has no generations, because it is no data set of recordmill",
            generation=option("generation", generation),
            path=paths[0],
        )
    catalog = (
        catalog_data_set(
            paths[0],
            split,
            generation=generation,
            lenient=lenient,
            known_generations=data_sets[paths[0]],
        )
        if data_sets
        else catalog_files(paths, lenient=lenient, skips_headerless=skips_headerless)
    )
    if split is None:
        return catalog
    splits = catalog.manifest.splits if catalog.manifest else catalog.splits
    if split not in splits:
        available = f"there {'is' if len(splits) == 1 else 'are'} {', '.join(splits) or 'none'}"
        raise UsageError(f"no split {split!r}; {available}{did_you_mean(split, splits)}")
    return replace(catalog, files=tuple(file for file in catalog.files if file.split == split))


def with_store_settings(
    catalog: Catalog, concurrency: int | None, cache_folder: str, max_cache_bytes: int
) -> Catalog:
    """Returns the catalog with settings for reading its files from stores.

    The settings are not applied yet.

    Args:
        catalog: The files. Their indexes get the same settings.
        concurrency: Maximum number of concurrent requests. None means the current number.
        cache_folder: Folder for cached blocks. "" means no cache.
        max_cache_bytes: Maximum size of the cache.
    """
    paths = [
        path
        for file in catalog.files
        for path in (file.path, file.index_path, file.members_path)
        if path is not None
    ]
    return replace(
        catalog,
        store_settings=make_store_settings(paths, concurrency, cache_folder, max_cache_bytes),
    )


def catalog_data_set(
    out: str,
    split: str | None = None,
    *,
    generation: int | None = None,
    lenient: bool = False,
    missing_ok: bool = False,
    known_generations: Sequence[int] = (),
) -> Catalog:
    """Lists the shards of a data set.

    Args:
        out: Folder or store URL of the data set.
        split: Name of the only split to list. If None, all splits are listed.
        generation: Generation of the data set. None means the newest.
        lenient: If True, a shard may have another size than in the manifest. The reader counts its
            missing records as rejects.
        missing_ok: If True, shards may be missing. Their size is 0 in the catalog.
        known_generations: See `load_newest_manifest`.

    Raises:
        UsageError: The generation does not exist.
        DataError: There is no data set, or a shard is missing or has another size.
    """
    # The caller may change the working directory after opening the data set.
    out = absolute_path(out)
    requested = generation
    while True:
        generation, manifest = (
            load_newest_manifest(out, known_generations)
            if requested is None
            else (requested, load_generation(out, requested))
        )
        known_generations = ()
        try:
            all_files = _iter_data_set_files(out, manifest, lenient, missing_ok)
            files = tuple(file for file in all_files if split in (None, file.split))
        except DataError:
            numbers = list_generations(out)
            if generation in (numbers if requested is not None else numbers[-1:]):
                raise
        else:
            schema = tfmd.from_pbtxt(manifest.schema, str(manifest_path(out, generation)))
            return Catalog(files, schema, manifest, str(out), generation)
        # Reached only if a build has replaced the data set in the meantime and removed the old
        # shards. The next attempt uses the new generation. If the user requested the old one, the
        # next attempt reports that it was removed.


def _iter_data_set_files(
    out: str, manifest: Manifest, lenient: bool, missing_ok: bool
) -> Iterator[ShardFile]:
    folders = {part.folder: join(out, part.folder) for part in manifest.parts}
    for folder in folders.values():
        # In a store, one listing of the folder saves a request per shard, because `last_known_stat`
        # answers from it.
        refresh_listing(folder)
    for split, part, info in manifest.shards():
        name, folder = parse_shard_name(info), folders[part.folder]
        # Not `join`, which takes twice the time of everything else here. A data set may have very
        # many shards.
        path = f"{folder}/{info.name}"
        state = (
            Stat(0, 0)
            if missing_ok and not exists(path)
            else check_size(path, info, lenient=lenient)
        )
        members = f"{folder}/{INDEX_FOLDER}/{name.members_name}" if name.has_members else None
        index = f"{folder}/{INDEX_FOLDER}/{name.index_name}"
        yield ShardFile(
            path, f"{part.folder}/{info.name}", split, name.compression, state, info, index, members
        )


def check_size(path: str, info: ShardInfo, *, lenient: bool = False) -> Stat:
    """Compares the size of a shard file with the manifest.

    Returns:
        Size and times of the file.

    Raises:
        DataError: The file is missing, or its size differs and `lenient` is False.
    """
    with explain_missing(path):
        state = last_known_stat(path)
    if state.size_bytes != info.bytes and not lenient:
        raise DataError(
            "has {size_bytes} bytes where the manifest says {bytes}: truncated or "
            "replaced; to read its complete records, use read or inspect with "
            "{max_rejects}",
            size_bytes=state.size_bytes,
            bytes=info.bytes,
            max_rejects=option("max_rejects", "1%"),
            source=path,
        )
    return state


def catalog_files(
    inputs: Iterable[str], *, lenient: bool = False, skips_headerless: bool = False
) -> Catalog:
    """Lists the TFRecord files among the inputs.

    A file in a folder or glob is listed if it begins with a record, or has an extension of
    TFRecords. A file that the user has named is listed, or is an error.

    Args:
        inputs: Files, folders, globs and `@list.txt`.
        lenient: If True, a named file with the contents of another kind is listed, too.
        skips_headerless: If True, files in folders that do not begin with a record are left out,
            with a note. Such files are listed only if there are no other files.

    Raises:
        DataError: No file is a TFRecord file, or a file that the user has named has the contents of
            another kind.
    """
    listing = list_inputs(list(inputs), data_extensions=_DATA_EXTENSIONS)
    found = _find_records(listing, lenient=lenient, skips_headerless=skips_headerless)
    if not found.files:
        logs = (
            f"; logs of TensorBoard, such as {found.event_log}, have no data"
            if found.event_log
            else ""
        )
        raise DataError(
            f"there is no TFRecord file among the {len(listing.files)} files{logs}",
            source=", ".join(inputs),
        )
    # Files that the user has named may be a part of a set on purpose, so they are not compared.
    missing = find_missing_shards(
        file.path for file in listing.files if not listing.is_explicit(file)
    )
    stated, length_problems = read_lengths({file.path: file.split for file in found.files})
    return Catalog(
        tuple(replace(file, stated_records=stated.get(file.path)) for file in found.files),
        notes=(
            *listing.notes,
            *_note_files(found),
            *([describe_missing_shards(missing)] if missing else []),
            *map(str, length_problems),
        ),
        missing_shards=tuple(missing),
        length_problems=tuple(length_problems),
    )


@dataclass(frozen=True)
class _FoundFiles:
    """Files of a listing, divided by their contents.

    Attributes:
        files: The files to read.
        headerless_names: Names of files that do not begin with a record and are left out.
        other_names: Names of the other files that are left out.
        event_log: The name of a log of TensorBoard, or "".
        num_outdated: Number of shards of earlier generations, which are left out.
    """

    files: Sequence[ShardFile]
    headerless_names: Sequence[str]
    other_names: Sequence[str]
    event_log: str
    num_outdated: int


def _find_records(listing: Listing, *, lenient: bool, skips_headerless: bool) -> _FoundFiles:
    """Finds the TFRecord files of a listing. `catalog_files` describes the options."""
    files, headerless_files = list[ShardFile](), list[ShardFile]()
    other_names, event_log = list[str](), ""
    current_folders: dict[str, frozenset[str]] = {}
    num_outdated = 0
    for file in listing.files:
        is_explicit, has_extension = (
            listing.is_explicit(file),
            file.name.lower().endswith(_EXTENSIONS),
        )
        if not is_explicit and _is_outdated(file.path, current_folders):
            num_outdated += has_extension
            continue
        compression = UNCOMPRESSED if file.stat.size_bytes == 0 else sniff_compression(file.path)
        if not is_explicit and compression == UNCOMPRESSED and _is_event_log(file):
            event_log = file.name
            other_names.append(file.name)
            continue
        if not is_explicit and compression is None and not has_extension:
            other_names.append(file.name)
            continue
        # A file with an extension of TFRecords is read, because a damaged one may look like text.
        # Its first error explains what is wrong. An explicitly named file with another extension is
        # read unless it has the contents of another kind.
        if compression is None and not lenient and not has_extension:
            _refuse_other_kind(file)
        has_no_header = compression is None and not is_explicit
        (headerless_files if skips_headerless and has_no_header else files).append(
            ShardFile(
                file.path,
                file.name,
                split_from_shard_name(file.path),
                compression
                or detect_tfrecord_compression(
                    read_range(file.path, 0, COMPRESSED_HEAD_BYTES).tobytes()
                ),
                file.stat,
            )
        )
    if not files:
        files, headerless_files = headerless_files, []
    headerless_names = [file.name for file in headerless_files]
    return _FoundFiles(files, headerless_names, other_names, event_log, num_outdated)


def _note_files(found: _FoundFiles) -> Iterator[str]:
    """Yields notes on files that are left out or empty."""
    if found.num_outdated:
        yield (
            f"{found.num_outdated} shard(s) of earlier generations of their data set were left out"
        )
    if names := found.other_names:
        yield f"left out files that are not TFRecords ({len(names)}): {_show_names(names)}"
    if names := found.headerless_names:
        yield (
            f"left out files that are damaged at the start, or not TFRecords ({len(names)}): "
            f"{_show_names(names)}"
        )
    # An empty file is either a shard without records or a failed copy.
    if empty := [file.name for file in found.files if file.stat.size_bytes == 0]:
        yield f"empty files, which have no records ({len(empty)}): {_show_names(empty)}"


def _is_event_log(file: InputFile) -> bool:
    head = read_range(file.path, 0, FORMAT_HEAD_BYTES).tobytes()
    file_format = sniff_file_format(head)
    return file_format is not None and file_format.name == "TensorBoard"


def _refuse_other_kind(file: InputFile) -> None:
    from recordmill.sources.common.content import (
        BINARY_CONTENT,
        OTHER_CONTENT,
        UNKNOWN_FORMAT,
        sniff_file,
    )

    content = sniff_file(file)
    if content.kind == "tfrecord" or content.detail == UNKNOWN_FORMAT:
        return
    build = f"; `recordmill build {content.kind} {file.path}` makes TFRecords of it"
    raise DataError(
        f"this is not a TFRecord file: {content.detail}"
        f"{'' if content.kind in (BINARY_CONTENT, OTHER_CONTENT) else build}",
        source=file.path,
    )


def _is_outdated(path: str, current_folders: dict[str, frozenset[str]]) -> bool:
    """Returns whether a file is in an outdated data folder.

    Such a folder belongs to an earlier generation, or to a build that did not commit.

    Args:
        path: The file.
        current_folders: A cache, which this function fills: for each data set, the names of the
            data folders that are in use.
    """
    folder = os.path.dirname(path)
    root, name = os.path.dirname(folder), os.path.basename(folder)
    if not is_data_folder(name):
        return False
    if root not in current_folders:
        numbers = list_generations(root)
        parts = load_newest_manifest(root, numbers)[1].parts if numbers else ()
        current_folders[root] = frozenset(part.folder for part in parts)
    return bool(current_folders[root]) and name not in current_folders[root]


def _show_names(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def split_from_shard_name(name: str) -> str:
    """Returns the split that the name of a file indicates, or UNKNOWN_SPLIT.

    The function knows the names of recordmill, TensorFlow Datasets and TensorFlow Extended, and
    usual words such as "train".

    >>> split_from_shard_name("x/train-00003-of-00016.tfrecord.gz")
    'train'
    >>> split_from_shard_name("mnist-test.tfrecord-00000-of-00001")
    'test'
    >>> split_from_shard_name("Split-eval/data_tfrecord-00000-of-00012.gz")
    'eval'
    >>> split_from_shard_name("val_03.tfrecords"), split_from_shard_name("tests.tfrecord")
    ('val', 'data')
    >>> split_from_shard_name("..-00000-of-00001.tfrecord")
    'data'
    """
    folder, _, base = name.rpartition("/")
    if (shard_name := ShardName.parse(base)) is not None:
        # The file may be of any origin, and `..` is not a valid name of a split.
        return shard_name.split if is_split_name(shard_name.split) else UNKNOWN_SPLIT
    match = (
        _TFDS_NAME.fullmatch(base)
        or _TFX_FOLDER.fullmatch(folder.rpartition("/")[2])
        or _SPLIT_WORD_NAME.fullmatch(base)
    )
    return match["split"] if match and is_split_name(match["split"]) else UNKNOWN_SPLIT


def sniff_compression(path: str) -> str | None:
    """Detects the compression of a TFRecord file from its first record header.

    Returns:
        The compression. None if the file does not begin with a record.
    """
    head = read_range(path, 0, COMPRESSED_HEAD_BYTES)
    compression = detect_tfrecord_compression(head.tobytes())
    if not find_codec(compression).is_plain:
        try:
            head = next(
                open_blocks(path, block_bytes=HEADER_BYTES, compression=compression), head[:0]
            )
        except DataError:
            return None
        if len(head) == 0:
            return compression  # a compressed file without records
    # The header has a CRC of its own, so a valid one does not occur by chance.
    _, _, error = try_scan_frames(head, source=path, is_final=False, checks_payloads=False)
    return compression if error is None and len(head) >= HEADER_BYTES else None
