"""`--where` and `--sample` keep the same rows as plain Python.

Threads and Beam write the same files, and the counts add up.
"""

import json
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from kit.data_sets import MIXED
from kit.files import tfrecord_bytes
from kit.filtered_sets import ROWS, ids, make_filtered_set
from kit.runs import read_in_each_way, run_python

import recordmill
from recordmill.__main__ import main
from recordmill.base.errors import DataError, UsageError
from recordmill.pipelines.read import dry_run, read
from recordmill.records.columns.predicate import Predicate

PIECE_BYTES = 8_000


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_filtered_set(tmp_path_factory.mktemp("filters"))


@pytest.mark.parametrize(
    ("sql", "expression", "predicate"),
    [
        ("label = 2", pc.field("label") == 2, lambda row: row["label"] == 2),
        (
            "maybe > 20",
            pc.field("maybe") > 20,
            lambda row: row["maybe"] is not None and row["maybe"] > 20,
        ),
        (
            "len(tokens) > 1 OR id < 5",
            (pc.list_value_length(pc.field("tokens")) > 1) | (pc.field("id") < 5),
            lambda row: len(row["tokens"] or ()) > 1 or row["id"] < 5,
        ),
        (
            "flag AND name LIKE '%7%' -- a comment",
            pc.field("flag") & pc.match_substring(pc.field("name"), "7"),
            lambda row: row["flag"] and "7" in row["name"],
        ),
        ("false", pc.scalar(False), lambda row: False),
    ],
)
def test_where_keeps_the_rows_that_python_keeps(
    out: Path, tmp_path: Path, sql: str, expression: pc.Expression, predicate: Any
) -> None:
    expected = [row["id"] for row in ROWS.to_pylist() if predicate(row)]
    for number, where in enumerate([sql, expression]):
        result = read(out, tmp_path / str(number), where=where, threads=3)
        assert ids(result) == expected
        assert (result.read, result.written, result.filtered, result.rejected) == (
            300,
            len(expected),
            300 - len(expected),
            0,
        )
    assert json.loads((tmp_path / "1" / "_read.json").read_text())["filtered"] == 300 - len(
        expected
    )


@pytest.mark.parametrize("to", ["parquet", "npy"])
def test_filtered_files_are_the_same_from_threads_and_beam(
    out: Path, tmp_path: Path, to: str
) -> None:
    where = pc.field("label") == 1 if to == "npy" else "label = 1"
    options: dict[str, Any] = {
        "where": where,
        "sample": 0.5,
        "columns": "id,matrix",
        "file_size": 20_000,
    }
    for result in read_in_each_way(out, tmp_path, to=to, **options):
        assert result.read == 300 == result.written + result.filtered
        assert 20 < result.written < 80


def test_features_that_only_the_condition_needs_are_not_written(out: Path, tmp_path: Path) -> None:
    result = read(out, tmp_path / "to", columns="name,id", where="label = 0 AND exact < 100")
    (table,) = [pq.read_table(path) for path in result.paths]
    assert table.column_names == ["name", "id"]
    assert table["id"].to_pylist() == list(range(0, 100, 3))
    assert Predicate("label = 0 AND exact < 100").referenced_columns(MIXED) == ("exact", "label")
    assert Predicate(pc.field("label") == 0).referenced_columns(MIXED) == ("label",)


def test_limit_counts_the_kept_records(out: Path, tmp_path: Path) -> None:
    result = read(out, tmp_path / "a", where="label = 1", limit=7)
    assert ids(result) == list(range(1, 21, 3))
    assert result.read == result.written + result.filtered < 300
    assert read(out, tmp_path / "b", where="label = 1", limit=1000).written == 100
    assert read(out, tmp_path / "c", where="label = 1", limit=0, to="npy").written == 0


