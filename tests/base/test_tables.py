"""Tables fit the terminal, and pipes receive complete lines."""

import os
import pty
import sys
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

import recordmill
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
    parent, child = pty.openpty()
    with os.fdopen(parent), os.fdopen(child, "w") as terminal:
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
    text = "\n".join(recordmill.stats(tmp_path / "out").lines())
    assert "cat (20, 50 %), dog (10, 25 %), owl (10, 25 %)" in text
    assert "1970-01-04 00:00:00" in text
    assert "1970-01-02 00:00:00 (10, 25 %)" in text
    assert "each once" in text
    assert text == "\n".join(recordmill.stats(tmp_path / "out", recount=True).lines())


def _lines_on_terminal(columns, monkeypatch, make_lines):
    monkeypatch.setenv("COLUMNS", str(columns))
    parent, child = pty.openpty()
    with os.fdopen(parent), os.fdopen(child, "w") as terminal:
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
    statistics = recordmill.stats(tmp_path / "out")
    summary = recordmill.inspect(tmp_path / "out")
    for make_lines in (statistics.lines, lambda: inspect_lines(summary)):
        pipe_lines = list(make_lines())
        lines = _lines_on_terminal(columns, monkeypatch, make_lines)
        monkeypatch.undo()
        if make_lines == statistics.lines:
            assert max(map(len, lines)) <= columns
        for column in ("MAX", "SIZE", "STORED AS", "PRESENT", "EXAMPLES", "MOST FREQUENT"):
            if any(column in line for line in pipe_lines):
                assert all(word in " ".join(lines).split() for word in column.split())
        characters = Counter("".join(lines))
        expected_characters = Counter("".join(pipe_lines))
        del characters[" "], expected_characters[" "]
        assert not expected_characters - characters


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
