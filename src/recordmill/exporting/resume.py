"""The finished outputs of a read, by an account beside each, so that the same command goes on from there after a kill;
and what makes two reads the same.

A job's output is kept whole or not at all. Its account is written when the output has its name and is on disk, and
holds as long as the output is there as it was. Two reads are the same only if their inputs have the same sizes and
times, in a store the same ETags: a read of files that were written to since begins anew. A read of one output, or of
no more than --file-size, writes no accounts: to begin anew costs less. Of a read by an engine's workers they lie beside
their files (`exporting.worker_tasks`).
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
from recordmill.exporting.plan import REJECTS_FOLDER, ReadPlan, ReadTask, piece_size
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

COUNTS_FOLDER = "accounts"  # in the run folder: a file for each finished output
COUNTS_SUFFIX = ".account.json"  # of those that workers of an engine leave beside their files
_FORMAT_VERSION = 8  # of the accounts, and of how a read cuts its work: others are not gone on from


@dataclass(frozen=True)
class FinishedOutputs:
    """The accounts in a run folder. path: where they are. kept: name of a job to what an earlier process has made of it
    and still holds. by_workers: of each job what workers of an engine have made.
    """

    folder: Path
    counts_by_task: Mapping[str, OutputCounts] = field(default_factory=dict)
    worker_tasks: Sequence[Any] = ()  # MadeJob | None

    @property
    def all_counts(self) -> list[OutputCounts]:
        """All that an earlier process has left."""
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
        """Say in a new run folder which read it is."""
        make_folder(run / COUNTS_FOLDER)
        note = {"format": "recordmill read at work", "fingerprint": fingerprint}
        put_bytes(str(run / READ_NOTE_NAME), json.dumps(note).encode())
        return cls(run / COUNTS_FOLDER)

    def save(self, plan: ReadPlan, task: ReadTask, data: Path, counts: OutputCounts) -> None:
        """Say that the job's output is finished, and its file of rejects; not if its input is another one than when the
        read was planned.
        """
        if not are_inputs_unchanged(plan, task):
            return
        for path in counts.rejected.files:
            sync_file(path)
        document = {
            **asdict(counts),
            "identity": output_identity(data / counts.output),
            "reject_bytes": sum(stat(path).size_bytes for path in counts.rejected.files),
        }
        put_bytes(str(self.folder / counts_file_name(task)), json.dumps(document).encode())


def are_inputs_unchanged(plan: ReadPlan, task: ReadTask) -> bool:
    """Returns True if the files that the job was made of are still as they were planned."""
    with contextlib.suppress(OSError):
        return all(
            stat(plan.files[file].path) == plan.files[file].stat
            for file in {piece.file for piece in task.pieces}
        )
    return False


def counts_file_name(task: ReadTask) -> str:
    """The name, in its folder, of the account of the job."""
    return f"{task.name}.json"


def list_counts_files(run: Path) -> list[Path]:
    """The accounts in a run folder; those of workers that share a store lie there."""
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
    """The fingerprint of the read whose run folder this is; None if it says none."""
    with contextlib.suppress(OSError, DataError):
        fingerprint: str = load_json(_Note, run / READ_NOTE_NAME)["fingerprint"]
        return fingerprint
    return None


def output_identity(output: Path) -> tuple[int, ...]:
    """Returns what stays the same while a finished output is only renamed: size and time of a file, and which folder it
    is.
    """
    if is_folder(output):
        return (inode_number(output),)
    state = stat(str(output))
    return state.size_bytes, state.mtime_ns


def saves_progress(plan: ReadPlan, engine: bool = False) -> bool:
    """Returns whether the read is worth accounts of its outputs. engine: its workers make several, also of a split."""
    size = sum(
        piece_size(piece, plan.files)
        for split_task in plan.split_tasks
        for piece in split_task.pieces
    )
    return size > plan.options.file_bytes and (engine or len(plan.tasks) > 1)


def fingerprint_plan(plan: ReadPlan, engine: bool = False) -> str:
    """The same for two reads of the same files, not written to in between, that end with the same files and keep what
    they finish in the same places. engine: its workers make the outputs.
    """
    options = replace(plan.options, where=None)
    predicate = plan.options.where.predicate if plan.options.where is not None else None
    digest = hashlib.sha256()
    for text in [
        f"{_FORMAT_VERSION} {engine} {[version(name) for name in ('recordmill', 'numpy', 'pyarrow', 'pillow')]}",
        predicate
        if isinstance(predicate, str)
        else repr(
            pickle.dumps(predicate, protocol=4)
        ),  # only hashed: its text leaves long lists out
        *map(repr, [options, plan.schema, plan.decoded, plan.selected, plan.steps, plan.layout]),
        *(f"{digest.split} {digest.limit} {digest.pieces}" for digest in plan.split_tasks),
        *(
            f"{file.name} {file.split} {file.compression} {file.stat.size_bytes} {file.stat.mtime_ns} {file.stat.etag} "
            f"{file.info}"
            for file in plan.files
        ),
    ]:
        digest.update(text.encode(errors="surrogateescape") + b"\0")
    return digest.hexdigest()


def is_resumable(run: Path) -> bool:
    """Returns True if a run folder is of a read that may have finished something, on this machine or in a store."""
    return read_fingerprint(run) is not None


def has_stopped_read(out: Path) -> bool:
    """Returns whether a read into OUT was stopped, and has finished something."""
    return any(
        is_resumable(run) and list_counts_files(run) for run in list_paths(out, f"{RUN_PREFIX}*")
    )


def resume_read(
    folder: RunFolder, plan: ReadPlan, *, engine: bool = False
) -> tuple[RunFolder, FinishedOutputs | None]:
    """The run folder of a dead read of the same plan, where there is one, else `folder`; and the accounts that hold,
    None if the read is too small for them.

    Dead reads of other plans are removed. engine: its workers make the outputs.
    """
    fingerprint = fingerprint_plan(plan, engine) if saves_progress(plan, engine) else None
    dead_run = _take_over_run(folder.out, fingerprint)
    if fingerprint is None:
        return folder, None
    if dead_run is None:
        return folder, FinishedOutputs.create(folder.path, fingerprint)
    try:
        if is_folder(dead_run.data / REJECTS_FOLDER):  # it was killed when its result was complete
            rename(dead_run.data / REJECTS_FOLDER, dead_run.rejects)
        finished = (
            FinishedOutputs(dead_run.path / COUNTS_FOLDER)
            if engine
            else _load_finished(dead_run, plan)
        )
    except BaseException:
        dead_run.release()  # what is finished there stays
        raise
    folder.close()
    return dead_run, finished


def count_finished(folder: RunFolder, attempts_folder: str = "") -> int:
    """How many outputs a read that ends early has finished and could go on from. made: the folder in a store where
    workers have put theirs.
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
    """The dead read with that fingerprint that has come farthest, locked; all other dead ones are removed."""
    best_run: RunFolder | None = None
    for run in sorted(
        filter(is_resumable, list_paths(out, f"{RUN_PREFIX}*")),
        key=lambda run: (-len(list_counts_files(run)), run),
    ):
        candidate = RunFolder.take_over(run)
        if candidate is None:  # it is at work
            continue
        if best_run is None and fingerprint is not None and read_fingerprint(run) == fingerprint:
            best_run = candidate
        else:
            candidate.close()
    return best_run


def _load_finished(run: RunFolder, plan: ReadPlan) -> FinishedOutputs:
    """The accounts that hold; everything that they do not speak of is removed, the other accounts first, so that none
    is left that speaks of what is gone.
    """
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
    """Remove all but these names from the folders of a run, accounts first."""
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
    """The account of the job, if what it speaks of is there as it was."""
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
        is_unchanged = [*output_identity(output)] == [*saved["identity"]] and reject_bytes == saved[
            "reject_bytes"
        ]
        if is_unchanged and (counts.split, counts.output) == (task.split, output.name):
            files = (str(rejects),) if counts.rejected.total else ()
            return replace(counts, rejected=replace(counts.rejected, files=files))
    return None
