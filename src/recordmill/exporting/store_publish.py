"""Publication of the result of a read in a store.

Outputs become objects below `data-<id>/`. An output that is a file is uploaded as soon as it is
finished. An output that is a folder is uploaded at the end. Then `_reads/<generation>.json` is
created, which makes the result visible. This step fails if another read has created the same
generation first.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recordmill.base.errors import DataError, RecordmillError, UsageError
from recordmill.base.option_names import option
from recordmill.base.threads import run_both
from recordmill.exporting.plan import REJECTS_FOLDER, ReadPlan, read_peak_bytes
from recordmill.exporting.resume import FinishedOutputs, is_resumable
from recordmill.exporting.task import OutputCounts, Publication, format_summary
from recordmill.records.columns.decode_images import DecodeImages
from recordmill.shards.dead_runs import READ_NOTE_NAME
from recordmill.shards.manifest import is_data_set
from recordmill.shards.run import RunFolder
from recordmill.shards.store_run import (
    StoreRun,
    find_local_work_folder,
    list_data_objects,
    list_result_numbers,
    list_results,
    result_name,
)
from recordmill.storage.files import (
    UPLOAD_BYTES,
    check_uploaded,
    list_objects,
    put_object,
    read_range,
    remove_objects,
    stat,
    upload_all,
    upload_file,
)
from recordmill.storage.folders import find_files, is_file, join, list_names, remove_file
from recordmill.storage.json_fields import MAX_JSON_BYTES
from recordmill.storage.walk import DATA_PREFIX, READ_SUMMARY_NAME, READS_FOLDER, RUN_PREFIX

# Maximum number of uploads at the same time while other outputs are written.
_MAX_CONCURRENT_OUTPUTS = 8


class Uploads:
    """Uploads of the outputs that a read has written on this machine.

    Use it in a `with` block, which also keeps the run in the store alive. At the end of the block,
    the uploaded objects are removed unless they were committed.

    Args:
        folder: Run folder of the read on this machine.
        out: URL of the output folder in the store.
        finished: Outputs that earlier processes of this read have finished, or None.
        memory_bytes: Memory that all uploads together may use.
        concurrency: Maximum number of uploads while other outputs are written. If 0, everything is
            uploaded after the last output is written.
    """

    def __init__(
        self,
        folder: RunFolder,
        out: str,
        finished: FinishedOutputs | None,
        memory_bytes: int,
        concurrency: int,
    ) -> None:
        self.folder, self.out, self._memory_bytes, self._concurrency = (
            folder,
            out,
            memory_bytes,
            concurrency,
        )
        self.run, self.data_name = StoreRun(out, folder.id), f"{DATA_PREFIX}{folder.id}"
        self.finished = finished
        # By name, the size of each object that an earlier process of this read has uploaded.
        self._uploaded_sizes: dict[str, int] = {}
        self._uploads_by_key: dict[str, Future[None]] = {}

    def __enter__(self) -> Uploads:
        if self.finished is not None:
            self._uploaded_sizes = self._remove_other_objects(
                {account.output for account in self.finished.counts_by_task.values()}
            )
        self.run.__enter__()
        self._pool = ThreadPoolExecutor(
            max(self._concurrency, 1), thread_name_prefix="recordmill-upload"
        )
        return self

    def start_upload(self, path: Path, name: str) -> None:
        """Starts to upload a finished output in the background.

        Does nothing for folders, or if the concurrency is 0. `finish_uploads` then uploads the
        output.

        Args:
            path: Path of the output.
            name: Name of the output in the data folder.
        """
        if self._concurrency and is_file(path):
            key = f"{self.data_name}/{name}"
            self._uploads_by_key[key] = self._pool.submit(
                lambda: upload_file(str(path), f"{self.out}/{key}", stat(str(path)).size_bytes)
            )

    def _remove_other_objects(self, outputs: Set[str]) -> dict[str, int]:
        """Removes the objects of this read that are not finished outputs.

        Call this before an output is written, because a new output may have the name of an old
        object.

        Args:
            outputs: Names of the finished outputs.

        Returns:
            The size in bytes of each remaining object, by its name relative to the output folder.
        """
        objects = {
            f"{self.data_name}/{item.name}": item
            for item in list_objects(f"{self.out}/{self.data_name}")
        }
        sizes = {
            key: item.size_bytes for key, item in objects.items() if key.split("/")[1] in outputs
        }
        remove_objects(
            self.out,
            [key for key in list_data_objects(self.out, self.data_name) if key not in sizes],
        )
        return sizes

    def finish_uploads(self) -> tuple[list[str], list[str]]:
        """Uploads everything that is not uploaded yet, and checks all objects.

        Returns:
            (names of the outputs, names of the reject files), relative to the output folder.

        Raises:
            OSError: A request failed several times.
            RecordmillError: An object is missing, or has another size than its file.
        """
        folder, data_name = self.folder, self.data_name
        names = [name for name in list_names(folder.data) if not name.startswith(".")]
        reject_files = [name for name in list_names(folder.rejects) if not name.startswith(".")]
        outputs = {
            name: path for name, path in find_files(folder.data).items() if not name.startswith(".")
        }
        rejects = [f"{REJECTS_FOLDER}/{folder.id}.{name}" for name in reject_files]
        files = {f"{data_name}/{name}": path for name, path in outputs.items()}
        files |= {
            key: str(folder.rejects / name) for key, name in zip(rejects, reject_files, strict=True)
        }
        pending = {key: path for key, path in files.items() if not self._is_uploaded(key, path)}
        run_both(
            lambda: upload_all(self.out, pending, self._memory_bytes), self.run.remove_dead_runs
        )
        check_uploaded(self.out, files)
        return [f"{data_name}/{name}" for name in names], rejects

    def _is_uploaded(self, key: str, path: str) -> bool:
        """Returns whether a file is uploaded, and waits if its upload is running.

        An upload that has failed counts as not done, so `finish_uploads` repeats it.
        """
        if self._uploaded_sizes.get(key) == stat(path).size_bytes:
            return True
        future = self._uploads_by_key.get(key)
        # An upload that still waits for a thread is cancelled. `finish_uploads` uploads its file
        # together with the other remaining files.
        if future is None or future.cancel():
            return False
        with contextlib.suppress(OSError):
            future.result()
            return True
        return False

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        self.run.discard()
        self.run.__exit__(*error)


def make_uploads(
    plan: ReadPlan,
    folder: RunFolder,
    out: str,
    finished: FinishedOutputs | None,
    threads: int,
    memory_bytes: int,
) -> Uploads:
    """Creates the uploads of a read.

    Outputs are uploaded while others are written only if the read leaves enough memory for it.

    Args:
        plan: The plan of the read.
        folder: Run folder of the read on this machine.
        out: URL of the output folder in the store.
        finished: Outputs that earlier processes of this read have finished, or None.
        threads: Number of threads that decode records.
        memory_bytes: Memory limit of the read.
    """
    free_bytes = memory_bytes - read_peak_bytes(threads)
    # Images may take all of the memory (`plan.share_memory`).
    if any(isinstance(step, DecodeImages) for step in plan.steps):
        free_bytes = 0
    return Uploads(
        folder,
        out,
        finished,
        memory_bytes,
        max(min(free_bytes // UPLOAD_BYTES, _MAX_CONCURRENT_OUTPUTS), 0),
    )


_READ_PREFIXES = (RUN_PREFIX, DATA_PREFIX, f"{REJECTS_FOLDER}/", f"{READS_FOLDER}/")

_log = logging.getLogger(__name__)


def begin_store_publication(out: str, overwrite: bool) -> tuple[RunFolder, int]:
    """Checks the output folder in a store, and creates a local run folder.

    Args:
        out: URL of the output folder.
        overwrite: True if the folder may contain an earlier result, which `publish` replaces.

    Returns:
        The run folder, and the generation of the newest result. The latter is 0 if there is no
        result.

    Raises:
        UsageError: The output folder contains a data set, other objects, or a result although
            `overwrite` is false. Or the store can't be reached.
    """
    try:
        holds_data_set, results = run_both(lambda: is_data_set(out), lambda: list_results(out))
        if holds_data_set:
            raise UsageError(
                "{out} holds a data set of recordmill; name another folder for {out_option}",
                out=out,
                out_option=option("out"),
            )
        if results:
            _finish_newest_result(out, results)
            if not overwrite:
                raise UsageError(
                    "{out} already holds the result of a read; {overwrite} replaces it",
                    out=out,
                    overwrite=option("overwrite", True),
                )
        else:
            other_name = next(
                (
                    item.name
                    for item in list_objects(out)
                    if not item.name.startswith(_READ_PREFIXES)
                ),
                None,
            )
            if other_name is not None:
                raise UsageError(
                    "{out} is not empty ({other_name}, ...); name a new or an empty folder for "
                    "{out_option}",
                    out=out,
                    other_name=other_name,
                    out_option=option("out"),
                )
    except OSError as error:
        raise UsageError(
            "{out}: {strerror}", out=option("out", out), strerror=error.strerror
        ) from None
    except DataError as error:
        raise UsageError(
            "{error}: it was not written by a read; remove it, or name another folder", error=error
        ) from None

    # A read may have been killed after its commit, before the store answered. It is not resumed,
    # because its result is visible.
    def may_resume(run: Path) -> bool:
        return (
            is_resumable(run)
            and f"{DATA_PREFIX}{run.name.removeprefix(RUN_PREFIX)}" not in results.values()
        )

    return RunFolder.create(find_local_work_folder(out), keep=may_resume, index=False), max(
        results, default=0
    )


@dataclass(frozen=True)
class StorePublication(Publication):
    """Publication of a result in a store.

    Attributes:
        run: The run in the store.
        folder: Run folder of the read on this machine.
        base: Generation of the newest result when the read began, or 0.
        uploads: Uploads of the outputs that were written on this machine. None if workers of an
            engine have written all outputs to the store.
    """

    run: StoreRun
    folder: RunFolder
    base: int
    uploads: Uploads | None = None

    def on_output(self, path: Path, name: str) -> None:
        if self.uploads is not None:
            self.uploads.start_upload(path, name)

    @property
    def is_complete(self) -> bool:
        return self.run.has_committed

    def publish(
        self, summary: Mapping[str, Any], results: Sequence[OutputCounts]
    ) -> tuple[Path | str, tuple[Path | str, ...]]:
        run, out, data_name, number = self.run, self.run.out, self.run.data_name, self.base + 1
        outputs, rejects = self._put_outputs(results)
        text = format_summary({**summary, "folder": data_name, "files": [*outputs, *rejects]})

        def is_complete() -> bool:
            # An output may be a folder of objects, so only the first part of a name counts.
            uploaded = {item.name.partition("/")[0] for item in list_objects(join(out, data_name))}
            return uploaded >= {name.rpartition("/")[2] for name in outputs}

        if not (
            run.may_commit(self.base, list_result_numbers)
            and run.commit(result_name(number), text, is_complete)
        ):
            raise RecordmillError(
                f"{out}: "
                f"{run.explain_conflict('read', self.base, list_result_numbers)}; the "
                "result of this one was discarded"
            )
        _tidy_after_commit(self.folder, out, number, text)
        return join(out, data_name), tuple(join(out, name) for name in rejects)

    def _put_outputs(self, results: Sequence[OutputCounts]) -> tuple[list[str], list[str]]:
        """Uploads the outputs that are on this machine.

        Returns:
            (names of the outputs, names of the reject files), relative to the output folder.
        """
        if self.uploads is not None:
            return self.uploads.finish_uploads()
        rejects = [
            path.removeprefix(f"{self.run.out}/")
            for result in results
            for path in result.rejected.files
        ]
        return [f"{self.run.data_name}/{result.output}" for result in results], rejects


def _tidy_after_commit(folder: RunFolder, out: str, generation: int, text: bytes) -> None:
    """Writes `_read.json` after a commit, and removes older results.

    An error is only logged, because the result is already complete.

    Args:
        folder: Run folder of the read on this machine.
        out: URL of the output folder.
        generation: Generation of the committed result.
        text: Content of the committed `_reads/<generation>.json`.
    """
    try:
        # Without this file, no later read resumes the run folder.
        with contextlib.suppress(OSError):
            remove_file(folder.path / READ_NOTE_NAME, missing_ok=True)
        results = list_results(out)
        # If a later read has committed in the meantime, it writes the summary of its own result.
        if max(results, default=0) == generation:
            _finish_newest_result(out, results, text)
    except (OSError, RecordmillError) as error:
        _log.warning(
            "%s: the result is complete, but the clean-up after it failed (%s)", out, error
        )


def _finish_newest_result(out: str, results: Mapping[int, str], text: bytes | None = None) -> None:
    """Writes `_read.json` for the newest result, and removes older results.

    The `_reads/` object of the generation before the newest one is kept. A read that began before
    the newest result was committed could otherwise create an object of this number.

    Args:
        out: URL of the output folder.
        results: The data folder of each generation, from `list_results`. Not empty.
        text: Content of the newest `_reads/` object. If None, it is read from the store, and
            `_read.json` is written only if it differs.
    """
    generation = max(results)
    if text is None:
        newest, current = run_both(
            lambda: read_range(
                join(out, result_name(generation)), max_bytes=MAX_JSON_BYTES
            ).tobytes(),
            lambda: _read_summary(out),
        )
    else:
        newest, current = text, b""
    if current != newest:
        put_object(join(out, READ_SUMMARY_NAME), newest)
    older = [(number, name) for number, name in results.items() if number < generation]
    remove_objects(out, [key for _, name in older for key in list_data_objects(out, name)])
    remove_objects(out, [result_name(number) for number, _ in older if number < generation - 1])


def _read_summary(out: str) -> bytes:
    """Returns the content of `_read.json`, or b"" if it is missing or too large."""
    with contextlib.suppress(FileNotFoundError, DataError):
        return read_range(join(out, READ_SUMMARY_NAME), max_bytes=MAX_JSON_BYTES).tobytes()
    return b""
