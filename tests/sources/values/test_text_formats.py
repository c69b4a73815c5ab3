"""`--parse` reads numbers, times and lists in other notations like Python."""

import datetime
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from kit.runs import in_flags
from kit.source_reading import features, input_files, read_all, values

import recordmill
from recordmill.base.errors import UsageError
from recordmill.schemas.arrow import from_arrow_field
from recordmill.schemas.feature import Feature, Schema
from recordmill.shards.rejects import TooManyRejects
from recordmill.sources.common.contract import PlanOptions
from recordmill.sources.csv.options import CsvOptions
from recordmill.sources.csv.source import CsvSource, plan_csv
from recordmill.sources.values.conform import conform
from recordmill.sources.values.text_formats import TextFormat, join_parsed_texts
from recordmill.storage.file_table import FileTable

BAD = None


def plan_files(paths: list[Path], parse: tuple[str, ...], **common: Any) -> Any:
    options, files = CsvOptions(parse=parse), FileTable.from_files(input_files(*paths))
    plan = lambda files, common: plan_csv(files, options, common)  # noqa: E731
    return join_parsed_texts(plan, files, PlanOptions(**common), options=options)


def day(*parts: int) -> datetime.datetime:
    return datetime.datetime(*parts)  # type: ignore[arg-type]


def parse_texts(declaration: str, texts: list[str], dtype: str = "") -> list[Any]:
    """Parses texts to a dtype.

    Args:
        dtype: Empty for the dtype of the format.

    Returns:
        The values, with None for each text that does not fit.
    """
    text_format = TextFormat.from_text(declaration)
    feature = from_arrow_field(pa.field("x", text_format.type))
    schema = Schema((replace(feature, dtype=dtype) if dtype else feature,))
    column = text_format.read(pa.array(texts, pa.large_string()))
    result = conform(pa.RecordBatch.from_pydict({"x": column}), schema)
    values = result.batch.column(0).to_pylist()
    values_by_row = dict(zip(result.good_rows.tolist(), values, strict=True))
    return [values_by_row.get(row) for row in range(len(texts))]


@pytest.mark.parametrize(
    ("spelling", "cases"),
    [
        (
            'decimal(",")',
            {"0,5": 0.5, "-3": -3.0, "+4,25": 4.25, "1.5": BAD, "1,2,3": BAD, "": BAD, ",5": BAD},
        ),
        (
            'decimal(",", thousands=".")',
            {"4.138,51": 4138.51, "1.234": 1234.0, "12.34": BAD, "1234,5": 1234.5},
        ),
        ('decimal(".", ",")', {"1,234,567.5": 1234567.5, "1,23": BAD, "12,345": 12345.0}),
        ("decimal", {"1.5": 1.5, "1,5": BAD, "1e5": BAD, "nan": BAD}),
        ("percent", {"35%": 0.35, "-3.5 %": -0.035, "35": BAD, "35%%": BAD}),
        ('percent(",")', {"3,5%": 0.035, "3.5%": BAD}),
        (
            "currency",
            {
                "$1,472.50": 1472.5,
                "-$3": -3.0,
                "1,472.50 €": 1472.5,
                "USD 5": 5.0,
                "$1,47": BAD,
                "$": BAD,
                "BLR340": BAD,
                " 1": BAD,
            },
        ),
        ('currency(",", thousands=".")', {"1.472,50 EUR": 1472.5, "€3": 3.0, "1,472.50": BAD}),
        (
            'date("%d.%m.%Y")',
            {
                "31.12.2024": day(2024, 12, 31),
                "1.2.2024": day(2024, 2, 1),
                "30.02.2024": BAD,
                "1.2.24": BAD,
            },
        ),
        (
            'date("%d.%m.%Y")',
            {"31.12.2024 ": BAD, "2024-12-31": BAD, "29.02.2024": day(2024, 2, 29)},
        ),
        ('date("%d %b %Y")', {"05 Mar 2024": day(2024, 3, 5), "31 Apr 2024": BAD}),
        ('list("|")', {"a|b": ["a", "b"], "a": ["a"], " a | ": ["a", ""], "": [""]}),
        (
            'list("; ", "int64")',
            {"1; -2": [1, -2], "3": [3], "1;2": BAD, "": BAD, "1; x": BAD, "9" * 19: BAD},
        ),
        ('list(",", item="float64")', {"1,.5,-2e3": [1, 0.5, -2000.0], "1,": BAD, "nan": BAD}),
        (
            'datetime("%d.%m.%Y %H:%M")',
            {"1.2.2024 09:05": day(2024, 2, 1, 9, 5), "1.2.2024 25:00": BAD},
        ),
    ],
)
def test_text_in_a_declared_format_has_one_value(spelling: str, cases: dict[str, Any]) -> None:
    assert parse_texts(spelling, list(cases)) == list(cases.values())


