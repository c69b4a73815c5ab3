"""A pipeline to its end on an engine: submitted under a name of our own, watched, and cancelled where this process is
stopped.

All of it happens in the thread that asks, so that Ctrl-C and SIGTERM arrive there. A stopped driver cancels its job
by the engine's own interface and waits until the job is gone; only then may its folder be removed. Where that can't
be known, `MayBeRunning` says so, and the folder stays.
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

_CANCEL_SEC = (
    90.0  # how long a cancelled job may take to go; Flink kills what hangs after 180 s by itself
)
_POLL_SEC = 2.0
_SUBMISSION_SEC = 15.0  # between a job server that stays and Flink
_FINAL_STATE_SEC = 10.0  # between the word of the job server and that of Flink
_CLOSE_SEC = 5.0  # between a job's end and Beam's word of it
_WORKERS_SEC = 30.0
# Linux then ends the program (PR_SET_PDEATHSIG, SIGTERM) when the process that started it dies, however it does
_DIE_WITH_PARENT = """import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 15)
os.execvp(sys.argv[1], sys.argv[1:])"""


class MayBeRunning(RecordmillError):
    """This process gave up, but its job could not be seen to end: nothing of its run may be removed."""


@contextlib.contextmanager
def remove_on_failure(
    job_folder: JobFolder | None, keeps: Callable[[BaseException], bool] = lambda error: False
) -> Iterator[StoreRun | None]:
    """Holds the lease of a build or a read in a store, which it gives, and where what dead runs left is removed first.
    None: where a folder holds the run. What failed is removed when its jobs have ended, and stays where that is not
    known. keeps: whether what an error has ended is to go on some day.
    """
    if job_folder is None or not job_folder.is_remote:
        yield None
        return
    with StoreRun(job_folder.out, job_folder.id) as run:
        run.remove_dead_runs()
        try:
            yield run
        except MayBeRunning:
            raise
        except BaseException as error:
            if keeps(error) and not run.has_committed:
                run.release()
            else:
                run.close()
            raise


@dataclass(frozen=True)
class Submission:
    """A job to submit. name: of the job, unique. folder: of the run, where the job is noted; "": it is not. detach:
    return when the engine has the job. within_sec: how long it may take; 0: as long as it takes. ended: called with
    Beam's result when the job has ended well.
    """

    runner: str
    beam_args: Sequence[str]
    name: str
    folder: str = ""
    detach: bool = False
    within_sec: float = 0.0
    ended: Callable[[Any], None] | None = None


def run_on_engine(
    construct: Callable[[Pipeline], None], job: Submission, progress: Progress
) -> None:
    """Run the pipeline that `construct` makes.

    Raises:
        EngineError: the job failed. KeyboardInterrupt: it was stopped, and is gone.
        MayBeRunning: it was stopped, and may not be gone. TimeoutError: it took too long, and is gone.
    """
    with silence_engine_logs():
        _run(construct, job, progress)


def _run(construct: Callable[[Pipeline], None], job: Submission, progress: Progress) -> None:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import GoogleCloudOptions, SetupOptions

    given_options = pipeline_options(job.runner, job.beam_args)
    options = pipeline_options(
        job.runner, with_parallelism(job.runner, job.beam_args, given_options)
    )
    options.view_as(SetupOptions).save_main_session = False
    cloud_options = options.view_as(GoogleCloudOptions)
    cloud_options.job_name = cloud_options.job_name or job.name
    job = replace(job, name=cloud_options.job_name)
    engine = _Engine(job, options)
    if job.detach:
        engine.check_can_detach()
    try:
        engine.write_note()
        engine.start_server(options)
        pipeline = beam.Pipeline(runner=job.runner, options=options)
        construct(pipeline)
        engine.submit(pipeline)
        if job.detach:
            engine.find(_CANCEL_SEC)
            return
        engine.wait(progress)
        if job.ended is not None:
            job.ended(engine.result)
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
    """Beam's options of what was given; of Prism a server of each job's own, which ends with it."""
    from apache_beam.options.pipeline_options import PipelineOptions

    prism_flags = (
        ["--experiments=disable_prism_server_singleton", "--prism_log_level=warn"]
        if "prism" in runner.lower()
        else []
    )
    return PipelineOptions([f"--runner={runner}", *prism_flags, *beam_args])


def end_with_parent(command: Sequence[str]) -> list[str]:
    """The command of the same program that ends, on Linux, with the thread that starts it."""
    return [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, *command]


def start_job_server(runner: str, options: Any) -> Any | None:
    """Starts the job server that Beam's runner would start, and names it in `options`; None where there is none.

    Beam's own way sets signal handlers, which is possible in the main thread only and ends the server before its job
    can be cancelled.
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
        """Ends with this process, also with one that is killed."""

        def subprocess_cmd_and_endpoint(self) -> tuple[list[str], str]:
            command, endpoint = super().subprocess_cmd_and_endpoint()
            portable.job_endpoint = endpoint
            return end_with_parent([str(word) for word in command]), endpoint

    server = Server(options)
    server.start()
    return server


