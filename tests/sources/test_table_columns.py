"""Tables have the chosen columns in order, and a column for each partition folder."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kit.runs import rejects_of

import recordmill
from recordmill.base.errors import UsageError
from recordmill.schemas.feature import Feature, Schema
from recordmill.shards.rejects import TooManyRejects

KINDS = ("csv", "jsonl", "parquet")
FOLDERS = (("2024-01-01", "JP"), ("2024-01-02", "DE"), ("2024-01-02", "JP"))


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes rows in the format of the file name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    else:
        path.write_text(
            "".join(
                ",".join(map(str, line)) + "\n"
                for line in (rows[0], *(row.values() for row in rows))
            )
        )


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(tmp_path: Path, kind: str) -> Path:
    for number, (day, country) in enumerate(FOLDERS):
        of_file = tmp_path / "in" / f"dt={day}" / f"country={country}" / f"n={number}"
        write_rows(
            of_file / f"part.{kind}",
            [{"x": 10 * number, "y": "a"}, {"x": 10 * number + 1, "y": "b"}],
        )
    return tmp_path / "in"


def table(out: Path) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = recordmill.open(out).to_table().to_pydict()
    return columns


def test_partition_folders_become_columns(folder: Path, tmp_path: Path) -> None:
    result = recordmill.build(folder, tmp_path / "out", shuffle=False, label="country")
    assert not [note for note in result.notes if "=..." in note or "not in" in note]
    assert [(feature.name, feature.dtype, feature.required) for feature in result.schema] == [
        ("x", "int64", result.schema["x"].required),
        ("y", "string", result.schema["y"].required),
        ("dt", "string", True),
        ("country", "int64", True),
        ("n", "int64", True),
    ]
    assert (result.schema.label, result.schema["country"].classes) == ("country", ("DE", "JP"))
    assert table(tmp_path / "out") == {
        "x": [0, 1, 10, 11, 20, 21],
        "y": ["a", "b"] * 3,
        "dt": ["2024-01-01"] * 2 + ["2024-01-02"] * 4,
        "country": [1, 1, 0, 0, 1, 1],
        "n": [0, 0, 1, 1, 2, 2],
    }


def test_schema_and_dtypes_apply_to_partition_columns(folder: Path, tmp_path: Path) -> None:
    features = (
        Feature("dt", "string"),
        Feature("x", "int64"),
        Feature("country", "int64", classes=("FR", "JP", "DE")),
    )
    schema = Schema(features, label="country")
    result = recordmill.build(folder, tmp_path / "out", shuffle=False, schema=schema)
    assert result.schema == schema
    assert "folders named n=... do not become columns" in result.notes
    assert (table(tmp_path / "out")["country"], table(tmp_path / "out")["x"]) == (
        [1, 1, 2, 2, 1, 1],
        [0, 1, 10, 11, 20, 21],
    )
    split_result = recordmill.build(
        folder, tmp_path / "some", dtypes={"n": "float32"}, splits="a=0.5,b=0.5", split_by="dt"
    )
    assert split_result.schema["n"].dtype == "float32"
    assert {count for count in split_result.records.values() if count} <= {2, 4, 6}


def test_partition_value_that_does_not_fit_rejects_its_records(
    folder: Path, tmp_path: Path, kind: str
) -> None:
    write_rows(
        folder / "dt=today" / "country=JP" / "n=7" / f"part.{kind}",
        [{"x": 70, "y": "a"}, {"x": 71, "y": "b"}],
    )
    for day, _ in FOLDERS:
        if (source := folder / f"dt={day}").exists():
            source.rename(folder / f"dt={day.replace('-', '')}")
    with pytest.raises(TooManyRejects, match="dt: 'today' does not fit int64"):
        recordmill.build(folder, tmp_path / "out", dtypes={"dt": "int64"})
    result = recordmill.build(
        folder, tmp_path / "out", dtypes={"dt": "int64"}, max_rejects=2, shuffle=False
    )
    assert (result.read, result.rejected, sorted(table(tmp_path / "out")["x"])) == (
        8,
        2,
        [0, 1, 10, 11, 20, 21],
    )
    assert set(table(tmp_path / "out")["dt"]) == {20240101, 20240102}
    rejects = rejects_of(result)
    assert len({(reject["source"], reject["place"]) for reject in rejects}) == 2


def test_column_of_a_file_takes_precedence_over_a_partition_column(
    tmp_path: Path, kind: str
) -> None:
    write_rows(
        tmp_path / "in" / "x=5" / "y=7" / f"part.{kind}", [{"x": 1, "z": 3}, {"x": 2, "z": 4}]
    )
    recordmill.build(
        tmp_path / "in", tmp_path / "out", shuffle=False, dtypes={"x": "float32", "y": "float64"}
    )
    assert table(tmp_path / "out") == {"x": [1.0, 2.0], "z": [3, 4], "y": [7.0, 7.0]}


def test_hive_default_partition_is_null(tmp_path: Path, kind: str) -> None:
    for value, x in (("__HIVE_DEFAULT_PARTITION__", 1), ("a%20b", 2)):
        write_rows(tmp_path / "in" / f"v={value}" / f"part.{kind}", [{"x": x, "z": 0}])
    result = recordmill.build(tmp_path / "in", tmp_path / "out", shuffle=False)
    assert not result.schema["v"].required
    assert dict(zip(table(tmp_path / "out")["x"], table(tmp_path / "out")["v"], strict=True)) == {
        1: None,
        2: "a b",
    }


def test_partition_folder_named_like_a_column_is_noted(tmp_path: Path) -> None:
    (tmp_path / "in" / "id=7").mkdir(parents=True)
    (tmp_path / "in" / "id=7" / "a.csv").write_text("id,x\n1,2\n3,4\n")
    result = recordmill.build(tmp_path / "in", tmp_path / "out")
    assert sorted(recordmill.open(result.out).to_table()["id"].to_pylist()) == [1, 3]
    assert (
        "id: the files have a column of this name, so the names of folders are ignored"
        in result.notes
    )
    (tmp_path / "in" / "id=7").rename(tmp_path / "in" / "b=1")
    (tmp_path / "in" / "b=1" / "b=2").mkdir()
    (tmp_path / "in" / "b=1" / "a.csv").rename(tmp_path / "in" / "b=1" / "b=2" / "a.csv")
    with pytest.raises(
        UsageError, match=r"b=1/b=2: two of these folders are called b=\.\.\.; rename one"
    ):
        recordmill.build(tmp_path / "in", tmp_path / "out", overwrite=True)


ROWS = [{"a": n, "b": f"t{n % 3}", "odd": n if n % 2 else f"x{n}", "c": n / 4} for n in range(300)]


@pytest.fixture
def path(tmp_path: Path, kind: str) -> Path:
    rows = [{**row, "odd": str(row["odd"])} for row in ROWS] if kind == "parquet" else ROWS
    write_rows(tmp_path / f"in.{kind}", rows)
    return tmp_path / f"in.{kind}"


@pytest.mark.parametrize("threads", [1, 4])
def test_chosen_columns_are_built_in_order(path: Path, tmp_path: Path, threads: int) -> None:
    names = ["c", "b", "c", "a"] if path.suffix != ".parquet" else ["c", "b", "a"]
    result = recordmill.build(
        path, tmp_path / "out", columns=names, label="b", threads=threads, quiet=True
    )
    assert list(result.schema.names) == ["c", "b", "a"]
    assert result.schema["b"].classes == ("t0", "t1", "t2")
    assert not any("odd" in note for note in result.notes)
    table = recordmill.open(tmp_path / "out").to_table()
    result_rows = sorted(zip(*(table[name].to_pylist() for name in ("a", "b", "c")), strict=True))
    assert result_rows == [(row["a"], row["a"] % 3, row["c"]) for row in ROWS]


def test_missing_column_is_refused(path: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"column .prise.*(are|is) a, b, odd, c"):
        recordmill.build(path, tmp_path / "out", columns=["a", "prise"], quiet=True)
    with pytest.raises(UsageError, match="label"):
        recordmill.build(path, tmp_path / "out", columns=["a", "b"], label="c", quiet=True)
    assert not (tmp_path / "out").exists()


def test_column_of_an_object_includes_its_members(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(
        '{"u": {"id": 1, "tags": ["x"]}, "t": [1]}\n{"u": {"id": 2, "tags": []}, "t": "odd"}\n'
    )
    assert list(
        recordmill.build(path, tmp_path / "out", columns=["u"], quiet=True).schema.names
    ) == ["u.id", "u.tags"]
