"""Parsing of files with the user's function, here or on an engine."""

from __future__ import annotations

import base64
import os
from collections.abc import Generator
from dataclasses import replace

import numpy as np

from recordmill.base.errors import Reject, UsageError
from recordmill.base.messages import Message
from recordmill.base.option_names import option
from recordmill.base.progress import Progress
from recordmill.base.threads import thread_map
from recordmill.building.workers.shared_files import (
    PARSED_FOLDER,
    SHARED_VALUES_FOLDER,
    JobFolder,
    NotSharedError,
)
from recordmill.building.workers.sorted_runs import choose_concurrency
from recordmill.options.calls import is_local
from recordmill.pipelines.beam_run import run_pipeline
from recordmill.pipelines.build_options import BuildOptions
from recordmill.pipelines.parsed_files import (
    list_parsed,
    make_parsed_folder,
    take_over_parsed_files,
)
from recordmill.pipelines.remote.preflight import ProbeResult, preflight, sample_files
from recordmill.shards.run import RunFolder
from recordmill.sources.parser.function import ParserFunction
from recordmill.sources.parser.parsed_file import (
    RESULT_SUFFIX,
    ParsedResult,
    load_failure,
    load_result,
    parsed_name,
)
from recordmill.sources.parser.source import parse_locally
from recordmill.storage.file_table import FileTable, InputFile
from recordmill.storage.files import is_remote, read_range
from recordmill.storage.folders import join, make_folder

ParsedResults = Generator[ParsedResult | Reject, None, None]


def parse_first_files(
    files: FileTable,
    count: int,
    function: ParserFunction,
    folder: RunFolder,
    settings: BuildOptions,
    progress: Progress,
) -> ParsedResults:
    """Parses the first files on this machine, for a dry run. See `parse_locally`."""
    job_folder = JobFolder(os.path.abspath(folder.out), folder.id)
    return parse_locally(
        files[:count],
        add_pickled_code(function),
        make_parsed_folder(job_folder),
        settings.threads,
        progress,
    )


def parse_files(
    files: FileTable,
    function: ParserFunction,
    folder: RunFolder,
    out: str,
    settings: BuildOptions,
    progress: Progress,
) -> tuple[ParsedResults, tuple[str, ...]]:
    """Parses files with the user's function.

    Files that a run of the same output has parsed before are not parsed again. On an engine, the
    other files are parsed before this function returns.

    Args:
        files: The input files.
        function: The user's function.
        folder: The local run folder.
        out: The output folder.
        settings: The checked options.
        progress: Receives the counts.

    Returns:
        (results, notes). The results are a generator of the records or the reject of each file, in
        the order of the files. A note tells the user that results of an earlier run are used.

    Raises:
        UsageError: The function can't be sent to workers, or the workers can't see the files.
        EngineError: The job of the engine failed.
    """
    function = add_pickled_code(function)
    job_folder = _find_job_folder(folder, out, settings)
    parsed_folder = make_parsed_folder(job_folder)
    names = (parsed_name(file, function) for file in files)
    reused = take_over_parsed_files(job_folder, names)
    notes = (_describe_reuse(reused, len(files), function, out, settings),) if reused else ()
    if is_local(settings.run.runner):
        return parse_locally(files, function, parsed_folder, settings.threads, progress), notes
    _parse_on_workers(files, function, job_folder, settings, progress)
    return _load_results(files, function, job_folder), notes


def _describe_reuse(
    count: int, total: int, function: ParserFunction, out: str, settings: BuildOptions
) -> Message:
    """Returns a note about the files that an earlier run has parsed.

    Args:
        count: The number of files that are not parsed again.
        total: The number of all files.
        function: The user's function.
        out: The output folder.
        settings: The checked options.
    """
    # A build that ends keeps no parsed files, so the next one parses all of them.
    remedy = Message("build again with {overwrite}", overwrite=option("overwrite", True))
    if settings.base is not None:
        remedy = Message(
            "run `recordmill restore {out} --generation {number}` and append again",
            out=out,
            number=settings.base.number,
        )
    return Message(
        "files that an earlier run has parsed, and that were not parsed again: {count} of {total}; "
        "the file of {function} has not changed since, but if a module that it imports has "
        "changed, {remedy} to parse all files",
        count=f"{count:,}",
        total=f"{total:,}",
        function=function.name,
        remedy=remedy,
    )


def _find_job_folder(folder: RunFolder, out: str, settings: BuildOptions) -> JobFolder:
    """Returns the folders for the parsed files of a build.

    If an engine parses the files and OUT is in a store, they are in OUT. Otherwise they are in the
    local run folder, which the workers of an engine share.
    """
    is_shared = is_remote(out) and not is_local(settings.run.runner)
    return JobFolder(
        out if is_shared else os.path.abspath(folder.out),
        folder.id,
        settings.run.storage_requests,
    )


def add_pickled_code(parser: ParserFunction) -> ParserFunction:
    """Returns the parser in a form that worker processes can load.

    A function that is in no module is pickled.

    Raises:
        UsageError: The function uses a value that can't be pickled.
    """
    if parser.function is None:
        return parser
    import cloudpickle

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


def add_source(parser: ParserFunction) -> ParserFunction:
    """Returns the parser with the content of the user's file.

    Other hosts don't have the file.
    """
    if not parser.source_file:
        return parser
    content = read_range(parser.source_file).tobytes()
    return replace(parser, source=base64.b64encode(content).decode())


def _parse_on_workers(
    files: FileTable,
    function: ParserFunction,
    job_folder: JobFolder,
    settings: BuildOptions,
    progress: Progress,
) -> None:
    """Runs a job that parses the files which have no result yet."""
    from recordmill.transforms.parse_files import ParseFiles, ParseRequest

    run = settings.run
    assert run.runner is not None
    if run.preflight:
        probe = ProbeResult(job_folder.run_path(), sample_files(files))
        preflight(run.runner, run.beam_args, probe, progress)
    finished = {*list_parsed(job_folder)}
    pending = [
        number
        for number, file in enumerate(files)
        if not finished or parsed_name(file, function) not in finished
    ]
    if not pending:
        return
    if not job_folder.is_remote:
        make_folder(job_folder.run_path(SHARED_VALUES_FOLDER), exist_ok=True)
    pending_files = files.take_files(np.array(pending)).without_ctimes()
    request = job_folder.share_value("parse", ParseRequest(pending_files, add_source(function)))

    def construct(pipeline: object) -> None:
        _ = pipeline | "Parse" >> ParseFiles(request, len(pending))

    progress.begin("parse", unit="files")
    run_pipeline(
        construct, run.runner, run.beam_args, job_folder.run_path(), progress, kind="parse"
    )


def _load_results(
    files: FileTable, function: ParserFunction, job_folder: JobFolder
) -> ParsedResults:
    """Yields the results of the workers.

    Raises:
        NotSharedError: This machine can't see the result of a worker.
    """
    folder = job_folder.run_path(PARSED_FOLDER)

    def load(file: InputFile) -> ParsedResult | Reject:
        name = parsed_name(file, function)
        try:
            return load_result(folder, name)
        except FileNotFoundError:
            pass
        try:
            return load_failure(folder, name, file)
        except FileNotFoundError:
            path = join(folder, name + RESULT_SUFFIX)
            raise NotSharedError(path, job_folder.out, "this machine,") from None

    yield from thread_map(load, files, choose_concurrency(job_folder))
