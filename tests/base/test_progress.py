"""A progress function receives updates, and may end the run."""

import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

import recordmill
from recordmill.base.display import Display
from recordmill.base.errors import UsageError
from recordmill.base.progress import Progress, RunCancelled, to_progress


def test_progress_function_receives_updates_and_its_exception_ends_the_run(tmp_path):
    out, build_updates, read_updates = tmp_path / "out", [], []
    recordmill.build({"x": np.arange(1000)}, out, progress=build_updates.append)
    recordmill.read(out, tmp_path / "table", to="npy", progress=read_updates.append)
    for phase, last in (("write", build_updates[-1]), ("convert", read_updates[-1])):
        assert (last.phase, last.done, last.total, last.unit) == (phase, 1000, 1000, "records")
        assert "1,000 of 1,000 (100 %)" in last.text
    for inspect_data_set, phase in (
        (recordmill.verify, "verify"),
        (recordmill.inspect, "convert"),
        (partial(recordmill.stats, recount=True), "convert"),
        (recordmill.check, "convert"),
        (partial(recordmill.report, out=tmp_path / "report.html", overwrite=True), "convert"),
    ):
        updates = []
        inspect_data_set(out, progress=updates.append)
        assert updates[-1].phase == phase
        with pytest.raises(recordmill.UsageError, match="progress is 5; give a function"):
            inspect_data_set(out, progress=5)

    was_called = threading.Event()

    def stop(update):
        was_called.set()
        raise KeyError(update.phase)

    def rows():
        assert was_called.wait(60)
        yield {"x": 1}

    with pytest.raises(KeyError, match="plan"):
        recordmill.build(rows(), tmp_path / "stopped", progress=stop)
    assert not (tmp_path / "stopped").exists()


@pytest.mark.parametrize(
    ("run_error", "expected"),
    [(None, KeyError), (RunCancelled("x"), KeyError), (OSError(), OSError)],
)
def test_error_of_a_run_takes_precedence_over_the_exception_of_the_progress_function(
    run_error, expected
):
    def stop(update):
        raise KeyError(update.phase)

    def run():
        progress = Progress(stop)
        with Display(progress, quiet=True):
            while progress.error is None:
                time.sleep(0.01)
            if run_error is not None:
                raise run_error

    with pytest.raises(expected):
        run()


def test_new_stage_has_fresh_counters_and_the_same_stage_keeps_them() -> None:
    progress = Progress()
    progress.begin("read", 10)
    progress.advance(3, rejects=2)
    progress.begin("read", 99)
    assert (progress.total, progress.records, progress.rejects) == (10, 3, 2)
    progress.begin("parse", unit="files")
    assert (progress.total, progress.records, progress.unit) == (None, 0, "files")
    assert progress.rejects == 2  # rejects are counted for the complete run


def test_counts_of_threads_are_summed() -> None:
    progress = Progress()
    with ThreadPoolExecutor(8) as threads:
        for _ in range(8):
            threads.submit(lambda: [progress.advance(1, 1) for _ in range(500)])
    assert (progress.records, progress.rejects) == (4000, 4000)


def test_stopped_run_does_not_commit() -> None:
    progress = Progress()
    progress.cancel()
    with pytest.raises(RunCancelled, match="nothing was written"):
        progress.begin_commit()
    assert not progress.is_committing
    with pytest.raises(RunCancelled):
        progress.advance(1)
    assert progress.records == 0


def test_run_that_is_stopped_after_the_start_of_its_commit_is_marked() -> None:
    progress = Progress()
    progress.begin_commit()
    progress.cancel()
    assert progress.is_committing


def test_first_error_of_the_threads_is_kept_and_stops_the_others() -> None:
    progress, first = Progress(), OSError("first")
    progress.fail(first)
    progress.fail(ValueError("second"))
    assert progress.error is first
    with pytest.raises(RunCancelled):
        progress.advance()


def test_pickled_progress_is_the_same_object_in_this_process() -> None:
    progress = Progress()
    data = pickle.dumps(progress)
    assert pickle.loads(data) is progress
    del progress
    received = pickle.loads(data)  # another process has no such object, either
    assert isinstance(received, Progress)
    assert received.records == 0


def test_argument_is_a_progress_or_a_function() -> None:
    progress = Progress()
    assert to_progress(progress) is progress
    assert to_progress(print).on_update is print
    assert to_progress(None).on_update is None
    with pytest.raises(UsageError, match=r"progress is True; give a function"):
        to_progress(True)  # type: ignore[arg-type]
