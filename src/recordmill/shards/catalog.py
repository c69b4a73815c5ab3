"""Finds what there is to read: the shards of a data set by its manifest, or any TFRecord files by their content, as one
`Catalog`.

A folder that holds a data set of ours is read by its manifest and nothing else. All other INPUTs (files, folders,
globs, `@list.txt`) are listed; in a folder or a glob, files that are no TFRecords (licences, manifests), and shards
that a data set among them does not consist of any more, are left out and named in `notes`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from recordmill.base.errors import DataError, UsageError
from recordmill.base.option_names import did_you_mean, option
from recordmill.records.tfrecord.frames import HEADER_BYTES, try_scan
from recordmill.records.tfrecord.stream import detect_tfrecord
from recordmill.schemas import tfmd
from recordmill.schemas.feature import Schema
from recordmill.schemas.splits import is_split_name
from recordmill.shards.file_names import ShardName, is_data_folder
from recordmill.shards.manifest import (
    INDEX_FOLDER,
    Manifest,
    ShardInfo,
    explain_missing,
    list_generations,
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
    parse_input_path,
    read_range,
    refresh_listing,
)
from recordmill.storage.folders import absolute_path, exists, join
from recordmill.storage.listing import list_inputs

UNKNOWN_SPLIT = "data"  # the split of files whose names say none
_COMPRESSED_SUFFIX = r"(?:\.gz|\.zst)?"
_TFDS_NAME = re.compile(
    r"(?:.+-)?(?P<split>[A-Za-z0-9_]+)\.(?:tfrecords?|array_record)-\d{5,}-of-\d{5,}"
    + _COMPRESSED_SUFFIX
)
_TFX_FOLDER = re.compile(
    r"Split-(?P<split>[A-Za-z0-9_]+)"
)  # the folders in which TensorFlow Extended keeps splits
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
_DATA_EXTENSIONS = (
    "tfrecord",
    "tfrecords",
    "tfr",
    "gz",
    "zst",
)  # an empty file of these is told of, not left out


@dataclass(frozen=True)
class ShardFile:
    """One TFRecord file.

    path: where to open it. name: as messages and results call it. split: by manifest or file name. compression: none,
    gzip, zlib or zstd. stat: what it was when it was listed. info, index, members: of our own shards, what the manifest
    says of it and where its index is. terms: on which stores are read, which go along into other processes.
    """

    path: str
    name: str
    split: str
    compression: str
    stat: Stat
    info: ShardInfo | None = None
    index_path: str | None = None
    members_path: str | None = None
    store_settings: StoreSettings | None = field(default=None, compare=False, repr=False)

    @property
    def codec(self) -> Codec:
        """The codec of its bytes."""
        return find_codec(self.compression)

    @property
    def identity(self) -> bytes:
        """The file's name in hashes: its name under its INPUT, of a data set the shard's own, so that neither moving
        nor building anew changes it.
        """
        return (self.name if self.info is None else self.info.name).encode(
            "utf-8", "surrogateescape"
        )

    def check_unchanged(self) -> None:
        """Raises DataError if the bytes that were just read may be of another file than the one that was listed; of our
        own shards, which nobody writes to, CRCs and keys say that.
        """
        if self.info is None:
            check_unchanged(self.path, self.stat, self.path)

    def for_other_hosts(self) -> ShardFile:
        """The file without the time of its last change of state, which copies on other hosts have of their own."""
        return replace(self, stat=replace(self.stat, ctime_ns=0))


@dataclass(frozen=True)
class Catalog:
    """The files in reading order. schema, manifest, root, generation: of a data set of ours, else None.
    notes: what was left out.
    """

    files: tuple[ShardFile, ...]
    schema: Schema | None = None
    manifest: Manifest | None = None
    root: str | None = None
    generation: int | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def splits(self) -> tuple[str, ...]:
        """In order of first appearance; a data set's splits without shards are there too."""
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