class _Engine:
    """The job at hand, from before it is submitted until nothing of it is left."""

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
            Flink.of_master(options.view_as(FlinkRunnerOptions).flink_master) if is_flink else None
        )
        self._endpoint = portable.job_endpoint or ""
        uber = (
            self.flink is not None and options.view_as(FlinkRunnerOptions).flink_submit_uber_jar
        ) or (
            "spark" in job.runner.lower()
            and options.view_as(SparkRunnerOptions).spark_submit_uber_jar
        )
        # whether those to whom the job is handed over go on without this process
        self._outlives_process = bool(uber or self._endpoint or "dataflow" in job.runner.lower())
        self._loopback = portable.environment_type == "LOOPBACK" or "prism" in job.runner.lower()
        self.id = ""
        self.result: Any = None
        self._is_submitted = False
        self._ended = threading.Event()
        self._failure: list[BaseException] = []
        self._state: list[Any] = []

    def check_can_detach(self) -> None:
        """UsageError if the job could not go on without this process."""
        if "prism" in self._job.runner.lower():
            raise UsageError(
                f"{option('detach', True)}: Prism ends with this process, and with it the job; name an engine that "
                "stays"
            )
        if self._loopback:
            raise UsageError(
                f"{option('detach', True)}: the workers are threads of this process (LOOPBACK); give "
                "--environment_type=PROCESS, EXTERNAL or DOCKER"
            )
        if not self._outlives_process:
            raise UsageError(
                f"{option('detach', True)}: the job server would end with this process; give "
                "--flink_submit_uber_jar, which needs none, or --job_endpoint of one that stays"
            )

    def write_note(self) -> None:
        """Say in the run's folder which job works there."""
        if not self._job.folder or not is_folder(self._job.folder):
            return
        url = self.flink.url if self.flink is not None else self._endpoint
        text = JobNote(
            self._job.runner, self._job.name, url, self.id, time.time(), self._job.detach
        ).to_json()
        put_bytes(f"{self._job.folder}/{JOB_NOTE_NAME}", text)

    def start_server(self, options: Any) -> None:
        """Starts a job server for this job alone, where it needs one."""
        self._server = start_job_server(self._job.runner, options)

    def submit(self, pipeline: Any) -> None:
        """Hand the pipeline over."""
        self._is_submitted = True
        self.result = pipeline.run()
        threading.Thread(target=self._await, name="recordmill-engine", daemon=True).start()

    def _await(self) -> None:
        try:
            self._state.append(self.result.wait_until_finish())
        except BaseException as error:
            self._failure.append(error)
        finally:
            self._ended.set()

    def find(self, timeout_sec: float) -> None:
        """Learns the job's id from the engine and notes it, and waits for its slots: workers hold the run's lease from
        then on, so that nobody takes the run for dead.

        Raises:
            EngineError: The job failed before, or never came.
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
        while self.flink is not None and not self._failure and self._waits(self.flink):
            time.sleep(_POLL_SEC)

    def _waits(self, flink: Flink) -> bool:
        with contextlib.suppress(EngineGone):
            return (job := flink.job(self.id)) is not None and job.waits_for_slots
        return True

    def wait(self, progress: Progress) -> None:
        """Until the job has ended well; what Flink says counts, where it can be asked.

        Raises:
            EngineError: it failed, or somebody cancelled it.
        """
        last_look = started = time.monotonic()
        while progress.error is None and not self._ended.wait(0.2):
            now = time.monotonic()
            if self._job.within_sec and now - started > self._job.within_sec:
                raise TimeoutError(
                    f"{self._job.name} has not ended within {self._job.within_sec:.0f} s"
                )
            if self.flink is None or now - last_look < _POLL_SEC:
                continue
            last_look = now
            job = None
            with contextlib.suppress(EngineGone):
                job = self.flink.job(self.id) if self.id else self.flink.find_job(self._job.name)
            if job is None:
                continue
            if not self.id:
                self.id = job.id
                self.write_note()
            progress.engine_text = (
                f"on Flink: {job.progress}, {self.flink.url}/#/job/running/{job.id}"
            )
            if job.ended:
                self._ended.wait(5.0)  # its messages, which come a little later
                break
        self._judge(progress)

    def _judge(self, progress: Progress) -> None:
        if progress.error is not None:
            raise progress.error
        job = None
        if self.flink is not None and self.id:
            with contextlib.suppress(EngineGone, TimeoutError):
                job = self.flink.wait_until_ended(self.id, _FINAL_STATE_SEC)
        if job is not None and job.state == "FINISHED":
            return
        if job is not None and job.state == "FAILED":
            reason = ""
            with contextlib.suppress(EngineGone):
                assert self.flink is not None
                reason = self.flink.reason(self.id)
            raise make_engine_error(reason or "".join(map(str, self._failure)), self._job.name)
        if job is not None and job.state == "CANCELED":
            raise EngineError(
                f"the job {self._job.name} was cancelled by somebody else; nothing was written"
            )
        if self._failure:
            raise make_engine_error(str(self._failure[0]), self._job.name)
        if self._state and str(self._state[0]) not in ("DONE", "None"):
            raise EngineError(
                f"the job {self._job.name} ended as {self._state[0]}; nothing was written"
            )

    def end(self, why: str) -> None:
        """Cancel the job unless it has ended, and wait until it is gone.

        Raises:
            MayBeRunning: that can't be known.
        """
        try:
            self._cancel()
        except (EngineGone, TimeoutError, OSError) as error:
            raise MayBeRunning(
                f"{why}, but the job {self._job.name} may go on ({error}): what it writes was left alone; "
                "`recordmill status OUT` says what became of it, and the next build removes it when it has ended"
            ) from None
        except KeyboardInterrupt:
            raise MayBeRunning(
                f"{why} twice: the job {self._job.name} may go on; what it writes was left alone; `recordmill "
                "status OUT` says what became of it"
            ) from None

    def _cancel(self) -> None:
        if self.flink is not None:
            self._cancel_on_flink(self.flink)
        elif self.result is not None and not self._ended.is_set():
            self._cancel_by_beam()
        elif self.result is None and self._may_still_start:
            raise TimeoutError(f"it was on its way to {self._endpoint or self._job.runner}")
        self.close()

    @property
    def _may_still_start(self) -> bool:
        """True if a job server, or an engine, that stays may have it and show it later."""
        return self._is_submitted and self._outlives_process

    def _cancel_on_flink(self, flink: Flink) -> None:
        """Stops a job on its way from a job server of our own with that, and waits for one from a server that stays."""
        if not self.id:
            self._stop_server()
            self.id = self._wait_for_job_id(flink)
            if not self.id:
                return
        flink.cancel(self.id)
        flink.wait_until_ended(self.id, _CANCEL_SEC)

    def _wait_for_job_id(self, flink: Flink) -> str:
        """The id of a job whose id is not known yet; empty where there will be none. TimeoutError: there may be."""
        if self.result is not None:
            threading.Thread(target=self._ask_to_cancel, daemon=True).start()
        started = time.monotonic()
        while True:
            time.sleep(1.0)
            if (job := flink.find_job(self._job.name)) is not None:
                return job.id
            is_late = time.monotonic() - started > _SUBMISSION_SEC
            # a server of our own, which is gone, may have handed it over while this process was stopped
            if not self._may_still_start and (self.result is not None or is_late):
                return ""
            if is_late:
                if self.result is not None and self._ended.is_set():
                    return ""
                raise TimeoutError(f"it was on its way to {flink.url}")

    def _cancel_by_beam(self) -> None:
        """By Beam's job interface; a job server of our own takes its job with it."""
        canceller = threading.Thread(target=self._ask_to_cancel, daemon=True)
        canceller.start()
        started = time.monotonic()
        while not self._ended.wait(0.2) and time.monotonic() - started < (
            10.0 if self._server else _CANCEL_SEC
        ):
            pass
        if not self._ended.is_set() and self._server is None:
            raise TimeoutError(f"it did not end within {_CANCEL_SEC:.0f} s")

    def _ask_to_cancel(self) -> None:
        with contextlib.suppress(Exception):
            self.result.cancel()

    def close(self) -> None:
        """End what was started here: a job server, and workers that are threads of this process."""
        if self.result is not None and not self._ended.is_set():
            threading.Thread(
                target=self._ask_to_cancel, daemon=True
            ).start()  # which ends workers of this process
            self._ended.wait(_CLOSE_SEC)
        self._stop_server()
        if self._loopback:
            for thread in threading.enumerate():
                if thread.name.startswith("run_worker_"):
                    thread.join(_WORKERS_SEC)

    def _stop_server(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            with contextlib.suppress(Exception):
                server.stop()
