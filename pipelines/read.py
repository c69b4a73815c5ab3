"""`read`: TFRecord files to Parquet, NumPy, Arrow and other files.

By default, threads of this process do the work, and Beam is not imported. With a runner, the read
is a Beam pipeline (`read_beam`) that writes the same files. `dry_run` estimates a read without
writing anything.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recordmill.base import html
from recordmill.base.arguments import suggest_keywords
from recordmill.base.display import Display, completion_notice
from recordmill.base.errors import DataError, RecordmillError
from recordmill.base.messages import Message
from recordmill.base.option_names import option
from recordmill.base.progress import Progress, ProgressArgument, to_progress
from recordmill.base.sizes import format_count, format_size
from recordmill.base.threads import thread_map
from recordmill.exporting.estimate import ReadEstimate, estimate_read
from recordmill.exporting.plan import (
    ReadPlan,
    ReadTask,
    find_inputs,
    plan_read,
    read_peak_bytes,
    share_memory,
)
from recordmill.exporting.publish import DiskPublication, begin_publication
from recordmill.exporting.resume import (
    FinishedOutputs,
    count_finished,
    has_stopped_read,
    resume_read,
)
from recordmill.exporting.store_publish import (
    StorePublication,
    begin_store_publication,
    make_uploads,
)
from recordmill.exporting.task import OutputCounts, Publication, ReadCounts, run_task
from recordmill.options.calls import check_applicable, is_local, with_keywords
from recordmill.pipelines.beam_run import check_runner
from recordmill.pipelines.read_options import ReadSettings, make_settings
from recordmill.pipelines.remote.preflight import ProbeResult, preflight, sample_files
from recordmill.pipelines.remote.submission import MayBeRunning, remove_on_failure
from recordmill.records.inference.confirm import SchemaNotConfirmed
from recordmill.schemas.feature import Schema
from recordmill.shards.catalog import Catalog, Inputs
from recordmill.shards.rejects import is_record_error, with_remedy
from recordmill.shards.run import RunFolder
from recordmill.shards.store_run import StoreRun
from recordmill.storage.files import (
    is_remote,
    limit_block_memory,
    limit_requests,
    parse_output_path,
    stat,
)
from recordmill.storage.folders import exists, find_files, is_folder, join

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from recordmill.building.workers.shared_files import JobFolder
    from recordmill.options.keywords import ReadKeywords


# errors after which a later read can continue from the finished outputs
_RESUMABLE_ERRORS = (KeyboardInterrupt, OSError, MemoryError)


@dataclass(frozen=True)
class ReadResult:
    """The result of a read.

    Attributes:
        out: The output folder, a URI if it is in a store. The paths of files have the same type.
        to: The output format.
        files: The paths by split. For `npy` they are folders.
        records: The number of records written, by split.
        read: The number of records read: written, `rejected` and `filtered` together.
        rejected: The number of records that could not be used.
        filtered: The number of records that a filter has left out.
        reject_reasons: The number of rejected records by reason.
        rejects: The paths of the files that list the rejected records.
        schema: The features of the output.
        notes: Observations, such as conversions that were suggested.
        seconds: The duration in seconds of wall time.
    """

    out: Path | str
    to: str
    files: Mapping[str, tuple[Path | str, ...]]
    records: Mapping[str, int]
    read: int
    rejected: int
    filtered: int
    reject_reasons: Mapping[str, int]
    rejects: tuple[Path | str, ...]
    schema: Schema
    notes: tuple[str, ...]
    seconds: float

    @property
    def written(self) -> int:
        return sum(self.records.values())

    @property
    def paths(self) -> tuple[Path | str, ...]:
        """All files (folders for npy), in order."""
        return tuple(path for paths in self.files.values() for path in paths)

    def __repr__(self) -> str:
        splits = ", ".join(f"{name} {count:,}" for name, count in self.records.items())
        rejects = f", {self.rejected:,} rejected" if self.rejected else ""
        size = format_size(sum(_measure_output(path) for path in self.paths))
        return (
            f"<recordmill read to {self.to} in {self.out}: {splits} records{rejects}, "
            f"{format_count(len(self.schema), 'feature')}, {format_count(len(self.paths), 'output')}, {size}>"
        )

    def _repr_html_(self) -> str:
        """Returns the summary that notebooks show: the location, files, features and notes."""
        counts = [
            (name, f"{count:,}", ", ".join(map(str, self.files[name])))
            for name, count in self.records.items()
        ]
        features = html.table(["feature", "holds"], [(f.name, f.describe()) for f in self.schema])
        splits = html.table(["split", "records", "files"], counts)
        return html.section(
            repr(self).strip("<>"),
            splits,
            features,
            lines=[Message("note: {note}", note=note) for note in self.notes],
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the machine-readable summary that `--json` prints."""
        return {
            "out": str(self.out),
            "to": self.to,
            "records": dict(self.records),
            "read": self.read,
            "rejected": self.rejected,
            "filtered": self.filtered,
            "reject_reasons": dict(self.reject_reasons),
            "files": [str(path) for path in self.paths],
            "rejects": [str(path) for path in self.rejects],
            "features": {feature.name: feature.describe() for feature in self.schema},
            "notes": list(self.notes),
            "seconds": round(self.seconds, 3),
        }