def catalog_inputs(inputs: Inputs, split: str | None = None, *, lenient: bool = False) -> Catalog:
    """Returns what the INPUTs hold, or one split of it.

    lenient: a shard of another size than the manifest says is no error here; its reader counts what it lacks.

    Raises:
        UsageError: nothing there, no such split, or a data set together with other inputs.
        DataError: a shard's size is not what the manifest says; no file is a TFRecord.
    """
    paths = [
        parse_input_path(name)
        for name in ([inputs] if isinstance(inputs, str | os.PathLike) else inputs)
    ]
    data_sets = {name: numbers for name in paths if (numbers := list_generations(name))}
    if data_sets and len(paths) > 1:
        raise UsageError(
            f"{next(iter(data_sets))} is a data set of its own; read it alone, or name its .tfrecord files"
        )
    catalog = (
        catalog_data_set(paths[0], split, lenient=lenient, known_generations=data_sets[paths[0]])
        if data_sets
        else catalog_files(paths, lenient=lenient)
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
    """The catalog whose files, and their indices, are read as `storage.files.apply_store_settings` says."""
    paths = [
        path
        for file in catalog.files
        for path in (file.path, file.index_path, file.members_path)
        if path is not None
    ]
    store_settings = apply_store_settings(paths, concurrency, cache_folder, max_cache_bytes)
    return replace(
        catalog, files=tuple(replace(file, store_settings=store_settings) for file in catalog.files)
    )


def catalog_data_set(
    out: str,
    split: str | None = None,
    *,
    lenient: bool = False,
    missing_ok: bool = False,
    known_generations: Sequence[int] = (),
) -> Catalog:
    """The shards that the newest manifest of OUT names, or one split's; all of them are checked to be there (unless
    missing_ok) with their sizes (unless lenient). known: as of `load_newest_manifest`.
    """
    out = absolute_path(out)  # whoever opened it may go to another folder
    while True:
        generation, manifest = load_newest_manifest(out, known_generations)
        known_generations = ()
        try:
            all_files = _data_set_files(out, manifest, lenient, missing_ok)
            files = tuple(file for file in all_files if split in (None, file.split))
        except DataError:
            if list_generations(out)[-1:] == [generation]:
                raise
        else:
            schema = tfmd.from_pbtxt(manifest.schema, str(manifest_path(out, generation)))
            return Catalog(files, schema, manifest, str(out), generation)
        # builds have replaced the data set since, and removed what it was


def _data_set_files(
    out: str, manifest: Manifest, lenient: bool, missing_ok: bool
) -> Iterator[ShardFile]:
    folders = {part.folder: join(out, part.folder) for part in manifest.parts}
    for folder in folders.values():
        refresh_listing(folder)
    for split, part, info in manifest.shards():
        name, folder = parse_shard_name(info), folders[part.folder]
        path = f"{folder}/{info.name}"  # `join` takes twice as long as all else here, and there may be very many
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
    """The file's state; DataError if it isn't there or is not as long as the manifest says."""
    with explain_missing(path):
        state = last_known_stat(path)
    if state.size_bytes != info.bytes and not lenient:
        raise DataError(
            f"has {state.size_bytes} bytes where the manifest says {info.bytes}: truncated or replaced; "
            f"read and inspect take what is whole in it with {option('max_rejects', '1%')}",
            source=path,
        )
    return state


def catalog_files(inputs: Iterable[str], *, lenient: bool = False) -> Catalog:
    """The TFRecord files among the INPUTs, by content. lenient: a file that was named may be of another kind.

    Raises:
        DataError: no file is a TFRecord file, or one that was named is of another kind.
    """
    listing = list_inputs(list(inputs), data_extensions=_DATA_EXTENSIONS)
    files, other_files = [], []
    current_folders: dict[str, frozenset[str]] = {}
    num_outdated = 0
    for file in listing.files:
        if not listing.is_named(file) and _is_outdated(file.path, current_folders):
            num_outdated += file.name.lower().endswith(_EXTENSIONS)
            continue
        compression = UNCOMPRESSED if file.stat.size_bytes == 0 else sniff_compression(file.path)
        if (
            compression is None
            and not listing.is_named(file)
            and not file.name.lower().endswith(_EXTENSIONS)
        ):
            other_files.append(file.name)
            continue
        # What is called a TFRecord is read whatever it looks like: its first error says what is wrong with it, and a
        # damaged one may look like text. Another file that was named is read unless it is of another kind.
        if compression is None and not lenient and not file.name.lower().endswith(_EXTENSIONS):
            _refuse_other_kind(file)
        files.append(
            ShardFile(
                file.path,
                file.name,
                split_from_shard_name(file.path),
                compression
                or detect_tfrecord(read_range(file.path, 0, COMPRESSED_HEAD_BYTES).tobytes()),
                file.stat,
            )
        )
    if not files:
        raise DataError(
            f"no TFRecord file among the {len(listing.files)} files", source=", ".join(inputs)
        )
    notes = list(listing.notes)
    if num_outdated:
        notes.append(
            f"{num_outdated} shard(s) of earlier generations of their data set were left out"
        )
    if other_files:
        notes.append(
            f"left out what is no TFRecord ({len(other_files)}): {_show_names(other_files)}"
        )
    # a shard without records, or one whose copying failed: nothing tells them apart
    if empty := [file.name for file in files if file.stat.size_bytes == 0]:
        notes.append(f"no byte, and so no record, is in {_show_names(empty)} ({len(empty)})")
    return Catalog(tuple(files), notes=tuple(notes))


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
        f"this is no TFRecord file: {content.detail}{'' if content.kind in (BINARY_CONTENT, OTHER_CONTENT) else build}",
        source=file.path,
    )


