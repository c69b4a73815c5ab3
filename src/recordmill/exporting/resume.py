"""Resuming a killed read with the outputs that it has finished.

The record counts of each finished output are saved in a file of the run folder. The file is written
after the output has its final name and is durable. It is valid as long as the output is unchanged.

A read is resumed only by a read with the same fingerprint. It includes the sizes and times of the
inputs, or their ETags in a store, so a change of an input starts the read again. A read of one
output, or of at most `file_size`, saves nothing, because starting again costs less.

Workers of an engine save the counts next to their output files (`exporting.worker_tasks`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import pickle
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, TypedDict

from recordmill.base.errors import DataError
from recordmill.exporting.plan import (
    REJECTS_FOLDER,
    ReadPlan,
    ReadTask,
    estimate_uncompressed_bytes,
)
from recordmill.exporting.task import OutputCounts, output_file_name, reject_file_name
from recordmill.shards.dead_runs import READ_NOTE_NAME
from recordmill.shards.run import RunFolder
from recordmill.storage.files import put_bytes, stat, sync_file
from recordmill.storage.folders import (
    inode_number,
    is_folder,
    list_names_if_present,
    list_paths,
    make_folder,
    remove,
    rename,
)
from recordmill.storage.json_fields import (
    Count,
    convert_json,
    load_json,
    matches,
    parse_json,
    read_bounded,
)
from recordmill.storage.walk import RUN_PREFIX

# In the run folder: a file with record counts for each finished output.
COUNTS_FOLDER = "accounts"
# Suffix of the files with record counts that workers of an engine write next to their outputs.
COUNTS_SUFFIX = ".account.json"
# Version of these files and of the division of a read into tasks. Part of the fingerprint.
_FORMAT_VERSION = 8


@dataclass(frozen=True)
class FinishedOutputs:
    """Outputs that an earlier process of the same read has finished.

    Attributes:
        folder: Folder of the files with record counts.
        counts_by_task: Record counts of the outputs on this machine, by the name of the task.
        worker_tasks: For each task, the `FinishedTask` of a worker of an engine, or None.
    """

    folder: Path
    counts_by_task: Mapping[str, OutputCounts] = field(default_factory=dict)
    # `FinishedTask | None`. `worker_tasks` imports this module.
    worker_tasks: Sequence[Any] = ()

    @property
    def all_counts(self) -> list[OutputCounts]:
        """Record counts of all finished outputs."""
        return [
            *self.counts_by_task.values(),
            *(
                finished_task.account
                for finished_task in self.worker_tasks
                if finished_task is not None
            ),
        ]

    @classmethod
    def create(cls, run: Path, fingerprint: str) -> FinishedOutputs:
        """Marks a new run folder with the fingerprint of the read."""
        make_folder(run / COUNTS_FOLDER)
        note = {"format": "recordmill read at work", "fingerprint": fingerprint}
        put_bytes(str(run / READ_NOTE_NAME), json.dumps(note).encode())
        return cls(run / COUNTS_FOLDER)

    def save(self, plan: ReadPlan, task: ReadTask, data: Path, counts: OutputCounts) -> None:
        """Saves the record counts of a finished output.

        Nothing is saved if an input has changed since the read was planned.

        Args:
            data: Folder of the output.
            counts: Record counts of the output.
        """
        if not are_inputs_unchanged(plan, task):
            return
        # The reject file must be durable before a file refers to it.
        for path in counts.rejected.files:
            sync_file(path)
        document = {
            **asdict(counts),
            "identity": output_identity(data / counts.output),
            "reject_bytes": sum(stat(path).size_bytes for path in counts.rejected.files),
        }
        put_bytes(str(self.folder / counts_file_name(task)), json.dumps(document).encode())


def are_inputs_unchanged(plan: ReadPlan, task: ReadTask) -> bool:
    """Returns whether the input files of a task are the planned ones."""
    with contextlib.suppress(OSError):
        return all(
            stat(plan.files[file].path) == plan.files[file].stat
            for file in {piece.file for piece in task.pieces}
        )
    return False


def counts_file_name(task: ReadTask) -> str:
    """Returns the name of the file with the record counts of a task."""
    return f"{task.name}.json"


def list_counts_files(run: Path) -> list[Path]:
    """Returns the files with record counts in a run folder.

    Files of workers of an engine are included.
    """
    return [
        *list_paths(run / COUNTS_FOLDER, "[!.]*.json"),
        *list_paths(run / "made", f"*{COUNTS_SUFFIX}"),
    ]


class _Note(TypedDict):
    fingerprint: Annotated[str, matches("[0-9a-f]{64}", "a SHA-256")]


class _SavedIdentity(TypedDict):
    identity: Sequence[int]
    reject_bytes: Count


def read_fingerprint(run: Path) -> str | None:
    """Returns the fingerprint of the read that a run folder belongs to, or None."""
    with contextlib.suppress(OSError, DataError):
        fingerprint: str = load_json(_Note, run / READ_NOTE_NAME)["fingerprint"]
        return fingerprint
    return None


def output_identity(output: Path) -> tuple[int, ...]:
    """Returns values that do not change when a finished output is renamed.

    For a file these are size and time, for a folder its inode.
    """
    if is_folder(output):
        return (inode_number(output),)
    state = stat(str(output))
    return state.size_bytes, state.mtime_ns


def saves_progress(plan: ReadPlan, engine: bool = False) -> bool:
    """Returns whether a read is large enough to save its progress.

    `engine` means that workers of an engine make the outputs. They make several, even of one split.
    """
    size = sum(
        estimate_uncompressed_bytes(piece, plan.files)
        for split_task in plan.split_tasks
        for piece in split_task.pieces
    )
    return size > plan.options.file_bytes and (engine or len(plan.tasks) > 1)


def fingerprint_plan(plan: ReadPlan, engine: bool = False) -> str:
    """Returns a hash that is equal for two reads with the same outputs.

    The input files must be unchanged, and finished outputs must be in the same places.

    Args:
        engine: Workers of an engine make the outputs.
    """
    options = replace(plan.options, where=None)
    predicate = plan.options.where.condition if plan.options.where is not None else None
    digest = hashlib.sha256()
    for text in [
        f"{_FORMAT_VERSION} {engine} {[version(name) for name in ('recordmill', 'numpy', 'pyarrow', 'pillow')]}",
        predicate
        if isinstance(predicate, str)
        else repr(
            pickle.dumps(predicate, protocol=4)
        ),  # `repr` of an expression leaves out the values of long lists
        *map(repr, [options, plan.schema, plan.decoded, plan.selected, plan.steps, plan.layout]),
        *(
            f"{split_task.split} {split_task.limit} {split_task.pieces}"
            for split_task in plan.split_tasks
        ),
        *(
            f"{file.name} {file.split} {file.compression} {file.stat.size_bytes} {file.stat.mtime_ns} {file.stat.etag} "
            f"{file.info}"
            for file in plan.files
        ),
    ]:
        digest.update(text.encode(errors="surrogateescape") + b"\0")
    return digest.hexdigest()


def is_resumable(run: Path) -> bool:
    """Returns whether a run folder belongs to a read that may have finished outputs."""
    return read_fingerprint(run) is not None


def has_stopped_read(out: Path) -> bool:
    """Returns whether a read into this folder was stopped after it had finished outputs."""
    return any(
        is_resumable(run) and list_counts_files(run) for run in list_paths(out, f"{RUN_PREFIX}*")
    )


def resume_read(
    folder: RunFolder, plan: ReadPlan, *, engine: bool = False
) -> tuple[RunFolder, FinishedOutputs | None]:
    """Takes over the folder of a dead read with the same plan.

    If there is none, the new folder is used. Dead reads with other plans are removed.

    Args:
        folder: Folder of this run. Closed if another one is taken over.
        engine: Workers of an engine make the outputs.

    Returns:
        The run folder to use, and the finished outputs. None if the read is too small to save its
        progress.
    """
    fingerprint = fingerprint_plan(plan, engine) if saves_progress(plan, engine) else None
    dead_run = _take_over_run(folder.out, fingerprint)
    if fingerprint is None:
        return folder, None
    if dead_run is None:
        return folder, FinishedOutputs.create(folder.path, fingerprint)
    try:
        # The read was killed after it had completed its result, which contains the rejects.
        if is_folder(dead_run.data / REJECTS_FOLDER):
            rename(dead_run.data / REJECTS_FOLDER, dead_run.rejects)
        # Workers of an engine check their files themselves, see `worker_tasks`.
        finished = (
            FinishedOutputs(dead_run.path / COUNTS_FOLDER)
            if engine
            else _load_finished(dead_run, plan)
        )
    except BaseException:
        # The finished outputs stay for another attempt.
        dead_run.release()
        raise
    folder.close()
    return dead_run, finished


def count_finished(folder: RunFolder, attempts_folder: str = "") -> int:
    """Returns the number of finished outputs that an interrupted read could use.

    `attempts_folder` is the folder in a store where workers put their outputs.
    """
    if not is_resumable(folder.path):
        return 0
    remote_names = (
        [name for name in list_names_if_present(attempts_folder) if name.endswith(COUNTS_SUFFIX)]
        if attempts_folder
        else []
    )
    return len(list_counts_files(folder.path)) + len(remote_names)


def _take_over_run(out: Path, fingerprint: str | None) -> RunFolder | None:
    """Takes over the dead read with this fingerprint that has the most finished outputs.

    All other dead reads are removed.
    """
    best_run: RunFolder | None = None
    for run in sorted(
        filter(is_resumable, list_paths(out, f"{RUN_PREFIX}*")),
        # The read with the most finished outputs first.
        key=lambda run: (-len(list_counts_files(run)), run),
    ):
        candidate = RunFolder.take_over(run)
        if candidate is None:  # the read is alive
            continue
        if best_run is None and fingerprint is not None and read_fingerprint(run) == fingerprint:
            best_run = candidate
        else:
            candidate.close()
    return best_run


def _load_finished(run: RunFolder, plan: ReadPlan) -> FinishedOutputs:
    """Loads the counts of unchanged outputs, and removes all other files."""
    loaded = ((task, _load_counts(run, plan, task)) for task in plan.tasks)
    finished = {task.name: (task, counts) for task, counts in loaded if counts is not None}
    remove_unfinished(
        run,
        {counts_file_name(task) for task, _ in finished.values()},
        {counts.output for _, counts in finished.values()},
        {reject_file_name(task) for task, counts in finished.values() if counts.rejected.total},
    )
    return FinishedOutputs(
        run.path / COUNTS_FOLDER, {name: counts for name, (_, counts) in finished.items()}
    )


def remove_unfinished(
    run: RunFolder,
    counts_files: Collection[str] = (),
    outputs: Collection[str] = (),
    rejects: Collection[str] = (),
) -> None:
    """Removes the files of a run that are not finished.

    Files with counts are removed first, so that none remains without its output.

    Args:
        counts_files: Names of files with record counts to keep.
        outputs: Names of outputs to keep.
        rejects: Names of reject files to keep.
    """
    # In the order of removal.
    kept_names = {
        run.path / COUNTS_FOLDER: counts_files,
        run.data: outputs,
        run.rejects: rejects,
        run.intermediate: (),
        run.spool: (),
    }
    for folder, names in kept_names.items():
        for path in list_paths(folder):
            if path.name not in names:
                remove(path)


def _load_counts(run: RunFolder, plan: ReadPlan, task: ReadTask) -> OutputCounts | None:
    """Loads the record counts of a task if its output is unchanged."""
    output, rejects = (
        run.data / output_file_name(task, plan.options.output),
        run.rejects / reject_file_name(task),
    )
    with contextlib.suppress(OSError, DataError):
        value = parse_json(
            read_bounded(run.path / COUNTS_FOLDER / counts_file_name(task)), COUNTS_FOLDER
        )
        saved = convert_json(_SavedIdentity, value, COUNTS_FOLDER)
        counts: OutputCounts = convert_json(OutputCounts, value, COUNTS_FOLDER)
        reject_bytes = stat(str(rejects)).size_bytes if counts.rejected.total else 0
        # The reject file is compared, too, because the counts refer to it.
        is_unchanged = [*output_identity(output)] == [*saved["identity"]] and reject_bytes == saved[
            "reject_bytes"
        ]
        if is_unchanged and (counts.split, counts.output) == (task.split, output.name):
            files = (str(rejects),) if counts.rejected.total else ()
            return replace(counts, rejected=replace(counts.rejected, files=files))
    return None
