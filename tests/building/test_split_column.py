"""`split_column` and `split_at` divide records by the values of a column."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.files import write_rows
from kit.runs import in_flags

import recordmill
from recordmill.base.errors import RecordmillError, UsageError
from recordmill.shards.manifest import load_manifest
from recordmill.shards.rejects import TooManyRejects

WORDS = {
    "train": ["train", "Training"],
    "validation": ["val", "dev ", "VALID"],
    "test": ["test", "eval"],
}


def rows(count: int = 500) -> dict[str, Any]:
    random = np.random.default_rng(3)
    words = [word for names in WORDS.values() for word in names]
    return {
        "id": np.arange(count),
        "split": [words[index] for index in random.integers(0, len(words), count)],
    }


def source_of(columns: Any, kind: str, folder: Path) -> Any:
    """Returns an input of the kind `kind` with these columns. Files are written to `folder`."""
    if kind == "tfrecord":
        return recordmill.build(columns, folder / "whole", shuffle=False).out
    return columns if kind == "memory" else write_rows(folder / f"in.{kind}", columns)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "tfrecord"])
@pytest.mark.parametrize("options", [{"split_column": "split"}, {"split_at": "x=2"}])
def test_row_without_a_split_value_is_rejected(
    kind: str, options: dict[str, Any], tmp_path: Path
) -> None:
    columns = {
        "id": [0, 1, 2, 3, 4],
        "split": ["train", "fold1", "test", None, "val"],
        "x": [1.5, None, 2.0, None, 3.5],
    }
    source = source_of(columns, kind, tmp_path)
    result = recordmill.build(source, tmp_path / "out", max_rejects=2, **options)
    assert (result.read, result.rejected, result.manifest.rejects["reasons"]) == (
        5,
        2,
        {"split": 2},
    )
    assert recordmill.verify(tmp_path / "out") == []
    assert sorted(recordmill.open(tmp_path / "out").to_numpy()["id"].tolist()) == [0, 2, 4]
    with pytest.raises(TooManyRejects) as error:
        recordmill.build(source, tmp_path / "no", max_rejects=1, **options)
    place = {"csv": "line 3, row 1", "jsonl": "line 2", "parquet": "row 1"}.get(kind, "record 1")
    message = (
        "--split-column split: 'fold1' does not name"
        if "split_column" in options
        else "--split-at x: has no value"
    )
    assert f": {place}: {message}" in in_flags(error.value)


@pytest.mark.parametrize("kind", ["memory", "csv", "jsonl", "parquet", "tfrecord"])
@pytest.mark.parametrize("runner", [None, "DirectRunner"])
def test_split_column_divides_the_records_by_its_values(
    kind: str, runner: str | None, tmp_path: Path
) -> None:
    if kind == "memory" and runner is not None:
        return
    columns = rows()
    source = source_of(columns, kind, tmp_path)
    recordmill.build(source, tmp_path / "out", split_column="split", runner=runner)
    assert recordmill.verify(tmp_path / "out") == []
    for split, words in WORDS.items():
        ds = recordmill.open(tmp_path / "out", split=split)
        expected = [
            number
            for number, word in zip(columns["id"], columns["split"], strict=True)
            if word in words
        ]
        assert sorted(ds.to_numpy()["id"].tolist()) == expected
        assert ds.columns == (["id", "split"] if kind == "tfrecord" else ["id"])
    assert load_manifest(tmp_path / "out").options["split_column"] == "split"


def test_split_without_a_value_is_not_created(tmp_path: Path) -> None:
    recordmill.build(
        {"id": [1, 2], "split": ["test", "train"]}, tmp_path / "out", split_column="split"
    )
    assert recordmill.open(tmp_path / "out").splits == ("train", "test")


def test_labels_file_of_images_may_hold_the_split_column(tmp_path: Path) -> None:
    from kit import image_samples

    (tmp_path / "in").mkdir()
    for name in "abc":
        (tmp_path / "in" / f"{name}.png").write_bytes(image_samples.encode_image("PNG"))
    (tmp_path / "labels.csv").write_text(
        "file,label,split\na.png,x,train\nb.png,y,train\nc.png,x,test\n"
    )
    out = tmp_path / "out"
    recordmill.build(tmp_path / "in", out, labels=tmp_path / "labels.csv", split_column="split")
    assert {split: len(recordmill.open(out, split=split)) for split in ("train", "test")} == {
        "train": 2,
        "test": 1,
    }


def test_column_that_looks_like_splits_is_noted(tmp_path: Path) -> None:
    result = recordmill.build(rows(), tmp_path / "out")
    # The note comes from the manifest after the build, so it spells options as in Python.
    assert any(
        note.endswith('. To use it for the splits: split_column="split"') for note in result.notes
    )
    assert load_manifest(tmp_path / "out").statistics["notes"] == [*result.notes]


DAYS = np.arange("2024-05-01", "2024-11-01", dtype="datetime64[D]")
TIMED = {
    "day": DAYS.astype("datetime64[us]"),
    "id": np.arange(len(DAYS)),
    "half": np.arange(len(DAYS)) / 2,
}
TIMED["name"] = np.array([f"n{number:03}" for number in TIMED["id"]])


@pytest.mark.parametrize("kind", ["memory", "csv", "parquet", "tfrecord"])
@pytest.mark.parametrize("runner", [None, "DirectRunner"])
@pytest.mark.parametrize(
    ("split_at", "edges"),
    [
        ("day=2024-06-01,2024-09-01", ["2024-06-01", "2024-09-01"]),
        ({"id": 100}, [100]),
        ("half=10.5, 20", [10.5, 20]),
        ({"name": ("n050", "n120")}, ["n050", "n120"]),
    ],
)
def test_split_at_divides_at_its_values(
    kind: str, runner: str | None, split_at: Any, edges: list[Any], tmp_path: Path
) -> None:
    if kind == "memory" and runner is not None:
        return
    recordmill.build(
        source_of(TIMED, kind, tmp_path), tmp_path / "out", split_at=split_at, runner=runner
    )
    column = TIMED[
        split_at.partition("=")[0] if isinstance(split_at, str) else next(iter(split_at))
    ]
    split_numbers = np.searchsorted(np.array(edges, column.dtype), column, side="right")
    names = ("train", "test") if len(edges) == 1 else ("train", "validation", "test")
    assert recordmill.open(tmp_path / "out").splits == names
    for number, name in enumerate(names):
        table = recordmill.open(tmp_path / "out", split=name).to_table()
        assert sorted(table["id"].to_pylist()) == TIMED["id"][split_numbers == number].tolist()
        assert set(table.column_names) == {"day", "id", "half", "name"}


@pytest.mark.parametrize(
    "edge", ["2024-07-01", "2024-07-01T00:00:00Z", "2024-07-01 02:00:00+02:00"]
)
def test_split_at_compares_times_with_a_zone_in_utc(edge: str, tmp_path: Path) -> None:
    times = [f"2024-0{month}-01T00:00:00Z" for month in (5, 6, 7, 8)]
    (tmp_path / "in.csv").write_text("\n".join(["time", *times]))
    recordmill.build(tmp_path / "in.csv", tmp_path / "out", split_at={"time": edge})
    assert [len(recordmill.open(tmp_path / "out", split=name)) for name in ("train", "test")] == [
        2,
        2,
    ]


@pytest.mark.parametrize(
    ("column", "options", "message"),
    [
        (
            {"split": [1, 2]},
            {"split_column": "split"},
            "--split-column split: the column is int64, and only text can name a split",
        ),
        (
            {"part": ["train", "test"]},
            {"split_column": "split"},
            "--split-column split: no such column",
        ),
        ({"split": ["train", "test"]}, {"split_column": "split", "splits": "train=1"}, "--splits"),
        (
            {"x": [0.5, np.nan]},
            {"split_at": "x"},
            "--split-at x: write COLUMN=VALUE or COLUMN=VALUE,VALUE",
        ),
        (
            {"x": [0.5, np.nan]},
            {"split_at": "x=1,2,3"},
            "--split-at x=1,2,3: write COLUMN=VALUE or",
        ),
        (
            {"x": [0.5, np.nan]},
            {"split_at": "x=2,1"},
            "--split-at x: 2, 1: the second value must be above the first",
        ),
        (
            {"x": [0.5, np.nan]},
            {"split_at": "x=nan"},
            "--split-at x: no value can be below or above nan",
        ),
        (
            {"x": [0.5, np.nan]},
            {"split_at": "x=soon"},
            "--split-at x: soon can't be compared with double",
        ),
        (
            {"x": [0.5, np.nan]},
            {"split_at": "y=1"},
            "--split-at y: no such column; there are id, x",
        ),
        ({"x": [0.5, np.nan]}, {"split_at": "x=1", "splits": "train=1"}, "--splits"),
    ],
)
def test_column_that_cannot_divide_records_is_refused(
    column: Any, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises((RecordmillError, UsageError)) as error:
        recordmill.build({"id": [1, 2], **column}, tmp_path / "out", **options)
    assert message in in_flags(error.value)
    assert not (tmp_path / "out").exists()
