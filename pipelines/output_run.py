"""Start and end of a run that makes a generation of a data set."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from recordmill.base.errors import DataError, RecordmillError
from recordmill.building.workers.shared_files import JobFolder
from recordmill.options.calls import is_local
from recordmill.pipelines.parsed_files import has_parsed_files, keep_parsed_files
from recordmill.pipelines.remote.submission import MayBeRunning, remove_on_failure
from recordmill.shards.run import Run, RunFolder
from recordmill.shards.store_run import StoreRun, attach_run, find_local_work_folder
from recordmill.storage.files import DISK_FULL_ERRNOS, is_remote
from recordmill.storage.folders import join


@contextlib.contextmanager
def open_run(
    out: str, *, runner: str | None = None, uses_parser: bool = False
) -> Iterator[tuple[RunFolder, Run]]:
    """Creates the folder of a run, and closes it after the `with` block.

    If the block fails, everything that the run has written is removed. There are two exceptions:
    the run folder stays if it has parsed files for the next build, and everything stays if a job
    may still be writing.

    Args:
        out: The output folder.
        runner: The Beam runner. None means this machine.
        uses_parser: Whether the run has files that the user's parser has parsed.

    Yields:
        (folder on this machine in which the run works, run). They are the same object, unless OUT
        is in a store.

    Raises:
        RecordmillError: The block raised an error of the system about OUT.
    """
    path = find_local_work_folder(out) if is_remote(out) else Path(out)
    folder = RunFolder.create(
        path,
        keep=has_parsed_files if uses_parser else None,
        # The workers of an engine can outlive this process and its lock, so they need a lease.
        uses_engine=not is_local(runner),
    )
    run: Run = attach_run(out, folder.id) if is_remote(out) else folder

    def keeps_parsed_files(_: BaseException) -> bool:
        with contextlib.suppress(OSError):
            return uses_parser and has_parsed_files(join(out, run.folder_name))
        return False

    try:
        with _explain_output_errors(out, path, run), contextlib.ExitStack() as stack:
            # A store that refuses writes does so here, and not after all work is done.
            if not is_local(runner):
                job_folder = JobFolder(out, folder.id)
                stack.enter_context(
                    remove_on_failure(
                        job_folder, keeps_parsed_files, removes_dead_runs=not uses_parser
                    )
                )
            elif isinstance(run, StoreRun):
                with run:
                    pass
            yield folder, run
    except MayBeRunning:
        folder.release()
        raise
    except BaseException:
        if uses_parser and run.committed_manifest() is None:
            keep_parsed_files(folder, run)
            # Other programs may read the shards by a glob, so only the parsed files stay.
            # A local build in a store has removed them, unless it is unknown whether it committed.
            if run is folder or not is_local(runner):
                with contextlib.suppress(OSError, DataError):
                    run.discard()
        raise
    finally:
        folder.close()  # does nothing after `release`


@contextlib.contextmanager
def _explain_output_errors(out: str, path: Path, run: Run) -> Iterator[None]:
    """Turns an OSError about OUT, such as a full disk, into a RecordmillError.

    The message contains the path, and whether the data set was committed.

    Args:
        out: The output folder.
        path: The folder on this machine in which the run works.
        run: The run.

    Raises:
        RecordmillError: The `with` block raised OSError about OUT. Other errors are unchanged.
    """
    try:
        yield
    except OSError as error:
        if not _is_output_error(error, path):
            raise
        raise RecordmillError(
            f"{_describe_location(path, out, error)}: {os.strerror(error.errno or 0)}; {_describe_outcome(run)}"
        ) from error


def _describe_location(path: Path, out: str, error: OSError) -> str:
    """Returns the path that failed, for messages.

    The result is the path in the error, or OUT if the error has none. If OUT is in a store, the
    result is the local folder in which the output is prepared.
    """
    if is_remote(out):
        return f"{path} (in TMPDIR, where the files for {out} are prepared)"
    return str(path) if error.filename is None else os.fspath(error.filename)


def _describe_outcome(run: Run) -> str:
    """Returns the state of OUT after a failed build, for messages."""
    try:
        return (
            "nothing was written"
            if run.committed_manifest() is None
            else "the data set is complete"
        )
    except (OSError, DataError):
        return (
            "it is unknown whether the data set was written: run `recordmill "
            "verify` when the disk can be read"
        )


def _is_output_error(error: OSError, out: Path) -> bool:
    """Returns whether an error concerns OUT and not an input.

    A full disk without a path in the error concerns OUT, because only writes can fail for this
    reason.
    """
    if isinstance(error.filename, str):
        # The joined "" adds a slash, so that OUT2/x is not treated as a path in OUT.
        return os.path.abspath(error.filename).startswith(os.path.join(os.path.abspath(out), ""))
    return error.errno in DISK_FULL_ERRNOS
