"""JSON Lines have the values of Python's json module, and bad lines are rejects."""

from pathlib import Path

import numpy as np
import pytest
from kit.json_reading import plan, write
from kit.source_reading import read_all

from recordmill.base.errors import DataError
from recordmill.sources.common import lines
from recordmill.sources.jsonl import tape as json_tape


def test_file_without_json_objects_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there are no lines"):
        plan(write(tmp_path / "a.jsonl", "", ""))
    with pytest.raises(
        DataError,
        match=r"a.jsonl: line 1: no line is a JSON object: .*'\['.* \(JSON Lines has one object on each line\)",
    ):
        plan(write(tmp_path / "a.jsonl", "[", '  "a"', "]"))


def test_sizes_of_units_and_blocks_do_not_change_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(3)
    rows = [
        {
            "i": i,
            "s": "é\u2028" * int(rng.integers(9)),
            "l": rng.integers(9, size=int(rng.integers(4))).tolist(),
        }
        for i in range(3000)
    ]
    rows.insert(1234, "broken {")  # type: ignore[arg-type]
    path = write(tmp_path / "a.jsonl", *rows)
    expected = read_all(plan(path))
    assert len(expected[0]) == 3000
    monkeypatch.setattr(lines, "LINE_RANGE_BYTES", 10_000)
    monkeypatch.setattr(json_tape, "_MAX_TAPE_ERRORS", 1)
    source = plan(path, threads=3)
    assert len(source.units) > 5
    assert read_all(source) == expected
