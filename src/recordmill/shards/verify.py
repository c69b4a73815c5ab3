"""Verification of data sets against their manifests, and of TFRecord files against their CRCs.

Every byte of every shard is read and compared: size, digest, number of records, both CRCs of each
frame, the checksum of the records, and the index. Then missing and stray files are listed, and the
derived files are compared with the manifest. Files of runs, alive or dead, are not stray files.

Shards are checked in parallel, each as a stream of 8 MiB blocks, so memory does not depend on their
size.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from recordmill.base.arguments import suggest_keywords
from recordmill.base.display import Display
from recordmill.base.errors import DataError, UsageError
from recordmill.base.machine import count_cores
from recordmill.base.messages import Message
from recordmill.base.option_names import option
from recordmill.base.progress import ProgressArgument, to_progress
from recordmill.base.sizes import format_count
from recordmill.base.threads import thread_map
from recordmill.options.calls import Values, with_keywords
from recordmill.options.read import VerifyOptions
from recordmill.records.tfrecord.frames import FRAME_OVERHEAD_BYTES, Frames
from recordmill.records.tfrecord.stream import read_frames
from recordmill.shards.catalog import Inputs, ShardFile, catalog_data_set, catalog_files
from recordmill.shards.dead_runs import load_generations
from recordmill.shards.derived_files import (
    OPTIONAL_DERIVED_NAMES,
    is_derived_name,
    make_derived_files,
)
from recordmill.shards.index import (
    INDEX_DTYPE,
    MEMBERS_DTYPE,
    Index,
    add_checksums,
    map_table,
    record_checksum,
)
from recordmill.shards.manifest import (
    INDEX_FOLDER,
    INPUTS_NAME,
    SKETCH_NAME,
    STATISTICS_NAME,
    TRANSFORM_FOLDER,
    Manifest,
    Part,
    is_data_set,
    list_generations,
    load_newest_manifest,
    parse_shard_name,
)
from recordmill.storage.codecs import MAX_RATIO
from recordmill.storage.digest import digest_file, sha256_file
from recordmill.storage.files import (
    is_remote,
    limit_requests,
    parse_input_paths,
    put_bytes,
    read_range,
    stat,
)
from recordmill.storage.folders import exists, find_files, join, list_names_if_present, remove_file
from recordmill.storage.walk import DATA_PREFIX, RUN_PREFIX, find_unfinished

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from recordmill.options.keywords import VerifyKeywords

_BLOCK_BYTES = 8 << 20  # 8 MiB
_MAX_LISTED_DAMAGE = 100  # damaged places that are listed per file
_MAX_ATTEMPTS = 5
# Longer than a commit takes after it has renamed the data folder.
_COMMIT_WAIT_SEC = 0.3


@dataclass(frozen=True)
class Problem:
    """A problem that `verify` has found.

    Attributes:
        file: Path of the file.
        place: Place in the file, such as a record or a byte. Empty if the problem is about the
            complete file.
        problem: Description of the problem.
        mended: True if `verify` has corrected the problem.
    """

    file: str
    place: str
    problem: str
    mended: bool = False

    def __str__(self) -> str:
        location = f"{self.file}: {self.place}" if self.place else self.file
        return f"{location}: {self.problem}{' (mended)' if self.mended else ''}"


@suggest_keywords
@with_keywords("verify")
def verify(
    inputs: Inputs,
    *,
    progress: ProgressArgument = None,
    quiet: bool = True,
    **options: Unpack[VerifyKeywords],
) -> list[Problem]:
    """Checks a data set, or any TFRecord files, and returns the problems.

    Args:
        inputs: Folder of a data set, or files, folders and globs.
        progress: A function that is called with the progress, see `build`.
        quiet: If False, the progress is displayed.
        **options: The options of `recordmill verify`, as keywords. docs/reference.md lists them.

    Returns:
        The problems. An empty list if there are none.

    Raises:
        UsageError: There is nothing to verify.
        DataError: The manifest can't be read.
    """
    chosen = Values("verify", options)[VerifyOptions]
    limit_requests(chosen.storage_requests)
    paths = parse_input_paths(inputs)
    data_sets = [name for name in paths if is_data_set(name)]
    if data_sets and len(paths) > 1:
        raise UsageError(f"{data_sets[0]} is itself a data set; verify it alone")
    if chosen.mend and any(is_remote(name) for name in paths):
        raise UsageError(
            "{mend}: {paths} is in a store, and verify does not write to stores",
            mend=option("mend", True),
            paths=paths[0],
        )

    counters = to_progress(progress)
    counters.begin("verify")

    def check(file: ShardFile) -> list[Problem]:
        return list(check_shard(file, lambda records: counters.advance(records=records)))

    with Display(counters, quiet):
        for _ in range(_MAX_ATTEMPTS):
            catalog = (
                catalog_data_set(data_sets[0], lenient=True, missing_ok=True)
                if data_sets
                else catalog_files(paths, lenient=True)
            )
            if catalog.manifest is not None:
                counters.total = sum(catalog.manifest.records.values())
            shard_problems = thread_map(check, catalog.files, chosen.threads or count_cores())
            problems = [problem for one_shard in shard_problems for problem in one_shard]
            problems += [
                Problem(path, "", "is missing; the names of the other shards count it")
                for path in catalog.missing_shards
            ]
            if not data_sets:
                return problems + [
                    Problem(problem.path, "", problem.text) for problem in catalog.length_problems
                ]
            problems += _check_settled_tree(data_sets[0], chosen.mend)
            # Otherwise a build has replaced the generation that was checked, so try again with the
            # new one.
            if not problems or list_generations(data_sets[0])[-1:] == [catalog.generation]:
                break
    return problems


def _check_settled_tree(out: str, mend: bool) -> list[Problem]:
    """Checks the files next to the shards. Repeats this if a run may be committing.

    A commit takes moments, so a problem that remains after some attempts is a real one.
    """
    for _ in range(_MAX_ATTEMPTS):
        problems = check_tree(out)
        if not problems or not any(
            name.startswith(RUN_PREFIX) for name in list_names_if_present(out)
        ):
            break
        time.sleep(_COMMIT_WAIT_SEC)
    return check_tree(out, mend=True) if mend and problems else problems


def check_shard(file: ShardFile, progress: Callable[[int], None]) -> Iterator[Problem]:
    """Yields the problems of one shard and its index.

    `progress` is called with the number of records of each block.
    """
    info = file.info
    if info is not None:
        try:
            size = stat(file.path).size_bytes
        except FileNotFoundError:
            yield Problem(file.path, "", "is missing; the manifest names it")
            return
        if size != info.bytes:
            yield Problem(
                file.path,
                f"byte {min(size, info.bytes)}",
                f"has {size} bytes where the manifest says {info.bytes}",
            )
        if (digest := digest_file(file.path)) != info.digest:
            yield Problem(
                file.path, "", f"the digest is {digest} where the manifest says {info.digest}"
            )
    index, problems = _load_index(file)
    yield from problems
    # The index is compared only up to the first difference, because one problem is enough.
    records, framed_bytes, checksum, index_fits = (
        0,
        0,
        0,
        index is not None and (info is None or len(index) == info.records),
    )
    # The manifest contains the uncompressed size of a shard. Any other file could be a
    # decompression bomb, so the ratio is limited.
    max_ratio = MAX_RATIO if info is None else None
    num_damaged = 0
    try:
        for batch in read_frames(
            file.path,
            batch_bytes=_BLOCK_BYTES,
            compression=file.compression,
            max_ratio=max_ratio,
        ):
            for damage in batch.damage:
                if num_damaged < _MAX_LISTED_DAMAGE:
                    error = damage.error(file.path)
                    yield Problem(file.path, error.place, error.reason)
                num_damaged += 1
            if index is not None and index_fits and not num_damaged:
                entries = index[records : records + len(batch)]
                if (problem := _compare_entries(batch, framed_bytes, entries, records)) is not None:
                    yield Problem(str(file.index_path), *problem)
                    index_fits = False
                else:
                    checksum = add_checksums(
                        checksum, record_checksum(np.ascontiguousarray(entries["key"]), batch.crcs)
                    )
            records += len(batch)
            framed_bytes += int(batch.lengths.sum()) + FRAME_OVERHEAD_BYTES * len(batch)
            progress(len(batch))
        file.check_unchanged()
    except DataError as error:
        yield Problem(file.path, error.place, error.reason)
        return
    if num_damaged > _MAX_LISTED_DAMAGE:
        count = format_count(num_damaged - _MAX_LISTED_DAMAGE, "more record")
        yield Problem(file.path, "", f"{count} can't be read")
    # The positions of other records may have changed, too. So nothing else is compared.
    if num_damaged:
        return
    if info is None:
        if (wrong := file.compare_length(records)) is not None:
            yield Problem(wrong.path, "", wrong.text)
        return
    if records != info.records or framed_bytes != info.framed_bytes:
        yield Problem(
            file.path,
            "",
            f"holds {records} records in {framed_bytes} bytes where the manifest says {info.records} in {info.framed_bytes}",
        )
    elif index_fits and f"{checksum:016x}" != info.sum:
        yield Problem(
            file.path,
            "",
            f"the sum of its records is {checksum:016x} where the manifest says "
            f"{info.sum}: payloads or keys were changed",
        )


def _load_index(file: ShardFile) -> tuple[Index | None, list[Problem]]:
    """Loads the index of a shard and checks its length and the member table.

    Returns:
        (index, problems). The index is None if it can't be loaded, or for a file without an index.
    """
    if file.index_path is None or file.info is None:
        return None, []
    problems: list[Problem] = []
    index = _map_table(file.index_path, INDEX_DTYPE, problems)
    if index is not None and len(index) != file.info.records:
        problems.append(
            Problem(
                file.index_path,
                "",
                f"lists {len(index)} records where the manifest says {file.info.records}",
            )
        )
    if (
        file.members_path is not None
        and (members := _map_table(file.members_path, MEMBERS_DTYPE, problems)) is not None
    ):
        problems += _check_members(file, members, index)
    return index, problems


def _map_table(path: str, dtype: np.dtype[np.void], problems: list[Problem]) -> Index | None:
    try:
        return map_table(path, dtype)
    except DataError as error:
        problems.append(Problem(path, "", error.reason))
        return None


def _check_members(file: ShardFile, members: Index, index: Index | None) -> list[Problem]:
    """Compares the member table with the index and the file.

    Members must be in order. The contents of a member must begin with a record, and its bytes in
    the file with the magic number of the compression.
    """
    assert file.members_path is not None
    if len(members) and (members["compressed"][0] or members["uncompressed"][0]):
        return [Problem(file.members_path, "entry 0", "does not begin at byte 0")]
    for name in ("compressed", "uncompressed"):
        if len(late := np.flatnonzero(np.diff(members[name]) <= 0)):
            return [
                Problem(file.members_path, f"entry {late[0] + 1}", f"{name} bytes do not ascend")
            ]
    if (
        index is not None
        and len(index)
        and not np.isin(members["uncompressed"], index["offset"]).all()
    ):
        return [Problem(file.members_path, "", "a member does not begin with a record")]
    magic = file.codec.magic
    for entry, offset in enumerate(members["compressed"].tolist()):
        if read_range(file.path, offset, offset + len(magic)).tobytes() != magic:
            return [
                Problem(
                    file.members_path,
                    f"entry {entry}",
                    f"no {file.compression} member begins at byte {offset} of the shard",
                )
            ]
    return []


def _compare_entries(
    batch: Frames, first_offset: int, entries: Index, first_record: int
) -> tuple[str, str] | None:
    """Compares the index entries of a block with its frames.

    Args:
        batch: The frames.
        first_offset: Offset of the block in the shard.
        entries: Index entries of the records of the block.
        first_record: Number of the first record of the block.

    Returns:
        (place, problem) of the first difference, or None.
    """
    if len(entries) < len(batch):
        return f"record {first_record + len(entries)}", "is not in the index"
    wrong = (entries["offset"] != batch.starts + first_offset) | (
        entries["length"] != batch.lengths
    )
    if not wrong.any():
        return None
    row = int(np.argmax(wrong))
    actual = f"offset {batch.starts[row] + first_offset}, length {batch.lengths[row]}"
    return (
        f"record {first_record + row}",
        f"offset {entries['offset'][row]}, length {entries['length'][row]} where the shard has {actual}",
    )


def check_tree(out: str, *, mend: bool = False) -> list[Problem]:
    """Finds stray files and wrong derived files of a data set.

    Args:
        out: The data set.
        mend: If True, wrong derived files are written again, and extra ones are removed.
    """
    generation, manifest = load_newest_manifest(out)
    problems: list[Problem] = []
    generations = load_generations(out)
    statistics_folders = {
        kept.statistics_folder for kept in generations.values() if "file" in kept.statistics
    }
    for part in manifest.parts:
        for folder, expected in _expected_names(
            part,
            transform=bool(manifest.transform) and part.folder == manifest.transform_folder,
            statistics=part.folder in statistics_folders,
        ).items():
            path = join(out, part.folder, *folder)
            unexpected = [name for name in list_names_if_present(path) if name not in expected]
            problems += [
                Problem(join(path, name), "", "is not part of the data set") for name in unexpected
            ]
    # the files of runs, alive or dead, are not damage
    run_names = {path.rpartition("/")[2] for path in find_unfinished(out)}
    committed = {part.folder for kept in generations.values() for part in kept.parts}
    problems += [
        Problem(join(out, name), "", "belongs to no committed generation")
        for name in list_names_if_present(out)
        if name.startswith(DATA_PREFIX) and name not in committed | run_names
    ]
    return (
        problems
        + _check_transform(out, manifest)
        + _check_statistics_files(out, manifest)
        + check_derived(out, manifest, generation, mend=mend)
    )


def _expected_names(
    part: Part, transform: bool, statistics: bool
) -> dict[tuple[str, ...], set[str]]:
    """Returns the names of the files that belong into each folder of a part.

    Args:
        transform: True if the part has the files of the transform.
        statistics: True if the part has the files of the statistics.

    Returns:
        Names by folder. A folder is the tuple of its path components below the data folder.
    """
    shards = [info for shards in part.splits.values() for info in shards]
    names = [parse_shard_name(info) for info in shards]
    indexes = {name.index_name for name in names} | {
        name.members_name for name in names if name.has_members
    }
    folders = {INDEX_FOLDER} | ({TRANSFORM_FOLDER} if transform else set())
    return {
        (): {info.name for info in shards}
        | {INPUTS_NAME}
        | ({STATISTICS_NAME, SKETCH_NAME} if statistics else set())
        | folders,
        (INDEX_FOLDER,): indexes,
    }


def _check_transform(out: str, manifest: Manifest) -> list[Problem]:
    """Compares the files of the saved transform with the manifest."""
    if not manifest.transform:
        return []
    folder = join(out, manifest.transform_folder, TRANSFORM_FOLDER)
    files = find_files(folder)
    problems = [
        Problem(
            join(folder, name),
            "",
            "is missing; the manifest names it" if name not in files else "SHA-256 differs",
        )
        for name, entry in manifest.transform["files"].items()
        if name not in files or sha256_file(files[name]) != entry["sha256"]
    ]
    strays = sorted(files.keys() - manifest.transform["files"].keys())
    return problems + [
        Problem(join(folder, name), "", "is not part of the data set") for name in strays
    ]


def _check_statistics_files(out: str, manifest: Manifest) -> list[Problem]:
    """Compares the digests of the statistics file and the sketch file with the manifest."""
    problems = []
    for key in ("file", "sketch"):
        if (entry := manifest.statistics.get(key)) is None:
            continue
        path = join(out, manifest.statistics_folder, entry["name"])
        if not exists(path):
            problems.append(Problem(path, "", "is missing; the manifest names it"))
        elif (digest := digest_file(path)) != entry["digest"]:
            problem = f"the digest is {digest}, not {entry['digest']}"
            problems.append(Problem(path, "", problem))
    return problems


def check_derived(
    out: str, manifest: Manifest, generation: int, *, mend: bool = False
) -> list[Problem]:
    """Compares the derived files with the manifest.

    Args:
        out: The data set.
        manifest: The manifest of the newest generation.
        generation: The number of this generation.
        mend: If True, wrong derived files are written again, and extra ones are removed.
    """
    try:
        expected = make_derived_files(out, manifest, generation)
    except DataError as error:
        if error.source and error.source.endswith(STATISTICS_NAME):
            return []  # reported by `_check_statistics_files`
        return [
            Problem(
                join(out, "schema.pbtxt"),
                "",
                Message("the manifest's schema can't be read: {error}", error=error),
            )
        ]
    problems = []
    for name, content in expected.items():
        path = join(out, name)
        is_there = exists(path)
        if not is_there and name in OPTIONAL_DERIVED_NAMES:
            continue
        if not is_there or read_range(path).tobytes() != content:
            if mend:
                put_bytes(path, content)
            problem = "differs from what the manifest says" if is_there else "is missing"
            problems.append(Problem(path, "", problem, mended=mend))
    for name in list_names_if_present(out) if manifest.description else ():
        if is_derived_name(name) and name not in expected:
            if mend:
                remove_file(join(out, name))
            problems.append(
                Problem(join(out, name), "", "is not part of the data set", mended=mend)
            )
    return problems
