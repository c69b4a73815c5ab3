"""`log` prints a line for each generation, and `compact` takes only one data set."""

import json
from pathlib import Path

import pytest
from kit.grown_sets import make_parts
from kit.runs import run_command

import recordmill


def test_log_lists_a_line_for_each_generation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = make_parts(tmp_path / "out", keep_generations=4)
    recordmill.compact(out)
    code, printed, _ = run_command(capsys, "log", out)
    lines = [line.split() for line in printed.splitlines()]
    assert code == 0
    assert lines[0][:4] == ["GENERATION", "COMMITTED", "BY", "PARTS"]
    assert [(line[0], *line[2:4]) for line in lines[1:]] == [
        ("1", "build", "1"),
        ("2", "append", "2"),
        ("3", "append", "3"),
        ("4", "compact", "1"),
    ]
    _, printed, _ = run_command(capsys, "log", out, "--json")
    rows = json.loads(printed)[str(out)]
    assert [sum(row["records"].values()) for row in rows] == [300, 400, 600, 600]
    assert [row["finished"][:2] for row in rows] == ["20"] * 4


def test_compact_takes_one_data_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run_command(capsys, "compact", tmp_path, tmp_path)
    assert (code, "takes one OUT" in err) == (2, True)
