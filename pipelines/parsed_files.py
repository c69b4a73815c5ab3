"""Parsed files in the run folders of killed builds.

These are the files that the user's function `parser` has parsed.

A build with a parser can take weeks. If it is killed or fails, its run folder stays, and the next
build with a parser takes over the parsed files. Every other build of OUT, and `recordmill clean`,
remove the folder.
"""

from __future__ import annotations

import base64
import logging
import os
from dataclasses import replace
from pathlib import Path

from recordmill.base.errors import UsageError
from recordmill.base.option_names import option
from recordmill.shards.dead_runs import claim_dead_runs, list_run_folders, remove_dead_runs
from recordmill.shards.run import RunFolder
from recordmill.sources.parser.function import ParserFunction
from recordmill.storage.folders import is_folder, is_link, list_paths, make_folder, rename

_PARSED_NAME = "parsed"

_log = logging.getLogger(__name__)


def make_parsed_folder(folder: RunFolder) -> str:
    """Returns the folder for the parsed files of a run, which is created."""
    path = _parsed_folder(folder.path)
    make_folder(path, exist_ok=True)
    return os.fspath(path.absolute())


def add_pickled_code(parser: ParserFunction) -> ParserFunction:
    """Adds the pickled code of a parser that is in no module.

    Worker processes can load the result.

    Raises:
        UsageError: The function uses a value that can't be pickled.
    """
    if parser.function is None:
        return parser
    from apache_beam.internal.cloudpickle import cloudpickle

    try:
        pickled = cloudpickle.dumps(parser.function)
    except Exception as error:
        raise UsageError(
            "{parser}: {function} can't be sent to worker processes ({kind}: {error}); put it into a module",
            parser=option("parser"),
            function=parser.name,
            kind=type(error).__name__,
            error=error,
        ) from None
    return replace(parser, pickled=base64.b64encode(pickled).decode(), function=None)


def has_parsed_files(run: Path) -> bool:
    """Returns whether the folder of a run has parsed files."""
    folder = _parsed_folder(run)
    return is_folder(folder) and not is_link(folder) and bool(list_paths(folder, "*.json"))


def take_over_parsed_files(folder: RunFolder) -> None:
    """Moves the parsed files of dead runs here, and removes these runs."""
    target = Path(make_parsed_folder(folder))
    candidates = [run for run in list_run_folders(folder.out) if has_parsed_files(run)]
    with claim_dead_runs(candidates) as dead:
        for run in dead:
            paths = list_paths(_parsed_folder(run))
            # A JSON file says that the other files of its name are complete, so it comes last.
            for path in sorted(paths, key=lambda path: path.suffix == ".json"):
                rename(path, target / path.name)
    remove_dead_runs(folder.out)


def release_parsed_files(folder: RunFolder) -> None:
    """Keeps the folder of a failed run with parsed files, and warns the user."""
    if has_parsed_files(folder.path):
        _log.warning(
            "%s keeps the files that were parsed, for the next build of the same files with the same parser; "
            "`recordmill clean %s --remove` removes them",
            folder.path,
            folder.out,
        )
        folder.release()


def _parsed_folder(run: Path) -> Path:
    return run / "spool" / _PARSED_NAME