@suggest_keywords
@with_keywords("read")
def read(
    inputs: Inputs,
    out: str | os.PathLike[str],
    *,
    quiet: bool = True,
    progress: ProgressArgument = None,
    **options: Unpack[ReadKeywords],
) -> ReadResult:
    """Converts the records of TFRecord files to Parquet, NumPy, Arrow or other files.

    If a read is killed or stopped, or the disk is full, the same call continues with the outputs
    that are not finished. An output that was being written starts again.

    Args:
        inputs: The output folder of a build, or TFRecord files, folders, globs, `@list.txt`, or a
            list of these.
        out: The output folder, also in a store (`s3://bucket/folder`).
        quiet: False prints the progress to stderr.
        progress: A function that receives updates, as for `build`.
        **options: The options of `recordmill read`, as keywords. docs/reference.md lists them.

    Returns:
        The files and the number of records.

    Raises:
        UsageError: An option or an input is not supported.
        DataError: A record is damaged.
        TooManyRejects: More records than `max_rejects` could not be used. Nothing is written.
        RecordmillError: The read failed for another reason, such as a full disk. All errors above
            are subclasses.

    Examples:
        >>> result = recordmill.read("shards", "tables", to="parquet", columns=["id", "animal"])
        >>> result.written, result.schema.names
        (10, ('id', 'animal'))
        >>> [path.name for path in result.files["train"]]
        ['train-00000-of-00001.parquet']
    """
    started = time.monotonic()
    out = parse_output_path(out)
    settings = make_settings(**options)
    limit_requests(settings.run.storage_requests)
    check_runner(settings.run.runner, settings.run.beam_args)
    counters = to_progress(progress)
    with (
        limit_block_memory(settings.run.memory),
        completion_notice(out) as completion_checks,
        Display(counters, quiet) as display,
        ThreadPoolExecutor(1, thread_name_prefix="recordmill-find") as pool,
    ):
        # The inputs are listed while the store of OUT is prepared: each waits for its own answers.
        listing = pool.submit(find_inputs, inputs, settings.plan) if is_remote(out) else None
        call = _ReadCall(
            (lambda: inputs) if listing is None else listing.result,
            out,
            settings,
            counters,
            display,
            completion_checks,
            started,
        )
        try:
            return _read_in_new_run(call, may_guess=settings.run.runner is None)
        except _WrongGuessError:
            return _read_in_new_run(call, may_guess=False)


@dataclass(frozen=True)
class _ReadCall:
    """The arguments of a call of `read`, and the objects that observe it.

    Attributes:
        find_inputs: Returns the inputs, or their catalog. May wait until they are listed.
        out: The output folder, or the URI of a store.
        settings: The checked options.
        progress: Counts the records.
        display: Shows the progress.
        completion_checks: Functions that return whether a result was published.
        started: When the call began, from `time.monotonic`.
    """

    find_inputs: Callable[[], Inputs | Catalog]
    out: str
    settings: ReadSettings
    progress: Progress
    display: Display
    completion_checks: list[Callable[[], bool]]
    started: float


class _WrongGuessError(Exception):
    """A later record does not fit the schema inferred from the first records."""


