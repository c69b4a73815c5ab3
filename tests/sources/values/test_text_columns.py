"""Numbers, booleans and times in text have the values of Python."""

import functools
import re
import struct
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kit.csv_oracle import EPOCH, expected_class, expected_moment

import recordmill
from recordmill.base import native
from recordmill.schemas.feature import Feature
from recordmill.schemas.type_lattice import AWARE_CLASS, FLOAT32_CLASS, NANOS_CLASS, TEXT_CLASS
from recordmill.sources.csv.fields import Tokenizer
from recordmill.sources.csv.options import CsvOptions
from recordmill.sources.csv.parse import ColumnProfiler, ParsedColumn
from recordmill.sources.values.casting import cast_values
from recordmill.sources.values.text_columns import (
    NullTokens,
    TextFields,
    build_number_column,
    parse_values,
    to_float_dtype,
)

NO_LOSS, INEXACT_DECIMAL, INEXACT_INTEGER, OVERFLOW = (0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)
numbers = st.one_of(
    st.floats().map(repr),
    st.floats(width=32).map(
        lambda value: repr(np.float32(value)).removeprefix("np.float32(").removesuffix(")")
    ),
    st.from_regex(r"-?[0-9]{1,25}(\.[0-9]{0,25})?([eE][+-]?[0-9]{1,3})?", fullmatch=True),
    st.from_regex(r"-?0?\.[0-9]{1,25}", fullmatch=True),
    st.integers(-(2**70), 2**70).map(str),
)
texts = st.one_of(
    numbers,
    st.text("0123456789+-.eEnaifty tTrRuUlLsS:Z\u00e9", max_size=12),
    st.tuples(
        st.datetimes(), st.sampled_from("T "), st.sampled_from(["", "Z", "-11:30", "+05:45"])
    ).map(lambda parts: parts[0].isoformat(sep=parts[1]) + parts[2]),
    st.dates().map(str),
)
ROUNDED = """9007199254740993 5e-324 2.4703282292062327e-324 2.2250738585072011e-308 1.7976931348623158e308
1.7976931348623159e308 8.5 -0.0 12345678 1234567.8 12345678. .12345678 1234567890123456 123456789012345.6
12345678.90123456 1234567.890123456 -.123456789012345 1e-400 1e400 1e99999999999999999999"""
ODD = """007 +49 -0 . - 1e 1e+ 1_000 0x10 00.5 5. -.5 1.2.3 1234567.. 123.45678.9 1.23456789.1 12345678a a12345678
1234/678 1234:678 12345678:0123456 -inf +inf nano tRUE TrUE 9223372036854775807 9223372036854775808
-9223372036854775808 2020-01-01T00:00+24:00 0001-01-01T00:00+23:59 9999-12-31T23:59:59.999999999-23:59
2020-01-01T24:00 2020-01-01T00:00:60 2020-01-01T00:00:00. 2020-01-01T00:00:00.1234567890 2020-01-01t00:00:00z
0000-01-01 1900-02-29 2000-02-29 2020-1-01"""
LOSING = """0.1 16777217 16777216 16777217.0 41.985015101 0.10000000149011612 3.4028235e38 3.40282357e38 1e-40 1e-45
1e-50 8388608.5 9.999999e37 33554434 123456789e3 100000.312 100000.313"""


def examples(words: str) -> Callable[[Any], Any]:
    """Returns a decorator that also runs a property with each of these words."""
    return lambda test: functools.reduce(
        lambda decorated, word: example(word)(decorated), words.split(), test
    )


def column(*texts: str, gap: int = 12) -> TextFields:
    """Returns a column of texts between digits, which shows reads beyond its bounds.

    Args:
        gap: Number of digits before, between and after the texts. If it is 0, the first text is at
            the beginning of the buffer.
    """
    data, starts, encoded = b"9" * gap, [], [text.encode() for text in texts]
    for text in encoded:
        starts.append(len(data))
        data += text + b"9" * gap
    lengths = np.array([len(text) for text in encoded], np.int32)
    return TextFields.create(
        np.frombuffer(bytearray(data or b"9"), np.uint8),
        np.array(starts, np.int32),
        lengths,
        NullTokens.from_texts(()),
    )


def infer_fields(fields: native.TextFields, counts: native.ColumnCounts | None = None) -> None:
    counts, nulls = counts or native.ColumnCounts(), np.zeros(0, np.int64)
    native.read_fields(fields, native.FieldType(), None, None, None, counts, nulls)


