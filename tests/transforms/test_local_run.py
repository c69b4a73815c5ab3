"""A pipeline in this process restores all that it changed in Beam and in the process."""

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kit.runs import run_in_threads

import recordmill
from recordmill.base.threads import shared_context
from recordmill.pipelines.remote.job_error import silence_engine_logs
from recordmill.transforms.local_run import mark_own_pipelines

pytest.importorskip("apache_beam")


def of_the_process() -> dict[str, Any]:
    """What others in this process would notice if it stayed changed."""
    from apache_beam import pipeline
    from apache_beam.utils import interactive_utils

    root, beam = logging.getLogger(), logging.getLogger("apache_beam")
    return {
        "hooks": (threading.excepthook, threading.gettrace(), logging.lastResort),
        "Beam's log": (
            beam.level,
            tuple(beam.handlers),
            tuple(beam.filters),
            beam.propagate,
            beam.disabled,
        ),
        "the log": (
            root.level,
            tuple(root.handlers),
            tuple(root.filters),
            logging.root.manager.disable,
        ),
        "notebooks": (pipeline.is_in_ipython, interactive_utils.is_in_ipython),
    }


def build(out: Path) -> None:
    recordmill.build(pa.table({"x": [1, 2, 3]}), out, runner="FnApiRunner")


def build_that_fails(out: Path) -> None:
    (out.parent / "a.csv").write_text("x\n1\na\n")
    with pytest.raises(recordmill.RecordmillError, match="rejected"):
        recordmill.build(out.parent / "a.csv", out, dtypes={"x": "int64"}, runner="FnApiRunner")


def two_builds_at_once(out: Path) -> None:
    out.mkdir()
    run_in_threads(build, out / "0", out / "1")


@pytest.mark.parametrize("do", [build, build_that_fails, two_builds_at_once])
def test_build_leaves_the_process_as_it_was(tmp_path: Path, do: Callable[[Path], None]) -> None:
    before = of_the_process()
    do(tmp_path / "out")
    assert of_the_process() == before


def test_settings_of_beam_are_restored_by_their_last_user() -> None:
    before = of_the_process()
    first, second, far, later = (
        mark_own_pipelines(),
        mark_own_pipelines(),
        silence_engine_logs(),
        silence_engine_logs(),
    )
    first.__enter__()
    assert logging.getLogger("apache_beam").level == logging.CRITICAL
    assert all(of_the_process()[name] != before[name] for name in ("notebooks", "Beam's log"))
    for entered in (far, second, later):
        entered.__enter__()
    during = of_the_process()
    assert all(during[name] != before[name] for name in before)
    for left in (first, far):
        left.__exit__(None, None, None)
    assert of_the_process() == during
    for left in (second, later):
        left.__exit__(None, None, None)
    assert of_the_process() == before


def test_shared_context_is_entered_once_at_a_time_and_can_be_entered_again() -> None:
    seen: list[str] = []

    @shared_context
    def noted() -> Iterator[None]:
        seen.append("in")
        yield
        seen.append("out")

    for _ in range(2):
        with noted(), noted():
            assert seen.pop() == "in"
        assert seen.pop() == "out"
    with pytest.raises(RuntimeError, match="on purpose"), noted():
        raise RuntimeError("on purpose")
    assert seen == ["in", "out"]