@given(st.floats(-1e12, 1e12), st.integers(0, 6))
def test_parsed_numbers_equal_those_of_python(number: float, digits: int) -> None:
    text = f"{number:,.{digits}f}"
    german_text = text.translate(str.maketrans(",.", ".,"))
    expected = float(text.replace(",", ""))
    for spelling, spelled in (
        ('decimal(".", ",")', text),
        ('decimal(",", thousands=".")', german_text),
    ):
        assert parse_texts(spelling, [spelled]) == [expected]


@pytest.mark.parametrize(
    "item",
    [
        "price",
        "price=",
        "=percent",
        "price=foo",
        'price=decimal("ab")',
        "price=decimal(1)",
        "price=date",
        "price=__import__('os')",
        "price=decimal(',', x=1)",
        "price=decimal(open('x'))",
        "price=date(5)",
        "price=list",
        "price=list(5)",
        "price=list('')",
        "price=list('|', 'bytes')",
    ],
)
def test_invalid_parse_declaration_is_refused(item: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("price,b\n1,2\n")
    with pytest.raises(UsageError, match=r"--parse .*give COLUMN=decimal"):
        plan_files([tmp_path / "a.csv"], (item,))


TABLE = "price;share;day;us;n;zip\n0,5;35%;31.12.2024;12/08/2024;1,234;x1\n;4%;1.2.2024;01/02/2024;2,500;x2\n"


def plan(folder: Path, *parse: str, **common: Any) -> Any:
    (folder / "a.csv").write_text(TABLE)
    return plan_files([folder / "a.csv"], parse, **common)


def test_columns_are_parsed_as_declared(tmp_path: Path) -> None:
    every = (
        'price=decimal(",")',
        "share=percent",
        'day=date("%d.%m.%Y")',
        'n=decimal(".", thousands=",")',
    )
    source = plan(tmp_path, *every, dtypes={"n": "int16", "price": "float32"})
    assert features(source) == {
        "price": "float32",
        "share": "float64!",
        "day": "timestamp[s]!",
        "us": "string!",
        "n": "int16!",
        "zip": "string!",
    }
    rows, rejects = read_all(source)
    assert not rejects
    assert values(rows)[1] == {
        "price": None,
        "share": 0.04,
        "day": day(2024, 2, 1),
        "us": "01/02/2024",
        "n": 2500,
        "zip": "x2",
    }
    schema = Schema((Feature("n", "int64"), Feature("price", "float64")))
    assert values(read_all(plan(tmp_path, *every[:1], every[3], schema=schema))[0])[0] == {
        "n": 1234,
        "price": 0.5,
    }
    with pytest.raises(UsageError, match="unknown dtype 'foo'; one of bool"):
        plan(tmp_path, "share=percent", dtypes={"share": "foo"})
    with pytest.raises(UsageError, match="--parse: no column 'q'; there are price, share"):
        plan(tmp_path, "q=percent")


def test_parsed_lists_have_any_length(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,tags,n\n1,a|b,1 2\n2,,3\n3,c,x\n4,d,\n")
    every = ('tags=list("|")', 'n=list(" ", "int64")')
    for schema in (
        None,
        Schema(
            (
                Feature("id", "int64"),
                Feature("tags", "string", (None,)),
                Feature("n", "int64", (None,)),
            )
        ),
    ):
        source = plan_files([tmp_path / "a.csv"], every, schema=schema)
        assert [source.schema[name].shape for name in ("tags", "n")] == [(None,), (None,)]
        rows, (reject,) = read_all(source)
        assert values(rows) == [
            {"id": 1, "tags": ["a", "b"], "n": [1, 2]},
            {"id": 2, "tags": None, "n": [3]},
            {"id": 4, "tags": ["d"], "n": None},
        ]
        assert str(reject) == """a.csv: line 4, row 2: n: 'x' is not list(" ", "int64")"""


def test_parsed_lists_become_labels_in_every_table(tmp_path: Path) -> None:
    lists = [["red", "blue"], None, ["blue", "green", "blue"]]
    table = pa.table(
        {
            "id": [1, 2, 3],
            "tags": [tags and "|".join(tags) for tags in lists],
            "p": ["0,5", "1", "2,25"],
        }
    )
    pyarrow.csv.write_csv(table, tmp_path / "a.csv")
    pq.write_table(table, tmp_path / "a.parquet")
    pq.write_table(table.set_column(1, "tags", [lists]), tmp_path / "lists.parquet")
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, table.to_pylist())))
    for name in ("a.csv", "a.jsonl", "a.parquet", "lists.parquet"):
        parse = ['p=decimal(",")', 'tags=list("|")'][: 1 + name.startswith("a")]
        result = recordmill.build(
            tmp_path / name, tmp_path / f"{name}.out", label="tags", parse=parse, shuffle=False
        )
        assert result.schema["tags"] == Feature(
            "tags", "int64", (None,), classes=("blue", "green", "red")
        )
        records = recordmill.open(result.out).to_table()
        assert (records["tags"].to_pylist(), records["p"].to_pylist()) == (
            [[2, 0], None, [0, 1, 0]],
            [0.5, 1.0, 2.25],
        )
    for name, message in (
        ("tags", "column 'tags' holds lists"),
        ("q", "no column 'q'; there are id"),
    ):
        with pytest.raises(UsageError, match=f"--parse: {message}"):
            recordmill.build(tmp_path / "lists.parquet", tmp_path / "no", parse=f"{name}=percent")