def _read_in_new_run(call: _ReadCall, may_guess: bool) -> ReadResult:
    """Creates a run folder, reads into it, and publishes the result.

    Args:
        call: The call of `read`.
        may_guess: True if the schema may be inferred from the first records only. This saves a pass
            over the files, if the other records fit.

    Raises:
        _WrongGuessError: A later record does not fit the inferred schema. Nothing is kept.
    """
    folder, base = _create_run_folder(call.out, call.settings)
    job_folder: JobFolder | None = None
    try:
        # A wrong guess discards the run folder, and with it the finished outputs of a stopped read.
        plan, folder, finished = _plan_or_resume(
            call, folder, allow_guess=may_guess and not has_stopped_read(folder.out)
        )
        if call.settings.run.runner is not None:
            job_folder = _make_job_folder(folder, call.out, call.settings)
        return _convert_and_publish(call, plan, folder, base, finished, job_folder)
    except DataError as error:
        if call.settings.plan.lenient or not is_record_error(error):
            raise
        raise with_remedy(error) from error
    except MayBeRunning:
        folder.release()  # the job may still be writing to it
        raise
    except _RESUMABLE_ERRORS as error:
        if any(is_complete() for is_complete in call.completion_checks):
            raise
        reported = _explain_stop(error, folder, call.out, job_folder)
        if reported is error:
            raise
        raise reported from error
    finally:
        folder.close()


def _convert_and_publish(
    call: _ReadCall,
    plan: ReadPlan,
    folder: RunFolder,
    base: int,
    finished: FinishedOutputs | None,
    job_folder: JobFolder | None,
) -> ReadResult:
    """Writes the outputs that are not finished, and publishes all of them.

    Args:
        call: The call of `read`.
        plan: The plan.
        folder: The run folder.
        base: The newest generation in the store when the read started, or 0 on a disk.
        finished: The outputs that an earlier read has finished, or None.
        job_folder: The folders that workers share. None without workers.

    Raises:
        _WrongGuessError: A record does not fit the guessed schema.
    """

    def should_keep(error: BaseException) -> bool:
        with suppress(OSError):
            return (
                isinstance(error, _RESUMABLE_ERRORS)
                and count_finished(folder, _find_attempts_folder(job_folder)) > 0
            )
        return False

    with remove_on_failure(job_folder, should_keep) as run, ExitStack() as open_uploads:
        publication = _make_publication(
            plan, call.settings, folder, call.out, base, run, finished, open_uploads
        )
        call.completion_checks.append(lambda: publication.is_complete)
        try:
            results = run_tasks(
                plan, call.settings, folder, call.progress, publication, job_folder, finished
            )
        except (SchemaNotConfirmed, DataError) as error:
            if plan.guess is None:
                raise
            raise _WrongGuessError from error
        result = _publish(
            plan,
            call.settings,
            results,
            publication,
            call.out if is_remote(call.out) else folder.out,
            call.started,
        )
        if run is not None:
            run.remove_work_files()
        return result


def _plan_or_resume(
    call: _ReadCall, folder: RunFolder, allow_guess: bool
) -> tuple[ReadPlan, RunFolder, FinishedOutputs | None]:
    """Plans a read, and finds the outputs that an earlier read has finished.

    Args:
        call: The call of `read`. Its display gets a line if the read continues an earlier one.
        folder: The run folder.
        allow_guess: Whether `plan_read` may infer the schema from the first records only.

    Returns:
        (plan, run folder, finished outputs). If this read continues an earlier one, it uses the run
        folder of the earlier read. The finished outputs are None if the read is too small to save
        its progress.
    """
    settings, progress = call.settings, call.progress
    progress.begin("plan")
    plan = plan_read(
        call.find_inputs(),
        settings.plan,
        schema=settings.schema,
        threads=settings.threads,
        allow_guess=allow_guess,
        memory_bytes=settings.run.memory,
    )
    # The budget may be a share of the records, whose number is known only now.
    plan = replace(plan, max_rejects=settings.budget.max_rejects(plan.records))
    if (
        settings.run.runner is not None
        and not is_local(settings.run.runner)
        and settings.run.preflight
    ):
        probe = ProbeResult(
            _make_job_folder(folder, call.out, settings).run_path(), sample_files(plan.files)
        )
        preflight(settings.run.runner, settings.run.beam_args, probe, progress)
    progress.begin("resume")
    folder, finished = resume_read(folder, plan, uses_engine=settings.run.runner is not None)
    if finished is not None and settings.run.runner is not None:
        from recordmill.pipelines.read_beam import find_worker_tasks

        finished = replace(
            finished,
            worker_tasks=find_worker_tasks(
                plan, folder, _make_job_folder(folder, call.out, settings)
            ),
        )
    finished_counts = [] if finished is None else finished.all_counts
    if finished_counts:
        num_tasks = (
            len(finished.worker_tasks)
            if finished is not None and finished.worker_tasks
            else len(plan.tasks)
        )
        message = (
            f"resuming an earlier read: {len(finished_counts)} of {num_tasks} outputs are finished"
        )
        plan = replace(plan, notes=(*plan.notes, message))
        call.display.print_line(message)
    progress.begin(
        "convert",
        None
        if plan.records is None
        else plan.records - sum(counts.read for counts in finished_counts),
    )
    return plan, folder, finished


