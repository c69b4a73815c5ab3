"""Tables and progress on screens fit the terminal, and pipes get complete lines."""

import os
import pty
import sys
import threading
import time
from collections import Counter
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

import recordmill
from recordmill.base.display import Display, describe_progress
from recordmill.base.progress import Progress, RunCancelled
from recordmill.base.tables import table_lines
from recordmill.commands.build import build_summary
from recordmill.commands.inspect import inspect_lines

HEADER = ("FEATURE", "EMPTY", "MEAN", "EXAMPLES")
ROWS = [
    ("a_name_of_a_column_that_is_rather_long", "", "123.4567", "some words " * 12),
    ("短い名前", "", "1", ""),
]


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_table_on_a_terminal_is_no_wider_than_the_terminal(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    main, end = pty.openpty()
    with os.fdopen(main), os.fdopen(end, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        lines = table_lines(HEADER, ROWS, ("MEAN",))
    assert max(map(len, lines)) <= columns
    text = "".join("".join(lines).split())
    assert text.count("words") == 12
    assert "123.4567" in " ".join(lines).split()  # a number is never broken


def test_table_in_a_pipe_has_one_line_per_row_and_no_empty_columns():
    lines = table_lines(HEADER, ROWS)
    assert len(lines) == 3
    assert lines[0].split() == ["FEATURE", "MEAN", "EXAMPLES"]


def test_statistics_screen_shows_class_names_times_and_unique_values(tmp_path):
    days = np.arange(40) % 4 * 86400
    rows = {
        "kind": ["cat", "dog", "cat", "owl"] * 10,
        "day": pa.array(days, pa.timestamp("s")),
        "x": np.arange(40.0),
    }
    result = recordmill.build(pa.table(rows), tmp_path / "out", label="kind", quiet=True)
    assert "  classes: cat 20 (50 %), dog 10 (25 %), owl 10 (25 %)" in build_summary(result)
    said = "\n".join(recordmill.stats(tmp_path / "out").lines())
    assert "cat (20, 50 %), dog (10, 25 %), owl (10, 25 %)" in said
    assert "1970-01-04 00:00:00" in said
    assert "1970-01-02 00:00:00 (10, 25 %)" in said
    assert "each once" in said
    assert said == "\n".join(recordmill.stats(tmp_path / "out", recount=True).lines())


def test_unfinished_work_shows_elapsed_or_remaining_time():
    progress = Progress()
    progress.begin("verify", 1000)
    progress.stage_started -= 5
    assert describe_progress(progress) == "verifying ... 5 s"
    progress.advance(records=990)
    assert "(99 %)" in describe_progress(progress)
    assert describe_progress(progress).endswith("1 s left")


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


def _lines_on_terminal(columns, monkeypatch, make_lines):
    monkeypatch.setenv("COLUMNS", str(columns))
    main, end = pty.openpty()
    with os.fdopen(main), os.fdopen(end, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        return list(make_lines())


@pytest.mark.parametrize("columns", [20, 40, 80, 120])
def test_screens_of_stats_and_inspect_lose_no_character_at_any_width(
    tmp_path, monkeypatch, columns
):
    rows = {
        "image/object/bbox/xmin_of_a_camera": pa.array(np.full(40, 0.42), pa.float32()),
        "payload": [bytes(n * 100) for n in range(40)],
        "when": pa.array(np.arange(40) * 10**15, pa.timestamp("ns")),
        "text": [f"{n} {'words ' * n}" for n in range(40)],
    }
    recordmill.build(pa.table(rows), tmp_path / "out", quiet=True)
    wide = recordmill.stats(tmp_path / "out")
    summary = recordmill.inspect(tmp_path / "out")
    for make_lines in (wide.lines, lambda: inspect_lines(summary)):
        pipe_lines = list(make_lines())
        lines = _lines_on_terminal(columns, monkeypatch, make_lines)
        monkeypatch.undo()
        if make_lines == wide.lines:
            assert max(map(len, lines)) <= columns
        for column in ("MAX", "SIZE", "STORED AS", "PRESENT", "EXAMPLES", "MOST FREQUENT"):
            if any(column in line for line in pipe_lines):
                assert all(word in " ".join(lines).split() for word in column.split())
        shown = Counter("".join(lines))
        expected = Counter("".join(pipe_lines))
        del shown[" "], expected[" "]
        assert not expected - shown


def test_screens_show_sizes_with_units_and_float32_with_its_own_digits(tmp_path):
    rows = {
        "fare": pa.array(np.full(40, 0.42), pa.float32()),
        "payload": [bytes(n * 100) for n in range(40)],
    }
    recordmill.build(pa.table(rows), tmp_path / "out", quiet=True)
    statistics = recordmill.stats(tmp_path / "out")
    screens = [
        "\n".join(statistics.lines()),
        statistics._repr_html_(),
        "\n".join(inspect_lines(recordmill.inspect(tmp_path / "out"))),
        recordmill.open(tmp_path / "out").report().html,
    ]
    for screen in screens:
        assert "0.42" in screen
        assert "0.4199" not in screen
        assert "0 B to 3.8 KiB" in screen
