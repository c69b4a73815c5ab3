"""A pipeline in this process restores all global settings that it changed."""

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


def global_settings() -> dict[str, Any]:
    """Returns the global settings that a pipeline must not leave changed."""
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


@pytest.mark.parametrize("run", [build, build_that_fails, two_builds_at_once])
def test_build_leaves_the_process_as_it_was(tmp_path: Path, run: Callable[[Path], None]) -> None:
    before = global_settings()
    run(tmp_path / "out")
    assert global_settings() == before


def test_settings_of_beam_are_restored_by_their_last_user() -> None:
    before = global_settings()
    first, second, first_silence, second_silence = (
        mark_own_pipelines(),
        mark_own_pipelines(),
        silence_engine_logs(),
        silence_engine_logs(),
    )
    first.__enter__()
    assert logging.getLogger("apache_beam").level == logging.CRITICAL
    assert all(global_settings()[name] != before[name] for name in ("notebooks", "Beam's log"))
    for context in (first_silence, second, second_silence):
        context.__enter__()
    changed = global_settings()
    assert all(changed[name] != before[name] for name in before)
    for context_to_exit in (first, first_silence):
        context_to_exit.__exit__(None, None, None)
    assert global_settings() == changed
    for context_to_exit in (second, second_silence):
        context_to_exit.__exit__(None, None, None)
    assert global_settings() == before


def test_shared_context_is_entered_once_at_a_time_and_can_be_entered_again() -> None:
    events: list[str] = []

    @shared_context
    def record_events() -> Iterator[None]:
        events.append("in")
        yield
        events.append("out")

    for _ in range(2):
        with record_events(), record_events():
            assert events.pop() == "in"
        assert events.pop() == "out"
    with pytest.raises(RuntimeError, match="on purpose"), record_events():
        raise RuntimeError("on purpose")
    assert events == ["in", "out"]
