"""A progress function receives updates, and may end the run."""

import threading
import time
from functools import partial

import numpy as np
import pytest

import recordmill
from recordmill.base.display import Display
from recordmill.base.progress import Progress, RunCancelled


def test_progress_function_receives_updates_and_its_exception_ends_the_run(tmp_path):
    out, built, read = tmp_path / "out", [], []
    recordmill.build({"x": np.arange(1000)}, out, progress=built.append)
    recordmill.read(out, tmp_path / "table", to="npy", progress=read.append)
    for phase, last in (("write", built[-1]), ("convert", read[-1])):
        assert (last.phase, last.done, last.total, last.unit) == (phase, 1000, 1000, "records")
        assert "1,000 of 1,000 (100 %)" in last.text
    for looks, phase in (
        (recordmill.verify, "verify"),
        (recordmill.inspect, "convert"),
        (partial(recordmill.stats, recount=True), "convert"),
        (recordmill.check, "convert"),
        (partial(recordmill.report, out=tmp_path / "report.html", overwrite=True), "convert"),
    ):
        seen = []
        looks(out, progress=seen.append)
        assert seen[-1].phase == phase
        with pytest.raises(recordmill.UsageError, match="progress is 5; give a function"):
            looks(out, progress=5)

    called = threading.Event()

    def stop(update):
        called.set()
        raise KeyError(update.phase)

    def rows():
        assert called.wait(60)
        yield {"x": 1}

    with pytest.raises(KeyError, match="plan"):
        recordmill.build(rows(), tmp_path / "stopped", progress=stop)
    assert not (tmp_path / "stopped").exists()


@pytest.mark.parametrize(
    ("ends", "raised"), [(None, KeyError), (RunCancelled("x"), KeyError), (OSError(), OSError)]
)
def test_error_of_a_run_takes_precedence_over_the_exception_of_the_progress_function(ends, raised):
    def stop(update):
        raise KeyError(update.phase)

    def run():
        progress = Progress(stop)
        with Display(progress, quiet=True):
            while progress.error is None:
                time.sleep(0.01)
            if ends is not None:
                raise ends

    with pytest.raises(raised):
        run()
