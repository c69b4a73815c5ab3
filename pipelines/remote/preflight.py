"""Checks before a job is submitted, and `doctor`.

First the engine is checked. Then a tiny job finds out whether the workers see OUT and the inputs,
and have the same versions of packages. `doctor` returns the same findings as a list, without a
build or a read.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from recordmill.base.arguments import suggest_keywords
from recordmill.base.errors import RecordmillError, UsageError
from recordmill.base.messages import Message, as_message
from recordmill.base.option_names import option
from recordmill.base.progress import Progress
from recordmill.options.calls import Values, with_keywords
from recordmill.options.read import DoctorOptions
from recordmill.pipelines.remote.cluster import ClusterFinding, check_cluster, refuse_findings
from recordmill.pipelines.remote.job_error import EngineError
from recordmill.pipelines.remote.submission import Submission, pipeline_options, run_on_engine
from recordmill.shards.run import RunFolder, check_output_folder
from recordmill.shards.store_run import StoreRun
from recordmill.sources.registry import DATA_EXTENSIONS
from recordmill.storage.files import (
    Stat,
    is_remote,
    limit_requests,
    parse_output_path,
    put_bytes,
    remove_objects,
)
from recordmill.storage.folders import absolute_path, join, remove_file
from recordmill.storage.listing import list_inputs

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from recordmill.options.keywords import DoctorKeywords

# Maximum time until a worker answers. Flink starts a job in 10 s, and a container starts in one or
# two minutes.
ANSWER_SEC = 180.0
MAX_SAMPLES = 16  # number of input files that the workers try to see
_NUM_PROBES = 16  # number of elements of the job; the engine distributes them among its workers
_TOKEN = "preflight"
_SETTINGS = "give the workers the store's settings, which they take from their own environment (docs/stores.md)"


class ListedInput(Protocol):
    """An input file, with its state at planning time."""

    @property
    def path(self) -> str: ...

    @property
    def stat(self) -> Stat: ...


def sample_files(files: Sequence[ListedInput]) -> tuple[tuple[str, int], ...]:
    """Chooses some files, evenly spaced, with the first and the last one.

    Returns:
        (absolute path, size in bytes) of each chosen file.
    """
    sample = (*files[:: max(1, len(files) // MAX_SAMPLES)], *files[-1:])
    return tuple((absolute_path(file.path), file.stat.size_bytes) for file in sample)


@dataclass(frozen=True)
class ProbeResult:
    """Paths that the workers must be able to see.

    Attributes:
        folder: The run folder. A file is created in it, which the workers read. If "", no folder is
            checked.
        inputs: Some input files, as `sample_files` returns them.
    """

    folder: str = ""
    inputs: tuple[tuple[str, int], ...] = ()


def preflight(
    runner: str, beam_args: Sequence[str], probe: ProbeResult, progress: Progress
) -> None:
    """Checks the engine and its workers before a job is submitted.

    Raises:
        UsageError: The engine or a worker can't run the job. The message contains the remedy.
    """
    progress.begin("preflight")
    refuse_findings(check_cluster(runner, pipeline_options(runner, beam_args)))
    if "dataflow" in runner.lower():
        for role, path in (
            ("OUT", probe.folder),
            *(("INPUT", path) for path, _ in probe.inputs[:1]),
        ):
            if path and not is_remote(path):
                raise UsageError(
                    f"{role} {path}: Dataflow's workers see no disk of this machine; name a store, gs://BUCKET/..."
                )
        # Dataflow needs no job that asks the workers: it would take minutes to start, and the
        # workers receive the code with each job.
        return
    refuse_findings(ask_workers(runner, beam_args, probe, progress))


def ask_workers(
    runner: str, beam_args: Sequence[str], probe: ProbeResult, progress: Progress
) -> list[ClusterFinding]:
    """Runs a short job on the workers, and returns the findings."""
    from recordmill.transforms.probe import ProbeRequest, collect_probe_results, probe_workers

    text = uuid.uuid4().hex
    request = ProbeRequest(put_token(probe.folder, text), text, probe.inputs)
    answers: list[dict[str, Any]] = []

    def construct(pipeline: Any) -> None:
        _ = probe_workers(pipeline, request, _NUM_PROBES)

    name = f"recordmill-preflight-{text[:12]}"
    job = Submission(
        runner,
        beam_args,
        name,
        "",
        timeout_sec=ANSWER_SEC,
        on_success=lambda r: answers.extend(collect_probe_results(r.metrics())),
    )
    try:
        run_on_engine(construct, job, Progress())
    except TimeoutError:
        remedy = _remedy_for_silence(pipeline_options(runner, beam_args))
        return [ClusterFinding("workers", f"none has answered within {ANSWER_SEC:.0f} s", remedy)]
    except EngineError as error:
        return [ClusterFinding("workers", error.text, "see docs/cluster.md, Workers")]
    finally:
        remove_token(request.token)
    return _make_findings(answers, probe)


def _make_findings(answers: Sequence[dict[str, Any]], probe: ProbeResult) -> list[ClusterFinding]:
    from recordmill.transforms.probe import MUST_MATCH, find_versions

    own_versions = find_versions()
    hosts = sorted({answer["host"] for answer in answers})
    findings = [
        ClusterFinding(
            "workers",
            f"{len(answers)} answered, on {', '.join(hosts)}"
            if answers
            else "the engine returns no counters",
        )
    ]
    for answer in answers:
        differences = [
            f"{name} {answer[name] or 'none'} there, {own_versions[name]} here"
            for name in MUST_MATCH
            if answer[name] != own_versions[name]
        ]
        if differences:
            remedy = (
                "install the same versions there: others may write other bytes, or fail to unpickle"
            )
            findings.append(
                ClusterFinding(
                    "versions", f"worker on {answer['host']}: {', '.join(differences)}", remedy
                )
            )
        if answer["out"]:
            remedy = (
                "name a folder that all workers see under the same path (a shared disk), or a store"
            )
            remedy = _SETTINGS if is_remote(probe.folder) else remedy
            findings.append(
                ClusterFinding(
                    "OUT", f"a worker on {answer['host']} does not see it: {answer['out']}", remedy
                )
            )
        if answer["inputs"]:
            remedy = "put the inputs where all workers see them under the same path, or in a store"
            remedy = _SETTINGS if is_remote(answer["inputs"]) else remedy
            findings.append(
                ClusterFinding(
                    "INPUT",
                    f"a worker on {answer['host']} does not see it: {answer['inputs']}",
                    remedy,
                )
            )
    if answers and all(finding.ok for finding in findings):
        versions = ", ".join(f"{name} {own_versions[name]}" for name in MUST_MATCH)
        findings.append(ClusterFinding("versions", f"the same here and there: {versions}"))
    return findings


def _remedy_for_silence(options: Any) -> str:
    from apache_beam.options.pipeline_options import PortableOptions

    portable = options.view_as(PortableOptions)
    config = portable.environment_config
    return {
        "EXTERNAL": f"is a worker pool at {config} next to each TaskManager, with the "
        "environment's bin first in its PATH? Its own output says why a "
        "worker did not start",
        "PROCESS": f"is the command of {config} on every TaskManager's host, and does it run there?",
        "LOOPBACK": "LOOPBACK needs the engine on this machine",
    }.get(
        str(portable.environment_type),
        "can the TaskManagers' hosts start the container (docker, the image)?",
    )


def put_token(folder: str, text: str) -> str:
    """Writes a file that each worker must be able to read.

    Args:
        folder: The run folder, or "" if there is none.
        text: Content of the file. Workers compare it.

    Returns:
        The path of the file. "" if there is no folder.
    """
    if not folder:
        return ""
    token = join(folder, _TOKEN)
    put_bytes(token, text.encode())
    return token


def remove_token(token: str) -> None:
    """Removes the file that `put_token` has written."""
    if token and is_remote(token):
        remove_objects(token.rpartition("/")[0], [_TOKEN])
    elif token:
        remove_file(token, missing_ok=True)


@suggest_keywords
@with_keywords("doctor")
def doctor(
    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    out: str | os.PathLike[str] | None = None,
    **options: Unpack[DoctorKeywords],
) -> list[ClusterFinding]:
    """Checks an engine, its workers, the inputs and OUT.

    Args:
        inputs: The inputs, as for `build`. If (), no inputs are checked.
        out: The output folder, as for `build`. If None, no output folder is checked. If the folder
            does not exist, it is created for the check and removed again.
        **options: The options of `recordmill doctor`, as keywords. docs/reference.md lists them.

    Returns:
        The findings. If `finding.ok` is False, apply `finding.remedy`.

    Raises:
        UsageError: No runner is given.
    """
    chosen = Values("doctor", {"out": out, **options})[DoctorOptions]
    runner, beam_args = chosen.runner, chosen.beam_args
    if runner is None:
        engine = "--runner=FlinkRunner --flink_master=HOST:8081"
        raise UsageError(
            "{runner} is needed to name the engine, for example {engine}",
            runner=option("runner"),
            engine=engine,
        )
    limit_requests(chosen.storage_requests)
    findings = check_cluster(runner, pipeline_options(runner, beam_args))
    samples, input_findings = _check_inputs(inputs)
    findings += input_findings
    folder, path = None, ""
    if out is not None:
        folder, path, out_finding = _check_out(parse_output_path(out), chosen.overwrite)
        findings.append(out_finding)
    try:
        # the workers are asked by a job, which needs a working engine
        if all(finding.ok for finding in findings if finding.what not in ("INPUT", "OUT")):
            findings += ask_workers(runner, beam_args, ProbeResult(path, samples), Progress())
    finally:
        if folder is not None:
            folder.close()
    return findings


def _check_inputs(
    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
) -> tuple[tuple[tuple[str, int], ...], list[ClusterFinding]]:
    paths = [
        os.fspath(item) for item in ([inputs] if isinstance(inputs, str | os.PathLike) else inputs)
    ]
    if not paths:
        return (), []
    try:
        files = list_inputs(paths, data_extensions=DATA_EXTENSIONS).files
    except (RecordmillError, OSError) as error:
        return (), [ClusterFinding("INPUT", as_message(error), "name files that exist")]
    files_here = f"{len(files):,} file{'s' * (len(files) != 1)} here"
    return sample_files(files), [ClusterFinding("INPUT", files_here)]


def _check_out(out: str, overwrite: bool) -> tuple[RunFolder | None, str, ClusterFinding]:
    """Checks that OUT can be written to.

    Returns:
        (run folder, path, finding). The run folder is None unless it is on a disk, and the caller
        closes it. The path is that of the run folder on a disk or in a store, or "" if there is
        none.
    """
    folder = None
    try:
        base = check_output_folder(out, overwrite)
        if is_remote(out):
            # The `with` block raises an error unless the store accepts writes and conditional
            # writes.
            with StoreRun(out, uuid.uuid4().hex[:12]) as run:
                path = join(out, run.folder_name)
        else:
            folder = RunFolder.create(out)
            path = str(folder.path.absolute())
    except UsageError as error:
        return None, "", _make_out_finding(as_message(error))
    except OSError as error:
        return None, "", _make_out_finding(f"{out}: {error.strerror}")
    content = "a data set, which would be replaced" if base else "no data set"
    return folder, path, ClusterFinding("OUT", f"{out}: can be written to, holds {content}")


def _make_out_finding(problem: str) -> ClusterFinding:
    """Returns the finding about OUT for an error message.

    A semicolon separates the problem from its remedy.
    """
    template = problem.template if isinstance(problem, Message) else problem
    fields = problem.fields if isinstance(problem, Message) else {}
    detail, _, remedy = (
        Message(part, **fields) if fields else part
        for part in template.removeprefix("{out}: ").partition("; ")
    )
    return ClusterFinding(
        "OUT", detail, remedy or "name another folder, or allow this one to be written to"
    )