# The result of these conditions would depend on the pieces, on threads or on the date.
UNSUPPORTED_CONDITIONS = [
    ("random() < 0.5", r"random\(\) gives another value each time.*sample="),
    ('"when" > now()', r"now\(\) gives"),
    ('"when" < ago(INTERVAL 1 DAY)', r"ago\(\) gives"),
    ('"when" > CURRENT_TIMESTAMP', "current_timestamp does not depend on the record"),
    ("name = user", "user does not depend"),
    ("len(tokens) > 1 AND UUID() > ''", "uuid"),
    ("id IN (SELECT max(id) FROM records)", "contains a query"),
    ("EXISTS (FROM records WHERE label = 2)", "contains a query"),
    ('"recordmill row" = 0', "recordmill row does not depend"),
    (
        "1 < 2)::BOOLEAN) UNION ALL SELECT 1 WHERE ((1 < 2",
        "not one condition|syntax|recordmill row",
    ),
]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"where": "nope = 1"}, 'where="nope = 1": .*nope'),
        ({"where": "id ="}, 'where="id =": '),
        ({"where": "1 = 1; SELECT 1"}, 'where="1 = 1'),
        ({"where": "id IN (SELECT id FROM read_csv('/etc/hosts'))"}, "where="),
        ({"where": pc.field("nope") == 1}, "nope"),
        ({"sample": 1.5}, "sample=1.5"),
        ({"sample": -0.1}, "sample=-0.1"),
        ({"sample": 0.5, "seed": 2**63}, "seed="),
        *(({"where": sql}, f"(?s)where=.*{reason}") for sql, reason in UNSUPPORTED_CONDITIONS),
        ({"to": "xml"}, 'to="xml": must be one of parquet, npy, npz, arrow,'),
        ({"limit": -1}, "limit=-1"),
        ({"max_rejects": "many"}, 'max_rejects="many"'),
        ({"memory": "10MiB"}, "is too little"),
        ({"threads": -1}, "threads=-1"),
        ({"columns": "a,,b"}, "columns="),
        ({"columns": "id,id"}, "twice"),
        ({"columns": ["nope"]}, 'columns="nope": no such feature; there are id'),
        ({"split": "dev"}, "no split 'dev'"),
        ({"file_size": 0}, "file_size="),
        ({"schema": "nowhere.pbtxt"}, 'schema="nowhere.pbtxt"'),
        ({"compression": "lzma"}, 'compression="lzma": must be one of zstd'),
        ({"compression": "zstd:fast"}, "as in zstd:9"),
        ({"compression": "zstd:23"}, "levels 1 to 22"),
        ({"compression": "snappy:2"}, "no levels"),
        ({"row_group_rows": 0}, "row_group_rows=0"),
        ({"row_group_size": "1GiB"}, "row_group_size="),
    ],
    ids=str,
)
def test_wrong_filter_option_is_refused_by_name(
    out: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        read(out, tmp_path / "to", **options)
    assert not (tmp_path / "to").exists()


def test_condition_that_fails_on_a_value_is_an_error(out: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r'train-.*where="CAST\(name AS INTEGER\) = 1": '):
        read(out, tmp_path / "to", where="CAST(name AS INTEGER) = 1")


def test_sql_without_duckdb_names_the_package_to_install(out: Path, tmp_path: Path) -> None:
    code = f"""
import sys
sys.modules["duckdb"] = None
from recordmill.__main__ import main
from recordmill.pipelines.read import read
import pyarrow.compute as pc
print(read({str(out)!r}, {str(tmp_path / "a")!r}, where=pc.field("id") < 4).written)
sys.exit(main(["read", {str(out)!r}, "--out", {str(tmp_path / "b")!r}, "--where", "id < 4"]))
"""
    process = run_python("-c", code, check=False)
    assert process.stdout == "4\n"
    assert process.returncode == 1
    assert "--where with SQL needs duckdb, which is not installed" in process.stderr
    assert not (tmp_path / "b").exists()


def test_filters_on_the_command_line_and_in_a_dry_run(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(
            [
                "read",
                str(out),
                "--out",
                str(tmp_path / "to"),
                "--where",
                "id < 100",
                "--sample",
                "0.5",
                "--seed",
                "3",
            ]
        )
        == 0
    )
    assert "records filtered out" in capsys.readouterr().err
    estimate = dry_run(out, where="label = 1")
    assert estimate.rows == pytest.approx(100, abs=15)
    assert "numbers of records are estimates" in estimate.notes[-1]
    assert dry_run(out, where="label = 1", limit=9).rows == 9


def test_feature_of_two_kinds_is_ignored_if_it_is_not_read(tmp_path: Path) -> None:
    records = [
        recordmill.example({"x": 0.5 if number else "text", "label": number}) for number in range(5)
    ]
    data = tfrecord_bytes(records)
    (tmp_path / "a.tfrecord").write_bytes(data)
    with pytest.raises(DataError, match=r"no schema fits all records: feature 'x'.*schema="):
        read(tmp_path / "a.tfrecord", tmp_path / "all")
    read(tmp_path / "a.tfrecord", tmp_path / "label", columns="label")
    assert pq.read_table(next((tmp_path / "label").glob("*.parquet")))["label"].to_pylist() == [
        0,
        1,
        2,
        3,
        4,
    ]


def test_read_with_a_condition_prints_only_its_summary(out: Path, tmp_path: Path) -> None:
    """DuckDB prints a warning for each of its objects that is alive at exit."""
    process = run_python(
        "-m", "recordmill", "read", out, "--out", tmp_path / "to", "--where", "id != 7"
    )
    lines = process.stderr.splitlines()
    assert lines[0].startswith("299 records to parquet")
    assert lines[-1] == "1 record filtered out"
