"""Resumption of a killed read with the outputs that it has finished.

The record counts of each finished output are saved in a file of the run folder. This file is
written after the output has its final name and is durable. It is valid as long as the output is
unchanged.

A read has a fingerprint, which depends on its plan, its options and the state of its input files. A
killed read is only resumed by a read with the same fingerprint. So a change of an input file starts
the read again. A read of one output, or of at most `file_size`, saves nothing, because starting
again is cheap.

If workers of an engine write the outputs, they save the counts themselves
(`exporting.worker_tasks`).
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

from recordmill.base.documents import Count, matches
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
from recordmill.storage.files import (
    put_bytes,
    read_range,
    stat,
    sync_file,
)
from recordmill.storage.folders import (
    inode_number,
    is_folder,
    list_names_if_present,
    list_paths,
    make_folder,
    remove,
    rename,
)
from recordmill.storage.json_fields import MAX_JSON_BYTES, convert_json, load_json, parse_json
from recordmill.storage.walk import RUN_PREFIX

# Folder in the run folder. It contains a file with record counts for each finished output.
COUNTS_FOLDER = "accounts"
# Workers of an engine append this to the name of an output for the file with its record counts.
COUNTS_SUFFIX = ".account.json"
# Version of these files and of the division of a read into tasks. It is a part of the fingerprint,
# so a new version never uses outputs of an older one.
_FORMAT_VERSION = 8


@dataclass(frozen=True)
class FinishedOutputs:
    """Outputs that an earlier process of the same read has finished.

    Attributes:
        folder: Folder with the files of record counts.
        counts_by_task: Record counts of the outputs on this machine, by the name of the task.
        worker_tasks: For each task, the `FinishedTask` that a worker of an engine has saved, or
            None. Empty if no workers write the outputs.
    """

    folder: Path
    counts_by_task: Mapping[str, OutputCounts] = field(default_factory=dict)
    # The type is `FinishedTask | None`. It can't be imported, because its module imports this one.
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
        """Prepares a new run folder for saving counts, and writes the fingerprint into it.

        Args:
            run: Path of the run folder.
            fingerprint: Fingerprint of the read.

        Returns:
            An object without finished outputs.
        """
        make_folder(run / COUNTS_FOLDER)
        note = {"format": "recordmill read at work", "fingerprint": fingerprint}
        put_bytes(str(run / READ_NOTE_NAME), json.dumps(note).encode())
        return cls(run / COUNTS_FOLDER)

    def save(self, plan: ReadPlan, task: ReadTask, data: Path, counts: OutputCounts) -> None:
        """Saves the record counts of a finished output.

        Nothing is saved if an input file of the task has changed since the plan.

        Args:
            plan: The plan of the read.
            task: The task of the output.
            data: Folder of the output.
            counts: Record counts of the output.
        """
        if not are_inputs_unchanged(plan, task):
            return
        # The counts refer to the reject file, so it must be durable before they are.
        for path in counts.rejected.files:
            sync_file(path)
        document = {
            **asdict(counts),
            "identity": output_identity(data / counts.output),
            "reject_bytes": sum(stat(path).size_bytes for path in counts.rejected.files),
        }
        put_bytes(str(self.folder / counts_file_name(task)), json.dumps(document).encode())


def are_inputs_unchanged(plan: ReadPlan, task: ReadTask) -> bool:
    """Returns whether the input files of a task have not changed since the plan.

    Compares their sizes and times, or their ETags in a store.
    """
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
    """Returns the paths of all files with record counts in a run folder.

    Files that workers of an engine have written there are included.
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
    """Returns the fingerprint of the read that created a run folder.

    Returns:
        The fingerprint. None if the run can't be resumed, because it has no fingerprint or an
        unreadable one.
    """
    with contextlib.suppress(OSError, DataError):
        return load_json(_Note, run / READ_NOTE_NAME)["fingerprint"]
    return None


def output_identity(output: Path) -> tuple[int, ...]:
    """Returns numbers that change if a finished output is modified.

    A rename does not change them. For a file they are its size and time, for a folder its inode
    number.
    """
    if is_folder(output):
        return (inode_number(output),)
    state = stat(str(output))
    return state.size_bytes, state.mtime_ns


def saves_progress(plan: ReadPlan, uses_engine: bool = False) -> bool:
    """Returns whether a read is large enough to save finished outputs.

    A read is large enough if it reads more than `file_size` and writes several outputs.

    Args:
        plan: The plan of the read.
        uses_engine: True if workers of an engine write the outputs. They divide a split into
            several files even if the result is one file.
    """
    size = sum(
        estimate_uncompressed_bytes(piece, plan.files)
        for split_task in plan.split_tasks
        for piece in split_task.pieces
    )
    return size > plan.options.output.file_size and (uses_engine or len(plan.tasks) > 1)


