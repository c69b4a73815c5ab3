"""What a job on Flink does, for people: how many of its tasks run, and a word when it gets no slot or nothing moves."""

from __future__ import annotations

import contextlib
import time

from recordmill.base.progress import Progress
from recordmill.shards.engine_jobs import EngineGone, Flink, FlinkJob

_NO_SLOT_SEC, _STILL_SEC, _UNHEARD_SEC = 60.0, 300.0, 60.0  # when it is said for the first time; then at twice the time


class Watch:
    """Looks at one job. flink: None where the engine has no interface to ask."""

    def __init__(self, flink: Flink | None, name: str, progress: Progress) -> None:
        self._flink, self._name, self._progress = flink, name, progress
        now = time.monotonic()
        self._slotless = self._still = self._unheard = now
        self._seen: object = None
        self._next = {"slot": _NO_SLOT_SEC, "still": _STILL_SEC, "unheard": _UNHEARD_SEC}

    def look(self, job_id: str) -> FlinkJob | None:
        """The job as it is now, also told to the display; None if there is none, or nobody to ask."""
        if self._flink is None:
            return None
        now = time.monotonic()
        try:
            job = self._flink.job(job_id) if job_id else self._flink.named(self._name)
        except (EngineGone, AttributeError, KeyError, TypeError, ValueError) as error:
            self._say("unheard", now - self._unheard, f"{self._flink.url} has not answered for {{}}: {error}")
            return None
        self._unheard = now
        if job is None:
            return None
        if self._seen is None:  # until now it was on its way
            self._slotless = now
        self._tell(job)
        if not job.waits_for_slots:
            self._slotless = now
        else:
            self._say(
                "slot", now - self._slotless, f"the job has waited for {{}} for slots{self._free()}: {self._page(job)}"
            )
        seen = (job.state, dict(job.tasks), job.moved)
        if seen != self._seen:
            self._seen, self._still = seen, now
        elif not job.waits_for_slots:
            self._say(
                "still", now - self._still, f"nothing has moved for {{}}; what holds it is told at {self._page(job)}"
            )
        return job

    def _tell(self, job: FlinkJob) -> None:
        done, total = job.tasks.get("FINISHED", 0), sum(job.tasks.values())
        running = job.tasks.get("RUNNING", 0) + job.tasks.get("INITIALIZING", 0)
        state = "restarting" if job.state == "RESTARTING" else "waiting for slots" if job.waits_for_slots else "running"
        self._progress.elsewhere = f"on Flink: {state}, {done} of {total} tasks finished, {running} at work"

    def _free(self) -> str:
        assert self._flink is not None
        with contextlib.suppress(EngineGone, AttributeError, KeyError, TypeError, ValueError):
            there = self._flink.overview()
            return (
                f", of which {there.free} of {there.slots} are free (less --parallelism, or more TaskManagers, or "
                "an end "
                "of other jobs helps)"
            )
        return ""

    def _page(self, job: FlinkJob) -> str:
        assert self._flink is not None
        return f"{self._flink.url}/#/job/running/{job.id}"

    def _say(self, what: str, seconds: float, text: str) -> None:
        if seconds < self._next[what]:
            return
        self._next[what] = 2 * seconds
        self._progress.say(text.format(f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"))
