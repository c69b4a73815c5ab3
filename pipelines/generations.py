"""Generations of a data set: `log`, `restore` and `compact`.

These functions need no runner. A compaction runs on the threads of this process.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from recordmill.base.arguments import suggest_keywords
from recordmill.base.display import Display, completion_notice
from recordmill.base.errors import UsageError
from recordmill.base.option_names import option
from recordmill.base.progress import ProgressArgument, to_progress
from recordmill.building.commit import commit
from recordmill.building.compaction import compact_locally, plan_compaction
from recordmill.building.finish_build import make_run_entry
from recordmill.building.shard_boundaries import ShardOptions
from recordmill.options.calls import Values, with_keywords
from recordmill.options.generations import CompactOptions, LogOptions, RestoreOptions
from recordmill.pipelines.build_options import choose_build_threads
from recordmill.pipelines.output_run import open_run
from recordmill.shards.catalog import catalog_data_set
from recordmill.shards.dead_runs import load_generations
from recordmill.shards.manifest import (
    RESTORE,
    Manifest,
    load_generation,
    load_newest_manifest,
)
from recordmill.shards.store_run import StoreRun
from recordmill.storage.files import (
    limit_block_memory,
    limit_requests,
    parse_output_path,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from recordmill.options.keywords import CompactKeywords, LogKeywords, RestoreKeywords


@dataclass(frozen=True)
class Generation:
    """A generation: one committed state of a data set.

    Attributes:
        generation: The number of the generation.
        finished: The time of its commit, UTC, in ISO 8601. "" if it is unknown.
        action: What made it: "build", "append", "compact" or "restore".
        parts: Number of its parts.
        records: Number of records by split.
        size_bytes: Total size of the shards.
    """

    generation: int
    finished: str
    action: str
    parts: int
    records: Mapping[str, int]
    size_bytes: int

    @classmethod
    def from_manifest(cls, number: int, manifest: Manifest) -> Generation:
        """Returns the generation that a manifest describes."""
        return cls(
            number,
            finished=str(manifest.run.get("finished", "")),
            action=manifest.action,
            parts=len(manifest.parts),
            records=manifest.records,
            size_bytes=manifest.size_bytes,
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the machine-readable form that `--json` prints."""
        return asdict(self)


@suggest_keywords
@with_keywords("log")
def log(out: str | os.PathLike[str], **options: Unpack[LogKeywords]) -> list[Generation]:
    """Lists the generations of a data set that are kept, the newest one last.

    Args:
        out: The folder of the data set.
        **options: The options of `recordmill log`, as keywords. docs/reference.md lists them.

    Raises:
        DataError: There is no data set, or a manifest is invalid.

    Examples:
        >>> [(one.generation, one.action, one.parts) for one in recordmill.log("shards")]
        [(1, 'build', 1)]
    """
    output = parse_output_path(out)
    limit_requests(Values("log", options)[LogOptions].storage_requests)
    manifests = load_generations(output)
    if not manifests:
        load_newest_manifest(output)  # raises an error if there is no data set
    return [Generation.from_manifest(number, one) for number, one in manifests.items()]


@suggest_keywords
@with_keywords("restore")
def restore(
    out: str | os.PathLike[str],
    generation: int | None = None,
    **options: Unpack[RestoreKeywords],
) -> Generation:
    """Makes an earlier generation of a data set the newest one again.

    Nothing is copied: the new generation has the shards of the old one.

    Args:
        out: The folder of the data set.
        generation: Number of the generation to restore, from `log`.
        **options: The options of `recordmill restore`, as keywords. docs/reference.md lists them.

    Returns:
        The new generation.

    Raises:
        UsageError: The generation does not exist, is no longer kept, or is the newest one.
        DataError: There is no data set, or a shard of the generation is missing.
        CommitConflict: Another run committed first.
    """
    output = parse_output_path(out)
    values = Values("restore", {"generation": generation, **options})[RestoreOptions]
    limit_requests(values.storage_requests)
    if values.generation is None:
        raise UsageError(
            "give {generation}: `recordmill log` lists the generations",
            generation=option("generation"),
        )
    base, newest = load_newest_manifest(output)
    _check_restorable(output, values.generation, base, newest)
    # Also checks that all shards exist.
    restored = catalog_data_set(output, generation=values.generation).manifest
    assert restored is not None
    with open_run(output) as (_, run), contextlib.ExitStack() as lease:
        if isinstance(run, StoreRun):
            lease.enter_context(run)
        entry = make_run_entry(
            run.id,
            RESTORE,
            values.keep_generations or newest.keep_generations,
            restored=values.generation,
        )
        manifest = commit(run, replace(restored, run=entry), base)
    return Generation.from_manifest(base + 1, manifest)