def fingerprint_plan(plan: ReadPlan, uses_engine: bool = False) -> str:
    """Returns a hash that is equal for two reads with the same outputs.

    The hash depends on the plan, the state of the input files, and the versions of recordmill and
    the libraries that write outputs.

    Args:
        plan: The plan of the read.
        uses_engine: True if workers of an engine write the outputs. Finished outputs are then in
            another folder, so a read without an engine can't use them.

    Returns:
        A SHA-256 as 64 hexadecimal digits.
    """
    options = plan.options
    condition = options.selection.where
    # The steps of the plan replace the conversions.
    values = {
        name: value
        for group in (options.output, options.selection)
        for name, value in vars(group).items()
        if group.OPTIONS[name].decides and name != "where"
    }
    digest = hashlib.sha256()
    for text in [
        f"{_FORMAT_VERSION} {uses_engine} {[version(name) for name in ('recordmill', 'numpy', 'pyarrow', 'pillow')]}",
        condition
        if isinstance(condition, str)
        else repr(
            pickle.dumps(condition, protocol=4)
        ),  # `repr` of an expression leaves out the values of long lists
        *map(repr, [values, options.lenient, options.format_options]),
        *map(repr, [plan.schema, plan.decoded, plan.selected, plan.steps, plan.layout]),
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
    """Returns whether a run folder belongs to a read that saves finished outputs."""
    return read_fingerprint(run) is not None


def has_stopped_read(out: Path) -> bool:
    """Returns whether an output folder contains a stopped read with finished outputs."""
    return any(
        is_resumable(run) and list_counts_files(run) for run in list_paths(out, f"{RUN_PREFIX}*")
    )


def resume_read(
    folder: RunFolder, plan: ReadPlan, *, uses_engine: bool = False
) -> tuple[RunFolder, FinishedOutputs | None]:
    """Takes over the run folder of a killed read with the same fingerprint.

    If no such read exists, the new run folder is used. Other killed reads into the same folder are
    removed.

    Args:
        folder: The new run folder. It is closed if another one is used instead.
        plan: The plan of this read.
        uses_engine: True if workers of an engine write the outputs.

    Returns:
        The run folder to use, and the finished outputs. The latter is None if the read is too small
        to save its progress.
    """
    fingerprint = fingerprint_plan(plan, uses_engine) if saves_progress(plan, uses_engine) else None
    dead_run = _take_over_run(folder.out, fingerprint, uses_engine)
    if fingerprint is None:
        return folder, None
    if dead_run is None:
        return folder, FinishedOutputs.create(folder.path, fingerprint)
    try:
        # The read was killed after `publish` had moved the rejects into the result.
        if is_folder(dead_run.data / REJECTS_FOLDER):
            rename(dead_run.data / REJECTS_FOLDER, dead_run.rejects)
        # The results of workers are loaded by `worker_tasks.find_finished_tasks`.
        finished = (
            FinishedOutputs(dead_run.path / COUNTS_FOLDER)
            if uses_engine
            else _load_finished(dead_run, plan)
        )
    except BaseException:
        # The run folder stays for another attempt to resume the read.
        dead_run.release()
        raise
    folder.close()
    return dead_run, finished


def count_finished(folder: RunFolder, attempts_folder: str = "") -> int:
    """Returns the number of finished outputs of a read that has stopped.

    A repeated read would not write these again.

    Args:
        folder: The run folder of the read.
        attempts_folder: URL of the folder in a store that workers write to. Empty if they write to
            none.
    """
    if not is_resumable(folder.path):
        return 0
    remote_names = (
        [name for name in list_names_if_present(attempts_folder) if name.endswith(COUNTS_SUFFIX)]
        if attempts_folder
        else []
    )
    return len(list_counts_files(folder.path)) + len(remote_names)


def _take_over_run(out: Path, fingerprint: str | None, uses_engine: bool) -> RunFolder | None:
    """Takes over the killed read with this fingerprint and the most finished outputs.

    Removes the run folders of all other killed reads. Reads that are still running are left alone.

    Args:
        out: The output folder.
        fingerprint: The fingerprint. If None, all killed reads are removed.
        uses_engine: True if workers of an engine write the outputs.

    Returns:
        The run folder, or None if there is no such read.
    """
    best_run: RunFolder | None = None
    for run in sorted(
        filter(is_resumable, list_paths(out, f"{RUN_PREFIX}*")),
        # sorts the read with the most finished outputs first
        key=lambda run: (-len(list_counts_files(run)), run),
    ):
        candidate = RunFolder.take_over(run, uses_engine)
        if candidate is None:  # the read is alive
            continue
        if best_run is None and fingerprint is not None and read_fingerprint(run) == fingerprint:
            best_run = candidate
        else:
            candidate.close()
    return best_run


def _load_finished(run: RunFolder, plan: ReadPlan) -> FinishedOutputs:
    """Loads the counts of unchanged outputs, and removes all other files of the run."""
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
    """Removes all files of a run, apart from the named ones.

    Files with record counts are removed first. So an interruption never leaves one without its
    output.

    Args:
        run: The run folder.
        counts_files: Names of the files with record counts to keep.
        outputs: Names of the outputs to keep.
        rejects: Names of the reject files to keep.
    """
    # The order of removal: counts before the outputs that they describe.
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
    """Loads the record counts of a task.

    Returns:
        The counts. None if the run has saved no counts, or if the output or its reject file has
        changed.
    """
    output, rejects = (
        run.data / output_file_name(task, plan.options.output_format),
        run.rejects / reject_file_name(task),
    )
    with contextlib.suppress(OSError, DataError):
        value = parse_json(
            read_range(
                run.path / COUNTS_FOLDER / counts_file_name(task), max_bytes=MAX_JSON_BYTES
            ).tobytes(),
            COUNTS_FOLDER,
        )
        saved = convert_json(_SavedIdentity, value, COUNTS_FOLDER)
        counts: OutputCounts = convert_json(OutputCounts, value, COUNTS_FOLDER)
        reject_bytes = stat(str(rejects)).size_bytes if counts.rejected.total else 0
        # The counts include those of the reject file, so this must be unchanged as well.
        is_unchanged = [*output_identity(output)] == [*saved["identity"]] and reject_bytes == saved[
            "reject_bytes"
        ]
        if is_unchanged and (counts.split, counts.output) == (task.split, output.name):
            files = (str(rejects),) if counts.rejected.total else ()
            return replace(counts, rejected=replace(counts.rejected, files=files))
    return None