def _is_outdated(path: str, current_folders: dict[str, frozenset[str]]) -> bool:
    """Returns whether the file lies beside what a data set is now: in the folder of an earlier generation, or of a
    build that did not commit. known: folder of a data set to those that it consists of, filled here.
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
    """The split that a shard's name says, as recordmill, TensorFlow Datasets and TensorFlow Extended write them, or a
    usual word for one.

    >>> split_from_shard_name("x/train-00003-of-00016.tfrecord.gz"), split_from_shard_name("mnist-test.tfrecord-00000-of-00001")
    ('train', 'test')
    >>> split_from_shard_name("a.tfrecord")
    'data'
    >>> split_from_shard_name("Split-eval/data_tfrecord-00000-of-00012.gz")
    'eval'
    >>> split_from_shard_name("val_03.tfrecords"), split_from_shard_name("tests.tfrecord")
    ('val', 'data')
    >>> split_from_shard_name("..-00000-of-00001.tfrecord")
    'data'
    """
    folder, _, base = name.rpartition("/")
    if (
        shard_name := ShardName.parse(base)
    ) is not None:  # of somebody's file: `..` is no name of a split
        return shard_name.split if is_split_name(shard_name.split) else UNKNOWN_SPLIT
    match = (
        _TFDS_NAME.fullmatch(base)
        or _TFX_FOLDER.fullmatch(folder.rpartition("/")[2])
        or _SPLIT_WORD_NAME.fullmatch(base)
    )
    return match["split"] if match and is_split_name(match["split"]) else UNKNOWN_SPLIT


def sniff_compression(path: str) -> str | None:
    """Returns the compression of a TFRecord file, known by its first record header; None for any other file."""
    head = read_range(path, 0, COMPRESSED_HEAD_BYTES)
    compression = detect_tfrecord(head.tobytes())
    if not find_codec(compression).is_plain:
        try:
            head = next(
                open_blocks(path, block_bytes=HEADER_BYTES, compression=compression), head[:0]
            )
        except DataError:
            return None
        if len(head) == 0:
            return compression  # a compressed file of no records
    _, _, error = try_scan(head, source=path, final=False, check=False)
    return compression if error is None and len(head) >= HEADER_BYTES else None
