"""The kind of inputs is detected from their content.

OUT may not be in an input folder.
"""

from pathlib import Path
from typing import Any

import pytest
from kit.data_sets import mixed_rows, write_data_set

import recordmill
from recordmill.base.errors import UsageError
from recordmill.pipelines.build_source import detect_input_kind, to_paths
from recordmill.storage.listing import list_inputs


def kind_of(*paths: Path) -> str:
    return detect_input_kind(list_inputs([str(path) for path in paths]))[0]


def test_kind_follows_from_the_content(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.csv").write_text("id,name\n1,a\n2,b\n")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x.jsonl").write_text('{"id": 1}\n{"id": 2}\n')
    assert kind_of(tmp_path / "a") == "csv"
    assert kind_of(tmp_path / "b") == "jsonl"


def test_folder_of_a_data_set_with_other_files_is_tfrecord(tmp_path: Path) -> None:
    out = write_data_set(tmp_path / "out", {"train": mixed_rows(5)})
    assert any(path.suffix == ".json" for path in out.rglob("*"))
    assert kind_of(out) == "tfrecord"


@pytest.mark.parametrize(
    ("source", "paths"),
    [
        ("a", ["a"]),
        (Path("a"), ["a"]),
        (["a", Path("b")], ["a", "b"]),
        ({"x": [1]}, None),
        ([{"x": 1}], None),
        (iter([{"x": 1}]), None),
    ],
)
def test_paths_are_distinguished_from_data_in_memory(source: Any, paths: list[str] | None) -> None:
    result = to_paths(source)
    assert (result if result is None else [str(path) for path in result]) == paths


def test_out_inside_of_an_input_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("id\n1\n")
    with pytest.raises(UsageError, match="out"):
        recordmill.build(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
