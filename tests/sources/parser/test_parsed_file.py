"""Results of the user's parser are used again only if they are complete."""

import base64
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kit.parsing import parsed_files

import recordmill
from recordmill.base.errors import DataError, Reject
from recordmill.shards.rejects import TooManyRejects
from recordmill.sources.parser.parsed_file import (
    load_complete_result,
    load_failure,
    load_result,
    put_failure,
)
from recordmill.storage.file_table import InputFile
from recordmill.storage.files import Stat

SCHEMA = pa.schema([("x", pa.int64())])
RESULT: dict[str, Any] = {
    "segments": ["ab-00000.arrow"],
    "segment_bytes": [3],
    "schemas": [base64.b64encode(SCHEMA.serialize()).decode()],
    "first_batches": [0],
    "rows": [4, 2],
    "sizes": [32, 16],
    "null_counts": [{"x": 0}, {"x": 1}],
}


@pytest.fixture
def kept_results(folder: Path) -> list[Path]:
    """Returns the JSON files of a build that failed."""
    with pytest.raises(TooManyRejects):
        recordmill.build("in", "out", parser="my.py:parse_or_fail")
    (folder / "log").unlink()
    results = sorted(folder.glob("out/_run-*/spool/parsed/*.json"))
    assert len(results) == 5
    return results


def test_parsed_files_that_a_power_failure_has_cut_are_parsed_again(
    folder: Path, kept_results: list[Path]
) -> None:
    (segment,) = json.loads(kept_results[0].read_text())["segments"]
    os.truncate(kept_results[0].with_name(segment), 100)
    os.truncate(kept_results[1], 0)
    result = recordmill.build("in", "out", parser="my.py:parse_or_fail", max_rejects=1)
    assert len(parsed_files(folder)) == 3
    assert result.read == 21


def test_results_with_damaged_fields_are_parsed_again(
    folder: Path, kept_results: list[Path]
) -> None:
    damages: list[dict[str, Any]] = [
        {"segment_bytes": None},
        {"rows": [4, 4]},
        {"null_counts": [{}]},
        {"segments": ["../../../../in/0.dat"]},
    ]
    for path, fields in zip(kept_results, damages, strict=False):
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    result = recordmill.build("in", "out", parser="my.py:parse_or_fail", max_rejects=1)
    assert len(parsed_files(folder)) == 5
    assert result.read == 21


def write_result(folder: Path, content: Any) -> None:
    (folder / "ab.json").write_text(json.dumps(content))


def test_result_has_the_paths_and_schemas_of_its_batches(tmp_path: Path) -> None:
    write_result(tmp_path, RESULT)
    (tmp_path / "ab-00000.arrow").write_bytes(b"123")
    result = load_complete_result(str(tmp_path), "ab")
    assert result.records.segments == (str(tmp_path / "ab-00000.arrow"),)
    assert list(result.batch_schemas()) == [SCHEMA, SCHEMA]


@pytest.mark.parametrize("field", RESULT)
def test_missing_field_of_a_result_is_an_error_that_names_the_file(
    tmp_path: Path, field: str
) -> None:
    write_result(tmp_path, {name: value for name, value in RESULT.items() if name != field})
    with pytest.raises(DataError, match=rf"ab\.json.*{field}: is missing"):
        load_result(str(tmp_path), "ab")


@pytest.mark.parametrize(
    "fields",
    [
        {"segments": ["../ab-00000.arrow"]},
        {"segments": [".."]},
        {"segments": []},
        {"segments": ["a.arrow", "b.arrow"]},
        {"segment_bytes": [-1]},
        {"schemas": ["bm8gc2NoZW1h"]},
        {"schemas": [5]},
        {"first_batches": [1]},
        {"first_batches": [0, 2], "segments": ["a.arrow", "b.arrow"]},
        {"rows": [4]},
        {"sizes": [32, 16, 8]},
        {"null_counts": [{"x": 0}]},
        {"null_counts": [{"x": 0}, {"y": 0}]},
        {"null_counts": {"x": 0}},
    ],
)
def test_invalid_field_of_a_result_is_an_error_that_names_the_file(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    write_result(tmp_path, RESULT | fields)
    with pytest.raises(DataError, match=r"ab\.json"):
        load_result(str(tmp_path), "ab")


@pytest.mark.parametrize(
    "damage", [lambda text: text[:-1], lambda text: "{}", lambda text: "[]", lambda text: "null"]
)
def test_damaged_failure_is_an_error_that_names_the_file(
    tmp_path: Path, damage: Callable[[str], str]
) -> None:
    file = InputFile(0, "a.dat", "/in/a.dat", Stat(1, 1))
    reject = Reject("a.dat", "", "parser-error", "bad header")
    put_failure(str(tmp_path), "ab", reject)
    assert load_failure(str(tmp_path), "ab", file) == reject
    path = tmp_path / "ab.failed"
    path.write_text(damage(path.read_text()))
    with pytest.raises(DataError, match=r"ab\.failed"):
        load_failure(str(tmp_path), "ab", file)
