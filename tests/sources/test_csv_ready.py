"""Values that are read while it is told what a column is: counts, classes and odd values are those of telling alone,
and the columns those of reading afterwards; a column that changes its mind at any row is not taken for ready.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from recordmill.base import native
from recordmill.schemas.feature import Feature
from recordmill.sources.csv.dialect import CsvOptions, Dialect
from recordmill.sources.csv.fields import Tokenizer
from recordmill.sources.csv.infer import ColumnCounts, infer_values
from recordmill.sources.csv.parse import ParsedRows
from recordmill.sources.values.text_columns import NullTokens, TextFields, column_of_texts, convert_texts

TOKENS = ("", "NA", "nan")
DTYPES = (
    "int64",
    "float32",
    *(f"timestamp[{unit}{zone}]" for unit in ("s", "ms", "us", "ns") for zone in ("", ", UTC")),
)
wholes = st.one_of(st.integers(-99, 99), st.integers(-(2**63), 2**63 - 1)).map(str)
odd_wholes = st.sampled_from(
    [
        "0", "-0", "00", "007", "+5", "-", "16777216", "16777217", "33554432", "33554433", str(2**63),
        str(-(2**63)), "9" * 20,
    ]
)  # fmt: skip
reals = st.one_of(
    st.floats(width=32).map(str), st.floats().map(repr), st.decimals(-999, 999, places=2).map(str), st.just(".5")
)
odd_reals = st.sampled_from(
    [
        "1e39", "3.4028236e38", "1e-50", "0.1234567891", "5.", "00.5", "+1.5", "-inf", "Infinity", "NaN", "1e400",
        "1.5e", ".",
    ]
)  # fmt: skip
times = st.one_of(
    st.datetimes().map(lambda time: time.isoformat()),
    st.datetimes().map(lambda time: f"{time:%Y-%m-%d}" if time.year > 999 else "0999-01-01"),
    st.datetimes().map(lambda time: time.isoformat(sep=" ")[:19] + "Z"),
    st.sampled_from(
        ["2024-02-30", "2024-01-01T10:00:00.123456789", "1600-01-01", "2262-04-12", "2024-01-01T00:00+01:00"]
    ),
)
others = st.sampled_from(["x", "true", "NA", "nan", "", '"NA"', '""', '"5"', "2024", "1-2-3", "123e-00005"])


def columns_of(*kinds: st.SearchStrategy[str]) -> st.SearchStrategy[list[str]]:
    """Columns mostly of one kind, some with another value somewhere."""
    usual = st.one_of(st.lists(st.one_of(kind, st.just("")), max_size=12) for kind in kinds)
    return st.one_of(usual, st.tuples(usual, st.one_of(*kinds, others), usual).map(lambda p: [*p[0], p[1], *p[2]]))


columns = columns_of(wholes, odd_wholes, reals, odd_reals, times)
TOKENIZER = Tokenizer(Dialect.of(CsvOptions(header=False), ",", '"'), 2, 64)


@settings(max_examples=150, deadline=None)
@given(columns, columns, st.sampled_from(DTYPES))
@example(["1", "2", "x"], ["3"], "int64")
@example(["1.5", "16777217"], ["nan", "1e39"], "float32")
@example(["1e5"], ["123e-00005"], "float32")
def test_telling_and_reading_at_once(first: list[str], second: list[str], dtype: str) -> None:
    feature = Feature("a", dtype)
    alone, at_once = (ColumnCounts(TOKENS, [True, True], None) for _ in range(2))
    for texts in (first, second):
        data = np.frombuffer(bytearray("".join(f"{text},x\n" for text in texts), "utf-8"), np.uint8)
        rows = TOKENIZER.read(data, 0, len(data), final=True)
        assert alone.add(data, rows) == {}
        ready = at_once.add(data, rows, {0: feature})
        assert at_once.seen() == alone.seen()
        assert at_once.unexpected == alone.unexpected
        if 0 in ready:
            alike(ready[0], data, rows.starts[0], rows.infos[0], feature)


def alike(ready: ParsedRows, data: np.ndarray, starts: np.ndarray, infos: np.ndarray, feature: Feature) -> None:
    """That reading afterwards finds no fault and gives the same column."""
    again = TextFields.of(data, starts, infos, NullTokens.of(TOKENS))
    expected, faults = convert_texts(again, feature)
    assert faults == 0
    found = column_of_texts(
        TextFields(data, starts, infos, again.tokens, ready.valid, again.fault), feature, ready.nulls, ready.values
    )
    assert found.type == expected.type
    assert found.null_count == expected.null_count
    one, other = (column.fill_null(0).view(_bits(column.type)) for column in (found, expected))
    assert one.equals(other)  # NaN and -0.0 too


def _bits(kind: pa.DataType) -> pa.DataType:
    return pa.int32() if kind.bit_width == 32 else pa.int64()


@pytest.mark.parametrize(
    ("dtype", "text", "other"),
    [
        ("int64", "-7", "7.0"),
        ("float32", "-2.5", "1e39"),
        ("float32", "inf", "16777217"),
        ("timestamp[s]", "1600-01-01", "2024-01-01T00:00:00.5"),
        ("timestamp[ms, UTC]", "2024-01-01T00:00:00.5Z", "2024-01-01"),
    ],
)
def test_all_fields_before_the_first_other_one_are_read(dtype: str, text: str, other: str) -> None:
    texts = [text, "", text, other, text]
    data = np.frombuffer(bytearray("".join(f"{text},x\n" for text in texts), "utf-8"), np.uint8)
    rows = TOKENIZER.read(data, 0, len(data), final=True)
    counts, nulls = native.struct_column_counts(), np.zeros(len(TOKENS), np.int64)
    fields = data, rows.starts[0], rows.infos[0], NullTokens.of(TOKENS)
    done, ready = infer_values(*fields, Feature("a", dtype), counts, nulls)
    assert (done, ready.nulls, counts.values, nulls.tolist()) == (3, 1, 2, [1, 0, 0])
    collector = ColumnCounts(TOKENS, [True, True], None)
    few = TOKENIZER.read(data, 0, len("\n".join(texts[:3])) + 6, final=True)
    assert {*collector.add(data, few, {0: Feature("a", dtype)})} == {0}
