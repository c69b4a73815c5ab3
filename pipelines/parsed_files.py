"""Files that the user's function `parser` has parsed, in the folders of runs.

A build with a parser can take weeks. If it is killed or fails, its run folder stays, and the next
build with a parser takes over the parsed files. Every other build of OUT, and `recordmill clean`,
remove the folder.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable
from pathlib import Path

from recordmill.base.errors import DataError
from recordmill.base.threads import thread_map
from recordmill.building.workers.shared_files import PARSED_FOLDER, JobFolder
from recordmill.building.workers.sorted_runs import choose_concurrency
from recordmill.shards.dead_runs import remove_dead_runs
from recordmill.shards.run import Run, RunFolder
from recordmill.shards.store_run import StoreRun
from recordmill.sources.parser.parsed_file import (
    RESULT_SUFFIX,
    load_complete_result,
)
from recordmill.storage.files import add_name
from recordmill.storage.folders import is_link, join, list_names_if_present, make_folder
from recordmill.storage.walk import RUN_PREFIX

_log = logging.getLogger(__name__)


def make_parsed_folder(job_folder: JobFolder) -> str:
    """Returns the folder for the parsed files of a run. On a disk it is created."""
    path = job_folder.run_path(PARSED_FOLDER)
    if not job_folder.is_remote:
        make_folder(path, exist_ok=True)
    return path


def has_parsed_files(run: str | Path) -> bool:
    """Returns whether the folder of a run has parsed files. It may be in a store."""
    return bool(_list_results(str(run)))


def take_over_parsed_files(job_folder: JobFolder, names: Iterable[str]) -> int:
    """Takes over parsed files of other runs, and removes dead runs.

    All runs have the same output. The other runs keep their files, so they need not be dead: an
    engine may still work for them.

    Args:
        job_folder: The folders of this run. The folder for parsed files must exist.
        names: The `parsed_name` of each input file.

    Returns:
        The number of input files that need not be parsed.
    """
    own_folder = job_folder.run_path()
    runs = (
        join(job_folder.out, name)
        for name in list_names_if_present(job_folder.out)
        if name.startswith(RUN_PREFIX)
    )
    found = {name: run for run in runs if run != own_folder for name in _list_results(run)}

    def take_over(name: str) -> bool:
        source, target = join(found[name], PARSED_FOLDER), job_folder.run_path(PARSED_FOLDER)
        # If files are damaged, or the other run removes them now, the input file is parsed again.
        with contextlib.suppress(OSError, DataError):
            segments = load_complete_result(source, name).records.segments
            # The JSON file says that the others are complete, so it comes last.
            for path in (*segments, join(source, name + RESULT_SUFFIX)):
                add_name(path, join(target, os.path.basename(path)))
            return True
        return False

    count = 0
    if found:
        wanted = (name for name in names if name in found)
        count = sum(thread_map(take_over, wanted, choose_concurrency(job_folder)))
    run = job_folder.open_run()
    if isinstance(run, StoreRun):
        run.remove_dead_runs()
    else:
        remove_dead_runs(Path(job_folder.out))
    return count


def list_parsed(job_folder: JobFolder) -> list[str]:
    """Returns the `parsed_name` of each parsed file of a run."""
    return _list_results(job_folder.run_path())


def _list_results(run: str) -> list[str]:
    folder = join(run, PARSED_FOLDER)
    if is_link(folder):
        return []
    names = list_names_if_present(folder)
    return [name.removesuffix(RESULT_SUFFIX) for name in names if name.endswith(RESULT_SUFFIX)]


def keep_parsed_files(folder: RunFolder, run: Run) -> None:
    """Keeps the parsed files of a failed run, and warns the user.

    Args:
        folder: The run folder on this machine.
        run: The run. It is the same object, unless OUT is in a store.
    """
    out = str(run.out)
    with contextlib.suppress(OSError):  # the store may be the reason of the failure
        for path in dict.fromkeys((str(folder.path), join(out, run.folder_name))):
            if has_parsed_files(path):
                _log.warning(
                    "%s keeps the files that were parsed, for the next build of the same files with the same parser; "
                    "`recordmill clean %s --remove` removes them",
                    path,
                    out,
                )
    if has_parsed_files(folder.path):
        folder.release(has_ended=True)