def _create_run_folder(out: str, settings: ReadSettings) -> tuple[RunFolder, int]:
    """Creates the run folder.

    Returns:
        (run folder, base). `base` is the newest generation in the store, or 0 on a disk.
    """
    if not is_remote(out):
        uses_engine = settings.run.runner is not None and not is_local(settings.run.runner)
        return begin_publication(out, settings.overwrite, uses_engine), 0
    return begin_store_publication(out, settings.overwrite)


def _make_job_folder(folder: RunFolder, out: str, settings: ReadSettings) -> JobFolder:
    """Returns the folders that the workers share.

    If the workers belong to an engine and OUT is in a store, they are in OUT. Otherwise they are in
    the run folder on this machine.
    """
    from recordmill.building.workers.shared_files import JobFolder

    is_shared = (
        is_remote(out) and settings.run.runner is not None and not is_local(settings.run.runner)
    )
    return JobFolder(
        out if is_shared else os.path.abspath(folder.out),
        folder.id,
        settings.run.storage_requests,
    )


def _make_publication(
    plan: ReadPlan,
    settings: ReadSettings,
    folder: RunFolder,
    out: str,
    base: int,
    run: StoreRun | None,
    finished: FinishedOutputs | None,
    open_uploads: ExitStack,
) -> Publication:
    """Returns the object that publishes the outputs, on a disk or in a store.

    Args:
        plan: The plan of the read.
        settings: The checked options.
        folder: The run folder.
        out: The output folder.
        base: The newest generation in the store when the read started.
        run: The run in the store if workers write outputs there, otherwise None.
        finished: The outputs that an earlier read has finished, or None.
        open_uploads: An exit stack. It gets the uploads from this machine, and waits for them when
            it is closed.
    """
    if not is_remote(out):
        return DiskPublication(folder, settings.overwrite)
    if run is not None and not plan.options.output_format.per_split:
        return StorePublication(run, folder, base)
    uploads = make_uploads(plan, folder, out, finished, settings.threads, settings.run.memory)
    return StorePublication(uploads.run, folder, base, open_uploads.enter_context(uploads))


