"""Sizes and numbers of options are parsed exactly, and shown with units."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recordmill.base.errors import UsageError
from recordmill.base.sizes import (
    MAX_SIZE_BYTES,
    format_count,
    format_duration,
    format_percent,
    format_size,
    format_size_option,
    format_size_range,
    parse_image_size,
    parse_size,
    size_in_bytes,
    to_whole_number,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1000", 1000),
        (1000, 1000),
        (" 64kB ", 64_000),
        ("64KiB", 65_536),
        ("1.5 MiB", 3 << 19),
        ("2gib", 2 << 30),
        ("1t", 10**12),
        ("7b", 7),
    ],
)
def test_size_is_parsed_with_decimal_and_binary_units(text: str | int, size: int) -> None:
    assert parse_size(text, "memory") == size


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1iB", "1e3", "1 MiB 2", "1XB", "1,5MiB"])
def test_text_that_is_not_a_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"memory=.*give a size such as 128MiB, 2GiB or 500kB"):
        parse_size(text, "memory")


def test_size_beyond_int64_is_refused() -> None:
    assert parse_size(str(MAX_SIZE_BYTES), "memory") == MAX_SIZE_BYTES
    with pytest.raises(UsageError, match="give at most 4194304TiB"):
        parse_size("9999999TiB", "memory")
    with pytest.raises(UsageError, match="must be at least 1, not 0"):
        size_in_bytes("0", "memory")
    with pytest.raises(UsageError, match="must be at most"):
        size_in_bytes(MAX_SIZE_BYTES + 1, "memory")


@given(st.integers(1, 1 << 40))
def test_size_in_the_form_of_options_is_parsed_back_to_its_mebibytes(mebibytes: int) -> None:
    text = format_size_option(mebibytes << 20)
    assert parse_size(text, "memory") == mebibytes << 20
    assert format_size_option((mebibytes << 20) + 1) == f"{mebibytes}MiB"


@pytest.mark.parametrize(
    "size", ["224x96", "224X96", " 224×96 ", (224, 96), [224, 96], np.array([224, 96])]
)
def test_size_of_an_image_is_height_and_width(size: Any) -> None:
    assert parse_image_size(size) == (224, 96)


@pytest.mark.parametrize("size", ["", "224", "224x", "2x3x4", (1,), (1, 2, 3), (1.5, 2), None, 7])
def test_value_that_is_not_an_image_size_is_refused(size: Any) -> None:
    with pytest.raises(UsageError, match="write HEIGHTxWIDTH in pixels"):
        parse_image_size(size)


@pytest.mark.parametrize("number", [True, 1.0, "1", None, [1]])
def test_value_that_is_not_an_integer_is_refused(number: Any) -> None:
    with pytest.raises(UsageError, match="rows is a whole number, not"):
        to_whole_number(number, "rows")


def test_numpy_integer_within_the_limits_becomes_an_int() -> None:
    assert type(to_whole_number(np.int8(7), "rows", 7, 7)) is int
    with pytest.raises(UsageError, match="rows must be at least 8, not 7"):
        to_whole_number(np.int8(7), "rows", 8)
    with pytest.raises(UsageError, match="rows must be at most 6, not 7"):
        to_whole_number(7, "rows", None, 6)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (3 << 19, "1.5 MiB"),
        (5 << 50, "5120.0 TiB"),
    ],
)
def test_size_is_shown_with_its_largest_unit(size: int, text: str) -> None:
    assert format_size(size) == text


def test_range_of_sizes_is_exact_if_it_is_small() -> None:
    assert format_size_range(1, 1) == "1 byte"
    assert format_size_range(5000, 5000) == "5,000 bytes"
    assert format_size_range(0, 1023) == "0 to 1023 bytes"
    assert format_size_range(0, 1024) == "0 B to 1.0 KiB"


def test_shares_counts_and_durations_are_readable() -> None:
    assert format_percent(0.123456) == "12.35 %"
    assert (format_count(1, "record"), format_count(1000, "record")) == (
        "1 record",
        "1,000 records",
    )
    assert [format_duration(seconds) for seconds in (89, 90, 5399, 5400)] == [
        "89 s",
        "2 min",
        "90 min",
        "1.5 h",
    ]
