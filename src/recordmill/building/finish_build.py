"""The last step of a build: verification of the record counts, and the commit.

Record counts and checksums of the inputs, the sorted runs and the shards must agree.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
import time
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from recordmill.base.errors import DataError, RecordmillError
from recordmill.base.messages import Message
from recordmill.base.option_names import option
from recordmill.base.threads import run_both
from recordmill.building.commit import commit, make_conflict, publish_files, upload_files
from recordmill.building.ingest import IngestResult
from recordmill.building.plan import BuildPlan
from recordmill.building.shard_writer import FinishedShard
from recordmill.checks.constraints import check_expectations
from recordmill.schemas.feature import Schema
from recordmill.schemas.splits import SPLIT_WORDS
from recordmill.schemas.tfmd import to_pbtxt
from recordmill.shards.catalog import catalog_inputs
from recordmill.shards.dead_runs import load_if_present
from recordmill.shards.file_names import ShardName
from recordmill.shards.index import add_checksums
from recordmill.shards.manifest import (
    APPEND,
    BUILD,
    DEFAULT_KEPT_GENERATIONS,
    INDEX_FOLDER,
    INPUTS_NAME,
    SKETCH_NAME,
    STATISTICS_NAME,
    Manifest,
    Part,
    ShardInfo,
    list_generations,
    load_manifest,
    parse_shard_name,
    read_sketch,
)
from recordmill.shards.rejects import RejectSummary, RejectWriter
from recordmill.shards.run import RunFolder
from recordmill.shards.store_run import StoreRun, attach_run
from recordmill.sources.common.content import full_extension
from recordmill.sources.common.contract import IMAGE_FEATURES
from recordmill.statistics.dataset_sketch import DatasetSketch
from recordmill.statistics.dataset_statistics import DatasetStatistics
from recordmill.statistics.feature_statistics import FeatureStatistics
from recordmill.storage.digest import Digest
from recordmill.storage.file_table import FileTable, InputFile
from recordmill.storage.files import atomic_write, put_bytes, read_blocks, write_all
from recordmill.storage.folders import exists, is_file, join, list_paths, remove_file, rename

# Maximum number of features of all splits together. The summary of this number takes 0.7 MiB in the
# manifest.
_MAX_SUMMARY_FEATURES = 4096
# Number of input files for which lines are written to the list at a time.
_LIST_BATCH = 1024
_JSON = json.JSONEncoder(ensure_ascii=False)


class RecordCountError(RecordmillError):
    """The records read, rejected and written do not add up.

    A bug or a broken disk has lost, duplicated or changed records. Nothing was committed.
    """


def commit_local_build(
    plan: BuildPlan,
    ingest_results: Sequence[IngestResult],
    shards: Sequence[FinishedShard],
    sketch: DatasetSketch | None = None,
) -> Manifest:
    """Verifies and commits a build by one process.

    The call may be repeated after an error. If the run has committed already, its manifest is
    returned.

    Args:
        plan: The plan of the build.
        ingest_results: The result of each unit group.
        shards: All shards, in the data folder of the run. They are renamed, so that their numbers
            have no gaps.
        sketch: The statistics of all records, or None.

    Returns:
        The committed manifest.

    Raises:
        TooManyRejects: There are more rejects than the budget allows, or no records are left.
        RecordCountError: The records read, rejected and written do not add up.
        ExpectationError: The statistics violate the user's rules.
        CommitConflict: Another run committed first.
    """
    # After a commit, the run's folder may be gone. The code below would fail without it.
    if (committed := find_existing_commit(plan)) is not None:
        return committed
    folder = RunFolder.attach(plan.folder)
    ingest_results = sorted(ingest_results, key=lambda result: result.unit_group)
    rejected = sum((result.rejected for result in ingest_results), RejectSummary.empty())
    plan_rejects = plan.source.plan_rejects if plan.source else ()
    records_read = sum(result.records_read for result in ingest_results) + len(plan_rejects)
    rejected = write_plan_rejects(plan, plan_rejects) + rejected
    rejected.check_budget(plan.budget, records_read)
    rejected.check_any_left(records_read)
    check_record_counts(records_read, rejected.total, ingest_results, shards)
    shards_by_split = renumber_shards(plan, shards, folder.data)
    input_list = write_input_list(plan, folder.data)
    note_counts = sum((Counter(result.note_counts) for result in ingest_results), Counter[str]())
    statistics = write_statistics(plan, sketch, str(folder.data), plan.out)
    outcome = BuildOutcome(
        out=plan.out,
        shards_by_split=shards_by_split,
        inputs=input_list,
        records_read=records_read,
        rejected=rejected,
        note_counts=note_counts,
        run_id=folder.id,
        statistics=statistics,
    )
    return publish_and_commit(
        plan,
        sorted(rejected.files),
        lambda data_name, names: make_manifest(plan, outcome, data_name, names),
    )


def publish_and_commit(
    plan: BuildPlan,
    reject_files: Sequence[str],
    make: Callable[[str, Sequence[str]], Manifest],
) -> Manifest:
    """Moves or uploads the files of a local run to OUT, and commits them.

    Args:
        reject_files: The path of each reject file.
        make: Returns the manifest from the name of the data folder and the final names of the
            reject files.

    Returns:
        The committed manifest.

    Raises:
        CommitConflict: Another run committed first.
    """
    folder = RunFolder.attach(plan.folder)
    if not plan.store_url:
        names = publish_files(folder, reject_files)
        return commit(folder, make(folder.data_name, names), plan.base_generation)
    with StoreRun(plan.store_url, folder.id) as run:
        try:
            names, _ = run_both(
                lambda: upload_files(run, folder, reject_files, plan.memory_bytes),
                run.remove_dead_runs,
            )
            return commit(run, make(run.data_name, names), plan.base_generation)
        except BaseException:
            run.discard()
            raise


def find_existing_commit(plan: BuildPlan) -> Manifest | None:
    """Returns the manifest that this run has committed. None before the commit.

    Runners may repeat any stage, even after the commit.
    """
    return attach_run(plan.out, RunFolder.attach(plan.folder).id).committed_manifest()


@dataclass(frozen=True)
class BuildOutcome:
    """Results of a build that its manifest contains.

    Attributes:
        out: The output folder or store URL.
        shards_by_split: The shards of each split, by its name. Splits without records are missing.
        inputs: The manifest's entry for the inputs, from `write_input_list`.
        records_read: Number of records read, rejected ones included.
        rejected: The rejects.
        note_counts: Messages to the user, each with the number of records that it is about.
        run_id: Id of the run.
        statistics: The statistics and the manifest's entry for them, or None.
    """

    out: str
    shards_by_split: Mapping[str, tuple[ShardInfo, ...]]
    inputs: Mapping[str, Any]
    records_read: int
    rejected: RejectSummary
    note_counts: Mapping[str, int]
    run_id: str
    statistics: WrittenStatistics | None = None


def make_manifest(
    plan: BuildPlan, outcome: BuildOutcome, data_folder_name: str, reject_files: Sequence[str]
) -> Manifest:
    """Returns the manifest of a build.

    Args:
        plan: The plan of the build.
        outcome: The results.
        data_folder_name: Name of the folder with the shards, relative to the output folder.
        reject_files: Name of each reject file, relative to the output folder.
    """
    base, written = plan.base_manifest, outcome.statistics
    part = Part(
        folder=data_folder_name,
        kind=plan.source.kind if plan.source else "pipeline",
        splits=outcome.shards_by_split,
        inputs=outcome.inputs,
        records_read=outcome.records_read,
        records_rejected=outcome.rejected.total,
    )
    manifest = Manifest(
        name=plan.name,
        compression=plan.compression,
        options=plan.fingerprint_options,
        schema=to_pbtxt(plan.schema),
        parts=(part,),
        rejects={
            "count": outcome.rejected.total,
            "reasons": dict(sorted(outcome.rejected.counts.items())),
            "files": list(reject_files),
        },
        fingerprint=compute_fingerprint(
            plan.fingerprint_options, plan.schema, outcome.inputs, outcome.shards_by_split
        ),
        statistics={
            "notes": _collect_notes(plan, outcome),
            **({} if written is None else written.entry),
        },
        run=make_run_entry(
            outcome.run_id,
            BUILD if base is None else APPEND,
            find_keep_generations(plan),
            threads=plan.threads,
            memory_bytes=plan.memory_bytes,
        ),
        transform={} if plan.transform is None else plan.transform.manifest_entry,
        description={"said": asdict(plan.description), "images": [*_decodable_features(plan)]},
    )
    return manifest if base is None else _add_part(base, manifest)


def _collect_notes(plan: BuildPlan, outcome: BuildOutcome) -> list[str]:
    return [
        *(plan.source.notes if plan.source else ()),
        *(plan.stratified_splits.notes if plan.stratified_splits else ()),
        *(f"{message}: {count:,}" for message, count in sorted(outcome.note_counts.items())),
        *(
            f"split {split!r} has no records"
            for split in plan.split_names
            if split not in outcome.shards_by_split
        ),
        *_statistics_warnings(
            plan, [] if outcome.statistics is None else list(outcome.statistics.statistics.values())
        ),
    ]


def _add_part(base: Manifest, new: Manifest) -> Manifest:
    """Returns the manifest of an append: the old and the new parts.

    Args:
        base: The manifest of the data set.
        new: The manifest that a build of only the new records would have.
    """
    reasons = Counter(base.rejects.get("reasons", {})) + Counter(new.rejects["reasons"])
    said, images = new.description["said"], new.description["images"]
    return replace(
        new,
        # These fields describe all parts. The first part has determined them.
        options=base.options,
        transform=base.transform,
        parts=(*base.parts, *new.parts),
        rejects={
            "count": base.rejects.get("count", 0) + new.rejects["count"],
            "reasons": dict(sorted(reasons.items())),
            "files": [*base.rejects.get("files", ()), *new.rejects["files"]],
        },
        fingerprint=hashlib.sha256(f"{base.fingerprint} {new.fingerprint}".encode()).hexdigest(),
        description={
            "said": base.description.get("said", {})
            | {name: text for name, text in said.items() if text},
            "images": [name for name in images if name in base.description.get("images", ())],
        },
    )


def _statistics_warnings(
    plan: BuildPlan, split_statistics: Sequence[Mapping[str, FeatureStatistics]]
) -> Iterator[str]:
    """Yields warnings about split groups, split columns, class names and labels.

    Args:
        plan: The plan of the build.
        split_statistics: The statistics of each split, by feature name. Empty without statistics.
    """
    column = plan.key_options.group_column if plan.key_options.fractions else None
    if column and (
        num_missing := sum(
            features[column].missing for features in split_statistics if column in features
        )
    ):
        yield (f"records without {column!r}: {num_missing:,} (they are one group, in one split)")
    for name in (
        name for name in plan.schema.names if name.lower() in ("split", "subset", "partition")
    ):
        values = [
            word
            for features in split_statistics
            if name in features
            for word in features[name].top_values
        ]
        if values and {str(word).strip().lower() for word in values} <= SPLIT_WORDS.keys():
            examples = ", ".join(map(repr, dict.fromkeys(values[:3])))
            yield Message(
                (
                    "feature {name} has values such as {examples}. To use it for the "
                    "splits: {split_column}"
                ),
                name=repr(name),
                examples=examples,
                split_column=option("split_column", name),
            )
    for feature in plan.schema:
        names_by_form: defaultdict[str, list[str]] = defaultdict(list)
        for name in feature.classes or ():
            names_by_form[" ".join(unicodedata.normalize("NFKC", name).casefold().split())].append(
                name
            )
        if similar_names := next(
            (names for names in names_by_form.values() if len(names) > 1), None
        ):
            examples = " and ".join(map(repr, similar_names[:3]))
            yield f"classes {examples} of {feature.name!r} differ only in case, blanks or Unicode form"
    label = None if plan.schema.label is None else plan.schema[plan.schema.label]
    if label is not None and label.classes is None and label.dtype.startswith("int"):
        min_label = min(
            (
                features[label.name].min or 0
                for features in split_statistics
                if label.name in features
            ),
            default=0,
        )
        if min_label < 0:
            remedy = Message(
                "{dtypes} makes them classes", dtypes=option("dtypes", {label.name: "string"})
            )
            yield Message(
                ("label {label} has values below 0, which can't be class numbers; {remedy}"),
                label=repr(label.name),
                remedy=remedy,
            )


@dataclass(frozen=True)
class WrittenStatistics:
    """The statistics of a data set, after their files were written.

    Attributes:
        statistics: The statistics.
        entry: The manifest's entry for the files. It has a summary of the values if there are at
            most _MAX_SUMMARY_FEATURES features.
    """

    statistics: DatasetStatistics
    entry: Mapping[str, Any]


def write_statistics(
    plan: BuildPlan, sketch: DatasetSketch | None, folder: str, out: str
) -> WrittenStatistics | None:
    """Checks the statistics against the user's rules and writes them to the data folder.

    The sketch is written as well, so that a later append can merge it with the sketch of its own
    records. The rules are about the new records, and the files about all records of the data set.

    Args:
        plan: The plan of the build.
        sketch: The statistics of the new records. If None, nothing is done.
        folder: The data folder or its URL.
        out: The output folder or store URL.

    Returns:
        The statistics, or None if `sketch` is None.

    Raises:
        ExpectationError: The statistics violate the user's rules. No file is written.
    """
    if sketch is None:
        return None
    if plan.rules is not None:
        check_expectations(DatasetStatistics.from_sketch(sketch), plan.schema, plan.rules)
    if plan.base_manifest is not None:
        sketch = _merge_with_base(plan, plan.base_manifest, sketch, out)
    statistics = DatasetStatistics.from_sketch(sketch)
    entry: dict[str, Any] = {}
    for key, name, data in (
        ("file", STATISTICS_NAME, statistics.to_bytes()),
        ("sketch", SKETCH_NAME, sketch.to_bytes()),
    ):
        put_bytes(join(folder, name), data)
        entry[key] = {"name": name, "bytes": len(data), "digest": _compute_digest([data])}
    if sum(map(len, statistics.values())) <= _MAX_SUMMARY_FEATURES:
        entry["splits"] = statistics.summary()
    return WrittenStatistics(statistics, entry)


def _merge_with_base(
    plan: BuildPlan, base: Manifest, sketch: DatasetSketch, out: str
) -> DatasetSketch:
    """Returns the sketch of the records of a data set and of new ones.

    Raises:
        CommitConflict: Other runs have committed, and the sketch file was removed.
        DataError: The sketch file of the data set is missing or damaged.
    """
    try:
        data = read_sketch(base, out)
    except DataError:
        # A later append keeps the folder of this part, but not the merged files in it.
        newest = list_generations(out)[-1]
        if newest == plan.base_generation:
            raise
        reason = f"another build committed generation {newest} while this one ran"
        raise make_conflict(out, reason, APPEND) from None
    assert data is not None, "the plan has no statistics then"
    saved = DatasetSketch.from_bytes(data, join(out, base.statistics_folder, SKETCH_NAME))
    splits = dict.fromkeys((*saved.splits, *sketch.splits))
    total = DatasetSketch(plan.schema, tuple(splits))
    total.merge(saved)
    total.merge(sketch)
    return total


def check_record_counts(
    records_read: int,
    rejected: int,
    ingest_results: Sequence[IngestResult],
    shards: Sequence[FinishedShard],
) -> None:
    """Checks that each record read was either rejected or written to a shard.

    Compares record counts, and checksums over the key and the payload CRC of each record.

    Args:
        records_read: Number of records in the inputs.
        rejected: Number of rejects.
        ingest_results: The result of each unit group.
        shards: All shards, including empty ones.

    Raises:
        RecordCountError: Counts or checksums differ.
    """
    in_runs = sum(run.records for result in ingest_results for run in result.sorted_runs)
    in_shards = sum(shard.info.records for shard in shards)
    if not records_read == in_shards + rejected == in_runs + rejected:
        raise RecordCountError(
            f"{records_read} records were read, {rejected} rejected, {in_runs} sorted "
            f"and {in_shards} written: these counts do not agree, so nothing was "
            "committed"
        )
    run_sum, shard_sum = 0, 0
    for result in ingest_results:
        for run in result.sorted_runs:
            run_sum = add_checksums(run_sum, run.checksum)
    for shard in shards:
        shard_sum = add_checksums(shard_sum, int(shard.info.sum, 16))
    if run_sum != shard_sum:
        raise RecordCountError(
            f"the records written (sum {shard_sum:016x}) differ from those read (sum "
            f"{run_sum:016x}); nothing was committed"
        )


def _decodable_features(plan: BuildPlan) -> tuple[str, ...]:
    """Returns the image features if all input files are JPEG or PNG, else ().

    TensorFlow decodes such a file to exactly one picture.
    """
    if plan.source is None or plan.source.kind != "images" or plan.transform is not None:
        return ()
    decoded = all(
        full_extension(name) in ("jpg", "jpeg", "png") for name in plan.source.files.names()
    )
    return tuple(name for name in IMAGE_FEATURES if decoded and name in plan.schema)


def renumber_shards(
    plan: BuildPlan, shards: Sequence[FinishedShard], folder: Path
) -> dict[str, tuple[ShardInfo, ...]]:
    """Renames the shards to their final numbers, without gaps.

    Removes empty shards, and the files that failed attempts have left in the data folder.

    Returns:
        The shards of each split, by its name. Splits without records are missing.
    """
    shards_by_split: dict[str, tuple[ShardInfo, ...]] = {}
    for split_id, split in enumerate(plan.split_names):
        finished = sorted(
            (shard for shard in shards if shard.split_id == split_id), key=lambda shard: shard.index
        )
        non_empty = [shard.info for shard in finished if shard.info.records]
        for shard in finished:
            if not shard.info.records:
                _remove_shard(folder, shard.info)
        # In ascending order a new name is always free, since its former owner was renamed or
        # removed before.
        renamed = [
            replace(
                info, name=str(_move_shard(folder, parse_shard_name(info), index, len(non_empty)))
            )
            for index, info in enumerate(non_empty)
        ]
        if renamed:
            shards_by_split[split] = tuple(renamed)
    _remove_stray_files(folder, {info.name for infos in shards_by_split.values() for info in infos})
    return shards_by_split


def _move_shard(folder: Path, old: ShardName, index: int, num_shards: int) -> ShardName:
    """Renames a shard and its index files, unless this was done before.

    Args:
        folder: The data folder.
        old: The present name of the shard.
        index: The final number of the shard within its split.
        num_shards: The final number of shards of the split.

    Returns:
        The final name.
    """
    new = replace(old, index=index, num_shards=num_shards)
    # The shard itself is renamed last. If its old name is gone, an earlier attempt has renamed all
    # files, and the old name of the index may belong to the next shard by now.
    if new != old and exists(folder / str(old)):
        for old_name, new_name in (
            (old.index_name, new.index_name),
            (old.members_name, new.members_name),
        ):
            if exists(folder / INDEX_FOLDER / old_name):
                rename(folder / INDEX_FOLDER / old_name, folder / INDEX_FOLDER / new_name)
        rename(folder / str(old), folder / str(new))
    return new


def _remove_shard(folder: Path, info: ShardInfo) -> None:
    name = parse_shard_name(info)
    for path in (
        folder / info.name,
        folder / INDEX_FOLDER / name.index_name,
        folder / INDEX_FOLDER / name.members_name,
    ):
        remove_file(path, missing_ok=True)


def _remove_stray_files(folder: Path, shard_names: set[str]) -> None:
    """Removes the files of failed or duplicate attempts from the data folder.

    Args:
        folder: The data folder.
        shard_names: The names of the files to keep. Final index files are kept as well.
    """
    for path in list_paths(folder):
        if is_file(path) and path.name not in shard_names:
            remove_file(path)
    # Files that were never renamed begin with a dot.
    for path in list_paths(folder / INDEX_FOLDER):
        if path.name.startswith("."):
            remove_file(path)


def write_plan_rejects(plan: BuildPlan, rejects: Sequence[Any]) -> RejectSummary:
    """Writes the rejects that the plan has found to a file in `plan.folder`."""
    writer = RejectWriter(Path(plan.folder, "rejects", "plan.jsonl"))
    writer.write(rejects)
    return writer.close()


def write_input_list(plan: BuildPlan, folder: Path) -> dict[str, Any]:
    """Writes the list of the input files, one JSON object per line.

    Each object has the size and either the modification time or the etag that the plan has seen.
    While it read the inputs, the build has checked that they did not change. Records from a user's
    pipeline have no list.

    Args:
        plan: The plan of the build.
        folder: The data folder.

    Returns:
        The manifest's entry for the inputs: their number, their bytes, and the name of the list.
    """
    if plan.source is None:
        return {"files": 0, "bytes": 0}
    with atomic_write(folder / INPUTS_NAME) as list_file:
        for lines in _iter_input_lines(plan.source.files):
            write_all(list_file, lines)
    return {
        "files": len(plan.source.files),
        "bytes": plan.source.files.size_bytes,
        "list": INPUTS_NAME,
    }


def _iter_input_lines(files: FileTable) -> Iterator[bytes]:
    def input_line(file: InputFile) -> bytes:
        entry = {"root": file.root, "name": file.name, "bytes": file.stat.size_bytes}
        entry |= {"etag": file.stat.etag} if file.stat.etag else {"mtime_ns": file.stat.mtime_ns}
        return _JSON.encode(entry).encode("utf-8", "surrogateescape") + b"\n"

    for begin in range(0, len(files), _LIST_BATCH):
        yield b"".join(map(input_line, files[begin : begin + _LIST_BATCH]))


def find_identical_build(plan: BuildPlan) -> Manifest | None:
    """Returns the newest manifest if a build would only repeat its data set.

    Returns None if the result would differ, or if there is no data set.

    Compares the options, the schema, the description, and the name, size and time or etag of each
    input. All shards of the data set must exist, and its rejects must be within the plan's budget.
    """
    if not plan.base_generation or plan.source is None:
        return None
    manifest = load_manifest(plan.out, plan.base_generation)
    # Appended records are not in the order of a build of all inputs.
    if len(manifest.parts) > 1:
        return None
    (part,) = manifest.parts
    is_same = (
        (manifest.options, manifest.schema)
        # The options of the manifest went through JSON, where tuples are lists.
        == (json.loads(json.dumps(plan.fingerprint_options)), to_pbtxt(plan.schema))
        and (part.kind, "file" in manifest.statistics) == (plan.source.kind, plan.has_statistics)
        and manifest.description.get("said") == asdict(plan.description)
        and part.records_rejected <= (plan.budget.max_rejects(part.records_read) or 0)
    )
    # If a file of the data set is missing, the data set is built again.
    with contextlib.suppress(DataError, FileNotFoundError):
        listed_inputs = read_blocks(join(plan.out, part.folder, INPUTS_NAME), 1 << 20)
        if is_same and _compute_digest(listed_inputs) == _compute_digest(
            _iter_input_lines(plan.source.files)
        ):
            # This call raises DataError or FileNotFoundError if a shard is missing.
            catalog_inputs(plan.out)
            return manifest
    return None


def _compute_digest(blocks: Iterable[Any]) -> str:
    digest = Digest()
    for block in blocks:
        digest.update(block)
    return digest.text()


def make_run_entry(run_id: str, action: str, keep_generations: int, **facts: Any) -> dict[str, Any]:
    """Returns the manifest's entry for a run that ends now.

    Args:
        action: What makes the generation, one of `manifest.ACTIONS`.
        keep_generations: The number of generations that commits keep.
        **facts: More facts for the user.
    """
    versions = {name: version(name) for name in ("recordmill", "numpy", "pyarrow")}
    return {
        "id": run_id,
        "action": action,
        "keep_generations": keep_generations,
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "versions": versions,
        **facts,
    }


def find_keep_generations(plan: BuildPlan) -> int:
    """Returns the number of generations to keep.

    If the plan does not specify it, the newest generation does.
    """
    if plan.keep_generations is not None:
        return plan.keep_generations
    base = load_if_present(plan.out, plan.base_generation) if plan.base_generation else None
    return DEFAULT_KEPT_GENERATIONS if base is None else base.keep_generations


def compute_fingerprint(
    options: Mapping[str, Any],
    schema: Schema,
    inputs: Mapping[str, Any],
    shards_by_split: Mapping[str, Sequence[ShardInfo]],
) -> str:
    """Returns a digest that is equal for two builds with the same result.

    Args:
        options: The options that determine the bytes of the shards.
        schema: The schema of the records.
        inputs: The manifest's entry for the inputs. The digest covers their number and size.
        shards_by_split: The shards of each split. The digest covers their checksums.
    """
    document = {
        "format": 1,
        "options": options,
        "schema": to_pbtxt(schema),
        "inputs": [inputs["files"], inputs["bytes"]],
        "sums": [shard.sum for split in shards_by_split.values() for shard in split],
    }
    return hashlib.sha256(json.dumps(document, sort_keys=True, default=str).encode()).hexdigest()
