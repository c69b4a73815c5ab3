"""Encodings, compressions and declared values are treated alike in all kinds."""

import datetime
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kit.source_reading import input_files

from recordmill.sources.arrow.memory import plan_memory
from recordmill.sources.arrow.parquet import plan_parquet
from recordmill.sources.common.contract import PlanOptions, Source
from recordmill.sources.common.options import TableOptions
from recordmill.sources.csv.options import CsvOptions
from recordmill.sources.csv.source import plan_csv
from recordmill.sources.jsonl.options import JsonlOptions
from recordmill.sources.jsonl.source import plan_jsonl

BAD = "a reject"
UTC = datetime.timezone.utc
MIDNIGHT = datetime.datetime(2020, 1, 1)
GRAMMAR: list[tuple[str, str, Any]] = [
    ("5", "int64", 5),
    ("+5", "int64", 5),
    ("007", "int64", 7),
    (" 5", "int64", BAD),
    ("5 ", "int64", BAD),
    ("0x10", "int64", BAD),
    ("1_000", "int64", BAD),
    ("5.0", "int64", 5),
    ("5.5", "int64", BAD),
    ("1e3", "int64", 1000),
    ("50e-1", "int64", 5),
    ("5e18", "int64", 5 * 10**18),
    ("-5e18", "int64", -5 * 10**18),
    ("9223372036854775807", "int64", 2**63 - 1),
    ("-9223372036854775808", "int64", -(2**63)),
    ("9223372036854775808", "int64", BAD),
    ("1e19", "int64", BAD),
    ("1e400", "int64", BAD),
    ("0e400", "int64", 0),
    ("nan", "int64", BAD),
    ("5e18", "uint64", 5 * 10**18),
    ("-1", "uint8", BAD),
    ("256", "uint8", BAD),
    ("1.5", "float64", 1.5),
    (".5", "float64", 0.5),
    ("5.", "float64", 5.0),
    ("+1.5", "float64", 1.5),
    ("NaN", "float64", math.nan),
    ("-INFINITY", "float64", -math.inf),
    ("inf", "float32", math.inf),
    ("+inf", "float64", BAD),
    ("1e400", "float64", BAD),
    ("1e39", "float32", BAD),
    ("16777217", "float32", BAD),
    ("33554432", "float32", 33554432.0),
    ("1,5", "float64", BAD),
    ("9007199254740993", "float64", BAD),
    ("100000000000000000000", "float64", 1e20),
    ("100000000000000000001", "float64", BAD),
    ("2049", "float16", BAD),
    ("65519.9", "float16", 65504.0),
    ("65520", "float16", BAD),
    ("65520.5", "float16", BAD),
    ("257", "bfloat16", BAD),
    ("3.4e38", "bfloat16", BAD),
    ("0.1", "bfloat16", 0.10009765625),
    ("true", "bool", True),
    ("False", "bool", False),
    ("TRUE", "bool", True),
    ("tRuE", "bool", BAD),
    ("1", "bool", True),
    ("0", "bool", False),
    ("yes", "bool", BAD),
    ("2020-01-01", "timestamp[s]", MIDNIGHT),
    ("2020-01-01 00:00", "timestamp[s]", MIDNIGHT),
    ("2020-01-01T00:00:00.5", "timestamp[ms]", MIDNIGHT.replace(microsecond=500_000)),
    ("0001-01-01", "timestamp[s]", datetime.datetime(1, 1, 1)),
    ("0001-01-01", "timestamp[ns]", BAD),
    ("2020-01-01T10", "timestamp[s]", BAD),
    ("2020-01-01T00:00:00.5", "timestamp[s]", BAD),
    ("2020-01-01T00:00:00.000", "timestamp[s]", MIDNIGHT),
    ("2020-01-01T00:00+0100", "timestamp[s, UTC]", BAD),
    ("2020-01-01T01:00+01:00", "timestamp[s, UTC]", MIDNIGHT.replace(tzinfo=UTC)),
    ("2020-01-01T00:00Z", "timestamp[s]", BAD),
    ("2020-01-01", "timestamp[s, UTC]", BAD),
    ("2020-02-30", "timestamp[s]", BAD),
]