def infer_text(text: str) -> tuple[int, tuple[int, int, int]]:
    """Returns the counts of a column with one text.

    Checks that the characters around the text do not change them.

    Returns:
        (classes of the text, (inexact decimals, inexact integers, values beyond float32)).
    """
    results = set()
    for gap in (0, 12):
        counts = native.ColumnCounts()
        infer_fields(column(text, gap=gap).native_fields, counts)
        assert (counts.values, counts.soft_nulls) == (1, 0)
        results.add(
            (
                counts.classes,
                (counts.inexact_decimals, counts.inexact_integers, counts.beyond_float32),
            )
        )
    assert len(results) == 1
    return results.pop()


def floats(*texts: str) -> list[float | None]:
    """Returns the values that the library parses.

    The result has None for each value that the library leaves to Python.
    """
    fields, out = column(*texts), np.empty(len(texts))
    fields.parse(
        native.FieldType(kind=native.FieldKind.FLOATS, mantissa_bits=53, overflow_limit=np.inf), out
    )
    assert fields.valid.all()
    assert native.FieldFault.WRONG_TYPE not in fields.fault
    return [
        None if fault == native.FieldFault.UNDECIDED else value
        for value, fault in zip(out.tolist(), fields.fault.tolist(), strict=True)
    ]


def bits(value: float) -> bytes:
    return struct.pack("<d", value)


@settings(max_examples=250, deadline=None)
@given(numbers)
@examples(ROUNDED)
@example("0" * 30 + "1" + "0" * 30 + "e-31")
def test_decimals_are_rounded_as_python_rounds(text: str) -> None:
    if re.search("nan|inf", text):
        return
    (value,) = floats(text)
    assert value is None or bits(value) == bits(float(text))


def test_common_decimals_are_parsed_without_python() -> None:
    random = np.random.default_rng(7)
    values = np.concatenate(
        [
            random.random(3000),
            random.standard_normal(3000) * 10.0 ** random.integers(-300, 300, 3000),
        ]
    )
    assert floats(*map(repr, values.tolist())) == values.tolist()


def test_decimals_halfway_between_floats_round_to_even() -> None:
    random = np.random.default_rng(7)
    integers = random.integers(2**52, 2**53, 2000).tolist()
    texts = [str(2 * integer + 1) for integer in integers] + [
        f"{integer}.5" for integer in integers
    ]
    assert floats(*texts) == list(map(float, texts))


def round_to_float(number: Fraction, digits: int, smallest: int) -> float:
    """Returns the nearest float of `digits` bits, with ties to even.

    Args:
        smallest: The normal floats begin at 2^smallest.
    """
    exponent = -1100
    while Fraction(2) ** (exponent + 1) <= number:
        exponent += 1
    step = Fraction(2) ** (max(exponent, smallest) - digits + 1)
    return float(round(number / step) * step)


FLOATS = {"float32": (24, -126), "float16": (11, -14), "bfloat16": (8, -126)}


@pytest.mark.parametrize("dtype", FLOATS)
def test_decimals_near_a_midpoint_are_rounded_once_for_narrow_floats(dtype: str) -> None:
    (digits, smallest), random, exact = FLOATS[dtype], np.random.default_rng(5), Context(prec=300)
    texts: list[str] = []
    for exponent in range(smallest - digits - 5, 30 if smallest < -99 else 5):
        numerator = 2 * int(random.integers(1 << (digits - 1), 1 << digits)) + 1
        middle = format(exact.divide(Decimal(numerator), exact.power(2, -exponent)), "f")
        middle = middle if "." in middle else middle + ".0"
        difference = Decimal(10) ** -(len(middle.partition(".")[2]) + int(random.integers(1, 9)))
        texts += [
            middle,
            *(str(exact.add(Decimal(middle), offset)) for offset in (difference, -difference)),
        ]
    feature = Feature("x", dtype)
    parsed, faults = parse_values(column(*texts), feature)
    expected = [round_to_float(Fraction(Decimal(text)), digits, smallest) for text in texts]
    triples = zip(texts, parsed.to_pylist(), expected, strict=True)
    assert faults == 0
    assert [row for row in triples if row[1] != row[2]] == []
    # Arrow decimals are rounded to the same floats.
    short_rows = [
        row for row, text in enumerate(texts) if len(text) < 50 and 0 < expected[row] < 1e9
    ]
    decimals = pa.array([Decimal(texts[row]) for row in short_rows], pa.decimal256(76, 58))
    assert len(short_rows) > 20
    result = cast_values(decimals, feature)
    assert result.bad_mask is None
    assert result.values.to_pylist() == [expected[row] for row in short_rows]


