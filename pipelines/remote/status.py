"""`status`: the data set in OUT, and the runs that are writing to it.

The states of jobs come from the notes in run folders and from the engines.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recordmill.base.arguments import suggest_keywords
from recordmill.base.errors import UsageError
from recordmill.base.messages import join_messages
from recordmill.base.sizes import format_duration
from recordmill.options.calls import Values, with_keywords
from recordmill.options.read import StatusOptions
from recordmill.pipelines.remote.flink import EngineGone, Flink, JobNote, read_note
from recordmill.pipelines.remote.job_error import summarize_error
from recordmill.shards.dead_runs import JOB_NOTE_NAME, LEASE_SEC, claim_dead_runs, find_other_host
from recordmill.shards.manifest import list_generations, load_manifest
from recordmill.storage.files import is_remote, limit_requests, list_objects, parse_output_path
from recordmill.storage.folders import is_folder, join, list_paths
from recordmill.storage.walk import RUN_PREFIX

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from recordmill.options.keywords import StatusKeywords

# states of a job of an engine
RUNNING, ENDED, UNKNOWN_STATE = "running", "ended", "unknown"
RUNNING_HERE, DEAD = "running on this machine", "dead"
_SUBMISSION_SEC = 600  # maximum time from the note about a job to its submission


@dataclass(frozen=True)
class RunState:
    """The state of a run folder.

    Attributes:
        run: The name of the folder.
        state: `running`, `ended` or `unknown` for a job of an engine. Otherwise a readable text:
            the run works on this machine or on another host, or is dead. For a run in a store, the
            text is the time of the last sign of life.
        job: The name of the job. "" if the run has none.
        runner: The Beam runner.
        page: The web page of the job.
        since: The time of the submission in seconds since 1970.
        detail: The engine's own text.
    """

    run: str
    state: str
    job: str = ""
    runner: str = ""
    page: str = ""
    since: float = 0.0
    detail: str = ""

    @property
    def text(self) -> str:
        """The state as a message, for `render`."""
        since = (
            f"since {time.strftime('%Y-%m-%d %H:%M', time.localtime(self.since))}"
            if self.since
            else ""
        )
        state = f"{self.job or self.run}: {self.state}"
        return join_messages(", ", filter(None, (state, self.detail, self.page, since)))

    def __str__(self) -> str:
        return str(self.text)

    def to_json(self) -> dict[str, Any]:
        """Returns the machine-readable form that `--json` prints."""
        return asdict(self)


@dataclass(frozen=True)
class Status:
    """The state of an output folder.

    Attributes:
        out: The folder.
        generation: The newest generation. 0 if there is no data set.
        records: The number of records by split.
        runs: The runs that write to the folder, or have been stopped.
    """

    out: str
    generation: int
    records: Mapping[str, int] = field(default_factory=dict)
    runs: tuple[RunState, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns the machine-readable form that `--json` prints."""
        return asdict(self)


@suggest_keywords
@with_keywords("status")
def status(out: str | os.PathLike[str], **options: Unpack[StatusKeywords]) -> Status:
    """Returns the state of an output folder and of its runs.

    The folder is not changed.

    Args:
        out: The output folder of a build or read.
        **options: The options of `recordmill status`, as keywords. docs/reference.md lists them.

    Raises:
        UsageError: There is no such folder.
        DataError: The manifest is damaged.

    Examples:
        >>> status = recordmill.status("shards")
        >>> status.generation, sum(status.records.values()), status.runs
        (1, 10, ())
    """
    folder = parse_output_path(out)
    limit_requests(Values("status", options)[StatusOptions].storage_requests)
    if not is_folder(folder):
        raise UsageError(f"{folder}: no such folder")
    numbers = list_generations(folder)
    records = dict(load_manifest(folder, numbers[-1]).records) if numbers else {}
    runs = _list_store_runs(folder) if is_remote(folder) else _list_disk_runs(Path(folder))
    return Status(folder, numbers[-1] if numbers else 0, records, tuple(runs))


def _list_disk_runs(out: Path) -> list[RunState]:
    notes = {path: read_note(str(path)) for path in sorted(list_paths(out, f"{RUN_PREFIX}*"))}
    # A run with a note belongs to an engine, which knows if it is alive.
    with claim_dead_runs(path for path, note in notes.items() if note is None) as dead:
        dead_names = {run.name for run in dead}
    return [
        _make_run_state(path.name, note, DEAD if path.name in dead_names else _local_state(path))
        for path, note in notes.items()
    ]


def _local_state(run: Path) -> str:
    host = find_other_host(run)
    return f"running or killed, on host {host}" if host else RUNNING_HERE


def _list_store_runs(out: str) -> list[RunState]:
    # run folder to the modification time of each of its objects
    times_by_run: dict[str, dict[str, float]] = defaultdict(dict)
    for item in list_objects(out):
        run, _, name = item.name.partition("/")
        if name and run.startswith(RUN_PREFIX):
            times_by_run[run][name] = item.modified_sec
    return [
        _make_run_state(
            run,
            read_note(join(out, run)) if JOB_NOTE_NAME in times_by_run[run] else None,
            _describe_last_sign(times_by_run[run]),
        )
        for run in sorted(times_by_run)
    ]


def _describe_last_sign(put_times: Mapping[str, float]) -> str:
    """Describes when a run in a store last showed a sign of life.

    The clock of this machine is used: asking for the store's own clock would require a write.
    """
    silent_sec = max(time.time() - max(put_times.values()), 0.0)
    if silent_sec <= LEASE_SEC:
        return f"running: last sign of life {format_duration(silent_sec)} ago"
    return (
        f"no sign of life for {format_duration(silent_sec)}: `recordmill clean` "
        "shows whether it is dead"
    )


def _make_run_state(run: str, note: JobNote | None, local_state: str) -> RunState:
    if note is None:
        return RunState(run, local_state)
    state, detail = _ask_engine(note)
    # Flink has another page for a job that has ended.
    page = note.page.replace("/job/running/", "/job/completed/") if state == ENDED else note.page
    return RunState(run, state, note.name, note.runner, page, note.started, detail)


def _ask_engine(note: JobNote) -> tuple[str, str]:
    """Returns the state of a job: RUNNING, ENDED or UNKNOWN_STATE, and the engine's text.

    Only Flink can be asked about a job that another process has submitted.
    """
    flink = Flink.from_master(note.url) if note.url.startswith("http") else None
    if flink is not None:
        with contextlib.suppress(EngineGone):
            job = flink.get_job(note.job) if note.job else flink.find_job(note.name)
            if job is not None and not job.has_ended:
                return RUNNING, job.progress
            if job is not None:
                failure = [_failure_summary(flink, job.id)] if job.state == "FAILED" else []
                return ENDED, join_messages(": ", (job.state.lower(), *failure))
            # The engine does not know the job. If it answers at all, the job has ended and was
            # forgotten, or has not arrived yet.
            flink.get_overview()
            if note.job or time.time() - note.started > _SUBMISSION_SEC:
                return ENDED, "the engine does not know this job any more"
    return UNKNOWN_STATE, "its engine can't be reached"


def _failure_summary(flink: Flink, job_id: str) -> str:
    try:
        return summarize_error(flink.get_failure_text(job_id))
    except EngineGone as error:
        return str(error)