def plan_texts(kind: str, values: list[str], dtype: str | None, folder: Path) -> Source:
    """Plans an input with the texts as column x, and a constant column y."""
    common = PlanOptions(dtypes={} if dtype is None else {"x": dtype})
    path = folder / f"in.{kind}"
    table = {"x": values, "y": ["y"] * len(values)}
    if kind == "csv":
        path.write_text("x,y\n" + "".join(f'"{value}",y\n' for value in values))
        return plan_csv(input_files(path), CsvOptions(), common)
    if kind == "jsonl":
        path.write_text("".join(f'{{"x": "{value}", "y": "y"}}\n' for value in values))
        return plan_jsonl(input_files(path), JsonlOptions(), common)
    if kind == "parquet":
        pq.write_table(pa.table(table), path)
        return plan_parquet(input_files(path), TableOptions(), common)
    return plan_memory(table, folder, common)


def read(source: Source) -> tuple[str, list[Any]]:
    """Returns (dtype of x, value of x in each row)."""
    values: dict[int, Any] = {}
    for unit in source.units:
        for chunk in source.read(unit):
            assert isinstance(chunk.records, pa.RecordBatch)
            values.update(
                zip(chunk.positions.tolist(), chunk.records.column("x").to_pylist(), strict=True)
            )
    return source.schema["x"].dtype, [
        values.get(row, BAD) for row in range(max(values, default=-1) + 1)
    ]


def to_comparable(value: Any) -> str:
    """Returns a text for a value, such that equal values have equal texts.

    NaN does not equal itself, and there are several objects for UTC.
    """
    return value.isoformat() if isinstance(value, datetime.datetime) else repr(value)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "memory"])
def test_text_of_a_declared_dtype_has_the_same_value_in_every_kind(
    kind: str, tmp_path: Path
) -> None:
    by_dtype: dict[str, list[tuple[str, Any]]] = {}
    for text, dtype, value in GRAMMAR:
        by_dtype.setdefault(dtype, []).append((text, value))
    for dtype, cases in by_dtype.items():
        # at least one row must fit
        last_text = (
            "true" if dtype == "bool" else "2020-01-01" if dtype.startswith("timestamp") else "1"
        )
        last_text = "2020-01-01T00:00Z" if "UTC" in dtype else last_text
        result = read(plan_texts(kind, [*(text for text, _ in cases), last_text], dtype, tmp_path))
        assert result[0] == dtype
        for (text, value), result_value in zip(cases, result[1], strict=False):
            assert to_comparable(result_value) == to_comparable(value), f"{text!r} as {dtype}"


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "memory"])
def test_text_without_a_declared_dtype_stays_text(kind: str, tmp_path: Path) -> None:
    texts = ["5", "true", "2020-01-01", ""]
    assert read(plan_texts(kind, texts, None, tmp_path)) == ("string", texts)


@pytest.mark.parametrize(
    ("literals", "dtype", "values"),
    [
        (["5e18", "1"], "int64", [5 * 10**18, 1]),
        (["-5e18", "1.0"], "int64", [-5 * 10**18, 1]),
        (["18446744073709551615", "1e19", "1.5", "3"], "int64", [BAD, BAD, BAD, 3]),
        (["9e18", "1"], "uint64", [9 * 10**18, 1]),
    ],
)
def test_json_integers_are_recognized_in_any_notation(
    literals: list[str], dtype: str, values: list[Any], tmp_path: Path
) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(f'{{"x": {literal}}}\n' for literal in literals))
    assert read(
        plan_jsonl(input_files(path), JsonlOptions(), PlanOptions(dtypes={"x": dtype}))
    ) == (dtype, values)
