"""Tables for people: no wider than the terminal, and whole elsewhere."""

import os
import pty
import sys

import numpy as np
import pyarrow as pa
import pytest

import recordmill
from recordmill.base.progress import Progress
from recordmill.base.tables import table_lines
from recordmill.commands.build import build_summary
from recordmill.pipelines.display import describe_progress

HEADER = ("FEATURE", "EMPTY", "MEAN", "EXAMPLES")
ROWS = [("a_name_of_a_column_that_is_rather_long", "", "123.4567", "some words " * 12), ("短い名前", "", "1", "")]


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_table_fits_the_terminal(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    main, end = pty.openpty()
    with os.fdopen(main), os.fdopen(end, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        lines = table_lines(HEADER, ROWS, ("MEAN",))
    assert max(map(len, lines)) <= columns
    text = "".join("".join(lines).split())
    assert text.count("words") == 12
    assert "123.4567" in " ".join(lines).split()  # a number is never broken


def test_a_pipe_gets_a_line_a_row_without_empty_columns():
    lines = table_lines(HEADER, ROWS)
    assert len(lines) == 3
    assert lines[0].split() == ["FEATURE", "MEAN", "EXAMPLES"]


def test_statistics_show_names_of_classes_times_and_what_occurs_once(tmp_path):
    days = np.arange(40) % 4 * 86400
    rows = {"kind": ["cat", "dog", "cat", "owl"] * 10, "day": pa.array(days, pa.timestamp("s")), "x": np.arange(40.0)}
    result = recordmill.build(pa.table(rows), tmp_path / "out", label="kind", quiet=True)
    assert "  classes: cat 20 (50 %), dog 10 (25 %), owl 10 (25 %)" in build_summary(result)
    said = "\n".join(recordmill.stats(tmp_path / "out").lines())
    assert "cat (20, 50 %), dog (10, 25 %), owl (10, 25 %)" in said
    assert "1970-01-04 00:00:00" in said
    assert "1970-01-02 00:00:00 (10, 25 %)" in said
    assert "each once" in said
    assert said == "\n".join(recordmill.stats(tmp_path / "out", recount=True).lines())


def test_work_that_is_not_done_has_time_left():
    progress = Progress()
    progress.begin("verify", 1000)
    progress.stage_started -= 5
    assert describe_progress(progress) == "verifying ... 5 s"
    progress.advance(records=990)
    assert "(99 %)" in describe_progress(progress)
    assert describe_progress(progress).endswith("1 s left")
