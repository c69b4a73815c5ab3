"""A plan checks the columns of options, and decides about schema, shards and notes."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import recordmill
from recordmill.base.errors import UsageError
from recordmill.base.progress import Progress
from recordmill.building.plan import BuildPlan
from recordmill.pipelines.build_options import make_options
from recordmill.pipelines.build_plan import make_plan
from recordmill.shards.run import RunFolder


def plan_table(tmp_path: Path, **options: Any) -> BuildPlan:
    table = {"id": [1, 2, 3], "set": ["a", "b", "a"], "tags": [[1], [2, 3], []]}
    out = str(tmp_path / "out")
    folder = RunFolder.create(out)
    try:
        return make_plan(table, folder, out, 0, make_options(out, **options), Progress())
    finally:
        folder.close()


@pytest.mark.parametrize("name", ["key", "split_by", "stratify", "split_column"])
@pytest.mark.parametrize(
    ("column", "message"),
    [("ids", "no such column; there are id, set, tags.*mean id"), ("tags", "holds int64")],
)
def test_column_that_an_option_names_must_exist_and_have_single_values(
    tmp_path: Path, name: str, column: str, message: str
) -> None:
    splits = {} if name in ("key", "split_column") else {"splits": "a=0.5,b=0.5"}
    with pytest.raises(UsageError, match=f"{name}=.*{message}"):
        plan_table(tmp_path, **{name: column}, **splits)


def test_column_of_the_splits_is_not_a_feature(tmp_path: Path) -> None:
    plan = plan_table(tmp_path, split_column="set")
    assert plan.schema.names == ("id", "tags")
    assert plan.source is not None
    assert plan.source.schema.names == ("id", "set", "tags")


def test_another_labels_file_changes_the_fingerprint(tmp_path: Path) -> None:
    from PIL import Image

    (tmp_path / "images").mkdir()
    for name in ("a", "b"):
        Image.new("L", (3, 2)).save(tmp_path / "images" / f"{name}.png")
    fingerprints = []
    for number, classes in enumerate([("cat", "dog"), ("dog", "cat"), ("cat", "dog")]):
        labels = tmp_path / "labels.csv"
        labels.write_text("file_name,label\na.png,{}\nb.png,{}\n".format(*classes))
        result = recordmill.build(
            tmp_path / "images", tmp_path / str(number), labels=labels, name="same"
        )
        fingerprints.append(result.manifest.fingerprint)
    assert fingerprints[0] == fingerprints[2] != fingerprints[1]


def test_shards_of_huge_inputs_are_larger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recordmill.storage.file_table.FileTable.size_bytes", 10**13)
    sizes = [
        recordmill.build({"x": [1, 2, 3]}, tmp_path / f"{number}", **options).manifest.options[
            "shard_bytes"
        ]
        for number, options in enumerate([{}, {"shard_size": "128MiB"}, {"num_shards": 2}])
    ]
    assert sizes == [292 << 20, 128 << 20, None]  # 10**13 / 32,768, in whole MiB


def test_classes_that_differ_only_in_spelling_are_noted(tmp_path: Path) -> None:
    for names, is_noted in (
        (["Cat", "cat ", "dog"], True),
        (["caf\u00e9", "cafe\u0301"], True),
        (["cat", "cats"], False),
    ):
        result = recordmill.build(
            {"y": names}, tmp_path / "out", label="y", overwrite=True, quiet=True
        )
        spellings = " and ".join(map(repr, sorted(names, key=str.encode)[:2]))
        note = f"classes {spellings} of 'y' differ only in case, blanks or Unicode form"
        assert (note in result.notes) == is_noted, result.notes


@pytest.mark.parametrize("kind", ["csv", "jsonl", "memory"])
def test_records_without_a_group_and_negative_labels_are_noted(tmp_path: Path, kind: str) -> None:
    rows = [{"g": None if n % 4 == 0 else n % 3, "y": n % 2 * 2 - 1} for n in range(40)]
    table = pa.Table.from_pylist(rows)
    source: object = table
    if kind != "memory":
        source = tmp_path / f"in.{kind}"
        text = (
            "\n".join(map(json.dumps, rows))
            if kind == "jsonl"
            else table.to_pandas().to_csv(index=False)
        )
        Path(str(source)).write_text(text)
    result = recordmill.build(
        source, tmp_path / "out", split_by="g", splits="a=0.5,b=0.5", label="y", quiet=True
    )
    assert "records without 'g': 10 (they are one group, in one split)" in result.notes
    remedy = 'dtypes={"y": "string"} makes them classes'
    assert f"label 'y' has values below 0, which can't be class numbers; {remedy}" in result.notes
    second = recordmill.build(
        source, tmp_path / "out", label="y", dtypes={"y": "string"}, quiet=True, overwrite=True
    )
    assert second.schema["y"].classes == ("-1", "1")
    assert not any("values below 0" in note or "one group" in note for note in second.notes)
