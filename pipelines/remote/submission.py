"""Execution of a pipeline on an engine: submission, monitoring and cancellation.

Everything happens in the calling thread, so that Ctrl-C and SIGTERM arrive there. If the process is
stopped, it cancels the job and waits until the job is gone. Only then may the run folder be
removed. If the end of the job can't be confirmed, `MayBeRunning` is raised, and the folder stays.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from recordmill.base.errors import RecordmillError, UsageError
from recordmill.base.option_names import option
from recordmill.base.progress import Progress
from recordmill.pipelines.remote.cluster import with_parallelism
from recordmill.pipelines.remote.flink import EngineGone, Flink, JobNote
from recordmill.pipelines.remote.job_error import (
    EngineError,
    make_engine_error,
    silence_engine_logs,
)
from recordmill.shards.dead_runs import JOB_NOTE_NAME
from recordmill.shards.store_run import StoreRun
from recordmill.storage.files import put_bytes
from recordmill.storage.folders import is_folder

if TYPE_CHECKING:
    from recordmill.building.workers.shared_files import JobFolder
    from recordmill.transforms.beam_types import Pipeline

# The most time until a cancelled job is gone. Flink itself kills tasks that hang after 180 s.
_CANCEL_SEC = 90.0
_POLL_SEC = 2.0
_SUBMISSION_SEC = 15.0  # the most time from a job server that outlives this process to Flink
_FINAL_STATE_SEC = 10.0  # maximum time from the end that the job server reports to the end on Flink
_CLOSE_SEC = 5.0  # maximum time from the end of a job until Beam reports it
_WORKERS_SEC = 30.0
# Linux ends the program by SIGTERM (PR_SET_PDEATHSIG) when its parent dies, even if the parent was
# killed.
_DIE_WITH_PARENT = """import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 15)
os.execvp(sys.argv[1], sys.argv[1:])"""


class MayBeRunning(RecordmillError):
    """This process has stopped, but the end of its job could not be confirmed.

    Files of the run must not be removed.
    """


@contextlib.contextmanager
def remove_on_failure(
    job_folder: JobFolder | None,
    should_keep: Callable[[BaseException], bool] = lambda error: False,
    *,
    removes_dead_runs: bool = True,
) -> Iterator[StoreRun | None]:
    """Holds the lease of a run in a store, and removes a failed run.

    The files of a failed run stay if its jobs may still write to them (`MayBeRunning`).

    Args:
        job_folder: The folder of the job. None or a folder on a disk: nothing is done.
        should_keep: Returns whether the files stay after an error, for a later run that continues.
        removes_dead_runs: Whether the files of dead runs are removed first.

    Yields:
        The run in the store, or None.
    """
    if job_folder is None or not job_folder.is_remote:
        yield None
        return
    with StoreRun(job_folder.out, job_folder.id) as run:
        if removes_dead_runs:
            run.remove_dead_runs()
        try:
            yield run
        except MayBeRunning:
            raise
        except BaseException as error:
            if should_keep(error) and not run.has_committed:
                run.release()
            else:
                run.close()
            raise


@dataclass(frozen=True)
class Submission:
    """A job to submit.

    Attributes:
        runner: The Beam runner.
        beam_args: Flags for Beam and the job server.
        name: The unique name of the job.
        folder: The run folder, which receives a note about the job. If "", no note is written.
        detach: Whether to return as soon as the engine has accepted the job.
        timeout_sec: The longest permitted duration of the job in seconds. 0 means no limit.
        on_success: Function that is called with Beam's result after the job has succeeded.
    """

    runner: str
    beam_args: Sequence[str]
    name: str
    folder: str = ""
    detach: bool = False
    timeout_sec: float = 0.0
    on_success: Callable[[Any], None] | None = None


def run_on_engine(
    construct: Callable[[Pipeline], None], job: Submission, progress: Progress
) -> None:
    """Runs the pipeline that `construct` builds.

    Raises:
        EngineError: The job failed.
        KeyboardInterrupt: The user stopped the job, and it is gone.
        MayBeRunning: The user stopped the job, and it may still be running.
        TimeoutError: The job took too long, and is gone.
    """
    with silence_engine_logs():
        _run(construct, job, progress)


def _run(construct: Callable[[Pipeline], None], job: Submission, progress: Progress) -> None:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import GoogleCloudOptions, SetupOptions

    user_options = pipeline_options(job.runner, job.beam_args)
    options = pipeline_options(
        job.runner, with_parallelism(job.runner, job.beam_args, user_options)
    )
    options.view_as(SetupOptions).save_main_session = False
    cloud_options = options.view_as(GoogleCloudOptions)
    # The user may have chosen a name by Beam's own flag.
    cloud_options.job_name = cloud_options.job_name or job.name
    job = replace(job, name=cloud_options.job_name)
    engine = _EngineJob(job, options)
    if job.detach:
        engine.check_can_detach()
    try:
        # The note comes first, so that `status` knows about the job even if this process is killed
        # during the submission.
        engine.write_note()
        engine.start_server(options)
        pipeline = beam.Pipeline(runner=job.runner, options=options)
        construct(pipeline)
        engine.submit(pipeline)
        if job.detach:
            engine.find(_CANCEL_SEC)
            return
        engine.wait(progress)
        if job.on_success is not None:
            job.on_success(engine.result)
    except KeyboardInterrupt:
        progress.cancel()
        engine.end("stopped")
        raise
    except (RecordmillError, TimeoutError):
        engine.end("failed")
        raise
    except Exception as error:
        engine.end("failed")
        if progress.error is not None:
            raise progress.error from None
        raise make_engine_error(str(error), job.name) from error
    finally:
        if not job.detach:
            engine.close()


def pipeline_options(runner: str, beam_args: Sequence[str]) -> Any:
    """Returns Beam's options for the flags.

    Each job on Prism gets a server of its own, which ends with the job.
    """
    from apache_beam.options.pipeline_options import PipelineOptions

    prism_flags = (
        ["--experiments=disable_prism_server_singleton", "--prism_log_level=warn"]
        if "prism" in runner.lower()
        else []
    )
    return PipelineOptions([f"--runner={runner}", *prism_flags, *beam_args])


def end_with_parent(command: Sequence[str]) -> list[str]:
    """Returns a command that, on Linux, ends when the thread that starts it ends."""
    return [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, *command]


def start_job_server(runner: str, options: Any) -> Any | None:
    """Starts the job server that Beam's runner would start, and names it in `options`.

    If Beam starts the server, it installs signal handlers. This is possible in the main thread
    only, and the handlers would end the server before its job can be cancelled.

    Returns:
        The server. None if the runner needs none.
    """
    from apache_beam.options.pipeline_options import (
        FlinkRunnerOptions,
        PortableOptions,
        SparkRunnerOptions,
    )
    from apache_beam.runners.portability.flink_runner import FlinkJarJobServer, FlinkRunner
    from apache_beam.runners.portability.spark_runner import SparkJarJobServer

    portable, flink = options.view_as(PortableOptions), options.view_as(FlinkRunnerOptions)
    if portable.job_endpoint:
        return None
    kind: Any
    if "flink" in runner.lower() and not flink.flink_submit_uber_jar:
        flink.flink_master = FlinkRunner.add_http_scheme(flink.flink_master)
        kind = FlinkJarJobServer
    elif (
        "spark" in runner.lower() and not options.view_as(SparkRunnerOptions).spark_submit_uber_jar
    ):
        kind = SparkJarJobServer
    else:
        return None

    class Server(kind):  # type: ignore[misc]
        """A server that ends with this process, even if this process is killed."""

        def subprocess_cmd_and_endpoint(self) -> tuple[list[str], str]:
            command, endpoint = super().subprocess_cmd_and_endpoint()
            portable.job_endpoint = endpoint
            return end_with_parent([str(word) for word in command]), endpoint

    server = Server(options)
    server.start()
    return server


class _EngineJob:
    """A job, from its preparation until its server and workers are gone."""

    def __init__(self, job: Submission, options: Any) -> None:
        from apache_beam.options.pipeline_options import (
            FlinkRunnerOptions,
            PortableOptions,
            SparkRunnerOptions,
        )

        self._job = job
        self._server: Any = None
        portable = options.view_as(PortableOptions)
        is_flink = any(word in job.runner.lower() for word in ("flink", "portable"))
        self.flink = (
            Flink.from_master(options.view_as(FlinkRunnerOptions).flink_master)
            if is_flink
            else None
        )
        self._endpoint = portable.job_endpoint or ""
        uses_uber_jar = (
            self.flink is not None and options.view_as(FlinkRunnerOptions).flink_submit_uber_jar
        ) or (
            "spark" in job.runner.lower()
            and options.view_as(SparkRunnerOptions).spark_submit_uber_jar
        )
        # True if the job is submitted to something that continues without this process.
        self._outlives_process = bool(
            uses_uber_jar or self._endpoint or "dataflow" in job.runner.lower()
        )
        self._uses_loopback = (
            portable.environment_type == "LOOPBACK" or "prism" in job.runner.lower()
        )
        self.id = ""
        self.result: Any = None
        self._is_submitted = False
        self._ended = threading.Event()
        self._failure: list[BaseException] = []
        self._state: list[Any] = []

    def check_can_detach(self) -> None:
        """Raises UsageError if the job would end with this process."""
        if "prism" in self._job.runner.lower():
            raise UsageError(
                "{detach}: Prism and its job end with this process; use an engine "
                "that keeps running",
                detach=option("detach", True),
            )
        if self._uses_loopback:
            raise UsageError(
                "{detach}: the workers are threads of this process (LOOPBACK); give "
                "--environment_type=PROCESS, EXTERNAL or DOCKER",
                detach=option("detach", True),
            )
        if not self._outlives_process:
            raise UsageError(
                "{detach}: the job server would end with this process; use "
                "--flink_submit_uber_jar, which needs no job server, or the "
                "--job_endpoint of a permanent one",
                detach=option("detach", True),
            )

    def write_note(self) -> None:
        """Writes the note about the job to the run folder."""
        if not self._job.folder or not is_folder(self._job.folder):
            return
        url = self.flink.url if self.flink is not None else self._endpoint
        text = JobNote(
            self._job.runner, self._job.name, url, self.id, time.time(), self._job.detach
        ).to_json()
        put_bytes(f"{self._job.folder}/{JOB_NOTE_NAME}", text)

    def start_server(self, options: Any) -> None:
        """Starts a job server for this job, if it needs one."""
        self._server = start_job_server(self._job.runner, options)

    def submit(self, pipeline: Any) -> None:
        """Submits the pipeline."""
        self._is_submitted = True
        self.result = pipeline.run()
        threading.Thread(target=self._wait_for_beam, name="recordmill-engine", daemon=True).start()

    def _wait_for_beam(self) -> None:
        try:
            self._state.append(self.result.wait_until_finish())
        except BaseException as error:
            self._failure.append(error)
        finally:
            self._ended.set()

    def find(self, timeout_sec: float) -> None:
        """Waits until a Flink cluster lists the job and has task slots for it.

        On other engines it returns at once. From then on, workers hold the lease of the run, so
        that it does not count as dead.

        Args:
            timeout_sec: How long to wait for the job to appear. The wait for slots has no limit.

        Raises:
            EngineError: The job failed, or did not appear in time.
        """
        started = time.monotonic()
        while self.flink is not None and not self.id:
            with contextlib.suppress(EngineGone):
                job = self.flink.find_job(self._job.name)
                self.id = job.id if job is not None else ""
            if self._failure:
                raise make_engine_error(str(self._failure[0]), self._job.name)
            if time.monotonic() - started > timeout_sec:
                raise EngineError(
                    f"{self._job.name} did not come up on {self.flink.url} within {timeout_sec:.0f} s"
                )
            if not self.id:
                time.sleep(0.2)
        self.write_note()
        while self.flink is not None and not self._failure and self._waits_for_slots(self.flink):
            time.sleep(_POLL_SEC)

    def _waits_for_slots(self, flink: Flink) -> bool:
        with contextlib.suppress(EngineGone):
            return (job := flink.get_job(self.id)) is not None and job.waits_for_slots
        return True

    def wait(self, progress: Progress) -> None:
        """Waits until the job has succeeded.

        The state on Flink counts, if Flink can be asked.

        Raises:
            EngineError: The job failed, or another client cancelled it.
        """
        last_poll = started = time.monotonic()
        while progress.error is None and not self._ended.wait(0.2):
            now = time.monotonic()
            if self._job.timeout_sec and now - started > self._job.timeout_sec:
                raise TimeoutError(
                    f"{self._job.name} has not ended within {self._job.timeout_sec:.0f} s"
                )
            if self.flink is None or now - last_poll < _POLL_SEC:
                continue
            last_poll = now
            job = None
            with contextlib.suppress(EngineGone):
                job = (
                    self.flink.get_job(self.id) if self.id else self.flink.find_job(self._job.name)
                )
            if job is None:
                continue
            if not self.id:
                self.id = job.id
                self.write_note()
            progress.engine_text = (
                f"on Flink: {job.progress}, {self.flink.url}/#/job/running/{job.id}"
            )
            if job.has_ended:
                self._ended.wait(5.0)  # messages of the job arrive a little later
                break
        self._raise_on_failure(progress)

    def _raise_on_failure(self, progress: Progress) -> None:
        if progress.error is not None:
            raise progress.error
        job = None
        if self.flink is not None and self.id:
            with contextlib.suppress(EngineGone, TimeoutError):
                job = self.flink.wait_until_ended(self.id, _FINAL_STATE_SEC)
        # The state on Flink comes first, because Beam reports a cancelled job as a failed one.
        if job is not None and job.state == "FINISHED":
            return
        if job is not None and job.state == "FAILED":
            reason = ""
            with contextlib.suppress(EngineGone):
                assert self.flink is not None
                reason = self.flink.get_failure_text(self.id)
            raise make_engine_error(reason or "".join(map(str, self._failure)), self._job.name)
        if job is not None and job.state == "CANCELED":
            raise EngineError(
                f"the job {self._job.name} was cancelled by another user or program; "
                "nothing was written"
            )
        if self._failure:
            raise make_engine_error(str(self._failure[0]), self._job.name)
        if self._state and str(self._state[0]) not in ("DONE", "None"):
            raise EngineError(
                f"the job {self._job.name} ended as {self._state[0]}; nothing was written"
            )

    def end(self, reason: str) -> None:
        """Cancels the job unless it has ended, and waits until it is gone.

        Raises:
            MayBeRunning: The end of the job can't be confirmed.
        """
        try:
            self._cancel()
        except (EngineGone, TimeoutError, OSError) as error:
            raise MayBeRunning(
                f"{reason}, but the job {self._job.name} may still be running ({error}"
                "), so its files were not removed. `recordmill status OUT` shows its "
                "state, and the next build removes the files when it has ended"
            ) from None
        except KeyboardInterrupt:
            raise MayBeRunning(
                f"{reason} twice: the job {self._job.name} may still be running, so "
                "its files were not removed. `recordmill status OUT` shows its state"
            ) from None

    def _cancel(self) -> None:
        if self.flink is not None:
            self._cancel_on_flink(self.flink)
        elif self.result is not None and not self._ended.is_set():
            self._cancel_by_beam()
        # The submission was interrupted. The job may start later, and can't be cancelled yet.
        elif self.result is None and self._may_still_start:
            raise TimeoutError(f"the job was being sent to {self._endpoint or self._job.runner}")
        self.close()

    @property
    def _may_still_start(self) -> bool:
        """True if the job may have reached an engine that outlives this process."""
        return self._is_submitted and self._outlives_process

    def _cancel_on_flink(self, flink: Flink) -> None:
        """Cancels the job on Flink, even if its id is not known yet.

        A job server of this process is stopped first, so that it can't submit the job afterwards.
        """
        if not self.id:
            self._stop_server()
            self.id = self._wait_for_job_id(flink)
            if not self.id:
                return
        flink.cancel(self.id)
        flink.wait_until_ended(self.id, _CANCEL_SEC)

    def _wait_for_job_id(self, flink: Flink) -> str:
        """Waits for the id of a job that may still start.

        Returns:
            The id. "" if the job will not start.

        Raises:
            TimeoutError: It is unknown if the job will start.
        """
        if self.result is not None:
            threading.Thread(target=self._ask_to_cancel, daemon=True).start()
        started = time.monotonic()
        while True:
            time.sleep(1.0)
            if (job := flink.find_job(self._job.name)) is not None:
                return job.id
            is_late = time.monotonic() - started > _SUBMISSION_SEC
            # The job server of this process is gone, but it may have submitted the job while this
            # process was being stopped. So the job gets the time that a submission takes.
            if not self._may_still_start and (self.result is not None or is_late):
                return ""
            if is_late:
                if self.result is not None and self._ended.is_set():
                    return ""
                raise TimeoutError(f"the job was being sent to {flink.url}")

    def _cancel_by_beam(self) -> None:
        """Cancels the job by Beam's interface. A job server of this process ends with its job."""
        canceller = threading.Thread(target=self._ask_to_cancel, daemon=True)
        canceller.start()
        started = time.monotonic()
        # A job server of this process is stopped afterwards, and its job with it. So this waits
        # for a shorter time.
        while not self._ended.wait(0.2) and time.monotonic() - started < (
            10.0 if self._server else _CANCEL_SEC
        ):
            pass
        if not self._ended.is_set() and self._server is None:
            raise TimeoutError(f"the job did not end within {_CANCEL_SEC:.0f} s")

    def _ask_to_cancel(self) -> None:
        with contextlib.suppress(Exception):
            self.result.cancel()

    def close(self) -> None:
        """Stops the job server and the workers that this process has started."""
        if self.result is not None and not self._ended.is_set():
            # Cancelling also ends the workers that are threads of this process.
            threading.Thread(target=self._ask_to_cancel, daemon=True).start()
            self._ended.wait(_CLOSE_SEC)
        self._stop_server()
        # These workers are threads of this process. They may still write to the run folder.
        if self._uses_loopback:
            for thread in threading.enumerate():
                if thread.name.startswith("run_worker_"):
                    thread.join(_WORKERS_SEC)

    def _stop_server(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            with contextlib.suppress(Exception):
                server.stop()