@pytest.mark.parametrize("dtype", FLOATS)
def test_float64_is_rounded_once_to_narrow_floats(dtype: str) -> None:
    (digits, smallest), random = FLOATS[dtype], np.random.default_rng(6)
    middles = (2 * random.integers(1 << (digits - 1), 1 << digits, 400) + 1) * 2.0 ** (
        random.integers(-12, 3, 400) - digits
    )
    numbers = np.concatenate([np.nextafter(middles, np.inf), middles, np.nextafter(middles, 0)])
    expected = [round_to_float(Fraction(number), digits, smallest) for number in numbers.tolist()]
    assert to_float_dtype(numbers, dtype).tolist() == expected
    assert to_float_dtype(-numbers, dtype).tolist() == [-value for value in expected]
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0])
    assert np.array_equal(to_float_dtype(special, dtype), special, equal_nan=True)


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_decimals_in_text_files_are_rounded_once(tmp_path: Path, kind: str) -> None:
    # This is just above the middle of 1 and the next float32.
    text = "1.00000005960464477539062500000000001"
    lines = f"x,y\n{text},1\n" if kind == "csv" else f'{{"x": {text}, "y": 1}}\n'
    (tmp_path / f"a.{kind}").write_text(lines)
    recordmill.build(tmp_path / f"a.{kind}", tmp_path / "out", dtypes={"x": "float32"})
    assert recordmill.open(tmp_path / "out")[0]["x"] == np.nextafter(np.float32(1), np.float32(2))


def test_decimals_of_every_power_of_ten_are_rounded_as_python_rounds() -> None:
    random = np.random.default_rng(7)
    texts = [
        f"{digits}e{power}"
        for power in range(-345, 311)
        for digits in random.integers(1, 2**63, 20).tolist()
    ]
    assert [value == float(text) for value, text in zip(floats(*texts), texts, strict=True)] == [
        True
    ] * len(texts)


@settings(max_examples=250, deadline=None)
@given(texts)
@examples(ODD)
def test_value_classes_and_times_equal_those_of_python(text: str) -> None:
    assert infer_text(text)[0] == (expected_class(text) if text else TEXT_CLASS)
    classes, moment = expected_moment(text)
    if moment is not None and not classes & NANOS_CLASS:
        assert timestamps(1000, bool(classes & AWARE_CLASS), text) == [
            (moment - EPOCH) // timedelta(microseconds=1)
        ]


def expected_loss(text: str) -> tuple[int, int, int]:
    value = float(text)
    if re.fullmatch("-?[0-9]+", text):
        return NO_LOSS if Decimal(float(np.float32(int(text)))) == int(text) else INEXACT_INTEGER
    if abs(value) >= float(np.finfo(np.float32).max) + 2.0**103:
        return OVERFLOW
    single = float(np.float32(value))
    exact = Decimal(text)
    if not exact or (single == value and value):
        return NO_LOSS
    digits = "".join(map(str, exact.as_tuple().digits)).strip("0")
    if len(digits) > 9:
        return INEXACT_DECIMAL
    rounded = Context(
        prec=len(digits), rounding=ROUND_HALF_EVEN, Emin=-999999, Emax=999999
    ).create_decimal(Decimal(single))
    return NO_LOSS if rounded == exact else INEXACT_DECIMAL


@settings(max_examples=250, deadline=None)
@given(numbers)
@examples(LOSING)
def test_digits_lost_as_float32_are_detected(text: str) -> None:
    if re.search("nan|inf", text):
        assert infer_text(text) == (FLOAT32_CLASS, NO_LOSS)
        return
    classes, loss = infer_text(text)
    if classes == TEXT_CLASS:
        return
    assert loss == expected_loss(text)


def timestamps(nanos_per_unit: int, is_aware: bool, *texts: str) -> list[int]:
    fields, out = column(*texts), np.empty(len(texts), np.int64)
    kind = native.FieldType(
        kind=native.FieldKind.TIMESTAMPS, nanos_per_unit=nanos_per_unit, is_aware=is_aware
    )
    assert fields.parse(kind, out) == 0
    assert fields.valid.all()
    return out.tolist()


def test_dates_of_all_years_are_parsed() -> None:
    days = range(1, datetime.max.toordinal(), 97)
    texts = [datetime.fromordinal(day).date().isoformat() for day in days]
    assert timestamps(10**9, False, *texts) == [(day - 719_163) * 86_400 for day in days]


def test_fields_outside_of_the_buffer_are_refused() -> None:
    fields = column("1", "2")
    for starts, infos in (
        ([0, 99], [1, 1]),
        ([0, -1], [1, 1]),
        ([0, 1], [1, native.FIELD_LENGTH_MASK]),
        ([0, 2**31 - 1], [1, 1]),
    ):
        bad_fields = fields.tokens.fields(
            fields.data, np.array(starts, np.int32), np.array(infos, np.int32)
        )
        with pytest.raises(IndexError, match="read_fields"):
            infer_fields(bad_fields)
    with pytest.raises(IndexError, match="join_texts"):  # the target is one byte too small
        native.join_texts(
            fields.data,
            fields.starts,
            fields.infos,
            None,
            None,
            np.empty(1, np.uint8),
            np.empty(3, np.int64),
        )