def test_values_that_cannot_be_parsed_are_rejects_with_line_and_column(tmp_path: Path) -> None:
    source = plan(
        tmp_path,
        'price=decimal(",")',
        'us=date("%d/%m/%Y")',
        "zip=percent",
        dtypes={"price": "int8"},
    )
    rows, rejects = read_all(source)
    assert not rows
    assert [in_flags(reject) for reject in rejects] == [
        "a.csv: line 2, row 0: zip: 'x1' is not percent",
        "a.csv: line 3, row 1: zip: 'x2' is not percent",
    ]
    (reject,) = read_all(plan(tmp_path, 'price=decimal(",")', dtypes={"price": "int8"}))[1]
    assert in_flags(reject).startswith(
        "a.csv: line 2, row 0: price: '0.5' does not fit int8; --dtype price=float64 keeps it"
    )


def test_rejects_of_a_file_are_located_in_one_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, locate = list[int](), CsvSource.locate

    def locate_and_count(source: CsvSource, file: int, positions: Any) -> list[str]:
        calls.append(file)
        return locate(source, file, positions)

    monkeypatch.setattr(CsvSource, "locate", locate_and_count)
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text("x,y\n" + "1,z\n" * 500)
    source = plan_files([tmp_path / "a.csv", tmp_path / "b.csv"], ("y=percent",))
    rejects = [
        reject for unit in source.units for chunk in source.read(unit) for reject in chunk.rejects
    ]
    assert [(reject.source, reject.place) for reject in rejects] == [
        (f"{name}.csv", f"line {row + 2}, row {row}") for name in ("a", "b") for row in range(500)
    ]
    assert calls == [0, 1]


def test_values_that_parse_would_read_are_noted_with_the_option(tmp_path: Path) -> None:
    notes = [in_flags(note) for note in plan(tmp_path).notes if "such as" in note]
    text = "column {!r}: the first {} values are text such as {!r}; {}"
    assert notes == [
        text.format("price", 1, "0,5", """--parse 'price=decimal(",")' reads them"""),
        text.format("share", 2, "35%", "--parse share=percent reads them"),
        text.format("day", 2, "31.12.2024", """--parse 'day=date("%d.%m.%Y")' reads them"""),
        text.format(
            "us",
            2,
            "12/08/2024",
            "they are ambiguous: use --parse 'us=date(\"%d/%m/%Y\")' or "
            "--parse 'us=date(\"%m/%d/%Y\")'",
        ),
        text.format(
            "n",
            2,
            "1,234",
            """they are ambiguous: use --parse 'n=decimal(",")' or """
            """--parse 'n=decimal(".", thousands=",")'""",
        ),
    ]
    assert not [
        note
        for note in plan(tmp_path, dtypes=dict.fromkeys(features(plan(tmp_path)), "string")).notes
        if "such as" in note
    ]