def _check_restorable(out: str, generation: int, base: int, newest: Manifest) -> None:
    """Raises UsageError if a generation can't be restored.

    A generation that the newest commit does not keep may be removed at any moment, even if its
    manifest is still there.
    """
    if generation == base:
        raise UsageError(
            "{generation}: this is the newest generation of {out} already",
            generation=option("generation", generation),
            out=out,
        )
    if generation > base - newest.keep_generations:
        load_generation(out, generation)
        return
    oldest_kept = base - newest.keep_generations + 1
    raise UsageError(
        "{generation}: {out} does not have generation {number} any more (kept: {kept}); "
        "{keep_generations} keeps more",
        generation=option("generation", generation),
        out=out,
        number=generation,
        kept=", ".join(str(number) for number in range(max(oldest_kept, 1), base + 1)),
        keep_generations=option("keep_generations"),
    )


@suggest_keywords
@with_keywords("compact")
def compact(
    out: str | os.PathLike[str],
    *,
    quiet: bool = True,
    progress: ProgressArgument = None,
    **options: Unpack[CompactKeywords],
) -> Generation:
    """Joins all parts of a data set, as the next generation.

    The records are merged by their stored keys. With `key`, the shards have the bytes of one build
    of all inputs. No record moves to another split. Nothing is committed if the data set has one
    part already and its shards have the requested form.

    Args:
        out: The folder of the data set.
        quiet: False prints the progress to stderr.
        progress: A function that is called with the progress, see `build`.
        **options: The options of `recordmill compact`, as keywords. docs/reference.md lists them.

    Returns:
        The new generation, or the newest one if there is nothing to do.

    Raises:
        UsageError: An option is invalid, or a split has fewer records than shards.
        DataError: There is no data set, or a record is damaged. Nothing is committed.
        CommitConflict: Another run committed first.
        RecordmillError: The compaction failed for another reason, such as a full disk.
    """
    output = parse_output_path(out)
    values = Values("compact", options)[CompactOptions]
    limit_requests(values.storage_requests)
    shards = (
        None
        if values.shard_size is None and values.num_shards is None
        else ShardOptions.from_options(values.shard_size, values.num_shards)
    )
    catalog = catalog_data_set(output)
    manifest, base = catalog.manifest, catalog.generation
    assert manifest is not None
    assert base is not None
    if len(manifest.parts) == 1 and _has_requested_shards(manifest, shards, values.compression):
        return Generation.from_manifest(base, manifest)
    counters = to_progress(progress)
    with (
        completion_notice(output) as checks,
        limit_block_memory(values.memory),
        Display(counters, quiet),
        open_run(output) as (folder, run),
    ):
        checks.append(lambda: run.committed_manifest() is not None)
        compaction = plan_compaction(
            manifest,
            catalog.files,
            folder,
            output,
            base,
            shard_options=shards,
            compression=values.compression,
            threads=choose_build_threads(values.threads, values.memory),
            memory_bytes=values.memory,
            keep_generations=values.keep_generations,
        )
        compacted = compact_locally(compaction, counters)
    return Generation.from_manifest(base + 1, compacted)


def _has_requested_shards(
    manifest: Manifest, shards: ShardOptions | None, compression: str | None
) -> bool:
    """Returns whether a data set already has the requested shards."""
    options = manifest.options
    current = options.get("num_shards"), options.get("shard_bytes")
    requested = (
        current
        if shards is None
        else (shards.num_shards, None if shards.num_shards else shards.shard_bytes)
    )
    return current == requested and compression in (None, manifest.compression)