TOKENS = ("", "NA", "nan")
DTYPES = (
    "int64",
    "float32",
    *(f"timestamp[{unit}{zone}]" for unit in ("s", "ms", "us", "ns") for zone in ("", ", UTC")),
)
wholes = st.one_of(st.integers(-99, 99), st.integers(-(2**63), 2**63 - 1)).map(str)
odd_wholes = st.sampled_from(
    [
        "0",
        "-0",
        "00",
        "007",
        "+5",
        "-",
        "16777216",
        "16777217",
        "33554432",
        "33554433",
        str(2**63),
        str(-(2**63)),
        "9" * 20,
    ]
)
reals = st.one_of(
    st.floats(width=32).map(str),
    st.floats().map(repr),
    st.decimals(-999, 999, places=2).map(str),
    st.just(".5"),
)
odd_reals = st.sampled_from(
    [
        "1e39",
        "3.4028236e38",
        "1e-50",
        "0.1234567891",
        "5.",
        "00.5",
        "+1.5",
        "-inf",
        "Infinity",
        "NaN",
        "1e400",
        "1.5e",
        ".",
    ]
)
times = st.one_of(
    st.datetimes().map(lambda time: time.isoformat()),
    st.datetimes().map(lambda time: f"{time:%Y-%m-%d}" if time.year > 999 else "0999-01-01"),
    st.datetimes().map(lambda time: time.isoformat(sep=" ")[:19] + "Z"),
    st.sampled_from(
        [
            "2024-02-30",
            "2024-01-01T10:00:00.123456789",
            "1600-01-01",
            "2262-04-12",
            "2024-01-01T00:00+01:00",
        ]
    ),
)
others = st.sampled_from(
    ["x", "true", "NA", "nan", "", '"NA"', '""', '"5"', "2024", "1-2-3", "123e-00005"]
)


def columns_of(*kinds: st.SearchStrategy[str]) -> st.SearchStrategy[list[str]]:
    """Returns a strategy for columns with texts of one kind or empty texts.

    Some columns also have one value of another kind.
    """
    plain_columns = st.one_of(st.lists(st.one_of(kind, st.just("")), max_size=12) for kind in kinds)
    return st.one_of(
        plain_columns,
        st.tuples(plain_columns, st.one_of(*kinds, others), plain_columns).map(
            lambda parts: [*parts[0], parts[1], *parts[2]]
        ),
    )


columns = columns_of(wholes, odd_wholes, reals, odd_reals, times)
TOKENIZER = Tokenizer(CsvOptions(header=False).with_dialect(","), 2, 64)


@settings(max_examples=150, deadline=None)
@given(columns, columns, st.sampled_from(DTYPES))
@example(["1", "2", "x"], ["3"], "int64")
@example(["1.5", "16777217"], ["nan", "1e39"], "float32")
@example(["1e5"], ["123e-00005"], "float32")
def test_profiling_while_reading_equals_separate_passes(
    first: list[str], second: list[str], dtype: str
) -> None:
    feature = Feature("a", dtype)
    profiler, reading_profiler = (ColumnProfiler(TOKENS, [True, True], None) for _ in range(2))
    for texts in (first, second):
        data = np.frombuffer(bytearray("".join(f"{text},x\n" for text in texts), "utf-8"), np.uint8)
        rows = TOKENIZER.read(data, 0, len(data), is_final=True)
        assert profiler.add(data, rows) == {}
        parsed = reading_profiler.add(data, rows, {0: feature})
        assert reading_profiler.text_counts() == profiler.text_counts()
        assert reading_profiler.unexpected_values == profiler.unexpected_values
        if 0 in parsed:
            check_alike(parsed[0], data, rows.starts[0], rows.infos[0], feature)


def check_alike(
    parsed: ParsedColumn, data: np.ndarray, starts: np.ndarray, infos: np.ndarray, feature: Feature
) -> None:
    """Checks that a separate read has no fault and returns the same column."""
    fields = TextFields.create(data, starts, infos, NullTokens.from_texts(TOKENS))
    expected, faults = parse_values(fields, feature)
    assert faults == 0
    result = build_number_column(
        TextFields(data, starts, infos, fields.tokens, parsed.valid, fields.fault),
        feature,
        parsed.values,
    )
    assert result.type == expected.type
    assert result.null_count == expected.null_count
    result_bits, expected_bits = (
        column.fill_null(0).view(integer_type(column.type)) for column in (result, expected)
    )
    assert result_bits.equals(expected_bits)  # also compares NaN and -0.0


def integer_type(kind: pa.DataType) -> pa.DataType:
    return pa.int32() if kind.bit_width == 32 else pa.int64()
