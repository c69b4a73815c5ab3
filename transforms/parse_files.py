"""Parsing of files with the user's function, by the workers of an engine.

A job of its own parses the files, before the build is planned. An element is the number of a file.
The results are files of the job folder, so the step has no output.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from recordmill.base.errors import Reject
from recordmill.building.workers.shared_files import PARSED_FOLDER, SharedValue, scratch
from recordmill.sources.parser.function import ParserFunction
from recordmill.sources.parser.parsed_file import (
    RESULT_SUFFIX,
    parse_file,
    parsed_name,
    put_failure,
    put_result,
)
from recordmill.sources.parser.pool import WorkerPool
from recordmill.storage.file_table import FileTable
from recordmill.storage.folders import exists, join
from recordmill.transforms import beam_types
from recordmill.transforms.build_stages import ElementNumbers, increment_counters


@dataclass(frozen=True)
class ParseRequest:
    """The files to parse, and the function.

    Attributes:
        files: The input files. Their ctimes are 0.
        function: The user's function, in a form that other hosts can load.
    """

    files: FileTable
    function: ParserFunction


def parse_shared_file(request: SharedValue[ParseRequest], number: int, pool: WorkerPool) -> None:
    """Parses a file, and puts its result into the job folder.

    The call may be repeated, even by several processes at once. The first result is kept.

    Args:
        request: The files.
        number: The number of the file.
        pool: The process that runs the user's function, so that its crash is a reject of the file.

    Raises:
        NotSharedError: This worker can't see the run's folder.
        DataError: The file has changed since the build was planned.
        UsageError: The function can't be loaded.
    """
    job_folder, shared = request.job_folder, request.load()
    file = shared.files[number]
    folder, name = job_folder.run_path(PARSED_FOLDER), parsed_name(file, shared.function)
    with job_folder.work(), scratch(job_folder) as local_folder:
        if exists(join(folder, name + RESULT_SUFFIX)):
            return
        answer = parse_file(file, pool, os.path.join(local_folder, name))
        if isinstance(answer, Reject):
            put_failure(folder, name, answer)
            return
        # Each attempt has files of its own. The files of a slower attempt are removed with the run
        # folder.
        paths = [job_folder.move_in(path, PARSED_FOLDER) for path in answer["segments"]]
        put_result(folder, name, {**answer, "segments": paths})


class ParseFile(beam_types.DoFn):
    """Parses files in a process that serves all bundles of this object."""

    def setup(self) -> None:
        self._pool: WorkerPool | None = None

    def process(self, number: int, request: SharedValue[ParseRequest]) -> Iterable[object]:
        if self._pool is None:
            # What the function prints is logged, because nothing reads the standard error of
            # Beam's worker pool.
            self._pool = WorkerPool(request.load().function, logs_output=True)
        parse_shared_file(request, number, self._pool)
        increment_counters(files_parsed=1)
        return ()

    def teardown(self) -> None:
        if self._pool is not None:
            self._pool.close()


@dataclass
class ParseFiles(beam_types.PTransform):
    """Parses all files of a request.

    Attributes:
        request: The files.
        count: The number of files.
    """

    request: SharedValue[ParseRequest]
    count: int

    def expand(self, pipeline: beam_types.Pipeline) -> beam_types.PCollection:
        return (
            pipeline
            | "Files" >> ElementNumbers(self.count)
            | "Parse" >> beam_types.ParDo(ParseFile(), self.request)
        )
