"""`status`: what OUT holds and what is at work there, by the notes of jobs and the engines' own word."""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from recordmill.base.errors import UsageError
from recordmill.base.sizes import format_duration
from recordmill.pipelines.remote.flink import EngineGone, Flink, JobNote, read_note
from recordmill.pipelines.remote.job_error import sentence
from recordmill.shards.dead_runs import JOB_NOTE_NAME, LEASE_SEC, claim_dead_runs, find_other_host
from recordmill.shards.manifest import list_generations, load_manifest
from recordmill.storage.files import is_remote, limit_requests, list_objects, parse_output_path
from recordmill.storage.folders import is_folder, join, list_paths
from recordmill.storage.walk import RUN_PREFIX

RUNNING, ENDED, UNKNOWN_STATE = "running", "ended", "unknown"  # of an engine's job
HERE, GONE = "at work on this machine", "dead"
_COMING_SEC = 600  # between the note of a job and its submission


@dataclass(frozen=True)
class RunState:
    """One run folder. state: `running`, `ended` or `unknown` of an engine's job; `at work on this machine`; `dead`; the
    host that would know; or in a store for how long nothing was heard of it.
    detail: what the engine says of it. since: seconds of the clock (time.time). page: where to look at it.
    """

    run: str
    state: str
    job: str = ""
    runner: str = ""
    page: str = ""
    since: float = 0.0
    detail: str = ""

    def __str__(self) -> str:
        if not self.job:
            return f"{self.run}: {self.state}"
        since = (
            f", since {time.strftime('%Y-%m-%d %H:%M', time.localtime(self.since))}"
            if self.since
            else ""
        )
        return (
            ", ".join(
                part for part in (f"{self.job}: {self.state}", self.detail, self.page) if part
            )
            + since
        )

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)


@dataclass(frozen=True)
class Status:
    """The state of OUT. generation: 0 where there is no data set; records: of its splits."""

    out: str
    generation: int
    records: Mapping[str, int] = field(default_factory=dict)
    runs: tuple[RunState, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)


def status(out: str | os.PathLike[str], *, storage_requests: int | None = None) -> Status:
    """Returns what OUT holds and which runs are at work there. Changes nothing.

    storage_requests: how many requests to stores may be under way at once; None: as before, 64 at first.

    Raises:
        UsageError: there is no such folder. DataError: its manifest is broken.
    """
    place = parse_output_path(out)
    limit_requests(storage_requests)
    if not is_folder(place):
        raise UsageError(f"{place}: no such folder")
    numbers = list_generations(place)
    records = dict(load_manifest(place, numbers[-1]).records) if numbers else {}
    runs = _in_store(place) if is_remote(place) else _on_disk(Path(place))
    return Status(place, numbers[-1] if numbers else 0, records, tuple(runs))


def _on_disk(out: Path) -> list[RunState]:
    notes = {path: read_note(str(path)) for path in sorted(list_paths(out, f"{RUN_PREFIX}*"))}
    with claim_dead_runs(path for path, note in notes.items() if note is None) as dead:
        gone = {run.name for run in dead}
    return [
        _state(path.name, note, GONE if path.name in gone else _place_of(path))
        for path, note in notes.items()
    ]


def _place_of(run: Path) -> str:
    host = find_other_host(run)
    return f"at work, or killed, on host {host}" if host else HERE


def _in_store(out: str) -> list[RunState]:
    put: dict[str, dict[str, float]] = defaultdict(
        dict
    )  # by run folder: each object, and when it was put
    for item in list_objects(out):
        run, _, name = item.name.partition("/")
        if name and run.startswith(RUN_PREFIX):
            put[run][name] = item.modified_sec
    return [
        _state(
            run,
            read_note(join(out, run)) if JOB_NOTE_NAME in put[run] else None,
            _heard_of(put[run]),
        )
        for run in sorted(put)
    ]


def _heard_of(put: Mapping[str, float]) -> str:
    """Says when a run was last heard of, by this machine's clock, since to hear the store's own something must be put
    there.
    """
    silent_sec = max(time.time() - max(put.values()), 0.0)
    if silent_sec <= LEASE_SEC:
        return f"at work: heard of {format_duration(silent_sec)} ago"
    return f"not heard of for {format_duration(silent_sec)}: `recordmill clean` tells whether it is dead"


def _state(run: str, note: JobNote | None, here: str) -> RunState:
    if note is None:
        return RunState(run, here)
    state, detail = _asked(note)
    page = note.page.replace("/job/running/", "/job/completed/") if state == ENDED else note.page
    return RunState(run, state, note.name, note.runner, page, note.started, detail)


def _asked(note: JobNote) -> tuple[str, str]:
    """Returns (RUNNING, ENDED or UNKNOWN_STATE, what the engine says): Flink alone can be asked afterwards."""
    flink = Flink.of_master(note.url) if note.url.startswith("http") else None
    if flink is not None:
        with contextlib.suppress(EngineGone):
            job = flink.job(note.job) if note.job else flink.named(note.name)
            if job is not None and not job.ended:
                return RUNNING, job.progress
            if job is not None:
                return ENDED, job.state.lower() + (
                    f": {_reason(flink, job.id)}" if job.state == "FAILED" else ""
                )
            flink.overview()  # it answers, and knows nothing of the job, which may still come
            if note.job or time.time() - note.started > _COMING_SEC:
                return ENDED, "the engine knows nothing of it any more"
    return UNKNOWN_STATE, "its engine can't be asked"


def _reason(flink: Flink, job_id: str) -> str:
    try:
        return sentence(flink.reason(job_id))
    except EngineGone as error:
        return str(error)
