"""The elements of a JSON array are records, in blocks of any size."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.files import write_file
from kit.json_files import DOCUMENTS, ROWS, TEXT
from kit.source_reading import input_files, read_all, values

import recordmill
from recordmill.base.errors import DataError
from recordmill.sources.common.contract import PlanOptions
from recordmill.sources.jsonl.arrays import read_elements
from recordmill.sources.jsonl.options import JsonlOptions
from recordmill.sources.jsonl.source import JsonlSource, plan_jsonl


def plan(path: Path, **options: Any) -> JsonlSource:
    return plan_jsonl(input_files(path), JsonlOptions(**options), PlanOptions())


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_elements_of_a_json_array_are_the_records(
    tmp_path: Path, indent: int | None, packed: bool, encoding: str
) -> None:
    content = ("\n " + json.dumps(ROWS, indent=indent, ensure_ascii=False) + "\n").encode(encoding)
    path = tmp_path / "in.json"
    path.write_bytes(gzip.compress(content) if packed else content)
    source = plan(path, encoding=encoding)
    assert "JSON arrays, whose elements are read as lines (1): in.json" in source.notes
    rows, rejects = read_all(source)
    assert (len(rows), rejects) == (50, [])
    assert [row["a"] for row in values(rows)] == list(range(50))
    assert {row["text"] for row in values(rows)} == {TEXT}
    assert [row[1] for row in rows] == list(range(50))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


@pytest.mark.sweep
@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.dictionaries(st.text(max_size=3), json_values), max_size=5),
    st.sampled_from([None, 1]),
    st.data(),
)
def test_json_elements_are_the_same_for_blocks_of_any_size(
    rows: list[Any], indent: int | None, data: st.DataObject
) -> None:
    content = np.frombuffer(
        json.dumps(rows, indent=indent, ensure_ascii=data.draw(st.booleans())).encode(), np.uint8
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=4)))
    text = b"".join(block.tobytes() for block in read_elements(np.split(content, cuts), "f"))
    assert [json.loads(line) for line in text.split(b"\n") if line.strip()] == rows


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"a": 1}, {"a": 2}', r"^in\.json: element 1: the JSON array has no end"),
        ('[{"a": 1},, {"a": 2}]', "a value is missing between commas"),
        ('[{"a": 1},]', "a value is missing between commas"),
        ('[{"a": 1}]\n[{"a": 2}]', "there is something after the end of the JSON array"),
    ],
)
def test_broken_json_array_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "in.json").write_text(text)
    with pytest.raises(DataError, match=message):
        plan(tmp_path / "in.json")


def test_json_element_that_is_not_an_object_is_a_reject(tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text('[{"a": 1}, 7, {"a": oops}, "x\ny", {"a": 2}]')
    rows, rejects = read_all(plan(tmp_path / "in.json"))
    assert [row["a"] for row in values(rows)] == [1, 2]
    assert [reject.place for reject in rejects] == ["line 2", "line 3", "line 4"]


@pytest.mark.parametrize(("document", "keys"), DOCUMENTS)
@pytest.mark.parametrize("indent", [None, 1])
def test_record_path_reads_a_member_of_a_document(
    tmp_path: Path, document: Any, keys: str, indent: int | None
) -> None:
    text = json.dumps(document, indent=indent)
    for name in ("in.json", "in.json.gz"):
        path = write_file(tmp_path / name, text)
        recordmill.build(
            path, tmp_path / "out", kind="jsonl", record_path=keys, shuffle=False, overwrite=True
        )
        assert recordmill.open(tmp_path / "out").to_numpy()["a"].tolist() == list(range(50))
    content = np.frombuffer(text.encode(), np.uint8)
    for size in (1, 2, 3, 7, 100):
        blocks = np.split(content, range(size, len(content), size))
        lines = b"".join(block.tobytes() for block in read_elements(blocks, "f", keys.split(".")))
        assert [json.loads(line) for line in lines.split(b"\n") if line.strip()] == ROWS