def run_tasks(
    plan: ReadPlan,
    settings: ReadSettings,
    folder: RunFolder,
    progress: Progress,
    publication: Publication,
    job_folder: JobFolder | None = None,
    finished: FinishedOutputs | None = None,
) -> list[OutputCounts]:
    """Runs the tasks that are not finished, on threads or on the runner.

    The outputs are in `folder.data` afterwards, or in the store if workers have written them there
    (see `read_beam.writes_to_store`).

    Returns:
        The counts of all outputs, finished ones included.
    """
    if settings.run.runner is not None:
        from recordmill.pipelines.read_beam import run_on_beam

        assert job_folder is not None
        return run_on_beam(plan, settings, folder, progress, job_folder, finished)
    plan, concurrent_tasks = share_memory(
        plan, len(plan.tasks), settings.threads, settings.run.memory
    )
    threads = max(1, settings.threads // concurrent_tasks)

    def run_or_reuse(task: ReadTask) -> OutputCounts:
        if finished is not None and task.name in finished.counts_by_task:
            return finished.counts_by_task[task.name]
        counts = run_task(
            plan,
            task,
            folder.data,
            folder.rejects,
            output=plan.options.output_format,
            threads=threads,
            progress=progress,
            on_output=publication.on_output,
        )
        # Saved after each task, so that a killed read loses only its running tasks.
        if finished is not None:
            finished.save(plan, task, folder.data, counts)
        return counts

    # If a task fails, `progress.cancel` stops the others.
    return list(thread_map(run_or_reuse, plan.tasks, concurrent_tasks, on_error=progress.cancel))


def _find_attempts_folder(job_folder: JobFolder | None) -> str:
    """Returns the URI of the folder for the outputs of workers in a store.

    Returns "" if workers do not write to a store.
    """
    if job_folder is None or not job_folder.is_remote:
        return ""
    from recordmill.building.workers.shared_files import ATTEMPTS_FOLDER

    return job_folder.run_path(ATTEMPTS_FOLDER)


def _explain_stop(
    error: BaseException, folder: RunFolder, out: str, job_folder: JobFolder | None
) -> BaseException:
    """Returns the error to raise after an error has stopped a read.

    If some outputs are finished, they are kept, and the message explains how to continue. Otherwise
    an OSError without a path gets the path of OUT, and other errors are returned as they are.
    """
    if count := count_finished(folder, _find_attempts_folder(job_folder)):
        folder.release()
        return _make_resume_error(error, folder, count)
    if not isinstance(error, OSError) or error.filename is not None or not error.strerror:
        return error
    location = (
        f"{folder.out} (in TMPDIR, where the files for {out} are prepared)"
        if is_remote(out)
        else folder.out
    )
    return RecordmillError(f"{location}: {error.strerror}; nothing was written")


def _make_resume_error(error: BaseException, folder: RunFolder, count: int) -> BaseException:
    """Returns the error of a stopped read that the same command can continue.

    Args:
        error: The error that has stopped the read.
        folder: The run folder.
        count: The number of finished outputs.
    """
    remedy = (
        f"{count} finished output{'s are' if count > 1 else ' is'} kept: repeat the "
        f"same command to continue; to discard them, remove {folder.path}"
    )
    if isinstance(error, KeyboardInterrupt):
        return KeyboardInterrupt(f"stopped; {remedy}")
    if isinstance(error, OSError):
        return RecordmillError(
            f"{error.filename or folder.out}: {error.strerror or error}; {remedy}"
        )
    return RecordmillError(
        ("out of memory: use less {memory}, fewer {threads} or a larger machine; {remedy}"),
        memory=option("memory"),
        threads=option("threads"),
        remedy=remedy,
    )


def _publish(
    plan: ReadPlan,
    settings: ReadSettings,
    results: Sequence[OutputCounts],
    publication: Publication,
    out: Path | str,
    started: float,
) -> ReadResult:
    """Verifies the counts and publishes the outputs.

    Returns:
        The result of the read.

    Raises:
        TooManyRejects: More records than the budget allows could not be used. Nothing is published.
    """
    counts = ReadCounts.from_outputs(results)
    counts.check(plan, settings.budget)  # raises before anything is published
    notes = (
        *plan.notes,
        *(
            Message("{split}: {note}", split=result.split, note=note)
            for result in results
            for note in result.notes
        ),
        *counts.compare_stated(plan, results),
    )
    folder, rejects = publication.publish(counts.summary(plan), results)
    return ReadResult(
        out,
        plan.options.output.to,
        {
            split: tuple(
                _join_name(folder, result.output) for result in results if result.split == split
            )
            for split in counts.records
        },
        counts.records,
        counts.read,
        counts.rejected.total,
        counts.filtered,
        dict(counts.rejected.counts),
        rejects,
        plan.schema,
        tuple(notes),
        time.monotonic() - started,
    )


def _join_name(folder: Path | str, name: str) -> Path | str:
    return folder / name if isinstance(folder, Path) else join(folder, name)


def _measure_output(path: Path | str) -> int:
    if is_folder(path):
        return sum(stat(file).size_bytes for file in find_files(path).values())
    return stat(str(path)).size_bytes if exists(path) else 0


def dry_run(inputs: Inputs, **options: Any) -> ReadEstimate:
    """Estimates the output of a read without writing anything.

    Args:
        inputs: As for `read`.
        **options: The options of `recordmill read`, as keywords.

    Raises:
        UsageError: An option or an input is not supported, or the output would need more memory
            than `memory` allows.
        DataError: A record of the sample is damaged.
    """
    settings = make_settings(**options)
    check_applicable("read", {**options, "dry_run": True})
    memory_bytes = settings.run.memory
    plan = plan_read(
        inputs,
        settings.plan,
        schema=settings.schema,
        threads=settings.threads,
        memory_bytes=memory_bytes,
    )
    estimate = estimate_read(plan, read_peak_bytes(settings.threads))
    estimate.check_memory_fits(settings.run.memory)
    return estimate