def test_runner_and_threads_do_not_change_the_bytes_of_a_parsed_build(tmp_path: Path) -> None:
    for part in range(3):
        folder = tmp_path / "in" / f"year={part}"
        folder.mkdir(parents=True)
        (folder / "a.csv").write_text(
            "id;x\n" + "".join(f"{n};{n},{part}\n" for n in range(part, 3000))
        )
    shards = []
    for options in ({}, {"threads": 1}, {"runner": "DirectRunner"}):
        out = tmp_path / f"out{len(shards)}"
        result = recordmill.build(
            tmp_path / "in", out, parse='x=decimal(",")', name="same", **options
        )  # type: ignore[arg-type]
        shards.append([path.read_bytes() for path in result.shards])
    assert shards[1:] == shards[:1] * 2
    ds = recordmill.open(tmp_path / "out0").to_numpy()
    assert (ds["x"] * 10 == ds["id"] * 10 + ds["year"]).all()
    with pytest.raises(TooManyRejects, match="x: '0,0' is not percent"):
        recordmill.build(tmp_path / "in", tmp_path / "no", parse=["x=percent"])


@pytest.mark.parametrize(
    ("declaration", "dtype", "cases"),
    [
        (
            'decimal(",", thousands=".")',
            "int64",
            {
                "9.007.199.254.740.993": 2**53 + 1,
                "9223372036854775807": 2**63 - 1,
                "12,0": 12,
                "12,5": None,
                "9223372036854775808": None,
            },
        ),
        ("decimal", "float32", {"16777216": 2.0**24, "16777217": None, "9" * 40: None}),
        (
            "decimal",
            "float64",
            {"0.1": 0.1, "9" * 400: None, "0." + "3" * 30: float("0." + "3" * 30)},
        ),
        ("percent", "float64", {"12.3%": 0.123, "0.1%": 0.001, "35 %": 0.35, "-7%": -0.07}),
        ('list("|", "int64")', "int64", {"+5|6": [5, 6], "9223372036854775808": None}),
        ('list("|", "float64")', "float64", {"1e999": None, "+.5": [0.5]}),
    ],
)
def test_parsed_integers_are_exact_or_rejected(
    declaration: str, dtype: str, cases: dict[str, Any]
) -> None:
    assert parse_texts(declaration, list(cases), dtype) == list(cases.values())


def test_parsed_times_with_an_offset_become_utc() -> None:
    texts = {
        "2024-01-02 03:04 +0000": datetime.datetime(2024, 1, 2, 3, 4, tzinfo=datetime.timezone.utc),
        "2024-01-02 03:04 +02:00": datetime.datetime(
            2024, 1, 2, 1, 4, tzinfo=datetime.timezone.utc
        ),
        "2024-01-02 03:04 -0530": datetime.datetime(
            2024, 1, 2, 8, 34, tzinfo=datetime.timezone.utc
        ),
        "2024-01-02 03:04 Z": datetime.datetime(2024, 1, 2, 3, 4, tzinfo=datetime.timezone.utc),
        "2024-01-02 03:04": None,
        "2024-01-02 03:04 +02": None,
        "2024-02-30 03:04 Z": None,
    }
    assert parse_texts('datetime("%Y-%m-%d %H:%M %z")', list(texts)) == list(texts.values())


@pytest.mark.parametrize(
    "declaration", ['date("")', 'decimal(",", thousands=",")', 'datetime("%z %Y")']
)
def test_impossible_parse_format_is_refused(declaration: str) -> None:
    with pytest.raises(UsageError, match=r"parse.*give COLUMN=decimal"):
        TextFormat.from_text(declaration)
